/** Texts of the API as parts that can be shown: code in backticks, times, ids. */

export type Part =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "time"; text: string; at: number }
  | { kind: "run"; text: string };

const PARTS =
  /`([^`\n]{1,200})`|(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)|\b([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b/g;

/** Splits a message: what stands in backticks is code, a time is a time, a run id is a link. */
export function parts(message: string): Part[] {
  const found: Part[] = [];
  let end = 0;
  for (const match of message.matchAll(PARTS)) {
    if (match.index > end) found.push({ kind: "text", text: message.slice(end, match.index) });
    end = match.index + match[0].length;
    const [, code, time, run] = match;
    if (code !== undefined) found.push({ kind: "code", text: code });
    else if (time !== undefined) found.push({ kind: "time", text: time, at: Date.parse(time) });
    else if (run !== undefined) found.push({ kind: "run", text: run });
  }
  if (end < message.length) found.push({ kind: "text", text: message.slice(end) });
  return found;
}

/** At most `max` letters, with an ellipsis for what is left out. */
export function shortened(text: string, max: number): string {
  const letters = Array.from(text.length > max * 2 ? text.slice(0, max * 2 + 2) : text);
  return letters.length <= max && text.length <= max * 2 ? text : letters.slice(0, max - 1).join("") + "…";
}

/** The beginning of a run id that tells it apart: the API takes it too. */
export function shortId(runId: string): string {
  return runId.slice(0, 13);
}

export function shortRevision(revision: string): string {
  return revision.slice(0, 8);
}

/** 1234567 as 1,234,567. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

export function plural(value: number, one: string, many = one + "s"): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
