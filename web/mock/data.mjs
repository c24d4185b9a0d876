// Made-up data in the form of the contract, the same on every start: many runs, every state, every
// cause of being stuck, and texts that try to be code.

export const XSS = [
  "<script>window.hacked=1</script>",
  "<img src=x onerror=window.hacked=1>",
  "\"><svg onload=window.hacked=1>",
  "javascript:window.hacked=1",
  "'-window.hacked=1-'",
  "<iframe srcdoc='<script>parent.hacked=1</script>'>",
  "{{constructor.constructor('window.hacked=1')()}}",
  "</title><script>window.hacked=1</script>",
  "\u202Eright to left\u202C and \u0000 nul",
];

let seed = 7;
export function random() {
  seed = (seed * 1103515245 + 12345) & 0x7fffffff;
  return seed / 0x7fffffff;
}
const pick = (list) => list[Math.floor(random() * list.length)];
const hex = (count) => Array.from({ length: count }, () => Math.floor(random() * 16).toString(16)).join("");

export const iso = (at) => new Date(at).toISOString();

function runId(at) {
  const time = at.toString(16).padStart(12, "0");
  return `${time.slice(0, 8)}-${time.slice(8)}-7${hex(3)}-8${hex(3)}-${hex(12)}`;
}

const step = (name, does, action, on, emits, extra = {}) => ({
  name, does, action, worker: action === "worker" ? name : null,
  starts_on: on, emits, queue: extra.queue ?? null, effect: extra.effect ?? false,
});
const START = { kind: "start", events: [] };
const all = (...events) => ({ kind: "all", events });
const any = (...events) => ({ kind: "any", events });

function edgesOf(steps) {
  const edges = [];
  for (const to of steps) {
    for (const event of to.starts_on.events) {
      for (const from of steps) {
        const own = event === `step:${from.name}` || event === `step.failed:${from.name}`;
        if (own || from.emits.includes(event)) edges.push({ from: from.name, to: to.name, event });
      }
    }
  }
  return edges;
}

const FLOWS = [
  {
    flow: "order", description: "Charges and reserves in parallel, then ships; a declined card is refunded", folder: "flows",
    steps: [
      step("start", "runs sh -c 'order received'", "shell", START, ["payment.requested", "stock.requested"]),
      step("charge", "POST https://payments.example.com/charge", "http", all("payment.requested"), ["payment.done", "payment.failed"], { queue: "payments", effect: true }),
      step("reserve", "calls the worker reserve", "worker", all("stock.requested"), ["stock.done"], { queue: "warehouse" }),
      step("ship", "runs ./ship.sh", "process", all("payment.done", "stock.done"), ["shipped"]),
      step("refund", "POST https://payments.example.com/refund", "http", any("payment.failed", "step.failed:ship"), []),
      step("notify", "calls the worker notify", "worker", all("shipped"), []),
    ],
    input_schema: { type: "object", required: ["orderId", "customer"], properties: { orderId: { type: "integer", minimum: 1 }, customer: { type: "object", required: ["email"], properties: { email: { type: "string", format: "email" } } }, express: { type: "boolean" } } },
  },
  {
    flow: "approval", description: "Waits for the signal `approval`; after 48 hours it gives up and says so", folder: "flows",
    steps: [
      step("request", "runs sh -c 'asking for approval'", "shell", START, ["approval.requested"]),
      step("approve", "waits for the signal approval, at most 48h", "wait", all("approval.requested"), ["approval.given", "approval.missed"]),
      step("publish", "runs sh -c 'published'", "shell", all("approval.given"), []),
      step("remind", "runs sh -c 'nobody answered'", "shell", all("approval.missed"), []),
    ],
    input_schema: null,
  },
  {
    flow: "import.customers", description: "Loads, cleans and merges the customers of a tenant", folder: "flows/crm",
    steps: [
      step("fetch", "GET of the tenant's export", "http", START, ["fetched"], { queue: "crm" }),
      step("parse", "calls the worker parse", "worker", all("fetched"), ["parsed"]),
      step("dedupe", "calls the worker dedupe", "worker", all("parsed"), ["clean"]),
      step("enrich", "POST https://enrich.example.com", "http", all("parsed"), ["enriched"], { queue: "crm" }),
      step("score", "calls the worker score", "worker", all("parsed"), ["scored"]),
      step("merge", "joins clean, enriched, scored", "nothing", all("clean", "enriched", "scored"), ["merged"]),
      step("load", "calls the worker load", "worker", all("merged"), ["loaded"], { queue: "warehouse" }),
      step("report", "runs ./report.py", "process", all("loaded"), []),
    ],
    input_schema: { type: "object", required: ["tenant"], properties: { tenant: { type: "string", enum: ["acme", "globex", "initech"] } } },
  },
  {
    flow: "nightly-report", description: "Collects the figures of the day and sends them", folder: "flows",
    steps: [
      step("collect", "runs ./collect.sh", "process", START, ["figures"]),
      step("render", "calls the worker render", "worker", all("figures"), ["rendered"]),
      step("send", "POST https://mail.example.com/send", "http", all("rendered"), [], { queue: "mail", effect: true }),
    ],
    input_schema: null,
  },
  {
    flow: "heartbeat", description: null, folder: null,
    steps: [step("beat", "runs true", "process", START, [])],
    input_schema: null,
  },
  {
    flow: "x.script-img", description: XSS[0] + XSS[1], folder: XSS[2],
    steps: [
      step("first", XSS[1], "shell", START, ["e.one"]),
      step("second", XSS[0], "shell", all("e.one"), []),
    ],
    input_schema: { type: "object", properties: { note: { type: "string", default: XSS[0] } } },
  },
];

export function make(now) {
  const world = { now, flows: new Map(), runs: [], events: new Map(), logs: new Map(), why: new Map(), timeline: new Map(), details: new Map() };
  for (const flow of FLOWS) {
    const revision = hex(64);
    world.flows.set(flow.flow, {
      ...flow, revision, edges: edgesOf(flow.steps), registered_at: iso(now - 3 * 86400e3),
      old: Array.from({ length: flow.flow === "order" ? 3 : 1 }, (_, at) => ({ revision: hex(64), registered_at: iso(now - (5 + at * 9) * 86400e3) })),
      file: { flow: flow.flow, description: flow.description, steps: Object.fromEntries(flow.steps.map((each) => [each.name, { does: each.does, emits: each.emits }])) },
    });
  }
  history(world);
  stuck(world);
  special(world);
  world.runs.sort((a, b) => (a.started_at < b.started_at ? 1 : -1));
  return world;
}

function add(world, flow, status, startedAt, tookMs, more = {}) {
  const isOpen = ["held", "running", "waiting"].includes(status);
  const item = {
    run_id: runId(startedAt), flow: flow.flow, revision: flow.revision, status,
    started_at: iso(startedAt), updated_at: iso(startedAt + tookMs), ended_at: isOpen ? null : iso(startedAt + tookMs),
    duration_ms: isOpen ? null : tookMs, key: null, tags: {}, retry_of: null, failure: null, ...more,
  };
  world.runs.push(item);
  return item;
}

const FAILURES = [
  ["charge", "the card was declined", "final"],
  ["charge", "HTTP 503 from https://payments.example.com/charge after 10001 ms", "failed"],
  ["ship", "exit code 2: label printer 7 is out of paper", "failed"],
  ["load", "took longer than 30 s", "timed_out"],
];

function history(world) {
  const flows = [...world.flows.values()];
  for (let at = 0; at < 5000; at += 1) {
    const flow = flows[[0, 0, 0, 2, 3, 4, 4, 1][Math.floor(random() * 8)]];
    const started = world.now - 65_000 - Math.floor(at * at * 9 + at * 4_000 * random());
    const chance = random();
    const status = chance < 0.93 ? "completed" : chance < 0.98 ? "failed" : "cancelled";
    const more = {};
    if (status === "failed") {
      const [name, message, kind] = pick(FAILURES);
      more.failure = { step: flow.steps.find((each) => each.name === name)?.name ?? flow.steps[0].name, message, kind };
    }
    if (random() < 0.3) more.tags = { tenant: pick(["acme", "globex", "initech"]) };
    if (random() < 0.1) more.key = `order-${10_000 + at}`;
    if (flow.flow === "nightly-report") more.tags = { schedule: "nightly-report/nightly" };
    add(world, flow, status, started, Math.floor(40 + random() * random() * 9_000), more);
  }
}

/** The five causes of being stuck, and more. */
function stuck(world) {
  const order = world.flows.get("order");
  const approval = world.flows.get("approval");
  const crm = world.flows.get("import.customers");
  const at = (minutes) => world.now - minutes * 60e3;
  const put = (flow, status, minutes, states, reasons, more) => {
    const run = add(world, flow, status, at(minutes), minutes * 60e3 * 0.9, more);
    world.details.set(run.run_id, states);
    world.why.set(run.run_id, reasons);
    return run;
  };
  const pending = (step, event, source, stands) => ({ step, cause: "pending", message: `\`${step}\` has not started: \`${event}\` has not come yet (\`${source}\` ${stands})`, help: null });
  put(approval, "waiting", 190, { request: "succeeded", approve: "waiting" }, (run) => [
    { step: "approve", cause: "signal", signal: "approval", match: { approved: true }, until: iso(at(190) + 172800e3), message: `\`approve\` waits for the signal \`approval\` until ${iso(at(190) + 172800e3)}`, help: `flowgate runs signal ${run.run_id} approval --data '{"approved":true}'` },
    pending("publish", "approval.given", "approve", "is waiting"),
    pending("remind", "approval.missed", "approve", "is waiting"),
  ], { tags: { tenant: "acme" } });
  put(order, "running", 26, { start: "succeeded", charge: "queued", reserve: "succeeded" }, () => [
    { step: "charge", cause: "retrying", due_at: iso(world.now + 42e3), wait_ms: 42000, failures: 3, attempts_max: 5, message: "`charge` tries again in 42 s after failure 3 of 5: HTTP 503 from https://payments.example.com/charge", help: null },
    pending("ship", "payment.done", "charge", "is queued"),
  ], { key: "order-77120" });
  put(crm, "running", 14, { fetch: "succeeded", parse: "succeeded", dedupe: "succeeded", enrich: "succeeded", score: "queued" }, () => [
    { step: "score", cause: "no_worker", worker: "score", queue: "score", since: iso(at(13)), asked_at: null, message: `\`score\` is due since ${iso(at(13))} and waits for a worker \`score\`; none has ever asked for it`, help: "start a worker that serves `score`: see docs/guide/steps.md" },
    pending("merge", "scored", "score", "is queued"),
  ], { tags: { tenant: "globex" } });
  put(crm, "running", 9, { fetch: "queued" }, (run) => [
    { step: "fetch", cause: "parked", limit: "step:import.customers/fetch/tenant=7", since: iso(at(9)), message: `\`fetch\` waits for a permit of input.tenant="initech" since ${iso(at(9))}: 2 may run at once; in use by ${run.run_id}; 12 in line`, help: null },
  ]);
  put(order, "running", 5, { start: "succeeded", charge: "running", reserve: "running" }, () => [
    { step: "charge", cause: "lease_expired", instance: "web-3-f00d", message: `\`charge\` was running on instance web-3-f00d, whose lease ended at ${iso(at(1))}; another attempt takes it over`, help: null },
    { step: "reserve", cause: "leased", instance: "web-1-a41c", message: `\`reserve\` is running: attempt 1 on instance web-1-a41c since ${iso(at(4))}`, help: null },
  ]);
  put(world.flows.get("nightly-report"), "running", 3, { collect: "succeeded", render: "succeeded", send: "queued" }, () => [
    { step: "send", cause: "queued", queue: "mail", since: iso(at(3)), message: `\`send\` is due since ${iso(at(3))} and waits in the queue \`mail\`, which is paused`, help: "flowgate queues resume mail" },
  ]);
  for (let minutes = 14; minutes > 1; minutes -= 1) {
    put(crm, "held", minutes, {}, () => [
      { step: null, cause: "held", flow: "import.customers", gate: "holding", since: iso(at(minutes)), message: `the run is held: the gate of \`import.customers\` is holding, and it waits there since ${iso(at(minutes))}: the warehouse is being moved`, help: "flowgate hold off import.customers" },
    ]);
  }
  put(world.flows.get("nightly-report"), "waiting", 2, { collect: "waiting" }, () => [
    { step: "collect", cause: "timer", due_at: iso(world.now + 3600e3), message: `\`collect\` waits for its timer, which is due at ${iso(world.now + 3600e3)}`, help: null },
  ]);
}

function special(world) {
  const order = world.flows.get("order");
  const failed = add(world, order, "failed", world.now - 48_000, 14_210, {
    failure: { step: "charge", message: "the card was declined", kind: "final" }, key: "order-81144", tags: { tenant: "acme", region: "eu-central" },
  });
  world.failed = failed.run_id;
  const evil = add(world, world.flows.get("x.script-img"), "failed", world.now - 30_000, 1_000, {
    key: XSS[0], tags: { [XSS[1]]: XSS[2] }, failure: { step: "first", message: XSS.join(" "), kind: "failed" },
  });
  world.evil = evil.run_id;
  const big = add(world, world.flows.get("import.customers"), "completed", world.now - 3_600_000, 1_900_000, { key: "ten-thousand" });
  world.big = big.run_id;
  world.events.set(big.run_id, { count: 10_000 });
}
