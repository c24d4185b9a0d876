// A made-up flowgate for work on the dashboard: node mock/server.mjs [PORT] [FOLDER]
//
// It serves the built dashboard with the same headers as the real one, and answers every route of
// the contract from made-up data. Actions change that data until it is started again.

import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { XSS, iso, make } from "./data.mjs";
import { checkpoints, deploymentItems, deploymentRoute, deployments, openDeployments } from "./deployments.mjs";
import { attemptsOf, detailOf, eventsOf, logsOf, stepsOf, whyOf } from "./runs.mjs";

const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";
const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript; charset=utf-8", css: "text/css; charset=utf-8", svg: "image/svg+xml" };

export function start(port, folder, options = {}) {
  const world = make(Date.now());
  world.clock = () => Date.now();
  world.empty = options.empty ?? false;
  world.login = options.login ?? false;
  if (world.empty) {
    world.runs = [];
    world.flows.clear();
  }
  const live = new Set();
  const streams = new Map();
  const context = { world, live, streams, queues: queues(world), gates: gates(world), schedules: schedules(world), dead: new Set() };
  context.deployments = deployments(world);
  const ticker = setInterval(() => move(context), 1_500);
  const beat = setInterval(() => {
    for (const client of live) client.write(`event: tick\ndata: ${JSON.stringify({ now: iso(Date.now()) })}\n\n`);
  }, 5_000);
  const server = createServer((request, response) => {
    handle(context, folder, request, response).catch((error) => {
      const code = error.code ?? "internal";
      send(response, error.status ?? 500, { error: { code, message: error.message, path: null, help: error.help ?? null } });
    });
  });
  server.on("close", () => {
    clearInterval(ticker);
    clearInterval(beat);
  });
  return new Promise((resolve) => server.listen(port, "127.0.0.1", () => resolve({ server, world, context })));
}

function send(response, status, body) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(body === undefined ? "" : JSON.stringify(body));
}

function refuse(status, code, message, help = null) {
  throw Object.assign(new Error(message), { status, code, help });
}

async function bodyOf(request) {
  let text = "";
  for await (const chunk of request) text += chunk;
  return text === "" ? {} : JSON.parse(text);
}

async function handle(context, folder, request, response) {
  const url = new URL(request.url, "http://127.0.0.1");
  if (!url.pathname.startsWith("/api/v1/")) return file(folder, url.pathname, response);
  const path = url.pathname.slice("/api/v1/".length).split("/").map(decodeURIComponent);
  const body = request.method === "GET" ? null : await bodyOf(request);
  const { world } = context;
  if (path[0] === "session") return session(world, request.method, body, response);
  if (world.login) refuse(401, "token_missing", "the request has no token", "log in, or send `Authorization: Bearer TOKEN`");
  const answer = route(context, request.method, path, url.searchParams, body, request, response);
  if (answer !== STREAMED) send(response, answer?.existed === false ? 201 : 200, answer);
}

function session(world, method, body, response) {
  if (method === "POST") {
    if (body.token !== "secret") refuse(401, "token_invalid", "the token is not known here", "look at [tokens] in flowgate.toml");
    world.login = false;
    return send(response, 204);
  }
  if (method === "DELETE") {
    world.login = true;
    return send(response, 204);
  }
  return send(response, 200, { authenticated: !world.login, scopes: ["read", "run", "deploy", "admin"], login_required: world.login, version: "0.1.0", store: "sqlite" });
}

function file(folder, path, response) {
  const name = /^\/[\w.-]+\.(js|css|svg)$/.test(path) ? path.slice(1) : "index.html";
  const text = readFileSync(join(folder, name));
  response.writeHead(200, { "Content-Type": TYPES[name.split(".").at(-1)], "Content-Security-Policy": CSP, "X-Content-Type-Options": "nosniff" });
  response.end(text);
}

const STREAMED = Symbol("streamed");

function route(context, method, path, query, body, request, response) {
  const [noun, name, verb] = path;
  const { world } = context;
  switch (noun) {
    case "overview":
      return overview(context);
    case "runs":
      return runs(context, method, name, verb, query, body, request, response);
    case "live":
      return stream(response, context.live);
    case "flows":
      if (verb === "gate") return gateRoute(context, method, name, body);
      if (verb === "deployments") return deploymentRoute(context, method, path.slice(1), body, query, response);
      return flows(context, name, verb, query);
    case "gates":
      return { items: [...context.gates.values()].map((gate) => gateOf(context, gate)) };
    case "deployments":
      return { items: deploymentItems(context, query.get("flow")) };
    case "checkpoints":
      return { items: checkpoints(context, query.get("flow")) };
    case "schedules":
      return schedulesRoute(context, method, name, verb, query, body);
    case "queues":
      return queuesRoute(context, method, name, body);
    case "dead":
      return dead(context, method, name, query, body);
    case "subscribers":
      return subscribers(world, name, verb);
    case "instances":
      return world.empty ? { items: [], workers: [] } : { items: instances(world), workers: workers() };
    case "leader":
      return leader(world);
    case "doctor":
      return doctor();
    default:
      return refuse(404, "not_found", `there is no route /${path.join("/")}`);
  }
}

function stream(response, set) {
  response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
  response.write(": here\n\n");
  set.add(response);
  response.on("close", () => set.delete(response));
  return STREAMED;
}

const counts = (runs) => Object.fromEntries(["held", "running", "waiting", "completed", "failed", "cancelled"].map((status) => [status, runs.filter((run) => run.status === status).length]));
const isOpen = (run) => ["held", "running", "waiting"].includes(run.status);

function overview(context) {
  const { world, queues: all, schedules: due } = context;
  const now = Date.now();
  const minutes = Array.from({ length: 60 }, (_, place) => {
    const at = Math.floor(now / 60e3) * 60e3 - (59 - place) * 60e3;
    const wave = world.empty ? 0 : Math.round(18 + 9 * Math.sin(place / 6) + (place * 7919) % 11);
    const failed = world.empty || (place * 31) % 9 ? 0 : (place % 4) + 1;
    return { at: iso(at), started: wave, completed: Math.max(0, wave - failed - (place % 3)), failed };
  });
  const open = world.runs.filter((run) => isOpen(run) && run.status !== "held" && now - Date.parse(run.started_at) > 60e3);
  const stuck = open.slice(0, 10).map((run) => {
    const reason = whyOf(world, run).reasons[0];
    return { run_id: run.run_id, flow: run.flow, status: run.status, started_at: run.started_at, age_ms: now - Date.parse(run.started_at), step: reason.step, cause: reason.cause, message: reason.message, help: reason.help };
  });
  return {
    now: iso(now), version: "0.1.0", store: "sqlite", instance: "web-1-a41c", runs: counts(world.runs), minutes, stuck, stuck_total: open.length,
    failures: world.runs.filter((run) => run.status === "failed").slice(0, 5), dead: world.runs.filter((run) => run.status === "failed").length,
    queues: all, leader: leader(world).leader, instances: world.empty ? [] : instances(world),
    schedules: due.slice(0, 5).map((each) => ({ name: each.name, flow: each.flow, next_at: each.next_at, paused: each.paused })), deployments: openDeployments(context),
  };
}

function findRun(world, name) {
  const run = world.runs.find((each) => each.run_id.startsWith(name));
  return run ?? refuse(404, "run_not_found", `there is no run \`${name}\``, "see `flowgate runs list`");
}

function matches(run, query) {
  const status = query.get("status")?.split(",");
  const search = query.get("search");
  return (
    (!query.get("flow") || run.flow === query.get("flow")) && (!status || status.includes(run.status)) &&
    query.getAll("tag").every((tag) => run.tags[tag.split("=")[0]] === tag.slice(tag.indexOf("=") + 1)) &&
    (!query.get("since") || Date.now() - Date.parse(run.started_at) < spanMs(query.get("since"))) &&
    (!search || run.run_id.startsWith(search) || run.key === search)
  );
}

function spanMs(text) {
  const [, value, unit] = /^(\d+)([smhd])$/.exec(text) ?? refuse(400, "query_param", `\`since\` is no time: ${text}`, "write a span such as 1h, or a time");
  return Number(value) * { s: 1e3, m: 60e3, h: 3600e3, d: 86400e3 }[unit];
}

function page(items, query, total = items.length) {
  const limit = Math.min(200, Number(query.get("limit") ?? 50));
  const from = Number(query.get("after") ?? 0);
  return { items: items.slice(from, from + limit), total, next: from + limit < items.length ? String(from + limit) : null };
}

function runs(context, method, name, verb, query, body, request, response) {
  const { world } = context;
  if (name === undefined) return method === "POST" ? startRun(context, body) : page(world.runs.filter((run) => matches(run, query)), query);
  if (name === "bulk") return bulk(context, body);
  const run = findRun(world, name);
  if (method === "POST") return act(context, run, verb, body);
  switch (verb) {
    case undefined:
      return detailOf(world, run);
    case "events":
      return events(world, run, query);
    case "timeline":
      return { items: attemptsOf(world, run) };
    case "logs": {
      const lines = logsOf(world, run).filter((line) => line.number > Number(query.get("after") ?? 0) && (!query.get("step") || line.step === query.get("step")));
      const limit = Number(query.get("limit") ?? 50);
      return { items: lines.slice(0, limit), next: lines.length > limit ? lines[limit - 1].number : null };
    }
    case "why":
      return whyOf(world, run);
    case "stream":
      return runStream(context, run, query, request, response);
    default:
      return refuse(404, "not_found", "there is no such route");
  }
}

function events(world, run, query) {
  const desc = query.get("order") === "desc";
  const limit = Math.min(1000, Number(query.get("limit") ?? 50));
  let list = eventsOf(world, run);
  if (query.get("before")) list = list.filter((event) => event.seq < Number(query.get("before")));
  if (query.get("after")) list = list.filter((event) => event.seq > Number(query.get("after")));
  const items = desc ? list.slice(-limit).reverse() : list.slice(0, limit);
  return { items, next: list.length > limit ? items.at(-1).seq : null };
}

function runStream({ world, streams }, run, query, request, response) {
  const set = streams.get(run.run_id) ?? new Set();
  streams.set(run.run_id, set);
  stream(response, set);
  const after = Number(request.headers["last-event-id"] ?? query.get("after") ?? 0);
  for (const event of eventsOf(world, run)) if (event.seq > after) response.write(`id: ${event.seq}\nevent: event\ndata: ${JSON.stringify(event)}\n\n`);
  if (!isOpen(run)) {
    response.write(`event: end\ndata: ${JSON.stringify({ status: run.status })}\n\n`);
    response.end();
  }
  return STREAMED;
}

/** Writes an event of a run, and tells whoever follows it. */
function tell({ world, live, streams }, run, type, step, data, text) {
  const list = eventsOf(world, run);
  const event = { position: String(20_000 + list.length), run: run.run_id, seq: list.length + 1, type, step, attempt: null, token: null, instance: "web-1-a41c", flow: run.flow, revision: run.revision, data, time: iso(Date.now()), text };
  list.push(event);
  for (const client of streams.get(run.run_id) ?? []) client.write(`id: ${event.seq}\nevent: event\ndata: ${JSON.stringify(event)}\n\n`);
  const news = { runs: [{ run_id: run.run_id, flow: run.flow, status: run.status, type, at: event.time }], missed: 0 };
  for (const client of live) client.write(`event: runs\ndata: ${JSON.stringify(news)}\n\n`);
}

function end(context, run, status) {
  run.status = status;
  run.ended_at = iso(Date.now());
  run.duration_ms = Date.now() - Date.parse(run.started_at);
  tell(context, run, "run." + status, null, {}, "");
  for (const client of context.streams.get(run.run_id) ?? []) {
    client.write(`event: end\ndata: ${JSON.stringify({ status })}\n\n`);
    client.end();
  }
}

function startRun(context, body) {
  const { world } = context;
  const flow = world.flows.get(body.flow) ?? refuse(404, "flow_not_found", `there is no flow \`${body.flow}\``);
  if (flow.flow === "order" && !body.input?.orderId) refuse(422, "input_invalid", "the input does not meet the schema: `orderId` must be at least 1", "see the schema of the flow");
  const known = body.key && world.runs.find((run) => run.key === body.key);
  if (known) return { run_id: known.run_id, flow: known.flow, status: known.status, existed: true };
  const isHeld = (context.gates.get(flow.flow) ?? OPEN).state !== "open";
  const now = Date.now();
  const time = now.toString(16).padStart(12, "0");
  const run = {
    run_id: `${time.slice(0, 8)}-${time.slice(8)}-7000-8000-${String(world.runs.length).padStart(12, "0")}`, flow: flow.flow, revision: flow.revision, status: isHeld ? "held" : "running",
    started_at: iso(now), updated_at: iso(now), ended_at: null, duration_ms: null, key: body.key ?? null, tags: body.tags ?? {}, retry_of: body.retry_of ?? null, failure: null,
  };
  world.runs.unshift(run);
  world.details.set(run.run_id, isHeld ? {} : Object.fromEntries([[flow.steps[0].name, "running"]]));
  tell(context, run, "run.started", null, { input: body.input ?? null }, "");
  world.why.set(run.run_id, (each) => stepsOf(world, each).filter((step) => step.state === "running" || step.state === "waiting").map((step) => ({ step: step.name, cause: "leased", message: `\`${step.name}\` is running: attempt 1 on instance web-1-a41c`, help: null })));
  return { run_id: run.run_id, flow: run.flow, revision: run.revision, status: run.status, existed: false };
}

/** Lets the runs that were started here go on, a step each time. */
function move(context) {
  const { world } = context;
  for (const run of world.runs.slice(0, 30)) {
    const states = world.details.get(run.run_id);
    if (run.status !== "running" || !states || Date.now() - Date.parse(run.started_at) > 60e3) continue;
    const flow = world.flows.get(run.flow);
    const running = flow.steps.find((step) => states[step.name] === "running");
    if (running) {
      states[running.name] = "succeeded";
      tell(context, run, "step.succeeded", running.name, { elapsed_us: 1_400_000 }, "in 1.4 s");
    }
    const next = flow.steps.find((step) => !states[step.name] && step.name !== "refund");
    if (next) {
      states[next.name] = "running";
      tell(context, run, "step.started", next.name, {}, "attempt 1 on web-1-a41c");
    } else end(context, run, "completed");
  }
}

function act(context, run, verb, body) {
  const { world } = context;
  switch (verb) {
    case "cancel":
      if (!isOpen(run)) refuse(409, "run_terminal", `run ${run.run_id} has ended already`, "a run that has ended does not change");
      end(context, run, "cancelled");
      return { run_id: run.run_id, flow: run.flow, status: run.status, existed: true };
    case "retry":
      if (isOpen(run)) refuse(409, "run_open", `run ${run.run_id} is still open`);
      return startRun(context, { flow: run.flow, input: { orderId: 7 }, retry_of: run.run_id });
    case "signal": {
      const states = world.details.get(run.run_id);
      states.approve = "succeeded";
      run.status = "running";
      tell(context, run, "signal.received", null, { signal: body.signal, data: body.data }, `${body.signal} ${JSON.stringify(body.data)}`);
      end(context, run, "completed");
      return { run_id: run.run_id, flow: run.flow, status: run.status, taken: true, kept: false };
    }
    default:
      return refuse(404, "not_found", "there is no such route");
  }
}

function bulk(context, body) {
  const { world } = context;
  const query = new URLSearchParams();
  if (body.filter.flow) query.set("flow", body.filter.flow);
  if (body.filter.status) query.set("status", body.filter.status.join(","));
  const found = world.runs.filter((run) => matches(run, query));
  const fits = found.filter((run) => (body.action === "cancel") === isOpen(run)).slice(0, body.max ?? 1000);
  if (!body.dry_run) for (const run of fits) act(context, run, body.action, {});
  return { matched: found.length, done: fits.map((run) => ({ run_id: run.run_id })), failed: [], left: 0 };
}

function flows({ world, schedules: due }, name, verb, query) {
  const item = (flow) => ({
    flow: flow.flow, revision: flow.revision, revisions: flow.old.length + 1, steps: flow.steps.length, description: flow.description, folder: flow.folder,
    registered_at: flow.registered_at, schedules: due.filter((each) => each.flow === flow.flow).length, runs: counts(world.runs.filter((run) => run.flow === flow.flow)),
  });
  if (name === undefined) return { items: [...world.flows.values()].map(item) };
  const flow = world.flows.get(name) ?? refuse(404, "flow_not_found", `there is no flow \`${name}\``, "see `flowgate flows list`");
  if (verb === "revisions") {
    const all = [{ revision: flow.revision, registered_at: flow.registered_at }, ...flow.old];
    return { items: all.map((each, place) => ({ ...each, active: place === 0, steps: flow.steps.length - (place > 1 ? 1 : 0), description: flow.description, folder: flow.folder, runs: place === 0 ? item(flow).runs : counts([]) })) };
  }
  if (verb === "diff") return { changes: ["step `notify` was added; it starts on `shipped`", "step `charge`: `retry.attempts` was 3 and is 5", "step `ship` emits `shipped` now"] };
  const revision = query.get("revision") ?? flow.revision;
  return { ...flow, old: undefined, revision, active: revision === flow.revision, schedules: due.filter((each) => each.flow === flow.flow).map((each) => each.name) };
}

function schedules(world) {
  const now = world.now;
  const base = { source: "flow_file", paused: false, decided_through: iso(now), added_at: iso(now - 5 * 86400e3), last_run: world.runs[3]?.run_id ?? null, queued: null, pending: 0 };
  if (world.empty) return [];
  return [
    { name: "heartbeat/minute", flow: "heartbeat", schedule: { every: "1m", overlap: "skip" }, ...base, next_at: iso(now + 34e3) },
    { name: "order/sweep", flow: "order", schedule: { every: "15m", catch_up: "latest", input: { orderId: 1 } }, ...base, next_at: iso(now + 380e3) },
    { name: "nightly-report/nightly", flow: "nightly-report", schedule: { cron: "30 2 * * MON-FRI", zone: "Europe/Berlin", overlap: "skip", catch_up: { all: "6h" }, jitter: "5m" }, ...base, next_at: iso(now + 5 * 3600e3) },
    { name: "crm-import", flow: "import.customers", schedule: { cron: "0 */6 * * *", zone: "UTC", input: { tenant: "acme" } }, ...base, source: "hand", paused: true, next_at: iso(now + 2 * 3600e3) },
    { name: "launch", flow: "order", schedule: { at: "2030-01-01T00:00:00Z" }, ...base, source: "hand", last_run: null, next_at: "2030-01-01T00:00:00.000Z" },
    { name: "evil/" + XSS[1], flow: "x.script-img", schedule: { cron: XSS[0], zone: XSS[2] }, ...base, last_run: null, next_at: null },
  ];
}

function schedulesRoute(context, method, name, verb, query, body) {
  const all = context.schedules;
  if (name === undefined) return { items: all };
  const found = all.find((each) => each.name === name) ?? refuse(404, "schedule_not_found", `there is no schedule \`${name}\``, "see `flowgate schedules list`");
  const fates = ["fired", "fired", "fired", "late", "fired", "skipped", "fired", "missed", "fired", "failed", "queued", "suppressed"];
  const ledger = Array.from({ length: 120 }, (_, place) => {
    const due = context.world.now - (place + 1) * 900e3;
    const fate = fates[place % fates.length];
    return {
      due_at: iso(due), fate, reason: fate === "skipped" ? "run_open" : fate === "missed" ? "no_leader" : null,
      run_id: ["fired", "late"].includes(fate) ? context.world.runs[place * 7].run_id : null, decided_at: iso(due + (fate === "late" ? 8_000 : 40)), term: 12,
      asked: place === 4 ? "backfill" : "clock", through: fate === "missed" ? iso(due + 1800e3) : null, error: fate === "failed" ? "the input does not meet the schema: `orderId` is missing" : null,
    };
  });
  if (method === "POST") {
    if (verb === "pause" || verb === "resume") found.paused = verb === "pause";
    if (verb === "backfill") return { items: ledger.slice(0, 3) };
    if (verb === "trigger") return { ...ledger[0], asked: "trigger" };
    return found;
  }
  if (verb === "occurrences") return page(ledger.filter((each) => !query.get("fate") || each.fate === query.get("fate")), query);
  const next = found.next_at ? Array.from({ length: 10 }, (_, place) => iso(Date.parse(found.next_at) + place * 900e3)) : [];
  return { ...found, next, occurrences: ledger.slice(0, 20) };
}

function queues(world) {
  const row = (queue, due, later, age, more = {}) => ({ queue, paused: false, concurrency: null, rate: null, due, later, oldest_due_at: age ? iso(world.now - age) : null, oldest_age_ms: age || null, served_by: ["web-1-a41c", "web-2-77be"], ...more });
  if (world.empty) return [];
  return [
    row("default", 3, 41, 1_200), row("payments", 12, 3, 9_400, { concurrency: 8, rate: "20/s" }), row("mail", 184, 0, 780_000, { paused: true }),
    row("warehouse", 0, 2, 0), row("crm", 22, 0, 540_000, { concurrency: 2 }), row("score", 1, 0, 780_000, { served_by: [] }),
  ];
}

function gates(world) {
  const all = [
    { ...OPEN, flow: "heartbeat", generation: 3, set_at: iso(world.now - 2 * 3600e3) },
    { ...OPEN, flow: "import.customers", state: "holding", generation: 1, reason: "the warehouse is being moved; ask ops before you let it go", deadline: iso(world.now + 1500e3), set_at: iso(world.now - 900e3) },
    { ...OPEN, flow: "order", state: "replaying", generation: 2, reason: "the bank did not answer", replay_rate: 10, set_at: iso(world.now - 20e3) },
  ];
  return new Map(world.empty ? [] : all.map((gate) => [gate.flow, gate]));
}

const OPEN = { state: "open", generation: 0, hold_max: 100_000, reason: null, deadline: null, replay_rate: null, deployment: null, canary: null, pools: [], set_at: null };

/** A gate with what it holds; one that lets go is open when nothing is left. */
function gateOf({ world }, gate) {
  const held = world.runs.filter((run) => run.flow === gate.flow && run.status === "held");
  const oldest = held.at(-1)?.started_at ?? null;
  return { ...gate, held: held.length, oldest_at: oldest, age_ms: oldest ? Date.now() - Date.parse(oldest) : null };
}

function gateRoute(context, method, flow, body) {
  if (!context.world.flows.has(flow)) refuse(404, "flow_not_found", `there is no flow \`${flow}\``, "see `flowgate flows list`");
  const gate = context.gates.get(flow) ?? { ...OPEN, flow };
  if (method === "PUT") {
    const set = { ...gate, generation: gate.generation + 1, set_at: iso(Date.now()) };
    if (body.state === "holding") context.gates.set(flow, { ...set, state: "holding", reason: body.reason ?? null, hold_max: body.hold_max ?? 100_000 });
    else {
      for (const run of context.world.runs.filter((each) => each.flow === flow && each.status === "held")) {
        run.status = "running";
        tell(context, run, "run.released", null, {}, "");
      }
      context.gates.set(flow, { ...OPEN, flow, generation: set.generation, set_at: set.set_at });
    }
  }
  return gateOf(context, context.gates.get(flow) ?? gate);
}

function queuesRoute(context, method, name, body) {
  if (name === undefined) return { items: context.queues };
  const found = context.queues.find((each) => each.queue === name) ?? refuse(404, "queue_not_found", `there is no queue \`${name}\``);
  if (method !== "PATCH") return { ...found, holders: [], in_line: 0 };
  if (body.rate && !/^\d+\/(s|m|h)$/.test(body.rate)) refuse(422, "field_invalid", `\`rate\` is no rate: ${body.rate}`, "write it as 10/s, 100/m or 5/h");
  const was = { ...found };
  Object.assign(found, body);
  return { queue: name, was, now: found };
}

function dead(context, method, name, query, body) {
  const { world } = context;
  const letters = world.runs.filter((run) => run.status === "failed" && !context.dead.has(run.run_id)).map((run) => ({
    run_id: run.run_id, flow: run.flow, step: run.failure.step, kind: run.failure.kind, message: run.failure.message,
    reason: run.failure.message.replace(/\d+/g, "N"), started_at: run.started_at, ended_at: run.ended_at, tags: run.tags,
  }));
  const fits = (letter, filter) => ["flow", "step", "kind", "reason"].every((field) => !filter[field] || letter[field] === filter[field]);
  if (method === "POST") {
    const chosen = letters.filter((letter) => (body.run_ids ? body.run_ids.includes(letter.run_id) : fits(letter, body.filter ?? {})));
    if (!body.dry_run) for (const letter of chosen) context.dead.add(letter.run_id);
    return { found: chosen.length, done: chosen.map((letter) => ({ run_id: letter.run_id })), failed: [], left: 0 };
  }
  const found = letters.filter((letter) => fits(letter, Object.fromEntries(query)));
  if (name !== "groups") return page(found, query);
  const groups = new Map();
  for (const letter of found) {
    const key = JSON.stringify([letter.flow, letter.step, letter.kind, letter.reason]);
    const group = groups.get(key) ?? { count: 0, flow: letter.flow, step: letter.step, kind: letter.kind, reason: letter.reason, example: { run_id: letter.run_id, message: letter.message, ended_at: letter.ended_at } };
    group.count += 1;
    groups.set(key, group);
  }
  return { items: [...groups.values()].sort((a, b) => b.count - a.count), total: found.length };
}

function subscribers(world, name, verb) {
  const now = Date.now();
  const part = (number, active, handled, failed = null) => ({ partition: number, active_on: active, term: active ? 4 : null, positions: [String(81_200 + number)], handled, written_at: iso(now - 900), failed });
  const all = world.empty ? [] : [
    { subscriber: "billing", kind: "http", mode: "coordinated", on_failure: "dead_letter", state: "active", caught_up: false, behind_ms: 4_200, dead: 3, partitions: [part(0, "web-1-a41c", 40_112), part(1, "web-2-77be", 39_870)], members: [{ instance: "web-1-a41c", partitions: 1 }, { instance: "web-2-77be", partitions: 1 }, { instance: "web-3-f00d", partitions: 0 }] },
    { subscriber: "archive", kind: "file", mode: "single_instance", on_failure: "fail_closed", state: "unwatched", caught_up: true, behind_ms: 0, dead: 0, partitions: [part(0, null, 80_002)], members: [] },
    { subscriber: "ends", kind: "projection", mode: "coordinated", on_failure: "fail_closed", state: "failed", caught_up: false, behind_ms: 3_600_000, dead: 0, partitions: [part(0, null, 1_204, { run: world.runs[0].run_id, seq: 7, error: XSS[0] + " the state cannot be kept: it is over 1 MiB", attempts: 5, instance: "web-1-a41c" })], members: [] },
  ];
  if (name === undefined) return { items: all };
  const found = all.find((each) => each.subscriber === name) ?? refuse(404, "subscriber_not_found", `there is no subscriber \`${name}\``);
  if (verb) return { subscriber: name, retried: 3 };
  const letters = Array.from({ length: found.dead }, (_, place) => ({ run: world.runs[place * 3].run_id, seq: place + 4, type: "run.failed", error: "HTTP 400 from https://billing.example.com/events", attempts: 5, put_aside_at: iso(now - place * 3600e3), to_be_retried: place === 0 }));
  return { ...found, dead_letters: letters };
}

function instances(world) {
  const now = Date.now();
  const one = (instance, state, running, more = {}) => ({ instance, host: instance.slice(0, 5), pid: 4_100 + running, version: "0.1.0", role: "all", pool: null, state, degradation: "normal", strained_by: null, running, slots: 64, queues: null, started_at: iso(world.now - 9 * 3600e3), seen_at: iso(now - 800), leads: false, ...more });
  return [
    one("web-1-a41c", "ready", 41, { leads: true, pool: "blue" }),
    one("web-2-77be", "degraded", 12, { degradation: "degraded", strained_by: "the store takes 310 ms to answer, over 250 ms" }),
    one("web-3-f00d", "silent", 0, { seen_at: iso(now - 74_000) }),
    one("cron-1-0b5e", "ready", 0, { role: "cron-worker", slots: 8, queues: ["mail", "payments"] }),
  ];
}

function workers() {
  const one = (worker_id, names, ago) => ({ worker_id, workers: names, queues: names, instance: "web-1-a41c", seen_at: iso(Date.now() - ago) });
  return [one("gpu-7-2231-9f3c01ab", ["score", "embed"], 3_000), one("mailer-1-88-01c2d3e4", ["mail"], 41_000)];
}

function leader(world) {
  const now = Date.now();
  const term = (number, instance, from, until, end) => ({ term: number, instance, began_at: iso(now - from), expires_at: iso(now + 8_000), ended_at: until === null ? null : iso(now - until), end });
  if (world.empty) return { leader: null, terms: [], flapping: false };
  const terms = [term(12, "web-1-a41c", 9 * 3600e3, null, "leads"), term(11, "web-3-f00d", 26 * 3600e3, 9 * 3600e3, "expired"), term(10, "web-2-77be", 50 * 3600e3, 26 * 3600e3, "released")];
  return { leader: terms[0], terms, flapping: false };
}

function doctor() {
  return {
    store: "sqlite", healthy: true,
    findings: [
      { check: "synchronous", level: "ok", found: "everything that is acknowledged is on disk (`synchronous=FULL`)", remedy: null },
      { check: "disk", level: "warning", found: "the disk of the file has 3 GiB left", remedy: "make room, or shorten `retention.events`" },
    ],
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const port = Number(process.argv[2] ?? 7421);
  const folder = process.argv[3] ?? fileURLToPath(new URL("../dist", import.meta.url));
  await start(port, folder, { empty: process.env.MOCK_EMPTY === "1", login: process.env.MOCK_LOGIN === "1" });
  console.log(`http://127.0.0.1:${port}`);
}
