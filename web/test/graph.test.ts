import { expect, test } from "vitest";
import { arrange, curve, fit, labelOf, merged, nodeWidth } from "../src/model/graph";

const ORDER = ["start", "charge", "reserve", "ship"];
const EDGES = [
  { from: "start", to: "charge", event: "payment.requested" },
  { from: "start", to: "reserve", event: "stock.requested" },
  { from: "charge", to: "ship", event: "payment.done" },
  { from: "reserve", to: "ship", event: "stock.done" },
];

function overlaps(a: { x: number; y: number; width: number; height: number }, b: typeof a): boolean {
  return Math.abs(a.x - b.x) < (a.width + b.width) / 2 && Math.abs(a.y - b.y) < (a.height + b.height) / 2;
}

test("every step stands behind those that it needs, and none on another", () => {
  for (const direction of ["right", "down"] as const) {
    const picture = arrange(ORDER, EDGES, direction);
    const at = new Map(picture.nodes.map((node) => [node.name, node]));
    for (const { from, to } of EDGES) {
      const [a, b] = [at.get(from), at.get(to)];
      if (direction === "right") expect(a!.x + a!.width / 2).toBeLessThan(b!.x - b!.width / 2);
      else expect(a!.y + a!.height / 2).toBeLessThan(b!.y - b!.height / 2);
    }
    for (const [place, one] of picture.nodes.entries()) {
      for (const other of picture.nodes.slice(place + 1)) expect(overlaps(one, other)).toBe(false);
      expect(one.x - one.width / 2).toBeGreaterThanOrEqual(0);
      expect(one.x + one.width / 2).toBeLessThanOrEqual(picture.width);
      expect(one.y + one.height / 2).toBeLessThanOrEqual(picture.height);
    }
  }
});

test("events between the same two steps are one line", () => {
  const lines = merged(["a", "b"], [{ from: "a", to: "b", event: "x" }, { from: "a", to: "b", event: "y" }, { from: "a", to: "b", event: "x" }]);
  expect(lines).toEqual([{ from: "a", to: "b", events: ["x", "y"] }]);
  expect(labelOf(["x", "y"])).toBe("x +1");
});

test("an edge to a step that is not there is no line", () => {
  expect(merged(["a"], [{ from: "a", to: "gone", event: "x" }])).toEqual([]);
});

test("names that a library may take for its own are drawn like any other", () => {
  const names = ["__proto__", "constructor", "toString", "\x00", "a\x01b"];
  const edges = names.slice(1).map((to, at) => ({ from: names[at]!, to, event: "e" }));
  const picture = arrange(names, edges, "right");
  expect(picture.nodes.map((node) => node.name)).toEqual(names);
  expect(picture.lines).toHaveLength(names.length - 1);
  for (const line of picture.lines) expect(line.path).toMatch(/^M[\d.]+ [\d.]+C/);
});

test("a flow of a thousand steps is drawn within a second", () => {
  const names = Array.from({ length: 1_000 }, (_, at) => `step-${at}`);
  const edges = names.slice(1).map((to, at) => ({ from: names[Math.floor(at / 3)]!, to, event: "e" }));
  const began = performance.now();
  const picture = arrange(names, edges, "right");
  expect(performance.now() - began).toBeLessThan(1_000);
  expect(picture.nodes).toHaveLength(1_000);
  expect(picture.lines).toHaveLength(999);
});

test("a circle in a broken flow does not hang the picture", () => {
  const picture = arrange(["a", "b"], [{ from: "a", to: "b", event: "x" }, { from: "b", to: "a", event: "y" }], "right");
  expect(picture.nodes).toHaveLength(2);
});

test("no steps make an empty picture", () => {
  expect(arrange([], [], "right")).toEqual({ width: 0, height: 0, nodes: [], lines: [] });
});

test("a node is as wide as its name, within bounds", () => {
  expect(nodeWidth("a")).toBe(132);
  expect(nodeWidth("x".repeat(200))).toBe(232);
});

test("a curve leaves and enters straight", () => {
  expect(curve([{ x: 0, y: 0 }, { x: 10, y: 20 }], "right")).toBe("M0 0C5 0 5 20 10 20");
  expect(curve([{ x: 0, y: 0 }, { x: 10, y: 20 }], "down")).toBe("M0 0C0 10 10 10 10 20");
});

test("a picture shows the names of events where they have room, and runs down where it is narrow", () => {
  expect(fit(ORDER, EDGES, 1_200)).toMatchObject({ direction: "right", labels: "shown", scale: 1 });
  expect(fit(ORDER, EDGES, 520)).toMatchObject({ direction: "right", labels: "hidden" });
  expect(fit(ORDER, EDGES, 330)).toMatchObject({ direction: "down" });
  for (const room of [240, 330, 520, 800, 2_000]) {
    const { picture, scale } = fit(ORDER, EDGES, room);
    expect(scale).toBeLessThanOrEqual(1);
    expect(scale).toBeGreaterThanOrEqual(0.78);
    expect(picture.nodes).toHaveLength(4);
  }
  expect(fit([], [], 500).picture.nodes).toEqual([]);
});
