/**
 * Tells the server what became of attempts, with patience while it is away.
 *
 * A lease is what counts: as long as it holds, a report is sent again and again; once it is over,
 * somebody else may have the job and the report would be refused.
 */

import type { Attempt } from "./attempt.js";
import { ERROR_BYTES_MAX, cut } from "./attempt.js";
import { ApiError, FlowgateError, HandlerError, Stopped, Unavailable } from "./errors.js";
import type { Transport } from "./transport.js";
import { Backoff, rest } from "./transport.js";
import type { Logger } from "./worker.js";

const CALL_TIMEOUT_MS = 10_000;
const LOG_CALL_TIMEOUT_MS = 5_000;

/** The report counts no more: the job is somebody else's, or nobody's. */
class Dropped extends FlowgateError {
  constructor(
    message: string,
    readonly isRunOver: boolean,
    options: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** Sends reports. */
export class Reporter {
  constructor(
    private readonly transport: Transport,
    private readonly logger: Logger,
    /** Given when the worker waits for nothing any more. */
    private readonly ended: AbortSignal,
  ) {}

  /** Reports success, with all that the attempt handed over. */
  async complete(attempt: Attempt, result: string): Promise<void> {
    attempt.isSettling = true;
    const logs = await this.#lastLogs(attempt);
    try {
      await this.#untilLeaseEnds(attempt, "complete", `{${attempt.completion(result)},"logs":[${logs.join()}]}`);
    } catch (error) {
      if (error instanceof Dropped) {
        this.logger.warn(`${attempt}: the result is dropped: ${error.message}`);
      } else if (error instanceof ApiError) {
        await this.fail(attempt, new HandlerError(`the server refused the result: ${error.message}`));
      } else {
        throw error;
      }
    }
  }

  /** Reports a failure. */
  async fail(attempt: Attempt, failure: HandlerError): Promise<void> {
    attempt.isSettling = true;
    const report = JSON.stringify({
      token: attempt.job.token,
      message: cut(failure.message, ERROR_BYTES_MAX) || "it failed without a word",
      retry: failure.retry,
      ...(failure.retryAfterMs === null ? {} : { retry_after_ms: Math.round(failure.retryAfterMs) }),
    });
    const logs = await this.#lastLogs(attempt);
    try {
      await this.#untilLeaseEnds(attempt, "fail", `${report.slice(0, -1)},"logs":[${logs.join()}]}`);
    } catch (error) {
      if (error instanceof Dropped) {
        this.logger.warn(`${attempt}: the failure is dropped: ${error.message}`);
      } else if (error instanceof ApiError) {
        this.logger.error(`${attempt}: the server refused the failure: ${error.message}`);
      } else {
        throw error;
      }
    }
  }

  /** Hands the job back, once: if that fails, the lease ends by itself. */
  async release(attempt: Attempt, timeoutMs: number): Promise<void> {
    attempt.isHeld = false;
    await this.sendLogs(attempt, timeoutMs);
    try {
      await this.#send(attempt, "release", JSON.stringify({ token: attempt.job.token }), timeoutMs);
    } catch (error) {
      this.logger.warn(`${attempt}: not handed back, its lease will end: ${textOf(error)}`);
    }
  }

  /** Sends an event of an attempt that goes on. */
  async emitNow(attempt: Attempt, emission: string): Promise<void> {
    const body = `{"token":${JSON.stringify(attempt.job.token)},${emission.slice(1)}`;
    try {
      await this.#untilLeaseEnds(attempt, "emit", body);
    } catch (error) {
      if (!(error instanceof Dropped)) {
        throw error;
      }
      attempt.isHeld = false;
      attempt.stop(error.isRunOver ? "cancelled" : "lease_lost");
      throw new Stopped(attempt.stopReason ?? "lease_lost", { cause: error });
    }
  }

  /** Sends the log lines that wait; those that no server takes wait for the next time. */
  sendLogs(attempt: Attempt, timeoutMs = LOG_CALL_TIMEOUT_MS): Promise<void> {
    const sending = attempt.sendingLogs.then(async () => {
      const lines = attempt.takeLogs();
      if (lines.length > 0 && !(await this.#sendLines(attempt, lines, timeoutMs))) {
        attempt.putBackLogs(lines);
      }
    });
    attempt.sendingLogs = sending;
    return sending;
  }

  /** The lines that go with the outcome; where there are more, the others go before it. */
  async #lastLogs(attempt: Attempt): Promise<string[]> {
    await attempt.sendingLogs;
    for (;;) {
      const lines = attempt.takeLogs();
      if (!attempt.hasLogs) {
        return lines;
      }
      if (!(await this.#sendLines(attempt, lines, LOG_CALL_TIMEOUT_MS))) {
        this.logger.warn(`${attempt}: ${lines.length} log lines are dropped`);
      }
    }
  }

  /** Sends log lines; whether they need not be sent again. */
  async #sendLines(attempt: Attempt, lines: string[], timeoutMs: number): Promise<boolean> {
    const body = `{"token":${JSON.stringify(attempt.job.token)},"lines":[${lines.join()}]}`;
    try {
      await this.#send(attempt, "log", body, timeoutMs);
    } catch (error) {
      if (error instanceof Unavailable || (error instanceof ApiError && error.isTransient)) {
        return false;
      }
      this.logger.info(`${attempt}: log lines are dropped: ${textOf(error)}`);
    }
    return true;
  }

  /** Sends a report until it is taken or refused, or the lease is over. */
  async #untilLeaseEnds(attempt: Attempt, verb: string, body: string): Promise<void> {
    const backoff = new Backoff();
    for (;;) {
      const left = attempt.deadline - performance.now();
      let problem: FlowgateError;
      let pause: number;
      try {
        await this.#send(attempt, verb, body, Math.max(Math.min(CALL_TIMEOUT_MS, left), 1_000));
        return;
      } catch (error) {
        if (error instanceof ApiError && [404, 409].includes(error.status)) {
          throw new Dropped(error.message, error.code === "run_terminal", { cause: error });
        }
        if (error instanceof ApiError && error.isTransient) {
          problem = error;
          pause = backoff.pause(error.retryAfterMs);
        } else if (error instanceof Unavailable) {
          problem = error;
          pause = backoff.pause();
        } else {
          throw error;
        }
      }
      if (performance.now() + pause >= attempt.deadline) {
        throw new Dropped(`its lease is over, and ${problem.message}`, false, { cause: problem });
      }
      await rest(pause, this.ended);
      if (this.ended.aborted) {
        throw new Dropped(`the worker has ended, and ${problem.message}`, false, { cause: problem });
      }
    }
  }

  async #send(attempt: Attempt, verb: string, body: string, timeoutMs: number): Promise<void> {
    const { run_id, step } = attempt.job;
    const path = `/jobs/${encodeURIComponent(run_id)}/${encodeURIComponent(step)}/${verb}`;
    await this.transport.send({ method: "POST", path, body, timeoutMs, repeatable: true });
  }
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
