/**
 * A worker: claims jobs, executes their handlers, and reports.
 *
 *     claim (long poll, only for free slots) -> handler in a slot -> complete | fail
 *                                    \-> renewals, all held jobs in one call
 *
 * - A server that is away ends nothing: handlers go on, claims are tried again with growing pauses,
 *   and outcomes are sent again until the lease is over.
 * - A lost lease or a cancelled run aborts the handler's signal, and its outcome is dropped.
 * - A stop (SIGTERM, SIGINT, `stop()`) claims no more, lets handlers end within the grace, and hands
 *   the rest back without counting the attempt. A second signal has its usual effect.
 */

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";

import type { Job } from "./attempt.js";
import { Attempt, PAYLOAD_BYTES_MAX, payload } from "./attempt.js";
import { Context } from "./context.js";
import { ApiError, ContextError, HandlerError, Stopped, Unavailable } from "./errors.js";
import { Renewer } from "./leases.js";
import { Reporter, textOf } from "./reporter.js";
import { Backoff, Transport, rest } from "./transport.js";

const SLOTS_MAX = 1_000;
const CLAIM_MAX = 100;
const LEASE_MIN_MS = 1_000;
const LEASE_MAX_MS = 600_000;
/** How long a claim waits at the server for a job. */
const CLAIM_WAIT_MS = 20_000;
/** How much longer until the server counts as one that does not answer. */
const CLAIM_MARGIN_MS = 10_000;
/** An empty answer that comes sooner than this did not wait, and is not asked again at once. */
const CLAIM_WAIT_MIN_MS = 500;
/** What a claim under way gets when the worker stops: under load its answer is on its way. */
const CLAIM_GRACE_MS = 250;
/** Between two sendings of the log lines of running attempts. */
const LOG_PAUSE_MS = 1_000;
/** How long handing back may take in all. */
const RELEASE_TIME_MS = 5_000;

/** Where the worker says what it does; `console` is one. */
export interface Logger {
  info(message: string): void;
  warn(message: string): void;
  error(message: string): void;
}

/** How a worker works. */
export interface WorkerOptions {
  /** One or more URLs; the next one is asked when one fails. */
  server: string | readonly string[];
  token?: string;
  /** How many handlers run at a time (10). */
  slots?: number;
  /** Claims from exactly these queues; from those named as its workers, if absent. */
  queues?: readonly string[];
  /** The name in events and logs; host, process and some chance, if absent. */
  workerId?: string;
  /** How long a job is this worker's without a renewal (30 s). */
  leaseMs?: number;
  /** How long handlers may go on after a stop (20 s). */
  graceMs?: number;
  /** Whether SIGTERM and SIGINT stop it (true). */
  signals?: boolean;
  /** Warnings and errors to standard error, if absent. */
  logger?: Logger;
}

/** Executes a step; what it returns is the step's result. */
export type Handler<Input = any, Result = unknown> = (
  ctx: Context<Input>,
  input: Input,
) => Result | Promise<Result>;

const QUIET: Logger = {
  info: () => {},
  warn: (message) => console.error(`flowgate: ${message}`),
  error: (message) => console.error(`flowgate: ${message}`),
};

/** Executes steps whose flow says `run: {worker: NAME}`. */
export class Worker {
  readonly workerId: string;
  readonly #slots: number;
  readonly #queues: readonly string[] | undefined;
  readonly #leaseMs: number;
  readonly #graceMs: number;
  readonly #signals: boolean;
  readonly #logger: Logger;
  readonly #transport: Transport;
  readonly #reporter: Reporter;
  readonly #renewer: Renewer;
  readonly #handlers = new Map<string, Handler>();
  readonly #attempts = new Set<Attempt>();
  readonly #stopping = new AbortController();
  readonly #claimEnded = new AbortController();
  readonly #ended = new AbortController();
  /** Called when an attempt ends. */
  #onFree: (() => void)[] = [];
  #logTimer: NodeJS.Timeout | undefined;
  #fatal: Error | undefined;
  #hasRun = false;

  constructor(options: WorkerOptions) {
    const { slots = 10, leaseMs = 30_000, graceMs = 20_000, queues } = options;
    if (!Number.isInteger(slots) || slots < 1 || slots > SLOTS_MAX) {
      throw new RangeError(`slots are 1 to ${SLOTS_MAX}, not ${slots}`);
    }
    if (!Number.isInteger(leaseMs) || leaseMs < LEASE_MIN_MS || leaseMs > LEASE_MAX_MS) {
      throw new RangeError(`leaseMs is ${LEASE_MIN_MS} to ${LEASE_MAX_MS}, not ${leaseMs}`);
    }
    if (!(graceMs >= 0 && graceMs < Infinity)) {
      throw new RangeError(`graceMs is a number of milliseconds, 0 or more, not ${graceMs}`);
    }
    if (queues?.length === 0) {
      throw new RangeError("name at least one queue, or leave `queues` out");
    }
    queues?.forEach((queue) => checkName("queue", queue));
    this.workerId = options.workerId ?? newWorkerId();
    checkName("worker id", this.workerId);
    this.#slots = slots;
    this.#queues = queues;
    this.#leaseMs = leaseMs;
    this.#graceMs = graceMs;
    this.#signals = options.signals ?? true;
    this.#logger = options.logger ?? QUIET;
    this.#transport = new Transport(options.server, options.token);
    this.#reporter = new Reporter(this.#transport, this.#logger, this.#ended.signal);
    this.#renewer = new Renewer(this.#transport, this.#logger, this.workerId, leaseMs, () => [...this.#attempts]);
  }

  /** Registers the handler of a worker name. */
  step<Input = any, Result = unknown>(name: string, handler: Handler<Input, Result>): this {
    checkName("worker", name);
    if (this.#handlers.has(name)) {
      throw new TypeError(`the worker "${name}" has a handler already`);
    }
    if (this.#hasRun) {
      throw new TypeError("register every handler before run()");
    }
    this.#handlers.set(name, handler);
    return this;
  }

  /** Works until it is told to stop. Rejects if the server refuses the very first claim. */
  async run(): Promise<void> {
    if (this.#handlers.size === 0) {
      throw new TypeError("the worker has no handler: register one with worker.step(NAME, …)");
    }
    if (this.#hasRun) {
      throw new TypeError("a worker runs once: make a new one");
    }
    this.#hasRun = true;
    const forget = this.#signals ? this.#listenToSignals() : () => {};
    const claims = this.#claimLoop();
    const renewals = this.#renewer.run();
    try {
      await Promise.race([given(this.#stopping.signal), claims]);
      this.stop();
      await this.#drain(claims);
    } finally {
      this.stop();
      this.#ended.abort();
      this.#renewer.end();
      clearTimeout(this.#logTimer);
      forget();
    }
    await renewals;
    if (this.#fatal !== undefined) {
      throw this.#fatal;
    }
  }

  /** Tells `run` to stop as at a signal. */
  stop(): void {
    this.#stopping.abort();
  }

  async #claimLoop(): Promise<void> {
    const backoff = new Backoff();
    let isKnown = false;
    for (;;) {
      const free = await this.#freeSlots();
      if (free === 0) {
        return;
      }
      const askedAt = performance.now();
      let pause = 0;
      try {
        const jobs = await this.#claim(Math.min(free, CLAIM_MAX));
        isKnown = true;
        if (jobs.length > 0 || performance.now() - askedAt >= CLAIM_WAIT_MIN_MS) {
          backoff.reset();
        } else {
          pause = backoff.pause();
        }
        this.#begin(jobs);
      } catch (error) {
        if (error instanceof ApiError && !error.isTransient && !isKnown) {
          this.#fatal = error;
          return;
        }
        pause = backoff.pause(error instanceof ApiError ? error.retryAfterMs : null);
        if (!this.#stopping.signal.aborted) {
          const seconds = (pause / 1000).toFixed(1);
          this.#logger.warn(`no jobs claimed, next try in ${seconds} s: ${textOf(error)}`);
        }
      }
      await rest(pause, this.#stopping.signal);
    }
  }

  /** The number of free slots, as soon as there is one; 0 when the worker stops. */
  async #freeSlots(): Promise<number> {
    while (!this.#stopping.signal.aborted && this.#attempts.size >= this.#slots) {
      await this.#change(this.#stopping.signal);
    }
    return this.#stopping.signal.aborted ? 0 : this.#slots - this.#attempts.size;
  }

  /** Waits until an attempt ends, or the signal is given. */
  #change(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const end = () => {
        signal.removeEventListener("abort", end);
        resolve();
      };
      signal.addEventListener("abort", end, { once: true });
      this.#onFree.push(end);
    });
  }

  async #claim(count: number): Promise<Job[]> {
    const body = JSON.stringify({
      worker_id: this.workerId,
      workers: [...this.#handlers.keys()].sort(),
      max: count,
      wait_ms: CLAIM_WAIT_MS,
      lease_ms: this.#leaseMs,
      ...(this.#queues === undefined ? {} : { queues: this.#queues }),
    });
    const answer = await this.#transport.send({
      method: "POST",
      path: "/jobs/claim",
      body,
      timeoutMs: CLAIM_WAIT_MS + CLAIM_MARGIN_MS,
      repeatable: true,
      signal: this.#claimEnded.signal,
    });
    const jobs = (answer as { jobs?: unknown } | null)?.jobs;
    if (!Array.isArray(jobs)) {
      throw new Unavailable("the answer to a claim has no jobs", true);
    }
    return jobs as Job[];
  }

  /** Gives jobs to slots; hands back what the worker does not begin any more. */
  #begin(jobs: Job[]): void {
    for (const job of jobs) {
      const attempt = new Attempt(job, () => this.#scheduleLogs());
      const handler = this.#handlers.get(job.worker);
      const work =
        handler === undefined || this.#stopping.signal.aborted
          ? this.#reporter.release(attempt, RELEASE_TIME_MS)
          : this.#execute(attempt, handler);
      this.#attempts.add(attempt);
      if (attempt.timeoutAt !== Infinity) {
        this.#renewer.look();
      }
      void work
        .catch((error: unknown) => {
          this.#logger.error(`${attempt}: the attempt is dropped, its lease will end: ${textOf(error)}`);
        })
        .finally(() => {
          attempt.isHeld = false;
          this.#attempts.delete(attempt);
          const listeners = this.#onFree;
          this.#onFree = [];
          listeners.forEach((listener) => listener());
        });
    }
  }

  async #execute(attempt: Attempt, handler: Handler): Promise<void> {
    const context = new Context(attempt, (emission) => this.#reporter.emitNow(attempt, emission));
    let result = "null";
    let failure: HandlerError | undefined;
    try {
      // What begins on its own turn cannot keep the others of its claim from beginning.
      await Promise.resolve();
      const returned = await handler(context, attempt.job.input);
      result = payload("the result", returned, PAYLOAD_BYTES_MAX);
    } catch (error) {
      failure = this.#failureOf(attempt, error);
    }
    attempt.close();
    if (attempt.stopReason !== null) {
      // One that is handed back says so itself.
      if (attempt.stopReason !== "shutdown") {
        this.#logger.info(`${attempt}: dropped: ${new Stopped(attempt.stopReason).message}`);
      }
    } else if (failure !== undefined) {
      this.#logger.info(`${attempt}: failed: ${failure.message}`);
      await this.#reporter.fail(attempt, failure);
    } else {
      await this.#reporter.complete(attempt, result);
    }
  }

  #failureOf(attempt: Attempt, error: unknown): HandlerError {
    if (error instanceof HandlerError) {
      return error;
    }
    if (error instanceof ContextError || error instanceof Stopped) {
      return new HandlerError(error.message, { cause: error });
    }
    if (!(error instanceof Error)) {
      return new HandlerError(String(error), { cause: error });
    }
    if (attempt.stopReason === null && error.stack !== undefined) {
      attempt.log("error", error.stack);
    }
    return new HandlerError(error.message === "" ? error.name : `${error.name}: ${error.message}`, { cause: error });
  }

  /** Sends what running attempts have logged, a while after the first line. */
  #scheduleLogs(): void {
    this.#logTimer ??= setTimeout(() => {
      const waiting = [...this.#attempts].filter((a) => a.isHeld && !a.isSettling && a.hasLogs);
      void Promise.all(waiting.map((attempt) => this.#reporter.sendLogs(attempt))).then(() => {
        this.#logTimer = undefined;
        if (!this.#ended.signal.aborted && [...this.#attempts].some((a) => a.isHeld && a.hasLogs)) {
          this.#scheduleLogs();
        }
      });
    }, LOG_PAUSE_MS);
  }

  async #drain(claims: Promise<void>): Promise<void> {
    const graceEnds = performance.now() + this.#graceMs;
    await within(CLAIM_GRACE_MS, claims);
    this.#claimEnded.abort();
    await claims;
    const over = new AbortController();
    const timer = setTimeout(() => over.abort(), Math.min(graceEnds - performance.now(), 2 ** 31 - 1));
    while (this.#attempts.size > 0 && !over.signal.aborted) {
      await this.#change(over.signal);
    }
    clearTimeout(timer);
    const released = [...this.#attempts].map((attempt) => {
      attempt.stop("shutdown");
      if (!attempt.isHeld || attempt.isSettling) {
        return Promise.resolve();
      }
      this.#logger.info(`${attempt}: handed back, it did not end within the grace`);
      return this.#reporter.release(attempt, RELEASE_TIME_MS);
    });
    await within(RELEASE_TIME_MS, Promise.all(released));
  }

  /** Stops at SIGTERM and SIGINT; what it returns stops listening. */
  #listenToSignals(): () => void {
    const numbers = ["SIGTERM", "SIGINT"] as const;
    const onSignal = () => {
      // A second signal has its usual effect.
      forget();
      this.stop();
    };
    const forget = () => numbers.forEach((number) => process.off(number, onSignal));
    numbers.forEach((number) => process.on(number, onSignal));
    return forget;
  }
}

/** Waits for work, but not longer than this. No timer is left behind: it would keep the process. */
async function within(ms: number, work: Promise<unknown>): Promise<void> {
  const done = new AbortController();
  await Promise.race([work, rest(ms, done.signal)]);
  done.abort();
}

function given(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

/** Refuses what the server would refuse. */
function checkName(what: string, name: string): void {
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/.test(name) || name.includes("..")) {
    throw new TypeError(
      `"${name}" cannot name a ${what}: a letter or digit, then letters, digits, ".", "_", "-"; ` +
        `at most 128 in all and no ".."`,
    );
  }
}

/** A name that no other worker has: the host, the process and some chance. */
function newWorkerId(): string {
  const host = hostname().replace(/[^A-Za-z0-9-]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 64) || "worker";
  return `${host}-${process.pid}-${randomBytes(4).toString("hex")}`;
}
