/** Spans as people write them. */

const UNITS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** A span such as `90s` or `2h` in milliseconds. */
export function spanOf(text: string): number | null {
  const match = /^(\d{1,6})\s*(s|m|h|d)$/.exec(text.trim());
  return match ? Number(match[1]) * UNITS[match[2] as keyof typeof UNITS] : null;
}
