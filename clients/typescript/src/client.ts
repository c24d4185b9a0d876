/** Starts and watches runs. */

import { ApiError, Unavailable, WaitTimeout } from "./errors.js";
import { Backoff, Transport, rest } from "./transport.js";

/** Between two looks at a run that is waited for. */
const LOOK_MIN_MS = 50;
const LOOK_MAX_MS = 1_000;

export interface ClientOptions {
  /** One or more URLs; the next one is asked when one fails. */
  server: string | readonly string[];
  token?: string;
  /** How long a call may take (30 s). */
  timeoutMs?: number;
}

export interface StartOptions {
  /** The same key for the same flow gives the same run. */
  key?: string;
  tags?: Record<string, string>;
  /** 0 to 9. */
  priority?: number;
  delayMs?: number;
}

/**
 * A run that was started or changed.
 *
 * A start that is debounced has a run id that is final, but no run and no status before
 * `debouncedUntil`.
 */
export interface RunRef {
  runId: string;
  flow: string;
  status: string | null;
  existed: boolean;
  debouncedUntil: string | null;
}

/** What became of a signal: a wait took it, or the run keeps it for a wait to come. */
export interface SignalRef {
  runId: string;
  flow: string;
  status: string | null;
  taken: boolean;
  kept: boolean;
}

/** Why a run failed. */
export interface Failure {
  step: string | null;
  message: string;
  kind: string | null;
}

/** Where a step of a run stands. */
export interface RunStep {
  name: string;
  state: string;
  attempts: number;
  result: unknown;
}

/** Where a run stands. `raw` is all that the server said. */
export interface Run {
  runId: string;
  flow: string;
  revision: string;
  status: string;
  /** Whether the run has ended, well or not. */
  isOver: boolean;
  key: string | null;
  tags: Record<string, string>;
  startedAt: string;
  endedAt: string | null;
  failure: Failure | null;
  steps: RunStep[];
  input: unknown;
  state: Record<string, unknown>;
  raw: Record<string, unknown>;
}

/** Talks to a flowgate server, or to the first of several that answers. */
export class Client {
  readonly #transport: Transport;
  readonly #timeoutMs: number;

  constructor(options: ClientOptions) {
    this.#transport = new Transport(options.server, options.token);
    this.#timeoutMs = options.timeoutMs ?? 30_000;
  }

  /** Starts a run. With a `key` the same call may be sent again and starts nothing twice. */
  async startRun(flow: string, input: unknown = null, options: StartOptions = {}): Promise<RunRef> {
    const body = {
      flow,
      input,
      ...(options.key === undefined ? {} : { key: options.key }),
      ...(options.tags === undefined ? {} : { tags: options.tags }),
      ...(options.priority === undefined ? {} : { priority: options.priority }),
      ...(options.delayMs === undefined ? {} : { delay_ms: options.delayMs }),
    };
    try {
      return readRef(await this.#post("/runs", body, options.key !== undefined));
    } catch (error) {
      if (error instanceof Unavailable && error.sent && options.key === undefined) {
        const text = `${error.message}; the run may have been started: with a key it is safe to ask again`;
        throw new Unavailable(text, true, { cause: error });
      }
      throw error;
    }
  }

  /** Where a run stands. */
  async getRun(runId: string): Promise<Run> {
    const path = `/runs/${encodeURIComponent(runId)}`;
    const request = { method: "GET", path, timeoutMs: this.#timeoutMs, repeatable: true } as const;
    return readRun((await this.#transport.send(request)) as Wire);
  }

  /**
   * Waits until the run has ended, also while no server answers; `WaitTimeout` if it is late.
   *
   * Given what `startRun` returned, it also waits for a debounced run to begin.
   */
  async wait(run: string | RunRef, options: { timeoutMs?: number } = {}): Promise<Run> {
    const { timeoutMs = Infinity } = options;
    const runId = typeof run === "string" ? run : run.runId;
    const mayBeAbsent = typeof run !== "string" && run.debouncedUntil !== null;
    const until = performance.now() + timeoutMs;
    const backoff = new Backoff();
    let look = LOOK_MIN_MS;
    for (;;) {
      let pause: number;
      let problem = "";
      try {
        const found = await this.getRun(runId);
        backoff.reset();
        if (found.isOver) {
          return found;
        }
        pause = look * (0.8 + Math.random() * 0.4);
        look = Math.min(look * 1.5, LOOK_MAX_MS);
      } catch (error) {
        const isAbsent = mayBeAbsent && error instanceof ApiError && error.code === "run_not_found";
        if (error instanceof ApiError && (error.isTransient || isAbsent)) {
          pause = backoff.pause(error.retryAfterMs);
        } else if (error instanceof Unavailable) {
          pause = backoff.pause();
        } else {
          throw error;
        }
        problem = error.message;
      }
      const left = until - performance.now();
      if (left <= 0) {
        throw new WaitTimeout(
          problem === ""
            ? `run ${runId} has not ended within ${timeoutMs} ms; \`flowgate why ${runId}\` says why`
            : `no word of run ${runId} within ${timeoutMs} ms: ${problem}`,
        );
      }
      await rest(Math.min(pause, left));
    }
  }

  /** Sends a signal to a run. */
  async signal(runId: string, signal: string, data: unknown = null): Promise<SignalRef> {
    const answer = await this.#post(`/runs/${encodeURIComponent(runId)}/signal`, { signal, data }, false);
    const { runId: id, flow, status } = readRef(answer);
    return { runId: id, flow, status, taken: answer["taken"] === true, kept: answer["kept"] === true };
  }

  /** Cancels a run. To cancel it twice is no error. */
  async cancel(runId: string, options: { reason?: string } = {}): Promise<RunRef> {
    const body = options.reason === undefined ? {} : { reason: options.reason };
    return readRef(await this.#post(`/runs/${encodeURIComponent(runId)}/cancel`, body, true));
  }

  async #post(path: string, body: unknown, repeatable: boolean): Promise<Wire> {
    const text = JSON.stringify(body);
    const request = { method: "POST", path, body: text, timeoutMs: this.#timeoutMs, repeatable } as const;
    return (await this.#transport.send(request)) as Wire;
  }
}

type Wire = Record<string, unknown>;

function readRef(wire: Wire): RunRef {
  return {
    runId: String(wire["run_id"]),
    flow: String(wire["flow"]),
    status: textOrNull(wire["status"]),
    existed: wire["existed"] === true,
    debouncedUntil: textOrNull(wire["debounced_until"]),
  };
}

function readRun(wire: Wire): Run {
  const status = String(wire["status"]);
  const failure = wire["failure"] as Wire | null | undefined;
  const steps = (wire["steps"] ?? []) as Wire[];
  return {
    runId: String(wire["run_id"]),
    flow: String(wire["flow"]),
    revision: String(wire["revision"]),
    status,
    isOver: ["completed", "failed", "cancelled"].includes(status),
    key: textOrNull(wire["key"]),
    tags: (wire["tags"] ?? {}) as Record<string, string>,
    startedAt: String(wire["started_at"]),
    endedAt: textOrNull(wire["ended_at"]),
    failure:
      failure === null || failure === undefined
        ? null
        : {
            step: textOrNull(failure["step"]),
            message: String(failure["message"]),
            kind: textOrNull(failure["kind"]),
          },
    steps: steps.map((step) => ({
      name: String(step["name"]),
      state: String(step["state"]),
      attempts: Number(step["attempts"] ?? 0),
      result: step["result"],
    })),
    input: wire["input"],
    state: (wire["state"] ?? {}) as Record<string, unknown>,
    raw: wire,
  };
}

function textOrNull(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}
