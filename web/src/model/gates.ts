/** Gates of flows: what a page says of one, and what it asks for. */

import type { GateItem, RunStatus } from "../net/types";
import { count } from "./words";

/** Whether a run in this status has not ended. */
export function isOpen(status: RunStatus): boolean {
  return status === "held" || status === "running" || status === "waiting";
}

/** The gates that are not open, by flow. */
export function closed(gates: GateItem[]): Map<string, GateItem> {
  return new Map(gates.filter((gate) => gate.state !== "open").map((gate) => [gate.flow, gate]));
}

/** A gate that is not open, in few words. */
export function summary(gate: GateItem): string {
  return `${gate.state}, ${count(gate.held)} held`;
}

/** What to ask of the API, or what is wrong with what was written. */
export type Asked = { body: Record<string, string | number> } | { mistake: string };

const NUMBER_MAX = 1_000_000;

export function holdOf(written: { reason: string; max: string; span: string }): Asked {
  const body: Record<string, string | number> = { state: "holding" };
  const [reason, max, span] = [written.reason.trim(), written.max.trim(), written.span.trim()];
  if (reason !== "") body["reason"] = reason;
  if (max !== "") {
    if (!isNumber(max)) return { mistake: "At most is a whole number from 1 to 1000000" };
    body["hold_max"] = Number(max);
  }
  if (span !== "") {
    if (!/^(\d+(d|h|m|s|ms))+$/.test(span)) return { mistake: "A length of time is written 10m or 1h30m" };
    body["deadline"] = span;
  }
  return { body };
}

export function letGoOf(written: { rate: string }): Asked {
  const rate = written.rate.trim();
  if (rate === "") return { body: { state: "open" } };
  if (!isNumber(rate)) return { mistake: "A rate is a whole number from 1 to 1000000" };
  return { body: { state: "open", rate: Number(rate) } };
}

function isNumber(text: string): boolean {
  return /^\d{1,7}$/.test(text) && Number(text) >= 1 && Number(text) <= NUMBER_MAX;
}
