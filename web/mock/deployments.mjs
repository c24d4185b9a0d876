// Made-up deployments: one that goes on, one that drains, good, rolled back and broken ones.

import { XSS, iso } from "./data.mjs";

const WAY = ["plan", "drain", "deploy", "verify", "resume", "audit"];
const REVISION = (letter) => letter.repeat(4) + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" + letter.repeat(28);

export function deployments(world) {
  if (world.empty) return [];
  const now = world.now;
  const runs = world.runs.filter((run) => run.flow === "order").slice(0, 40);
  const planned = (count) => runs.slice(0, count).map((run, at) => ({
    run_id: run.run_id, at: [["charge"], ["reserve", "charge"], ["ship"]][at % 3], fate: at % 7 === 6 ? "pinned" : at % 3 === 1 ? "finishes" : "resumes",
    steps: at % 7 === 6 || at % 3 === 1 ? [] : [["bill"], [], ["ship"]][at % 3], reason: at % 7 === 6 ? "step `gift` is not in the new revision" : null,
  }));
  const make = (id, flow, began, spans, more) => {
    let at = began;
    const phases = spans.map(([phase, ms]) => {
      const entered = { phase, at: iso(at) };
      at += ms;
      return entered;
    });
    const phase = phases.at(-1).phase;
    const ended = phase === "completed" || phase === "rolled_back";
    const item = {
      deployment_id: id, flow, from: REVISION("a"), to: REVISION("7"), strategy: "blue-green", phase, phases, author: "ada", note: null, driver: "web-1-a41c", began_at: iso(began),
      ended_at: ended ? phases.at(-1).at : null, verdict: null, rollback: null, smoke: [], held: 0, released: 0, checkpointed: 0,
      plan: { from: REVISION("a"), to: REVISION("7"), finishing: 0, resuming: 0, pinned: 0, runs: [], warnings: [] }, ...more.item,
    };
    return { item, report: { counts: { held: item.held, released: item.released, cancelled_held: 0, checkpointed: item.checkpointed, pinned: 1 }, ...more.report } };
  };
  const before = { count: 50, failed: 1, throughput_per_minute: 1834.2, error_rate: 0.02, latency_avg_ms: 412, latency_p50_ms: 380, latency_p99_ms: 1_240 };
  const after = { count: 61, failed: 0, throughput_per_minute: 1902.9, error_rate: 0, latency_avg_ms: 318, latency_p50_ms: 290, latency_p99_ms: 1_310 };
  const passed = [{ name: "ships", passed: true, mismatches: [] }, { name: "refunds a declined card", passed: true, mismatches: [] }];
  const probe = (name, mismatches) => ({ name, run_id: runs[3].run_id, mismatches });
  const done = [["plan", 40], ["drain", 8_100], ["deploy", 60], ["verify", 900], ["resume", 2_400], ["audit", 1_800], ["completed", 0]];
  const plan = { from: REVISION("a"), to: REVISION("7"), finishing: 9, resuming: 14, pinned: 3, runs: planned(26), warnings: ["no instance of the pool `green` has been alive for more than a minute"] };
  const all = [
    make("019a8c1102f4a1c0", "order", now - 14e3, [["plan", 40], ["drain", 8_100], ["deploy", 60], ["verify", 900], ["resume", 0]], {
      item: { held: 412, released: 287, checkpointed: 14, plan, smoke: passed, note: "new tax rules, asked for by finance", progress: { open: 3, held: 125, stopped: 0, until: null } },
      report: { before, conservation: { received: 512, finished: 280, running: 107, held: 125, refused: 0 }, smoke: [probe("ships", [])] },
    }),
    make("019a8c10ff21b007", "import.customers", now - 4e3, [["plan", 30], ["drain", 0]], {
      item: { plan: { ...plan, warnings: [] }, progress: { open: 11, held: 6, stopped: 0, until: iso(now + 26e3) }, author: null }, report: { before, conservation: { received: 6, finished: 0, running: 0, held: 6, refused: 0 } },
    }),
    make("019a7b0000000001", "order", now - 3 * 3600e3, done, {
      item: { verdict: "good", held: 1_204, released: 1_204, checkpointed: 14, plan, smoke: passed }, report: { before, after, conservation: { received: 1_690, finished: 1_688, running: 2, held: 0, refused: 0 }, smoke: [probe("ships", []), probe("refunds a declined card", [])] },
    }),
    make("019a7a0000000002", "order", now - 5 * 3600e3, [["plan", 40], ["drain", 3_100], ["deploy", 50], ["verify", 700], ["rolling_back", 1_300], ["rolled_back", 0]], {
      item: { verdict: "rolled_back", rollback: "smoke tests failed: ships", held: 220, released: 220, checkpointed: 2, plan, note: "ship by drone", author: "grace", smoke: [passed[1], { name: "ships", passed: false, mismatches: ["status: wanted completed, found failed: step `ship`: no carrier is set", "emits.shipped: wanted the event, found it was not emitted"] }] },
      report: { before, conservation: { received: 302, finished: 302, running: 0, held: 0, refused: 0 }, smoke: [probe("ships", [])] },
    }),
    make("019a790000000003", "nightly-report", now - 26 * 3600e3, [["plan", 20], ["deploy", 30], ["resume", 12], ["audit", 15_000], ["completed", 0]], {
      item: { strategy: "rolling", verdict: "alerting", author: null }, report: { before: { ...before, error_rate: 0 }, after: { ...after, error_rate: 0.0812, failed: 4 }, alerts: ["the error rate is 8.12 %, over 5.00 %"], conservation: { received: 49, finished: 49, running: 0, held: 0, refused: 0 } },
    }),
    make("019a780000000004", "heartbeat", now - 50 * 3600e3, done, {
      item: { verdict: "good", held: 90, released: 88 }, report: { before, after, conservation: { received: 120, finished: 118, running: 0, held: 0, refused: 1, lost: { count: 2, runs: [runs[0].run_id] }, doubled: { count: 1, runs: [runs[1].run_id] } } },
    }),
    make("019a770000000005", "x.script-img", now - 80 * 3600e3, [["plan", 40], ["rolling_back", 300], ["rolled_back", 0]], {
      item: { verdict: "rolled_back", rollback: `somebody asked for it: ${XSS[0]} ${XSS[8]}`, author: XSS[1], note: XSS.join(" "), strategy: "rolling", smoke: [{ name: XSS[2], passed: false, mismatches: XSS }], plan: { ...plan, warnings: XSS, runs: [{ run_id: runs[0].run_id, at: [XSS[0]], fate: XSS[1], steps: [XSS[2]], reason: XSS[3] }] } },
      report: { conservation: { received: 0, finished: 0, running: 0, held: 0, refused: 0 }, alerts: XSS },
    }),
  ];
  return all;
}

export const deploymentItems = ({ deployments: all }, flow) => all.map((each) => ({ ...each.item, progress: undefined })).filter((item) => !flow || item.flow === flow);

export const openDeployments = ({ deployments: all }) => all.filter(({ item }) => item.ended_at === null)
  .map(({ item: { deployment_id, flow, phase, began_at } }) => ({ deployment_id, flow, phase, began_at }));

export function checkpoints({ deployments: all }, flow) {
  const of = ({ item }) => item.plan.runs.slice(0, Math.min(6, item.checkpointed)).map((run, at) => ({
    run_id: run.run_id, flow: item.flow, deployment_id: item.deployment_id, from: item.from, steps: run.at.map((step) => ({ step, stage: "running", idempotency_key: `${run.run_id}/${step}/1` })),
    state: item.ended_at === null && at > 2 ? "pending" : at % 4 === 3 ? "pinned" : "resumed", created_at: item.began_at, expires_at: item.began_at,
  }));
  return all.filter(({ item }) => !flow || item.flow === flow).flatMap(of);
}

function refuse(status, code, message, help = null) {
  throw Object.assign(new Error(message), { status, code, help });
}

/** `/flows/{flow}/deployments` and what is below it. */
export function deploymentRoute(context, method, [flow, , id, verb], body) {
  if (!context.world.flows.has(flow)) refuse(404, "flow_not_found", `there is no flow \`${flow}\``);
  const of = context.deployments.filter((each) => each.item.flow === flow);
  if (method === "POST" && id === "plan") return { ...(of[0]?.item.plan ?? context.deployments[4].item.plan), warnings: [] };
  if (method === "POST" && id === undefined) return begin(context, flow, body);
  const found = of.find(({ item }) => id === "latest" || item.deployment_id.startsWith(id));
  if (!found) refuse(404, "deployment_not_found", `\`${flow}\` has no deployment \`${id}\``, "`GET /api/v1/deployments` lists them");
  if (verb === "report") return { ...found.report };
  if (method === "POST") {
    if (found.item.ended_at) refuse(409, "deploy_ended", `deployment ${found.item.deployment_id} has ended: ${found.item.phase}`, "deploy the revision that you want instead");
    if (verb === "rollback") {
      found.item.rollback = body.note ? `somebody asked for it: ${body.note}` : "somebody asked for it";
      enter(found.item, "rolling_back");
      setTimeout(() => {
        Object.assign(enter(found.item, "rolled_back"), { ended_at: iso(Date.now()), verdict: "rolled_back", released: found.item.held, progress: null });
      }, 1_500).unref();
    }
  }
  return found.item;
}

function enter(item, phase) {
  item.phase = phase;
  item.phases.push({ phase, at: iso(Date.now()) });
  return item;
}

/** A deployment that passes a phase a second. */
function begin(context, flow, body) {
  const open = context.deployments.find(({ item }) => item.flow === flow && item.ended_at === null);
  if (open) refuse(409, "deploy_in_progress", `deployment ${open.item.deployment_id} of this flow is under way`, "wait for its end, or roll it back");
  const now = Date.now();
  const item = {
    ...context.deployments[4].item, deployment_id: now.toString(16).padStart(12, "0") + "abcd", flow, strategy: body.strategy ?? "rolling", note: body.note ?? null, began_at: iso(now), ended_at: null, verdict: null, phase: "plan",
    phases: [{ phase: "plan", at: iso(now) }], progress: { open: 4, held: 2, stopped: 0, until: iso(now + 9e3) },
  };
  context.deployments.unshift({ item, report: { counts: {}, conservation: { received: 2, finished: 0, running: 0, held: 2, refused: 0 } } });
  const way = item.strategy === "blue-green" ? WAY : WAY.filter((phase) => phase !== "drain");
  const step = setInterval(() => {
    const next = item.phase === "rolling_back" || item.ended_at ? null : way[way.indexOf(item.phase) + 1];
    if (next) return enter(item, next);
    clearInterval(step);
    if (item.phase === "audit") Object.assign(enter(item, "completed"), { ended_at: iso(Date.now()), verdict: "good", progress: null });
  }, 1_000).unref();
  return item;
}
