/** Deployments: what a page says of one, and what it asks for. */

import type { Conservation, DeploymentItem, DeployReport, Figures, RunList } from "../net/types";
import { count, plural } from "./words";

/** How a phase stands to whoever looks: it is over, under way, ahead, or the one that turned back. */
export type PhaseState = "done" | "now" | "ahead" | "turned";

export interface PhaseView {
  phase: string;
  state: PhaseState;
  at: string | null;
  /** How long it took; null while it is under way or ahead. */
  ms: number | null;
}

/** The phases that a deployment is going to pass, if all goes well. */
function wayOf(strategy: string): string[] {
  const way = ["plan", "drain", "deploy", "verify", "resume", "audit"];
  return strategy === "blue-green" ? way : way.filter((phase) => phase !== "drain");
}

export function hasEnded(item: DeploymentItem): boolean {
  return item.ended_at !== null;
}

/** The phases in their order: those that it was in, then those that are ahead. */
export function phasesOf(item: DeploymentItem): PhaseView[] {
  const entered = item.phases.filter((each) => each.phase !== "completed");
  const views: PhaseView[] = entered.map((each, at) => {
    // The end of the last phase is the beginning of the one that is left out here.
    const next = entered[at + 1]?.at ?? item.ended_at;
    const state = next === null ? "now" : entered[at + 1]?.phase === "rolling_back" ? "turned" : "done";
    const isEnd = next === null || each.phase === "rolled_back";
    return { phase: each.phase, state, at: each.at, ms: isEnd ? null : Date.parse(next) - Date.parse(each.at) };
  });
  const last = entered.at(-1)?.phase ?? "";
  if (hasEnded(item) || last === "rolled_back") return views;
  const ahead = (phases: string[]) => phases.map((phase): PhaseView => ({ phase, state: "ahead", at: null, ms: null }));
  if (last === "rolling_back") return [...views, ...ahead(["rolled_back"])];
  const way = wayOf(item.strategy);
  // A phase that is not known here has no place among those that are ahead.
  return [...views, ...ahead(way.slice(way.indexOf(last) + 1).filter((phase) => !entered.some((each) => each.phase === phase)))];
}

/** The word for how it stands, which its mark follows. */
export function standing(item: DeploymentItem): string {
  return item.verdict ?? item.phase;
}

/** How long it took, or null while it is under way. */
export function tookMs(item: DeploymentItem): number | null {
  return item.ended_at === null ? null : Date.parse(item.ended_at) - Date.parse(item.began_at);
}

export interface Progress {
  text: string;
  /** How much of it is done, from 0 to 1; null where nobody can tell. */
  share: number | null;
}

/** What a deployment does now, and how far it is with it. */
export function progressOf(item: DeploymentItem, now: number): Progress | null {
  const left = item.progress;
  if (hasEnded(item) || !left) return null;
  const begun = item.phases.at(-1)?.at ?? item.began_at;
  switch (item.phase) {
    case "drain": {
      const all = item.plan.finishing + item.plan.resuming;
      const text = left.open === 0 ? "no run is open any more" : `${plural(left.open, "open run")} left`;
      return { text, share: all === 0 ? null : within(1 - left.open / all) };
    }
    case "resume":
    case "rolling_back": {
      const all = item.released + left.held;
      const stopped = left.stopped > 0 ? `, ${count(left.stopped)} stopped` : "";
      return { text: `${count(item.released)} let go, ${count(left.held)} held${stopped}`, share: all === 0 ? null : within(item.released / all) };
    }
    case "verify":
    case "audit": {
      const text = item.phase === "verify" ? "smoke tests run on the new revision" : "runs of the new revision are counted";
      if (left.until === null) return { text, share: null };
      const [from, until] = [Date.parse(begun), Date.parse(left.until)];
      return { text, share: until > from ? within((now - from) / (until - from)) : null };
    }
    default:
      return null;
  }
}

function within(share: number): number {
  return Math.min(1, Math.max(0, share));
}

/** The latest first, and before them those that are under way. */
export function inOrder(items: DeploymentItem[]): DeploymentItem[] {
  const rank = (item: DeploymentItem) => (hasEnded(item) ? 0 : 1);
  return [...items].sort((a, b) => rank(b) - rank(a) || b.began_at.localeCompare(a.began_at));
}

export interface FigureRow {
  name: string;
  unit: string;
  before: number | null;
  after: number | null;
  digits: number;
  /** Whether less of it is better; null where neither is. */
  isLessBetter: boolean | null;
}

/** The figures that are compared; none if nothing was measured. */
export function figuresOf(report: DeployReport): FigureRow[] {
  if (!report.before && !report.after) return [];
  const row = (name: string, unit: string, of: (figures: Figures) => number, digits: number, isLessBetter: boolean | null): FigureRow => {
    // Where no run ended, nothing is known but that.
    const value = (figures: Figures | undefined) => (figures && (figures.count > 0 || isLessBetter === null) ? of(figures) : null);
    return { name, unit, before: value(report.before), after: value(report.after), digits, isLessBetter };
  };
  return [
    row("Runs", "", (each) => each.count, 0, null),
    row("Throughput", "/min", (each) => each.throughput_per_minute, 1, false),
    row("Error rate", "%", (each) => each.error_rate * 100, 2, true),
    row("Latency avg", "ms", (each) => each.latency_avg_ms, 0, true),
    row("Latency p50", "ms", (each) => each.latency_p50_ms, 0, true),
    row("Latency p99", "ms", (each) => each.latency_p99_ms, 0, true),
  ];
}

/** A figure with its digits, and thousands apart. */
export function figure(value: number | null, digits: number): string {
  if (value === null) return "–";
  const [whole = "", rest] = Math.abs(value).toFixed(digits).split(".");
  const sign = value < 0 && Number(value.toFixed(digits)) !== 0 ? "−" : "";
  return sign + whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",") + (rest === undefined ? "" : "." + rest);
}

/** How a figure changed, with its sign; and whether that is good, bad or neither. */
export function deltaOf(row: FigureRow): { text: string; tone: "good" | "bad" | "same" } {
  if (row.before === null || row.after === null) return { text: "–", tone: "same" };
  const delta = Number((row.after - row.before).toFixed(row.digits));
  if (delta === 0) return { text: "±0", tone: "same" };
  const text = (delta > 0 ? "+" : "") + figure(delta, row.digits);
  if (row.isLessBetter === null) return { text, tone: "same" };
  return { text, tone: delta < 0 === row.isLessBetter ? "good" : "bad" };
}

export interface Sum {
  received: number;
  terms: { name: string; value: number }[];
  holds: boolean;
  /** What is wrong, by its name; empty if it holds. */
  faults: { name: string; list: RunList }[];
}

/** The equation that shows that nothing was lost. */
export function sumOf(conservation: Conservation): Sum {
  const terms = (["finished", "running", "held", "refused"] as const).map((name) => ({ name, value: conservation[name] }));
  const faults = (["lost", "doubled", "unknown"] as const)
    .map((name) => ({ name, list: conservation[name] ?? { count: 0, runs: [] } }))
    .filter(({ list }) => list.count > 0);
  const sum = terms.reduce((all, term) => all + term.value, 0);
  return { received: conservation.received, terms, holds: faults.length === 0 && sum === conservation.received, faults };
}

/** The flow that a file is of, by the first line that says so; null if none does. */
export function flowOf(text: string): string | null {
  const match = /^\s*\{?\s*["']?flow["']?\s*:\s*["']?([^\s"',#}]+)/m.exec(text);
  return match?.[1] ?? null;
}

export interface Written {
  text: string;
  deploy: string;
  strategy: string;
  drain: string;
  note: string;
  force: boolean;
}

/** The flow and what to ask of the API for it, or what is wrong with what was written. */
export type NewDeployment = { flow: string; body: Record<string, string | boolean> } | { mistake: string };

export function deploymentOf(written: Written): NewDeployment {
  if (written.text.trim() === "") return { mistake: "The flow file is empty" };
  const flow = flowOf(written.text);
  if (flow === null) return { mistake: "The flow file does not name its flow: it begins with a line such as flow: order" };
  const body: Record<string, string | boolean> = { text: written.text };
  const parts = { deploy: written.deploy, strategy: written.strategy, drain_timeout: written.drain, note: written.note };
  for (const [name, value] of Object.entries(parts)) if (value.trim() !== "") body[name] = name === "deploy" ? value : value.trim();
  if (written.force) body["force"] = true;
  return { flow, body };
}
