import { expect, test } from "vitest";
import { absolute, minuteAfter, moment, offset, relative, rough, span, ticks } from "../src/model/time";

const NOW = Date.parse("2026-11-16T07:00:00.000Z");

test("a span has one or two units", () => {
  const rows: [number, string][] = [
    [0, "0 ms"], [-5, "0 ms"], [340, "340 ms"], [999, "999 ms"], [1_000, "1.0 s"], [1_290, "1.2 s"], [9_999, "9.9 s"],
    [10_000, "10 s"], [59_999, "59 s"], [60_000, "1 min"], [123_000, "2 min 3 s"], [3_600_000, "1 h"],
    [3_720_000, "1 h 2 min"], [86_400_000, "1 d"], [273_600_000, "3 d 4 h"], [NaN, "–"],
  ];
  for (const [ms, text] of rows) expect(span(ms), String(ms)).toBe(text);
});

test("a time stands to now in its largest unit", () => {
  const rows: [number, string][] = [
    [0, "just now"], [-999, "just now"], [-1_000, "1 s ago"], [-59_999, "59 s ago"], [-60_000, "1 min ago"],
    [-7_200_000, "2 h ago"], [-86_400_000 * 3, "3 d ago"], [5_000, "in 5 s"], [3_600_000, "in 1 h"],
  ];
  for (const [away, text] of rows) expect(relative(NOW + away, NOW), String(away)).toBe(text);
});

test("a time that is far away is a date, with the year if it is another", () => {
  expect(relative(NOW - 40 * 86_400_000, NOW)).toBe("7 Oct");
  expect(relative(Date.parse("2030-01-01T12:00:00Z"), NOW)).toBe("1 Jan 2030");
});

test("the absolute time names the moment in UTC too", () => {
  expect(absolute(NOW)).toContain("2026-11-16T07:00:00.000Z");
});

test("an offset grows from milliseconds to hours", () => {
  expect([offset(0), offset(1_204), offset(123_000), offset(3_723_000), offset(-4)]).toEqual(["+0.000", "+1.204", "+2:03", "+1:02:03", "+0.000"]);
});

test("a moment names its day if it is another", () => {
  const hour = 3_600_000;
  expect([moment(NOW - hour, NOW), moment(NOW - 8 * hour, NOW)]).toEqual(["06:00:00", "15 Nov, 23:00"]);
  expect([minuteAfter(NOW + hour, NOW), minuteAfter(NOW + 20 * hour, NOW)]).toEqual(["08:00", "17 Nov, 03:00"]);
});

test("rough spans do not round up", () => {
  expect([rough(59_999), rough(119_999), rough(86_399_999)]).toEqual(["59 s", "1 min", "23 h"]);
});

test("ticks are round, begin at 0 and stay within the axis", () => {
  for (const width of [1, 7, 90, 999, 14_210, 61_000, 3_700_000, 90_000_000, 9e9]) {
    const all = ticks(width, 6);
    expect(all[0]).toBe(0);
    expect(all.length).toBeLessThanOrEqual(8);
    expect(all.at(-1)).toBeLessThanOrEqual(width);
  }
  expect(ticks(14_210, 6)).toEqual([0, 5_000, 10_000]);
});
