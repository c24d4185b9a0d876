import { expect, test } from "vitest";
import { deltaOf, deploymentOf, figure, figuresOf, flowOf, inOrder, phasesOf, progressOf, sumOf, type FigureRow } from "../src/model/deployments";
import type { DeploymentItem, Figures } from "../src/net/types";

const at = (second: number) => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();

/** A deployment that entered a phase each second. */
function deployment(phases: string[], more: Partial<DeploymentItem> = {}): DeploymentItem {
  const phase = phases.at(-1) ?? "plan";
  return {
    deployment_id: "d1", flow: "order", from: "a", to: "b", strategy: "blue-green", phase, phases: phases.map((each, second) => ({ phase: each, at: at(second) })),
    author: null, note: null, driver: null, began_at: at(0), ended_at: phase === "completed" || phase === "rolled_back" ? at(phases.length - 1) : null, verdict: null,
    rollback: null, smoke: [], held: 0, released: 0, checkpointed: 0, plan: { from: "a", to: "b", finishing: 0, resuming: 0, pinned: 0, runs: [], warnings: [] }, ...more,
  };
}

const said = (item: DeploymentItem) => phasesOf(item).map((view) => `${view.phase} ${view.state}`);

test("phases that are ahead follow the one that is under way", () => {
  expect(said(deployment(["plan", "drain"]))).toEqual(["plan done", "drain now", "deploy ahead", "verify ahead", "resume ahead", "audit ahead"]);
  expect(said(deployment(["plan"], { strategy: "rolling" }))).toEqual(["plan now", "deploy ahead", "verify ahead", "resume ahead", "audit ahead"]);
});

test("a deployment that has ended has nothing ahead, and each phase its time", () => {
  const done = phasesOf(deployment(["plan", "deploy", "resume", "audit", "completed"], { strategy: "rolling" }));
  expect(done.map((view) => [view.phase, view.state, view.ms])).toEqual([["plan", "done", 1000], ["deploy", "done", 1000], ["resume", "done", 1000], ["audit", "done", 1000]]);
});

test("the phase that turned back is told apart", () => {
  expect(said(deployment(["plan", "drain", "deploy", "verify", "rolling_back"]))).toEqual(["plan done", "drain done", "deploy done", "verify turned", "rolling_back now", "rolled_back ahead"]);
  expect(said(deployment(["plan", "rolling_back", "rolled_back"]))).toEqual(["plan turned", "rolling_back done", "rolled_back done"]);
});

test("a phase that is not known here does no harm", () => {
  expect(said(deployment(["plan", "shadow"]))).toEqual(["plan done", "shadow now", "drain ahead", "deploy ahead", "verify ahead", "resume ahead", "audit ahead"]);
});

test("how far it is depends on the phase", () => {
  const left = (open: number, held: number, stopped = 0, until: string | null = null) => ({ open, held, stopped, until });
  const plan = { from: "a", to: "b", finishing: 6, resuming: 4, pinned: 0, runs: [], warnings: [] };
  const draining = deployment(["plan", "drain"], { plan, progress: left(4, 9) });
  expect(progressOf(draining, 0)).toEqual({ text: "4 open runs left", share: 0.6 });
  expect(progressOf(deployment(["plan", "drain"], { progress: left(0, 0) }), 0)).toEqual({ text: "no run is open any more", share: null });
  const resuming = deployment(["plan", "resume"], { released: 30, progress: left(0, 10, 2) });
  expect(progressOf(resuming, 0)).toEqual({ text: "30 let go, 10 held, 2 stopped", share: 0.75 });
  const verifying = deployment(["plan", "verify"], { progress: left(0, 0, 0, at(11)) });
  expect(progressOf(verifying, Date.parse(at(6)))?.share).toBe(0.5);
  expect(progressOf(verifying, Date.parse(at(60)))?.share).toBe(1);
  expect(progressOf(deployment(["plan", "completed"], { progress: null }), 0)).toBeNull();
  expect(progressOf(deployment(["plan"]), 0)).toBeNull();
});

test("what is under way comes first, then the latest", () => {
  const item = (deployment_id: string, began: number, ended: string | null) => deployment(["plan"], { deployment_id, began_at: at(began), ended_at: ended });
  const items = [item("old", 1, at(2)), item("open", 3, null), item("new", 9, at(10))];
  expect(inOrder(items).map((each) => each.deployment_id)).toEqual(["open", "new", "old"]);
});

const figures = (more: Partial<Figures>): Figures => ({ count: 0, failed: 0, throughput_per_minute: 0, error_rate: 0, latency_avg_ms: 0, latency_p50_ms: 0, latency_p99_ms: 0, ...more });
const counts = { held: 0, released: 0, cancelled_held: 0, checkpointed: 0, pinned: 0 };

test("figures are compared, and what is better depends on the figure", () => {
  const rows = figuresOf({ counts, before: figures({ count: 50, throughput_per_minute: 100, error_rate: 0.02, latency_p99_ms: 900 }), after: figures({ count: 60, throughput_per_minute: 120.25, error_rate: 0.01, latency_p99_ms: 1950 }) });
  const tones = Object.fromEntries(rows.map((row) => [row.name, `${deltaOf(row).text} ${deltaOf(row).tone}`]));
  expect(tones).toEqual({ Runs: "+10 same", Throughput: "+20.3 good", "Error rate": "−1.00 good", "Latency avg": "±0 same", "Latency p50": "±0 same", "Latency p99": "+1,050 bad" });
  expect(figuresOf({ counts })).toEqual([]);
});

test("what was not measured has no change", () => {
  const [runs] = figuresOf({ counts, before: figures({ count: 3 }) }) as [FigureRow];
  expect([figure(runs.before, 0), figure(runs.after, 0), deltaOf(runs).text]).toEqual(["3", "–", "–"]);
  const none = figuresOf({ counts, before: figures({ count: 3, throughput_per_minute: 60 }), after: figures({}) });
  expect(none.map((row) => deltaOf(row).text)).toEqual(["−3", "–", "–", "–", "–", "–"]);
});

test("figures keep their digits, and minus nothing is nothing", () => {
  expect([figure(1234567.891, 1), figure(-1200, 0), figure(-0.001, 2), figure(0, 2)]).toEqual(["1,234,567.9", "−1,200", "0.00", "0.00"]);
});

test("the sum holds when every start is in one place, and says where it does not", () => {
  const good = sumOf({ received: 10, finished: 6, running: 1, held: 2, refused: 1 });
  expect([good.holds, good.faults]).toEqual([true, []]);
  expect(good.terms.map((term) => `${term.name} ${term.value}`)).toEqual(["finished 6", "running 1", "held 2", "refused 1"]);
  expect(sumOf({ received: 10, finished: 9, running: 0, held: 0, refused: 0 }).holds).toBe(false);
  const lost = sumOf({ received: 2, finished: 2, running: 0, held: 0, refused: 0, lost: { count: 1, runs: ["r1"] }, doubled: { count: 1, runs: ["r2"] }, unknown: { count: 0, runs: [] } });
  expect([lost.holds, lost.faults.map((fault) => fault.name)]).toEqual([false, ["lost", "doubled"]]);
});

test("the flow of a file is found as YAML and as JSON", () => {
  const rows: [string, string | null][] = [
    ["flow: order\nsteps: {}", "order"],
    ["# a note\nflow: 'import.customers' # the name", "import.customers"],
    ['{"flow": "order", "steps": {}}', "order"],
    ['{\n  "flow": "order",\n', "order"],
    ["{ flow: order, steps: {} }", "order"],
    ["steps: {}", null],
    ["", null],
  ];
  for (const [text, flow] of rows) expect(flowOf(text), text).toBe(flow);
});

test("what is left out of a deployment is left to the server", () => {
  const written = { text: "flow: order\n", deploy: "", strategy: "blue-green", drain: " 30s ", note: "", force: false };
  expect(deploymentOf(written)).toEqual({ flow: "order", body: { text: "flow: order\n", strategy: "blue-green", drain_timeout: "30s" } });
  const forced = deploymentOf({ ...written, strategy: "", drain: "", deploy: "strategy: rolling\n", note: "back", force: true });
  expect(forced).toEqual({ flow: "order", body: { text: "flow: order\n", deploy: "strategy: rolling\n", note: "back", force: true } });
  expect(deploymentOf({ ...written, text: "steps: {}" })).toHaveProperty("mistake");
  expect(deploymentOf({ ...written, text: "  " })).toHaveProperty("mistake");
});
