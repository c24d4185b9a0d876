/** A small server that keeps the contract of remote workers, and breaks it on command. */

import assert from "node:assert/strict";
import { once } from "node:events";
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import { createServer } from "node:http";
import type { AddressInfo, Socket } from "node:net";

export const PATIENCE_MS = 20_000;

type Json = any;
export type Answer = [status: number, body: Json];

/** A job of the server, and what became of it. */
export interface FakeJob {
  runId: string;
  step: string;
  worker: string;
  input: Json;
  state: Record<string, Json>;
  timeoutMs: number | null;
  attempt: number;
  token: number;
  expiresAt: number;
  isCancelled: boolean;
  outcome: Json;
  settledToken: number;
  failures: Json[];
  emitted: Json[];
  logs: string[];
  releases: number;
}

/** A request that the server got. */
export interface Seen {
  path: string;
  verb: string;
  body: Json;
  headers: Record<string, unknown>;
  at: number;
}

/** Jobs, leases by the server's clock, and a list of all requests. */
export class FakeServer {
  readonly jobs: FakeJob[] = [];
  readonly requests: Seen[] = [];
  readonly runs = new Map<string, Json>();
  connections = 0;
  answersAtOnce = false;
  /** What stands in for the usual answer: an answer, or "cut" after it was applied. */
  #planned: [verb: string, answer: Answer | "cut"][] = [];
  #watchers = new Set<() => void>();
  #tokens = 0;
  #port = 0;
  #server: Server | undefined;
  #sockets = new Set<Socket>();

  static async start(): Promise<FakeServer> {
    const fake = new FakeServer();
    await fake.listen();
    return fake;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Listens, on the same port as before. */
  async listen(): Promise<void> {
    const server = createServer((request, response) => void this.#serve(request, response));
    server.keepAliveTimeout = 60_000;
    server.on("connection", (socket) => {
      this.connections += 1;
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
    });
    server.listen(this.#port, "127.0.0.1");
    await once(server, "listening");
    this.#port = (server.address() as AddressInfo).port;
    this.#server = server;
  }

  /** Ends without a word, as a process that is killed. */
  async stop(): Promise<void> {
    const server = this.#server;
    if (server === undefined) {
      return;
    }
    this.#server = undefined;
    const closed = once(server, "close");
    server.close();
    this.#sockets.forEach((socket) => socket.destroy());
    this.#changed();
    await closed;
  }

  /** Makes a job due. */
  add(worker: string, input: Json = null, more: Partial<FakeJob> = {}): FakeJob {
    const job: FakeJob = {
      runId: `run-${this.jobs.length + 1}`,
      step: worker,
      worker,
      input,
      state: {},
      timeoutMs: null,
      attempt: 0,
      token: 0,
      expiresAt: 0,
      isCancelled: false,
      outcome: null,
      settledToken: 0,
      failures: [],
      emitted: [],
      logs: [],
      releases: 0,
      ...more,
    };
    this.jobs.push(job);
    this.#changed();
    return job;
  }

  /** The next request of this verb is answered so. */
  plan(verb: string, answer: Answer | "cut"): void {
    this.#planned.push([verb, answer]);
  }

  /** Somebody else gets the job. */
  takeAway(job: FakeJob): void {
    job.token = this.#tokens += 1;
    job.expiresAt = performance.now() + 600_000;
  }

  /** The requests of a verb so far. */
  of(verb: string): Seen[] {
    return this.requests.filter((request) => request.verb === verb);
  }

  /** Waits for a fact that a request brings about. */
  async until(fact: () => boolean, what = "it"): Promise<void> {
    const ends = performance.now() + PATIENCE_MS;
    while (!fact()) {
      const last = this.requests.slice(-10).map((seen) => `${seen.verb} ${JSON.stringify(seen.body)}`);
      assert.ok(performance.now() < ends, `${what} did not happen; last requests: ${last.join("; ")}`);
      await this.#change(1_000);
    }
  }

  #changed(): void {
    const watchers = [...this.#watchers];
    this.#watchers.clear();
    watchers.forEach((watcher) => watcher());
  }

  #change(longestMs: number): Promise<void> {
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        this.#watchers.delete(end);
        resolve();
      };
      const timer = setTimeout(end, longestMs);
      this.#watchers.add(end);
    });
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let text = "";
    for await (const part of request) {
      text += String(part);
    }
    const path = (request.url ?? "").replace("/api/v1", "");
    const verb = path.split("/").at(-1) ?? "";
    const body = text === "" ? null : JSON.parse(text);
    this.requests.push({ path, verb, body, headers: request.headers, at: performance.now() });
    this.#changed();
    const place = this.#planned.findIndex(([planned]) => planned === verb);
    const planned = place < 0 ? undefined : this.#planned.splice(place, 1)[0]?.[1];
    const answer = Array.isArray(planned) ? planned : await this.#route(request, path, body);
    this.#changed();
    if (planned === "cut" || response.destroyed) {
      request.socket.destroy();
      return;
    }
    response.writeHead(answer[0], { "content-type": "application/json" });
    response.end(JSON.stringify(answer[1]));
  }

  async #route(request: IncomingMessage, path: string, body: Json): Promise<Answer> {
    const parts = path.slice(1).split("/").map(decodeURIComponent);
    if (path === "/jobs/claim") {
      return this.#claim(request.socket, body);
    }
    if (path === "/jobs/renew") {
      return this.#renew(body);
    }
    if (parts[0] === "jobs" && parts.length === 4) {
      return this.#settle(parts as [string, string, string, string], body);
    }
    return parts[0] === "runs" ? this.#run(request.method ?? "", parts.slice(1), body) : refusal(404, "not_found");
  }

  async #claim(socket: Socket, body: Json): Promise<Answer> {
    const until = performance.now() + body.wait_ms;
    for (;;) {
      const now = performance.now();
      const due = socket.destroyed
        ? []
        : this.jobs
            .filter((job) => !isOver(job) && job.expiresAt <= now && body.workers.includes(job.worker))
            .slice(0, body.max);
      if (due.length > 0 || this.answersAtOnce || now >= until || socket.destroyed) {
        return [200, { jobs: due.map((job) => this.#lease(job, body.lease_ms)) }];
      }
      await this.#change(Math.min(until - now, 50));
    }
  }

  #lease(job: FakeJob, leaseMs: number): Json {
    job.attempt += 1;
    job.token = this.#tokens += 1;
    job.expiresAt = performance.now() + leaseMs;
    return {
      run_id: job.runId,
      flow: "f",
      revision: "r1",
      step: job.step,
      worker: job.worker,
      attempt: job.attempt,
      token: String(job.token),
      key: `${job.runId}/${job.step}/1`,
      input: job.input,
      state: job.state,
      lease_ms: leaseMs,
      expires_at: "2026-11-16T07:00:00.000Z",
      timeout_ms: job.timeoutMs,
      traceparent: `00-${String(job.token).padStart(32, "0")}-${String(job.attempt).padStart(16, "0")}-01`,
    };
  }

  #renew(body: Json): Answer {
    const jobs = body.jobs.map((wanted: Json) => {
      const job = this.#find(wanted.run_id, wanted.step);
      if (job?.isCancelled) {
        return { ...wanted, held: false, stop: "cancelled" };
      }
      if (job === undefined || !holds(job, wanted.token)) {
        return { ...wanted, held: false, stop: "lease_lost" };
      }
      job.expiresAt = performance.now() + body.lease_ms;
      return { ...wanted, held: true, stop: null };
    });
    return [200, { jobs }];
  }

  #settle([, runId, step, verb]: [string, string, string, string], body: Json): Answer {
    const job = this.#find(runId, step);
    const done: Answer = [200, { run_id: runId, status: "running" }];
    if (job === undefined) {
      return refusal(404, "job_not_found");
    }
    if (verb === "complete" && String(job.settledToken) === body.token) {
      return done;
    }
    if (isOver(job)) {
      return refusal(409, "run_terminal");
    }
    if (!holds(job, body.token)) {
      return refusal(409, "fenced");
    }
    for (const line of body.logs ?? body.lines ?? []) {
      job.logs.push(`${line.level}: ${line.text}`);
    }
    switch (verb) {
      case "complete":
        job.outcome = body;
        job.settledToken = job.token;
        return done;
      case "fail":
        job.failures.push(body);
        job.expiresAt = body.retry === false ? Infinity : 0;
        return done;
      case "release":
        job.releases += 1;
        job.attempt -= 1;
        job.expiresAt = Infinity;
        return done;
      case "emit":
        job.emitted.push({ event: body.event, data: body.data });
        return [200, { held: true }];
      case "log":
        return [200, { held: true }];
      default:
        return refusal(404, "not_found");
    }
  }

  #run(method: string, parts: string[], body: Json): Answer {
    const [runId, verb] = parts;
    if (runId === undefined) {
      const known = [...this.runs.values()].find((run) => body.key !== undefined && run.key === body.key);
      if (known !== undefined) {
        return [200, { ...ref(known), existed: true }];
      }
      const run = {
        run_id: `run-${this.runs.size + 1}`,
        flow: body.flow,
        revision: "r1",
        status: "running",
        started_at: "2026-11-16T07:00:00.000Z",
        ended_at: null,
        key: body.key ?? null,
        tags: body.tags ?? {},
        failure: null,
        input: body.input,
        state: {},
        steps: [{ name: "a", state: "running", attempts: 1 }],
      };
      this.runs.set(run.run_id, run);
      return [201, { ...ref(run), existed: false }];
    }
    const run = this.runs.get(runId);
    if (run === undefined) {
      return refusal(404, "run_not_found");
    }
    if (method === "GET") {
      return [200, run];
    }
    if (verb === "cancel") {
      run.status = "cancelled";
      return [200, { ...ref(run), existed: true }];
    }
    return [200, { ...ref(run), existed: true, taken: true, kept: false }];
  }

  #find(runId: string, step: string): FakeJob | undefined {
    return this.jobs.find((job) => job.runId === runId && job.step === step);
  }
}

function isOver(job: FakeJob): boolean {
  return job.outcome !== null || job.isCancelled;
}

function holds(job: FakeJob, token: string): boolean {
  return String(job.token) === token && performance.now() < job.expiresAt && !isOver(job);
}

function ref(run: Json): Json {
  return { run_id: run.run_id, flow: run.flow, revision: run.revision, status: run.status };
}

export function refusal(status: number, code: string): Answer {
  return [status, { error: { code, message: `refused by the fake: ${code}`, path: null, help: null } }];
}
