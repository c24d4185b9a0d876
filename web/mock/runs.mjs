// The detail of made-up runs: steps, events, attempts, log lines.

import { XSS, iso } from "./data.mjs";

const at = (run, ms) => iso(Date.parse(run.started_at) + ms);

/** The steps of a run, by its status or by what was set for it. */
export function stepsOf(world, run) {
  const flow = world.flows.get(run.flow);
  const set = world.details.get(run.run_id);
  const total = run.duration_ms ?? 3_000;
  const failedAt = run.failure ? flow.steps.findIndex((step) => step.name === run.failure.step) : -1;
  return flow.steps.map((step, place) => {
    let state = set ? (set[step.name] ?? "pending") : "succeeded";
    if (!set && run.status === "failed") state = place < failedAt || place === 2 ? "succeeded" : place === failedAt ? "failed" : "skipped";
    if (!set && run.status === "cancelled") state = place === 0 ? "succeeded" : "cancelled";
    if (!set && run.status === "completed" && step.name === "refund") state = "skipped";
    if (!set && run.status === "completed" && step.name === "remind") state = "skipped";
    const started = state === "pending" || state === "skipped" ? null : Math.floor((total / (flow.steps.length + 1)) * place);
    const isDone = state === "succeeded" || state === "failed";
    const took = isDone ? Math.floor(total / (flow.steps.length + 1)) : null;
    const failures = state === "failed" ? 3 : state === "queued" && step.name === "charge" ? 3 : 0;
    const view = {
      name: step.name, state, attempts: state === "pending" || state === "skipped" ? 0 : failures > 0 ? failures : 1,
      failures, duration_ms: took, started_at: started === null ? null : at(run, started), ended_at: took === null ? null : at(run, started + took),
    };
    if (failures > 0) view.error = { kind: run.failure?.kind ?? "failed", message: run.failure?.message ?? "HTTP 503 from https://payments.example.com/charge" };
    if (state === "succeeded") view.result = step.name === "charge" ? { charged: true, cents: 4200, receipt: { number: "R-1001", lines: [{ sku: "A-1", amount: 2 }, { sku: "B-7", amount: 1 }] } } : null;
    return view;
  });
}

export function detailOf(world, run) {
  const jobs = stepsOf(world, run).filter((step) => ["queued", "running", "waiting"].includes(step.state))
    .map((step) => ({ step: step.name, queue: "default", attempt: step.attempts, due_at: run.updated_at, instance: step.state === "running" ? "web-1-a41c" : null, expires_at: null }));
  const evil = run.run_id === world.evil;
  return {
    ...run, version: 14, steps: stepsOf(world, run), steps_complete: true, jobs, fate: null, events_removed: false,
    input: evil ? Object.fromEntries(XSS.map((text, place) => [text, [text, place]])) : { orderId: 7, customer: { email: "ada@example.com", name: "Ada Lovelace" }, express: true, lines: [{ sku: "A-1", amount: 2, price: 12.5 }, { sku: "B-7", amount: 1, price: 17 }], note: "Leave it with the neighbour. ".repeat(14) },
    state: evil ? { [XSS[0]]: XSS[1] } : { parcel: "P-1001", carrier: "post" },
  };
}

export function attemptsOf(world, run) {
  const list = [];
  const total = Math.max(run.duration_ms ?? world.clock() - Date.parse(run.started_at), 1);
  for (const step of stepsOf(world, run)) {
    if (step.attempts === 0) continue;
    const begin = Date.parse(step.started_at);
    const end = step.ended_at ? Date.parse(step.ended_at) : null;
    if (step.failures > 0) {
      const slice = (end ?? begin + total * 0.6) - begin;
      for (let n = 1; n <= step.failures; n += 1) {
        const from = begin + (slice / step.failures) * (n - 1);
        const isLast = n === step.failures && step.state === "failed";
        list.push({ step: step.name, attempt: n, state: isLast ? "failed" : "retried", queued_at: iso(from), started_at: iso(from + slice * 0.05), ended_at: iso(from + slice * 0.2), instance: "web-1-a41c", error: step.error });
      }
      if (step.state === "queued") list.push({ step: step.name, attempt: step.failures + 1, state: "queued", queued_at: iso(begin + slice), started_at: null, ended_at: null, instance: null, error: null });
      continue;
    }
    const queued = iso(begin - Math.min(total * 0.03, 400));
    list.push({
      step: step.name, attempt: 1, state: step.state, queued_at: queued,
      started_at: step.state === "queued" || step.state === "waiting" ? null : step.started_at, ended_at: step.ended_at,
      instance: step.state === "waiting" ? null : "web-2-77be", error: null,
    });
  }
  return list;
}

/** One event of a run by its number; a long run has as many as it was told to. */
export function eventsOf(world, run) {
  const known = world.events.get(run.run_id);
  if (Array.isArray(known)) return known;
  const list = [];
  const push = (type, step, data, text, ms, attempt = null) => list.push({
    position: String(10_000 + list.length), run: run.run_id, seq: list.length + 1, type, step, attempt, token: attempt ? String(attempt + 4) : null,
    instance: attempt ? "web-1-a41c" : null, flow: run.flow, revision: run.revision, data, time: at(run, ms), text,
  });
  const input = detailOf(world, run).input;
  push("run.started", null, { input, key: run.key }, "input " + JSON.stringify(input), 0);
  for (const step of stepsOf(world, run)) {
    if (step.attempts === 0) continue;
    const begin = Date.parse(step.started_at) - Date.parse(run.started_at);
    push(step.state === "waiting" ? "step.waiting" : "step.queued", step.name, { inputs: [1] }, "", begin);
    if (step.state === "queued" || step.state === "waiting") continue;
    push("step.started", step.name, {}, "attempt 1 on web-1-a41c", begin + 60, 1);
    for (let n = 1; n < step.failures; n += 1) push("attempt.failed", step.name, { error: step.error, elapsed_us: 10_020, retry_after_ms: 400 * n }, `attempt ${n}: ${step.error.message}; next in ${400 * n} ms`, begin + 100 * n, n);
    if (step.state === "succeeded") {
      push("event.emitted", step.name, { event: step.name + ".done", data: { ok: true } }, `${step.name}.done {"ok":true}`, begin + (step.duration_ms ?? 0));
      push("step.succeeded", step.name, { elapsed_us: (step.duration_ms ?? 0) * 1000, result: step.result }, `in ${step.duration_ms} ms`, begin + (step.duration_ms ?? 0), 1);
    }
    if (step.state === "failed") push("step.failed", step.name, { error: step.error, elapsed_us: 10_000 }, step.error.message, begin + (step.duration_ms ?? 0), step.failures);
  }
  if (known?.count) {
    const total = run.duration_ms ?? 1_000;
    while (list.length < known.count - 1) {
      const n = list.length;
      push(n % 9 === 0 ? "state.set" : "event.emitted", "load", { event: `row.${n}`, data: { row: n, name: "customer " + n } }, `row.${n} {"row":${n},"name":"customer ${n}"}`, (total / known.count) * n);
    }
  }
  if (run.ended_at) push("run." + run.status, run.failure?.step ?? null, {}, run.failure ? `because of ${run.failure.step}` : "", run.duration_ms);
  world.events.set(run.run_id, list);
  return list;
}

export function logsOf(world, run) {
  const known = world.logs.get(run.run_id);
  if (known) return known;
  const list = [];
  const evil = run.run_id === world.evil;
  for (const step of stepsOf(world, run)) {
    if (step.attempts === 0) continue;
    const begin = Date.parse(step.started_at);
    const lines = evil ? XSS.map((text) => ["info", text]) : [["info", `${step.name} begins, once per key ${run.run_id.slice(0, 8)}/${step.name}`], ["debug", "connected to 10.0.0.7:5432 in 3 ms"], ["info", "done: " + JSON.stringify({ ok: true })]];
    if (step.failures > 0) lines.push(["warn", "the answer was 503; it will be tried again"], ["error", step.error.message]);
    for (const [level, text] of lines) list.push({ number: list.length + 1, time: iso(begin + list.length * 7), step: step.name, attempt: 1, level, text });
  }
  world.logs.set(run.run_id, list);
  return list;
}

export function whyOf(world, run) {
  const set = world.why.get(run.run_id);
  let reasons = set ? set(run) : [];
  if (reasons.length === 0 && run.status === "failed") {
    reasons = [{ step: run.failure.step, cause: "failed", error_kind: run.failure.kind, failures: 3, attempts_max: 3, handled: false, message: `\`${run.failure.step}\` failed after 3 attempts of 3: ${run.failure.message}`, help: `flowgate runs retry ${run.run_id}` },
      ...stepsOf(world, run).filter((step) => step.state === "skipped").map((step) => ({ step: step.name, cause: "skipped", message: `\`${step.name}\` was skipped: \`payment.done\` never came (\`charge\` failed)`, help: null }))];
  }
  if (reasons.length === 0 && run.status === "cancelled") reasons = [{ step: null, cause: "cancelled", message: "somebody cancelled it: not needed any more", help: `flowgate runs retry ${run.run_id}` }];
  if (reasons.length === 0) reasons = [{ step: null, cause: "completed", message: "all steps succeeded", help: null }];
  const strained = run.status === "running" ? [{ instance: "web-2-77be", degradation: "degraded", strained_by: "the store takes 310 ms to answer, over 250 ms" }] : [];
  return { run_id: run.run_id, flow: run.flow, status: run.status, reasons, strained, fate: null };
}
