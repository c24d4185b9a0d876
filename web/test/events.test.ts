import { expect, test } from "vitest";
import { NONE, visible, withNewer, withOlder } from "../src/model/events";
import { timeline } from "../src/model/timeline";
import { spanOf } from "../src/model/span";
import { roundUp } from "../src/ui/minutes";
import type { Attempt, EventItem } from "../src/net/types";

const event = (seq: number) => ({ seq }) as EventItem;
const seqs = (items: EventItem[]) => items.map((each) => each.seq);

test("older pages go behind, newer events in front, and none is there twice", () => {
  let list = withOlder(NONE, [event(10), event(9), event(8)], false);
  list = withNewer(list, [event(11)]);
  list = withNewer(list, [event(11), event(13), event(12)]);
  list = withOlder(list, [event(8), event(7), event(6)], false);
  expect(seqs(list.items)).toEqual([13, 12, 11, 10, 9, 8, 7, 6]);
  expect(list.complete).toBe(false);
  list = withOlder(list, [event(2), event(1)], false);
  expect(list.complete).toBe(true);
});

test("a log whose beginning was removed is complete with its last page", () => {
  expect(withOlder(NONE, [], true)).toEqual({ items: [], complete: true });
});

test("only the rows that can be seen are drawn, with some to spare", () => {
  expect(visible(10_000, 28, 0, 460)).toEqual([0, 25]);
  expect(visible(10_000, 28, 28_000, 460)).toEqual([992, 1_025]);
  expect(visible(5, 28, 0, 460)).toEqual([0, 5]);
  expect(visible(5, 28, 99_999, 460)).toEqual([5, 5]);
});

const START = "2026-11-16T07:00:00.000Z";
const at = (ms: number) => new Date(Date.parse(START) + ms).toISOString();
const attempt = (step: string, state: string, queued: number | null, started: number | null, ended: number | null): Attempt => ({
  step, attempt: 1, state, queued_at: queued === null ? null : at(queued), started_at: started === null ? null : at(started),
  ended_at: ended === null ? null : at(ended), instance: null, error: null,
});

test("attempts of a step are bars of one row, in the order in which the steps began", () => {
  const { axis, rows } = timeline(
    [attempt("b", "succeeded", 50, 60, 90), attempt("a", "retried", 0, 5, 20), attempt("a", "succeeded", 20, 30, 50)],
    START, at(100), Date.parse(at(5_000)),
  );
  expect(axis.length).toBe(100);
  expect(rows.map((row) => [row.step, row.bars.map((bar) => [bar.queued, bar.start, bar.end])])).toEqual([
    ["a", [[0, 5, 20], [20, 30, 50]]],
    ["b", [[50, 60, 90]]],
  ]);
});

test("an attempt of an open run lasts until now, and one of an ended run until its end", () => {
  const open = timeline([attempt("a", "running", 0, 10, null)], START, null, Date.parse(at(500)));
  expect(open.rows[0]?.bars[0]).toMatchObject({ start: 10, end: 500, isOpen: true });
  expect(open.axis.length).toBe(500);
  const ended = timeline([attempt("a", "lost", 0, 10, null)], START, at(200), Date.parse(at(500)));
  expect(ended.rows[0]?.bars[0]).toMatchObject({ start: 10, end: 200, isOpen: false });
});

test("a wait has no start and begins when it was queued", () => {
  const { rows } = timeline([attempt("a", "waiting", 40, null, null)], START, null, Date.parse(at(100)));
  expect(rows[0]?.bars[0]).toMatchObject({ queued: null, start: 40, end: 100 });
});

test("the scale of a plot is round and holds what it shows", () => {
  for (const value of [0, 1, 4, 5, 9, 11, 37, 99, 100, 101, 4_321]) expect(roundUp(value)).toBeGreaterThanOrEqual(value);
  expect([roundUp(3), roundUp(23), roundUp(41), roundUp(900)]).toEqual([4, 40, 50, 1_000]);
});

test("spans are read as they are written elsewhere", () => {
  expect([spanOf("90s"), spanOf(" 5m "), spanOf("2h"), spanOf("1d"), spanOf("5"), spanOf("-5m"), spanOf("1w")]).toEqual([90_000, 300_000, 7_200_000, 86_400_000, null, null, null]);
});
