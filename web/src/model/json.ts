/** What a JSON tree shows of a value: its kind, a preview, its children page by page. */

import type { Json } from "../net/types";
import { shortened } from "./words";

export type Kind = "null" | "boolean" | "number" | "string" | "list" | "object";

export const CHILDREN_PAGE = 100;
export const TEXT_MAX = 240;

export function kindOf(value: Json): Kind {
  if (value === null) return "null";
  if (Array.isArray(value)) return "list";
  if (typeof value === "object") return "object";
  return typeof value as Kind;
}

export function sizeOf(value: Json): number {
  if (value === null || typeof value !== "object") return 0;
  return Array.isArray(value) ? value.length : Object.keys(value).length;
}

/** The children from one place on, with their names; a list's are its places. */
export function childrenOf(value: Json, limit: number): [string, Json][] {
  if (value === null || typeof value !== "object") return [];
  if (Array.isArray(value)) return value.slice(0, limit).map((child, at) => [String(at), child]);
  return Object.entries(value).slice(0, limit);
}

/** A value on one line of about `max` letters. */
export function preview(value: Json, max = 60): string {
  switch (kindOf(value)) {
    case "list":
    case "object":
      return previewOfChildren(value, max);
    case "string":
      return shortened(JSON.stringify(value), max);
    case "null":
    case "boolean":
    case "number":
      return String(value);
  }
}

function previewOfChildren(value: Json, max: number): string {
  const isList = Array.isArray(value);
  const [open, close] = isList ? ["[", "]"] : ["{", "}"];
  const shown: string[] = [];
  let room = max - 2;
  const children = childrenOf(value, 20);
  for (const [name, child] of children) {
    const nested = child !== null && typeof child === "object";
    const inner = nested ? (Array.isArray(child) ? "[…]" : "{…}") : preview(child, Math.max(8, room));
    const text = isList ? inner : `${name}: ${inner}`;
    if (text.length + 2 > room) {
      shown.push("…");
      return open + shown.join(", ") + close;
    }
    shown.push(text);
    room -= text.length + 2;
  }
  if (sizeOf(value) > children.length) shown.push("…");
  return open + shown.join(", ") + close;
}

/** Whether a value is small enough to stand open at once. */
export function opensAtOnce(value: Json, depth: number): boolean {
  return depth === 0 || (depth < 3 && sizeOf(value) <= 8);
}

/** The text of a value, as JSON with two spaces. */
export function pretty(value: Json): string {
  return JSON.stringify(value, null, 2) ?? "null";
}

/** Reads JSON that a person wrote; a mistake comes with its line and column. */
export function parse(text: string): { value: Json } | { mistake: string } {
  if (text.trim() === "") return { value: null };
  try {
    return { value: JSON.parse(text) as Json };
  } catch (error) {
    return { mistake: placeOf(text, (error as Error).message) };
  }
}

function placeOf(text: string, message: string): string {
  const position = /position (\d+)/.exec(message)?.[1];
  const line = /line (\d+) column (\d+)/.exec(message);
  if (line) return `line ${line[1]}, column ${line[2]}: this is not JSON`;
  const at = position === undefined ? text.length : Number(position);
  const before = text.slice(0, at).split("\n");
  return `line ${before.length}, column ${(before.at(-1) ?? "").length + 1}: this is not JSON`;
}
