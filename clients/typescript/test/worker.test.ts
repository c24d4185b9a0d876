/** The worker against a server that keeps the contract, and breaks it on command. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import type { TestContext } from "node:test";
import { test } from "node:test";

import type { WorkerOptions } from "../src/index.js";
import { ApiError, ContextError, HandlerError, Stopped, Worker } from "../src/index.js";
import { FakeServer, PATIENCE_MS, refusal } from "./fake-server.js";

const SILENT = { info: () => {}, warn: () => {}, error: () => {} };

/** What ends the workers of a test. */
const ends = new WeakMap<TestContext, (() => Promise<void>)[]>();

async function serverFor(t: TestContext): Promise<FakeServer> {
  const server = await FakeServer.start();
  t.after(async () => {
    // Before the server: without one, a worker takes all its grace.
    await Promise.all((ends.get(t) ?? []).map((end) => end()));
    await server.stop();
  });
  return server;
}

function workerOf(server: string | string[], options: Partial<WorkerOptions> = {}): Worker {
  return new Worker({ server, signals: false, logger: SILENT, ...options });
}

/** Runs a worker that the end of the test stops. */
function begin(t: TestContext, worker: Worker): Promise<void> {
  const running = worker.run();
  const end = async () => {
    worker.stop();
    await running.catch(() => {});
  };
  ends.set(t, [...(ends.get(t) ?? []), end]);
  return running;
}

/** Resolves when it is told to. */
function gate(): { open: () => void; opened: Promise<void> } {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { open, opened };
}

/** Resolves when the attempt must stop. */
function stopped(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve();
    }
    signal.addEventListener("abort", () => resolve());
  });
}

test("a handler gets its facts, and what it hands over arrives", async (t) => {
  const server = await serverFor(t);
  const job = server.add("score", { order: 7 }, { state: { seen: 1 } });
  const worker = workerOf(server.url, { token: "secret" });
  const facts: unknown[] = [];
  worker.step("score", async (ctx, input: { order: number }) => {
    facts.push(ctx.runId, ctx.flow, ctx.revision, ctx.step, ctx.attempt, ctx.key);
    facts.push(ctx.traceparent, ctx.input === input, ctx.cancelled, ctx.stopReason, ctx.signal.aborted);
    facts.push(ctx.state.get("seen"), ctx.state.get("toString"));
    ctx.state.set("points", [1, 2]);
    facts.push(ctx.state.get("points"));
    await ctx.emitNow("began", { at: 0 });
    ctx.emit("scored", { order: input.order });
    ctx.log("info", "héllo");
    ctx.heartbeat();
    return { points: 7 };
  });
  begin(t, worker);
  await server.until(() => job.outcome !== null);
  const place = `00-${"1".padStart(32, "0")}-${"1".padStart(16, "0")}-01`;
  const expected = ["run-1", "f", "r1", "score", 1, "run-1/score/1", place, true, false, null, false, 1];
  assert.deepEqual(facts, [...expected, undefined, [1, 2]]);
  assert.deepEqual(job.outcome.emits, [{ event: "scored", data: { order: 7 } }]);
  assert.deepEqual(job.outcome.state, { points: [1, 2] });
  assert.deepEqual(job.outcome.result, { points: 7 });
  assert.deepEqual(job.emitted, [{ event: "began", data: { at: 0 } }]);
  assert.deepEqual(job.logs, ["info: héllo"]);
  const claim = server.of("claim")[0]!;
  assert.equal(claim.headers["authorization"], "Bearer secret");
  assert.equal(claim.body.worker_id, worker.workerId);
  assert.deepEqual(claim.body.workers, ["score"]);
  assert.ok(!("queues" in claim.body));
});

test("only free slots are claimed for", async (t) => {
  const server = await serverFor(t);
  const jobs = Array.from({ length: 5 }, () => server.add("hold"));
  const { open, opened } = gate();
  let now = 0;
  let most = 0;
  const worker = workerOf(server.url, { slots: 2, queues: ["hold", "other"] });
  worker.step("hold", async () => {
    now += 1;
    most = Math.max(most, now);
    await opened;
    now -= 1;
  });
  begin(t, worker);
  await server.until(() => jobs.reduce((sum, job) => sum + job.attempt, 0) === 2);
  assert.deepEqual(
    server.of("claim").map((seen) => [seen.body.max, seen.body.queues]),
    [[2, ["hold", "other"]]],
  );
  open();
  await server.until(() => jobs.every((job) => job.outcome !== null));
  assert.equal(most, 2);
  assert.ok(server.of("claim").every((seen) => seen.body.max <= 2));
});

test("a failure says whether and when to try again", async (t) => {
  const server = await serverFor(t);
  const rows: [name: string, error: unknown, expected: Record<string, unknown>][] = [
    ["fatal", HandlerError.fatal("declined"), { message: "declined", retry: false }],
    ["plain", new HandlerError("busy"), { message: "busy", retry: true }],
    ["later", new HandlerError("busy", { retryAfterMs: 1500 }), { retry: true, retry_after_ms: 1500 }],
    ["bug", new RangeError("x"), { message: "RangeError: x", retry: true }],
    ["odd", "a text", { message: "a text", retry: true }],
    ["long", new Error("é".repeat(5000)), { retry: true }],
  ];
  const tried = new Set<string>();
  const worker = workerOf(server.url, { slots: 1 });
  worker.step("fail", (ctx, input: string) => {
    ctx.emit("never");
    if (!tried.has(input)) {
      tried.add(input);
      throw rows.find(([name]) => name === input)?.[1];
    }
  });
  const jobs = rows.map(([name]) => server.add("fail", name));
  begin(t, worker);
  await server.until(() => jobs.every((job) => job.failures.length > 0));
  rows.forEach(([name, , expected], place) => {
    const failure = jobs[place]!.failures[0];
    for (const [field, value] of Object.entries(expected)) {
      assert.equal(failure[field], value, `${name}: ${field}`);
    }
    assert.ok(!("emits" in failure));
    assert.ok(Buffer.byteLength(failure.message) <= 4096);
  });
  assert.match(jobs[3]!.logs[0]!, /worker\.test\./);
});

test("what cannot be kept fails the attempt with the reason", async (t) => {
  const server = await serverFor(t);
  const circle: Record<string, unknown> = {};
  circle["self"] = circle;
  const rows: Record<string, [value: unknown, message: RegExp]> = {
    circle: [circle, /the result cannot be written as JSON/],
    bigint: [1n, /the result cannot be written as JSON/],
    function: [() => {}, /it is a function/],
    large: ["x".repeat(1 << 20), /the result has 1048578 bytes; the limit is 1048576/],
  };
  const worker = workerOf(server.url);
  worker.step("give", (_ctx, input: string) => rows[input]![0]);
  const jobs = new Map(Object.keys(rows).map((name) => [name, server.add("give", name)]));
  begin(t, worker);
  await server.until(() => [...jobs.values()].every((job) => job.failures.length > 0));
  for (const [name, [, message]] of Object.entries(rows)) {
    assert.match(jobs.get(name)!.failures[0].message, message);
  }
});

test("a result that the server refuses becomes a failure", async (t) => {
  const server = await serverFor(t);
  const job = server.add("odd");
  server.plan("complete", refusal(422, "field_invalid"));
  begin(t, workerOf(server.url).step("odd", (ctx) => ctx.emit("undeclared")));
  await server.until(() => job.failures.length > 0);
  assert.match(job.failures[0].message, /the server refused the result/);
});

test("a context that is kept too long refuses", async (t) => {
  const server = await serverFor(t);
  const job = server.add("leak");
  let late: (() => Promise<void>) | undefined;
  let early: (() => void) | undefined;
  begin(
    t,
    workerOf(server.url).step("leak", (ctx) => {
      early = () => ctx.emit("late");
      late = () => ctx.emitNow("late");
    }),
  );
  await server.until(() => job.outcome !== null);
  assert.throws(() => early!(), ContextError);
  await assert.rejects(late!(), /has ended/);
  assert.deepEqual(job.emitted, []);
});

test("log lines of a long step arrive while it runs, and too many are counted", async (t) => {
  const server = await serverFor(t);
  const job = server.add("talk");
  const { open, opened } = gate();
  const worker = workerOf(server.url).step("talk", async (ctx) => {
    ctx.log("warn", "early");
    await opened;
    for (let number = 0; number < 1200; number += 1) {
      ctx.log("info", `line ${number}`);
    }
  });
  begin(t, worker);
  await server.until(() => job.logs.length === 1, "a log line of a running step");
  assert.equal(job.outcome, null);
  open();
  await server.until(() => job.outcome !== null);
  assert.deepEqual(job.logs.slice(0, 2), ["warn: early", "info: line 0"]);
  assert.equal(job.logs.length, 1002);
  assert.equal(job.logs.at(-1), "warn: 200 log lines were dropped: they came too fast");
});

test("connections are kept", async (t) => {
  const server = await serverFor(t);
  const jobs = Array.from({ length: 50 }, () => server.add("quick"));
  begin(t, workerOf(server.url, { slots: 2 }).step("quick", () => {}));
  await server.until(() => jobs.every((job) => job.outcome !== null));
  assert.ok(server.connections <= 6, `${server.connections} connections`);
});

test("one call renews all held jobs, and they outlive their lease", async (t) => {
  const server = await serverFor(t);
  const jobs = Array.from({ length: 3 }, () => server.add("long"));
  const { open, opened } = gate();
  const worker = workerOf(server.url, { slots: 3, leaseMs: 1000 });
  worker.step("long", async (ctx) => {
    await opened;
    ctx.heartbeat();
  });
  begin(t, worker);
  // Five renewals take longer than the lease.
  await server.until(() => server.of("renew").length >= 5, "five renewals");
  open();
  await server.until(() => jobs.every((job) => job.outcome !== null));
  for (const seen of server.of("renew").slice(0, 5)) {
    assert.equal(seen.body.jobs.length, 3);
    assert.equal(seen.body.lease_ms, 1000);
  }
  assert.deepEqual(jobs.map((job) => job.attempt), [1, 1, 1]);
});

test("a fenced result is dropped, and the worker goes on", async (t) => {
  const server = await serverFor(t);
  const job = server.add("slow");
  const { open, opened } = gate();
  const worker = workerOf(server.url).step("slow", () => opened).step("next", () => "done");
  begin(t, worker);
  await server.until(() => job.attempt === 1);
  server.takeAway(job);
  open();
  await server.until(() => server.of("complete").length === 1);
  const follower = server.add("next");
  await server.until(() => follower.outcome !== null);
  assert.equal(job.outcome, null);
  assert.deepEqual(job.failures, []);
});

test("a cancelled run stops its handler, and the outcome is dropped", async (t) => {
  const server = await serverFor(t);
  const job = server.add("wait");
  const reasons: unknown[] = [];
  const { open, opened } = gate();
  const worker = workerOf(server.url, { leaseMs: 1000 }).step("wait", async (ctx) => {
    await stopped(ctx.signal);
    reasons.push(ctx.stopReason, ctx.cancelled, ctx.signal.reason instanceof Stopped);
    assert.throws(() => ctx.heartbeat(), Stopped);
    open();
    return "too late";
  });
  begin(t, worker);
  await server.until(() => job.attempt === 1);
  job.isCancelled = true;
  await opened;
  assert.deepEqual(reasons, ["cancelled", true, true]);
  const follower = server.add("wait");
  await server.until(() => follower.attempt === 1);
  follower.isCancelled = true;
  assert.deepEqual([...server.of("complete"), ...server.of("fail")], []);
});

test("a step that is over its timeout is stopped, and the server hears of it", async (t) => {
  const server = await serverFor(t);
  const job = server.add("late", null, { timeoutMs: 200 });
  const reasons: unknown[] = [];
  const worker = workerOf(server.url, { leaseMs: 60_000 }).step("late", async (ctx) => {
    await stopped(ctx.signal);
    reasons.push(ctx.stopReason);
  });
  begin(t, worker);
  await server.until(() => server.of("renew").length === 1, "a renewal at the timeout");
  assert.deepEqual(reasons, ["timed_out"]);
  assert.equal(job.outcome, null);
});

test("a handler goes on while the server is away, and its result arrives", async (t) => {
  const server = await serverFor(t);
  const job = server.add("work");
  const begun = gate();
  const { open, opened } = gate();
  const worker = workerOf(server.url).step("work", async () => {
    begun.open();
    await opened;
    return "kept";
  });
  begin(t, worker);
  await begun.opened;
  await server.stop();
  open();
  await server.listen();
  await server.until(() => job.outcome !== null, "the result after the outage");
  const follower = server.add("work");
  await server.until(() => follower.outcome !== null, "a claim after the outage");
  assert.equal(job.attempt, 1);
});

test("a completion whose answer is lost is sent again, and counts once", async (t) => {
  const server = await serverFor(t);
  const job = server.add("work");
  server.plan("complete", "cut");
  server.plan("complete", refusal(503, "store_unavailable"));
  begin(t, workerOf(server.url).step("work", () => {}));
  await server.until(() => server.of("complete").length === 3, "three completions");
  const bodies = server.of("complete").map((seen) => seen.body);
  assert.deepEqual(bodies[1], bodies[0]);
  assert.deepEqual(bodies[2], bodies[0]);
  assert.equal(job.attempt, 1);
});

test("the lease ends by the worker's clock when no server answers", async (t) => {
  const server = await serverFor(t);
  server.add("alone");
  const begun = gate();
  const { open, opened } = gate();
  const reasons: unknown[] = [];
  const worker = workerOf(server.url, { leaseMs: 1000, graceMs: 0 }).step("alone", async (ctx) => {
    begun.open();
    await stopped(ctx.signal);
    reasons.push(ctx.stopReason);
    open();
  });
  begin(t, worker);
  await begun.opened;
  await server.stop();
  await opened;
  assert.deepEqual(reasons, ["lease_lost"]);
});

test("the next server is asked when one fails", async (t) => {
  const server = await serverFor(t);
  const away = await FakeServer.start();
  await away.stop();
  const job = server.add("work");
  begin(t, workerOf([away.url, server.url]).step("work", () => {}));
  await server.until(() => job.outcome !== null);
});

test("a server that does not let claims wait is not asked without pause", async (t) => {
  const server = await serverFor(t);
  server.answersAtOnce = true;
  begin(t, workerOf(server.url).step("work", () => {}));
  await server.until(() => server.of("claim").length === 4, "four claims");
  const at = server.of("claim").map((seen) => seen.at);
  assert.ok(at[3]! - at[0]! > 650, `${at[3]! - at[0]!} ms`);
});

test("a refusal of the first claim ends the worker with the reason", async (t) => {
  const server = await serverFor(t);
  server.plan("claim", refusal(401, "token_invalid"));
  const worker = workerOf(server.url, { token: "wrong" }).step("work", () => {});
  await assert.rejects(worker.run(), (error) => error instanceof ApiError && error.code === "token_invalid");
});

test("a stop claims no more, and lets handlers end", async (t) => {
  const server = await serverFor(t);
  const job = server.add("work");
  const { open, opened } = gate();
  const worker = workerOf(server.url).step("work", () => opened);
  const running = begin(t, worker);
  await server.until(() => job.attempt === 1 && server.of("claim").length === 2);
  worker.stop();
  open();
  await running;
  const later = server.add("work");
  assert.notEqual(job.outcome, null);
  assert.equal(later.attempt, 0);
  assert.equal(server.of("claim").length, 2);
  assert.deepEqual(server.of("release"), []);
});

test("what does not end within the grace is handed back", async (t) => {
  const server = await serverFor(t);
  const job = server.add("stubborn");
  const { open, opened } = gate();
  const begun = gate();
  const reasons: unknown[] = [];
  const worker = workerOf(server.url, { graceMs: 200 }).step("stubborn", async (ctx) => {
    ctx.log("info", "said before the end");
    begun.open();
    await opened;
    reasons.push(ctx.stopReason);
    return "too late";
  });
  const running = begin(t, worker);
  await begun.opened;
  worker.stop();
  await running;
  assert.equal(job.releases, 1);
  assert.equal(job.attempt, 0);
  assert.deepEqual(job.logs, ["info: said before the end"]);
  open();
  await opened;
  await server.until(() => reasons.length === 1);
  assert.deepEqual(reasons, ["shutdown"]);
  assert.deepEqual([...server.of("complete"), ...server.of("fail")], []);
});

/** A worker in a process of its own. */
function processOf(t: TestContext, server: FakeServer, body: string, graceMs: number): ChildProcess {
  const program = `
    import { Worker } from ${JSON.stringify(new URL("../src/index.js", import.meta.url).href)};
    const worker = new Worker({ server: ${JSON.stringify(server.url)}, graceMs: ${graceMs} });
    worker.step("work", async (ctx) => { ${body} });
    await worker.run();
    console.log("ended well");
  `;
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  t.after(() => child.kill("SIGKILL"));
  return child;
}

for (const name of ["SIGTERM", "SIGINT"] as const) {
  test(`${name} ends the process well once its work is done`, async (t) => {
    const server = await serverFor(t);
    const job = server.add("work");
    const wait = "await ctx.emitNow('began'); await new Promise((done) => setTimeout(done, 1000));";
    const child = processOf(t, server, wait, 20_000);
    let said = "";
    child.stdout!.on("data", (part) => (said += String(part)));
    await server.until(() => job.emitted.length === 1);
    child.kill(name);
    const [code, signal] = await once(child, "exit");
    assert.deepEqual([code, signal], [0, null]);
    assert.equal(said, "ended well\n");
    assert.notEqual(job.outcome, null);
  });
}

test("a second signal ends the process at once", async (t) => {
  const server = await serverFor(t);
  const job = server.add("work");
  const child = processOf(t, server, "await ctx.emitNow('began'); await new Promise(() => {});", 600_000);
  await server.until(() => job.emitted.length === 1);
  const ended = once(child, "exit");
  // Signals that come together are one, so they are sent until the process has ended.
  const sending = setInterval(() => child.kill("SIGTERM"), 100);
  t.after(() => clearInterval(sending));
  const late = setTimeout(() => child.kill("SIGKILL"), PATIENCE_MS);
  const [, signal] = await ended;
  clearTimeout(late);
  assert.equal(signal, "SIGTERM");
});

test("wrong settings are refused with the reason", () => {
  const rows: [settings: Partial<WorkerOptions>, message: RegExp][] = [
    [{ server: "127.0.0.1:7420" }, /is not the URL of a server/],
    [{ server: "ftp://a" }, /is not the URL of a server/],
    [{ server: "http://a:99999" }, /is not the URL of a server/],
    [{ server: [] }, /name at least one server/],
    [{ server: "http://user:pass@a" }, /has no user/],
    [{ slots: 0 }, /slots are 1 to 1000/],
    [{ slots: 1.5 }, /slots are 1 to 1000/],
    [{ leaseMs: 500 }, /leaseMs is 1000 to 600000/],
    [{ graceMs: -1 }, /graceMs is/],
    [{ queues: [] }, /name at least one queue/],
    [{ queues: ["a/b"] }, /cannot name a queue/],
    [{ workerId: "" }, /cannot name a worker id/],
  ];
  for (const [settings, message] of rows) {
    assert.throws(() => new Worker({ server: "http://a", ...settings }), message);
  }
});

test("handlers are registered once, and there is at least one", async () => {
  const worker = workerOf("http://127.0.0.1:1");
  await assert.rejects(worker.run(), /has no handler/);
  worker.step("a", () => {});
  assert.throws(() => worker.step("a", () => {}), /has a handler already/);
  assert.throws(() => worker.step("../a", () => {}), /cannot name a worker/);
  assert.throws(() => new HandlerError("x", { retry: false, retryAfterMs: 1 }), /no retryAfterMs/);
});
