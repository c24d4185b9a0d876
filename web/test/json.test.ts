import { expect, test } from "vitest";
import { childrenOf, kindOf, parse, preview, sizeOf } from "../src/model/json";
import { example, mistakes } from "../src/model/schema";
import { count, parts, plural, shortened } from "../src/model/words";

test("every value has its kind and its size", () => {
  expect([null, true, 1, "a", [], {}].map(kindOf)).toEqual(["null", "boolean", "number", "string", "list", "object"]);
  expect([sizeOf(null), sizeOf("abc"), sizeOf([1, 2]), sizeOf({ a: 1 })]).toEqual([0, 0, 2, 1]);
});

test("children come page by page, with their names", () => {
  expect(childrenOf([5, 6, 7], 2)).toEqual([["0", 5], ["1", 6]]);
  expect(childrenOf(JSON.parse('{"__proto__": 1, "b": 2}'), 9)).toEqual([["__proto__", 1], ["b", 2]]);
  expect(childrenOf("text", 9)).toEqual([]);
});

test("a preview is one line and not much longer than it may be", () => {
  expect(preview({ a: 1, b: "two", c: [1, 2], d: {} })).toBe('{a: 1, b: "two", c: […], d: {…}}');
  expect(preview([])).toBe("[]");
  const long = Object.fromEntries(Array.from({ length: 500 }, (_, at) => [`name${at}`, "x".repeat(500)]));
  expect(preview(long, 60).length).toBeLessThan(80);
  expect(preview("a\nb")).not.toContain("\n");
});

test("JSON that is wrong is told with its place", () => {
  expect(parse("")).toEqual({ value: null });
  expect(parse('{"a": [1, 2]}')).toEqual({ value: { a: [1, 2] } });
  for (const text of ["{", '{"a": }', "nonsense", '{\n  "a": 1,\n}']) {
    expect(parse(text), text).toEqual({ mistake: expect.stringMatching(/^line \d+, column \d+: this is not JSON$/) });
  }
});

const ORDER = {
  type: "object",
  required: ["orderId", "lines"],
  properties: {
    orderId: { type: "integer", minimum: 1 },
    lines: { type: "array", minItems: 1, items: { type: "object", required: ["sku"], properties: { sku: { type: "string" } } } },
    size: { enum: ["s", "m"] },
    note: { type: ["string", "null"], default: null },
  },
};

test("the example of a schema meets the schema", () => {
  const made = example(ORDER);
  expect(made).toEqual({ orderId: 1, lines: [{ sku: "" }], size: "s", note: null });
  expect(mistakes(ORDER, made)).toEqual([]);
  expect(example({ required: ["a"] })).toEqual({ a: null });
  expect(example(true)).toBeNull();
});

test("a schema that holds itself has an end", () => {
  const endless: Record<string, unknown> = { type: "object" };
  endless["properties"] = { again: endless };
  expect(JSON.stringify(example(endless as never)).length).toBeLessThan(500);
});

test("mistakes name their place and what is wanted", () => {
  expect(mistakes(ORDER, { orderId: 0.5, lines: [{}], size: "xl" })).toEqual([
    "input.orderId must be an integer, and is a number",
    "input.lines[0].sku is missing",
    'input.size must be one of "s", "m"',
  ]);
  expect(mistakes(ORDER, [])).toEqual(["input must be an object, and is an array"]);
  expect(mistakes(ORDER, { orderId: 0, lines: [] })).toEqual(["input.orderId must be at least 1"]);
  expect(mistakes({ type: "object", properties: {}, additionalProperties: false }, { x: 1 })).toEqual(["input.x is not known"]);
  expect(mistakes({ $ref: "#/elsewhere" }, 7)).toEqual([]);
});

test("a message is split into code, times, runs and text", () => {
  const id = "019a8b2c-1f3e-7000-8000-00000000abcd";
  const found = parts(`\`charge\` is due since 2026-11-16T07:00:00.123Z; in use by ${id}; <b>`);
  expect(found.map((part) => [part.kind, part.text])).toEqual([
    ["code", "charge"], ["text", " is due since "], ["time", "2026-11-16T07:00:00.123Z"], ["text", "; in use by "], ["run", id], ["text", "; <b>"],
  ]);
  expect(parts("a ` alone")).toEqual([{ kind: "text", text: "a ` alone" }]);
});

test("texts are cut by letters and not inside of one", () => {
  expect(shortened("abcdef", 4)).toBe("abc…");
  expect(shortened("abcd", 4)).toBe("abcd");
  expect(shortened("👍👍👍👍👍", 3)).toBe("👍👍…");
  expect(shortened("x".repeat(1_000_000), 10)).toBe("xxxxxxxxx…");
});

test("numbers have separators, and one is one", () => {
  expect([count(1234567), count(999), count(null), plural(1, "run"), plural(1200, "run")]).toEqual(["1,234,567", "999", "–", "1 run", "1,200 runs"]);
});
