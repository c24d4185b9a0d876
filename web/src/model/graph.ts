/** Where the steps of a flow stand in its picture, and how the lines between them run. */

import { Graph, layout as dagre } from "@dagrejs/dagre";
import type { FlowEdge } from "../net/types";

export type Direction = "right" | "down";

export interface Node {
  name: string;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Line {
  from: string;
  to: string;
  events: string[];
  path: string;
  /** Where its label stands, in the middle. */
  label: { x: number; y: number };
}

export interface Picture {
  width: number;
  height: number;
  nodes: Node[];
  lines: Line[];
}

interface Point {
  x: number;
  y: number;
}

export const NODE_HEIGHT = 46;
const NODE_WIDTH_MIN = 132;
const NODE_WIDTH_MAX = 232;
/** A letter of a name at 13 px, and what stands beside the name. */
const LETTER = 7.3;
const BESIDE_NAME = 48;
/** A letter of a label at 11 px. */
const LABEL_LETTER = 6.2;
const LABEL_MAX = 22;
/** dagre takes seconds for more than these. */
const STEPS_ARRANGED_MAX = 250;
/** More names of events than these are a thicket. */
const LABELS_MAX = 40;
const GAP_RANK = 56;
const GAP_NODE = 22;
const MARGIN = 12;

export function nodeWidth(name: string): number {
  return Math.min(NODE_WIDTH_MAX, Math.max(NODE_WIDTH_MIN, Math.round(name.length * LETTER + BESIDE_NAME)));
}

/** How many letters of a name fit into its node. */
export function nameRoom(width: number): number {
  return Math.floor((width - BESIDE_NAME + LETTER) / LETTER);
}

/** The events of a line in a few letters. */
export function labelOf(events: string[]): string {
  const first = events[0] ?? "";
  const name = first.length > LABEL_MAX ? first.slice(0, LABEL_MAX - 1) + "…" : first;
  return events.length > 1 ? `${name} +${events.length - 1}` : name;
}

/** Edges between the same two steps are one line; an edge to a step that is not there is none. */
export function merged(steps: string[], edges: FlowEdge[]): { from: string; to: string; events: string[] }[] {
  const known = new Set(steps);
  const lines = new Map<string, { from: string; to: string; events: string[] }>();
  for (const { from, to, event } of edges) {
    if (!known.has(from) || !known.has(to)) continue;
    const key = JSON.stringify([from, to]);
    const line = lines.get(key) ?? { from, to, events: [] };
    if (!line.events.includes(event)) line.events.push(event);
    lines.set(key, line);
  }
  return [...lines.values()];
}

export type Labels = "shown" | "hidden";

export function arrange(steps: string[], edges: FlowEdge[], direction: Direction, labels: Labels = "shown"): Picture {
  const lines = merged(steps, edges);
  if (steps.length === 0) return { width: 0, height: 0, nodes: [], lines: [] };
  return steps.length > STEPS_ARRANGED_MAX
    ? arrangeInRanks(steps, lines, direction)
    : arrangeByDagre(steps, lines, direction, labels);
}

export interface Fitting {
  picture: Picture;
  direction: Direction;
  labels: Labels;
  scale: number;
}

/** The smallest that a picture is drawn: letters below it cannot be read. */
const SCALE_MIN = 0.78;
/** What counts as good enough not to look for another arrangement. */
const SCALE_GOOD = 0.92;
/** A picture that runs down may be so much higher than wide before it is no picture any more. */
const HEIGHT_MAX = 620;

/**
 * The picture that fits into `room` best: with the names of events if they have room, else without,
 * and downwards where it is narrow.
 */
export function fit(steps: string[], edges: FlowEdge[], room: number): Fitting {
  const tries: [Direction, Labels][] = [["right", "shown"], ["right", "hidden"], ["down", "shown"], ["down", "hidden"]];
  let best: Fitting | null = null;
  for (const [direction, labels] of tries) {
    if (labels === "shown" && edges.length > LABELS_MAX) continue;
    const picture = arrange(steps, edges, direction, labels);
    const scale = picture.width === 0 ? 1 : Math.min(1, room / picture.width);
    const found = { picture, direction, labels, scale: Math.max(SCALE_MIN, scale) };
    const isHigh = direction === "down" && picture.height * scale > HEIGHT_MAX;
    if (scale >= SCALE_GOOD && !isHigh) return found;
    if (best === null || scale > best.scale + 0.1) best = { ...found, scale };
    if (steps.length > STEPS_ARRANGED_MAX) break;
  }
  if (best === null) return { picture: arrange([], [], "right"), direction: "right", labels: "hidden", scale: 1 };
  return { ...best, scale: Math.max(SCALE_MIN, best.scale) };
}

type Bare = { from: string; to: string; events: string[] };

function arrangeByDagre(steps: string[], lines: Bare[], direction: Direction, labels: Labels): Picture {
  const graph = new Graph({ multigraph: false });
  graph.setGraph({
    rankdir: direction === "right" ? "LR" : "TB",
    nodesep: GAP_NODE,
    ranksep: labels === "hidden" ? GAP_RANK - 14 : direction === "right" ? GAP_RANK / 2 : 26,
    edgesep: 14,
    marginx: MARGIN,
    marginy: MARGIN,
  });
  // Names are the user's, and a graph library may treat some as its own: numbers cannot clash.
  const idOf = new Map(steps.map((name, at) => [name, String(at)]));
  for (const name of steps) graph.setNode(idOf.get(name) ?? "", { width: nodeWidth(name), height: NODE_HEIGHT });
  for (const line of lines) {
    const label = labelOf(line.events);
    const isShown = labels === "shown";
    const size = isShown ? { width: label.length * LABEL_LETTER + 10, height: 16, labelpos: "c" as const } : {};
    graph.setEdge(idOf.get(line.from) ?? "", idOf.get(line.to) ?? "", size);
  }
  dagre(graph);
  const nodes = steps.map((name) => {
    const placed = graph.node(idOf.get(name) ?? "") as { x: number; y: number; width: number; height: number };
    return { name, x: placed.x, y: placed.y, width: placed.width, height: placed.height };
  });
  const at = new Map(nodes.map((node) => [node.name, node]));
  const drawn = lines.map((line) => {
    const edge = graph.edge(idOf.get(line.from) ?? "", idOf.get(line.to) ?? "") as {
      points: Point[];
      x?: number;
      y?: number;
    };
    const points = between(at.get(line.from), at.get(line.to), edge.points.slice(1, -1), direction);
    const middle = points[Math.floor(points.length / 2)] ?? { x: 0, y: 0 };
    return { ...line, path: curve(points, direction), label: { x: edge.x ?? middle.x, y: edge.y ?? middle.y } };
  });
  const size = graph.graph() as { width?: number; height?: number };
  return { width: size.width ?? 0, height: size.height ?? 0, nodes, lines: drawn };
}

/** Step by step in ranks of the longest way from the start: no beauty, but at once. */
function arrangeInRanks(steps: string[], lines: Bare[], direction: Direction): Picture {
  const rankOf = ranks(steps, lines);
  const rows = new Map<number, string[]>();
  for (const name of steps) {
    const rank = rankOf.get(name) ?? 0;
    rows.set(rank, [...(rows.get(rank) ?? []), name]);
  }
  const nodes: Node[] = [];
  for (const [rank, names] of rows) {
    for (const [place, name] of names.entries()) {
      const along = rank * (NODE_WIDTH_MAX + GAP_RANK) + NODE_WIDTH_MAX / 2 + MARGIN;
      const across = place * (NODE_HEIGHT + GAP_NODE) + NODE_HEIGHT / 2 + MARGIN;
      const centre =
        direction === "right"
          ? { x: along, y: across }
          : { x: place * (NODE_WIDTH_MAX + GAP_NODE) + NODE_WIDTH_MAX / 2 + MARGIN, y: rank * (NODE_HEIGHT + GAP_RANK) + NODE_HEIGHT / 2 + MARGIN };
      nodes.push({ name, ...centre, width: nodeWidth(name), height: NODE_HEIGHT });
    }
  }
  const at = new Map(nodes.map((node) => [node.name, node]));
  const drawn = lines.map((line) => {
    const points = between(at.get(line.from), at.get(line.to), [], direction);
    const [a, b] = [points[0] ?? { x: 0, y: 0 }, points.at(-1) ?? { x: 0, y: 0 }];
    return { ...line, path: curve(points, direction), label: { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 } };
  });
  const width = Math.max(...nodes.map((node) => node.x + NODE_WIDTH_MAX / 2)) + MARGIN;
  const height = Math.max(...nodes.map((node) => node.y + NODE_HEIGHT / 2)) + MARGIN;
  return { width, height, nodes, lines: drawn };
}

function ranks(steps: string[], lines: Bare[]): Map<string, number> {
  const rankOf = new Map(steps.map((name) => [name, 0]));
  const next = new Map<string, string[]>();
  const open = new Map(steps.map((name) => [name, 0]));
  for (const { from, to } of lines) {
    next.set(from, [...(next.get(from) ?? []), to]);
    open.set(to, (open.get(to) ?? 0) + 1);
  }
  const ready = steps.filter((name) => open.get(name) === 0);
  for (let name = ready.pop(); name !== undefined; name = ready.pop()) {
    for (const to of next.get(name) ?? []) {
      rankOf.set(to, Math.max(rankOf.get(to) ?? 0, (rankOf.get(name) ?? 0) + 1));
      const left = (open.get(to) ?? 1) - 1;
      open.set(to, left);
      if (left === 0) ready.push(to);
    }
  }
  return rankOf;
}

/** From the side of one node to the side of the other, through the points in between. */
function between(from: Node | undefined, to: Node | undefined, through: Point[], direction: Direction): Point[] {
  if (!from || !to) return through;
  const [start, end] =
    direction === "right"
      ? [{ x: from.x + from.width / 2, y: from.y }, { x: to.x - to.width / 2, y: to.y }]
      : [{ x: from.x, y: from.y + from.height / 2 }, { x: to.x, y: to.y - to.height / 2 }];
  return [start, ...through, end];
}

/** A smooth line that leaves and enters its nodes straight. */
export function curve(points: Point[], direction: Direction): string {
  const [first, ...rest] = points;
  if (!first) return "";
  const n = (value: number) => String(Math.round(value * 10) / 10);
  let path = `M${n(first.x)} ${n(first.y)}`;
  let last = first;
  for (const point of rest) {
    if (direction === "right") {
      const middle = (last.x + point.x) / 2;
      path += `C${n(middle)} ${n(last.y)} ${n(middle)} ${n(point.y)} ${n(point.x)} ${n(point.y)}`;
    } else {
      const middle = (last.y + point.y) / 2;
      path += `C${n(last.x)} ${n(middle)} ${n(point.x)} ${n(middle)} ${n(point.x)} ${n(point.y)}`;
    }
    last = point;
  }
  return path;
}
