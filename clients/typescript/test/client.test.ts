/** The client against the fake server. */

import assert from "node:assert/strict";
import type { TestContext } from "node:test";
import { test } from "node:test";

import { ApiError, Client, Unavailable, WaitTimeout } from "../src/index.js";
import { FakeServer, refusal } from "./fake-server.js";

async function both(t: TestContext): Promise<{ server: FakeServer; client: Client }> {
  const server = await FakeServer.start();
  t.after(() => server.stop());
  return { server, client: new Client({ server: server.url, token: "secret" }) };
}

test("a run is started once for a key", async (t) => {
  const { server, client } = await both(t);
  const first = await client.startRun("order", { id: 7 }, { key: "k", tags: { a: "b" }, delayMs: 1500 });
  const again = await client.startRun("order", { id: 7 }, { key: "k" });
  assert.deepEqual([first.runId, first.existed], ["run-1", false]);
  assert.deepEqual([again.runId, again.existed], ["run-1", true]);
  const expected = { flow: "order", input: { id: 7 }, key: "k", tags: { a: "b" }, delay_ms: 1500 };
  assert.deepEqual(server.of("runs")[0]!.body, expected);
  assert.equal(server.of("runs")[0]!.headers["authorization"], "Bearer secret");
});

test("a start with a key is sent again, and one without is not", async (t) => {
  const { server, client } = await both(t);
  server.plan("runs", "cut");
  await assert.rejects(client.startRun("order"), (error) => {
    return error instanceof Unavailable && error.message.includes("may have been started: with a key");
  });
  assert.equal(server.of("runs").length, 1);
  server.plan("runs", "cut");
  assert.equal((await client.startRun("order", null, { key: "k" })).existed, true);
  assert.equal(server.runs.size, 2);
});

test("a run is read and waited for", async (t) => {
  const { server, client } = await both(t);
  const { runId } = await client.startRun("order", [1]);
  const run = await client.getRun(runId);
  assert.deepEqual([run.status, run.isOver, run.input], ["running", false, [1]]);
  assert.deepEqual(run.steps, [{ name: "a", state: "running", attempts: 1, result: undefined }]);
  server.plan(runId, refusal(503, "overloaded"));
  const waiting = client.wait(runId, { timeoutMs: 20_000 });
  await server.until(() => server.of(runId).length >= 4);
  const failure = { step: "a", message: "declined", kind: "failed" };
  Object.assign(server.runs.get(runId), { status: "failed", failure });
  const ended = await waiting;
  assert.deepEqual([ended.status, ended.failure], ["failed", failure]);
});

test("a debounced run is waited for before it begins", async (t) => {
  const { server, client } = await both(t);
  const until = "2026-11-16T07:00:01.000Z";
  const answer = { run_id: "run-1", flow: "order", status: null, existed: false, debounced_until: until };
  server.plan("runs", [201, answer]);
  const ref = await client.startRun("order");
  assert.deepEqual([ref.status, ref.debouncedUntil], [null, until]);
  const waiting = client.wait(ref, { timeoutMs: 20_000 });
  await server.until(() => server.of("run-1").length >= 2);
  const { runId } = await client.startRun("order");
  server.runs.get(runId).status = "completed";
  assert.equal((await waiting).status, "completed");
});

test("a wait that is too long says what to ask", async (t) => {
  const { client } = await both(t);
  const { runId } = await client.startRun("order");
  await assert.rejects(client.wait(runId, { timeoutMs: 100 }), (error) => {
    return error instanceof WaitTimeout && error.message.includes(`flowgate why ${runId}`);
  });
  await assert.rejects(client.wait("unknown", { timeoutMs: 5000 }), (error) => {
    return error instanceof ApiError && error.code === "run_not_found";
  });
});

test("signals and cancels reach the run", async (t) => {
  const { server, client } = await both(t);
  const { runId } = await client.startRun("order");
  const sent = await client.signal(runId, "approval", { by: "Ada" });
  assert.deepEqual([sent.taken, sent.kept], [true, false]);
  assert.deepEqual(server.of("signal")[0]!.body, { signal: "approval", data: { by: "Ada" } });
  assert.equal((await client.cancel(runId, { reason: "enough" })).status, "cancelled");
  assert.deepEqual(server.of("cancel")[0]!.body, { reason: "enough" });
});

test("an error of the server has its code and its words", async (t) => {
  const { server, client } = await both(t);
  await assert.rejects(client.getRun("a/b"), (error) => {
    return error instanceof ApiError && error.status === 404 && error.message.includes("refused by the fake");
  });
  assert.equal(server.requests.at(-1)!.path, "/runs/a%2Fb");
});

test("a server that is away is named", async (t) => {
  const { server, client } = await both(t);
  await server.stop();
  await assert.rejects(client.getRun("run-1"), (error) => {
    return error instanceof Unavailable && error.message.includes(`cannot connect to ${server.url}`) && !error.sent;
  });
});
