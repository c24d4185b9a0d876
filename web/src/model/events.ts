/** The events of a run that are known here: the newest first, older ones as they are asked for. */

import type { EventItem } from "../net/types";

export interface EventList {
  /** Newest first, without gaps. */
  items: EventItem[];
  /** Whether the first event of the run is among them. */
  complete: boolean;
}

export const NONE: EventList = { items: [], complete: false };

/** With a page of older ones behind. */
export function withOlder(list: EventList, page: EventItem[], wasLast: boolean): EventList {
  const oldest = list.items.at(-1)?.seq ?? Infinity;
  const older = page.filter((event) => event.seq < oldest).sort((a, b) => b.seq - a.seq);
  const items = [...list.items, ...older];
  return { items, complete: wasLast || items.at(-1)?.seq === 1 };
}

/** With new ones in front; what is known already is not taken twice. */
export function withNewer(list: EventList, events: EventItem[]): EventList {
  const newest = list.items[0]?.seq ?? 0;
  const newer = events.filter((event) => event.seq > newest).sort((a, b) => b.seq - a.seq);
  return newer.length === 0 ? list : { ...list, items: [...newer, ...list.items] };
}

/** Which rows of a list can be seen, with some to spare on either side. */
export function visible(total: number, rowHeight: number, scrollTop: number, height: number, spare = 8): [number, number] {
  const first = Math.max(0, Math.floor(scrollTop / rowHeight) - spare);
  const last = Math.min(total, Math.ceil((scrollTop + height) / rowHeight) + spare);
  return [Math.min(first, total), last];
}
