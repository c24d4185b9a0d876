/**
 * Renews the leases of all held jobs with one call, and stops attempts whose time is over.
 *
 * A third of the lease passes between two renewals, so two may fail before a lease is lost. The
 * worker judges by its own clock when a lease is over for want of an answer, and the server has the
 * last word by the token.
 */

import type { Attempt } from "./attempt.js";
import { textOf } from "./reporter.js";
import type { Transport } from "./transport.js";
import { Backoff, rest } from "./transport.js";
import type { Logger } from "./worker.js";

const RENEWALS_PER_LEASE = 3;

interface Renewed {
  run_id: string;
  step: string;
  token: string;
  held: boolean;
  stop: string | null;
}

/** The loop that keeps leases. */
export class Renewer {
  readonly #backoff: Backoff;
  #hasEnded = false;
  #wake = new AbortController();

  constructor(
    private readonly transport: Transport,
    private readonly logger: Logger,
    private readonly workerId: string,
    private readonly leaseMs: number,
    private readonly running: () => Attempt[],
  ) {
    this.#backoff = new Backoff(Math.min(500, leaseMs / 10), leaseMs / RENEWALS_PER_LEASE);
  }

  /** Renews until `end`. */
  async run(): Promise<void> {
    const pause = this.leaseMs / RENEWALS_PER_LEASE;
    let renewAt = performance.now() + pause;
    for (;;) {
      await rest(this.#untilNext(renewAt), this.#wake.signal);
      if (this.#hasEnded) {
        return;
      }
      if (this.#wake.signal.aborted) {
        this.#wake = new AbortController();
      }
      const now = performance.now();
      if (stopLate(this.running(), now)) {
        // The server learns of a timeout by the renewal that it refuses.
        renewAt = now;
      }
      if (now < renewAt) {
        continue;
      }
      const isAnswered = await this.#renew(this.running().filter((attempt) => attempt.isHeld));
      renewAt = now + (isAnswered ? pause : this.#backoff.pause());
    }
  }

  /** Ends the loop. */
  end(): void {
    this.#hasEnded = true;
    this.#wake.abort();
  }

  /** There is a new attempt, whose time may be over before the next renewal. */
  look(): void {
    this.#wake.abort();
  }

  /** Renews these; whether a server answered. */
  async #renew(attempts: Attempt[]): Promise<boolean> {
    if (attempts.length === 0) {
      return true;
    }
    const jobs = attempts.map(({ job }) => ({ run_id: job.run_id, step: job.step, token: job.token }));
    const body = JSON.stringify({ worker_id: this.workerId, lease_ms: this.leaseMs, jobs });
    const askedAt = performance.now();
    const timeoutMs = Math.max(this.leaseMs / RENEWALS_PER_LEASE, 1_000);
    let answer: { jobs: Renewed[] };
    try {
      const request = { method: "POST", path: "/jobs/renew", body, timeoutMs, repeatable: true } as const;
      answer = (await this.transport.send(request)) as { jobs: Renewed[] };
    } catch (error) {
      this.logger.warn(`${attempts.length} leases not renewed: ${textOf(error)}`);
      return false;
    }
    this.#backoff.reset();
    this.#take(attempts, answer.jobs, askedAt + this.leaseMs);
    return true;
  }

  #take(attempts: Attempt[], renewed: Renewed[], deadline: number): void {
    const name = (job: { run_id: string; step: string; token: string }) => `${job.run_id}/${job.step}/${job.token}`;
    const told = new Map(renewed.map((job) => [name(job), job]));
    for (const attempt of attempts) {
      const found = told.get(name(attempt.job));
      if (found === undefined) {
        continue;
      }
      if (found.held && found.stop === null) {
        attempt.deadline = Math.max(attempt.deadline, deadline);
      } else if (!attempt.isSettling) {
        // While its outcome is on its way, the answer to that says what became of it.
        attempt.isHeld = false;
        attempt.stop(found.stop === "cancelled" ? "cancelled" : "lease_lost");
      }
    }
  }

  #untilNext(renewAt: number): number {
    let next = renewAt;
    for (const attempt of this.running()) {
      if (attempt.stopReason === null && !attempt.isSettling) {
        next = Math.min(next, attempt.deadline, attempt.timeoutAt);
      }
    }
    return next - performance.now();
  }
}

/** Stops those whose lease or timeout is over; whether there was one with a timeout. */
function stopLate(attempts: Attempt[], now: number): boolean {
  let hasTimedOut = false;
  for (const attempt of attempts) {
    if (attempt.stopReason !== null || attempt.isSettling) {
      continue;
    }
    if (attempt.deadline <= now) {
      attempt.isHeld = false;
      attempt.stop("lease_lost");
    } else if (attempt.timeoutAt <= now) {
      attempt.stop("timed_out");
      hasTimedOut = true;
    }
  }
  return hasTimedOut;
}
