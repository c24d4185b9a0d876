/** Attempts as bars along one axis of time, a row for each step. */

import type { Attempt } from "../net/types";

export interface Bar {
  attempt: Attempt;
  /** Milliseconds after the beginning of the axis. */
  queued: number | null;
  start: number;
  end: number;
  isOpen: boolean;
}

export interface Row {
  step: string;
  bars: Bar[];
}

export interface Axis {
  from: number;
  length: number;
}

function at(time: string | null): number | null {
  if (time === null) return null;
  const value = Date.parse(time);
  return Number.isFinite(value) ? value : null;
}

/** The rows in the order in which their steps began, and the axis that holds them all. */
export function timeline(attempts: Attempt[], startedAt: string, endedAt: string | null, now: number): { axis: Axis; rows: Row[] } {
  const from = at(startedAt) ?? now;
  let until = at(endedAt) ?? now;
  const rows = new Map<string, Row>();
  for (const attempt of attempts) {
    const queued = at(attempt.queued_at);
    const started = at(attempt.started_at);
    const ended = at(attempt.ended_at);
    const begin = started ?? queued ?? from;
    const isOpen = ended === null && endedAt === null;
    const end = ended ?? at(endedAt) ?? Math.max(now, begin);
    until = Math.max(until, end);
    const row = rows.get(attempt.step) ?? { step: attempt.step, bars: [] };
    row.bars.push({
      attempt,
      queued: queued !== null && queued < begin ? Math.max(0, queued - from) : null,
      start: begin - from,
      end: Math.max(end, begin) - from,
      isOpen,
    });
    rows.set(attempt.step, row);
  }
  const order = [...rows.values()].sort((a, b) => firstOf(a) - firstOf(b));
  return { axis: { from, length: Math.max(until - from, 1) }, rows: order };
}

function firstOf(row: Row): number {
  return Math.min(...row.bars.map((bar) => bar.queued ?? bar.start));
}
