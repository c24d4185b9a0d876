/** What can go wrong, sorted by what to do about it. */

import type { StopReason } from "./attempt.js";

/** Answers that another try may change with nothing else changed. */
const TRANSIENT_STATUSES = new Set([408, 425, 429, 500, 502, 503, 504]);

/** Any error of this package. */
export class FlowgateError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** No server answered. Whether the request was carried out is not known, unless `sent` is false. */
export class Unavailable extends FlowgateError {
  constructor(
    message: string,
    readonly sent: boolean,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** What the server said of an error. */
export interface Refusal {
  status: number;
  code: string;
  message: string;
  path: string | null;
  help: string | null;
  retryAfterMs: number | null;
}

/** A server answered, and refused. `code` is stable; the message is for people. */
export class ApiError extends FlowgateError {
  readonly status: number;
  readonly code: string;
  readonly path: string | null;
  readonly help: string | null;
  readonly retryAfterMs: number | null;

  constructor(refusal: Refusal) {
    const help = refusal.help === null ? "" : `; ${refusal.help}`;
    super(`${refusal.message} (${refusal.status} ${refusal.code})${help}`);
    this.status = refusal.status;
    this.code = refusal.code;
    this.path = refusal.path;
    this.help = refusal.help;
    this.retryAfterMs = refusal.retryAfterMs;
  }

  /** Whether the same call may succeed later with nothing else changed. */
  get isTransient(): boolean {
    return TRANSIENT_STATUSES.has(this.status);
  }
}

/**
 * Thrown by a handler: the attempt failed, and this is what follows from it.
 *
 * Anything else that a handler throws fails the attempt too, and is tried again as the step's
 * `retry` says.
 */
export class HandlerError extends FlowgateError {
  readonly retry: boolean;
  readonly retryAfterMs: number | null;

  constructor(message: string, options: { retry?: boolean; retryAfterMs?: number } & ErrorOptions = {}) {
    super(message, options);
    this.retry = options.retry ?? true;
    this.retryAfterMs = options.retryAfterMs ?? null;
    if (this.retryAfterMs !== null && !this.retry) {
      throw new RangeError("an attempt that must not be tried again has no retryAfterMs");
    }
    if (this.retryAfterMs !== null && !(this.retryAfterMs >= 0 && this.retryAfterMs < Infinity)) {
      throw new RangeError("retryAfterMs is a number of milliseconds, 0 or more");
    }
  }

  /** A failure that must not be tried again. */
  static fatal(message: string, options?: ErrorOptions): HandlerError {
    return new HandlerError(message, { ...options, retry: false });
  }
}

/** What a handler handed over cannot be taken: it is too large, too much, or no JSON. */
export class ContextError extends FlowgateError {}

const STOP_TEXTS: Record<StopReason, string> = {
  cancelled: "the run was cancelled",
  lease_lost: "the lease was lost",
  timed_out: "the step's timeout is over",
  shutdown: "the worker is shutting down",
};

/** The attempt must stop: whatever it does from here on changes nothing. */
export class Stopped extends FlowgateError {
  constructor(
    readonly reason: StopReason,
    options?: ErrorOptions,
  ) {
    super(`the attempt must stop: ${STOP_TEXTS[reason]}`, options);
  }
}

/** A run was still open when the time to wait for it was over. */
export class WaitTimeout extends FlowgateError {}
