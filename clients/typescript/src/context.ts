/** What a handler is given besides its input. */

import type { Attempt, Level, StopReason } from "./attempt.js";
import { emission } from "./attempt.js";

/** The state values of the run. */
export interface State {
  /** What this attempt set, else what the run had when the attempt began. */
  get<T = unknown>(name: string): T | undefined;
  /** Sets a value of the run when the attempt succeeds. */
  set(name: string, value: unknown): void;
}

/** The attempt that a handler executes. */
export class Context<Input = unknown> {
  readonly state: State;
  readonly #attempt: Attempt;
  readonly #sendNow: (emission: string) => Promise<void>;

  constructor(attempt: Attempt, sendNow: (emission: string) => Promise<void>) {
    this.#attempt = attempt;
    this.#sendNow = sendNow;
    this.state = {
      get: <T>(name: string) => attempt.stateGet(name) as T | undefined,
      set: (name, value) => attempt.stateSet(name, value),
    };
  }

  /** The input: the start's payload, or an object keyed by event name. */
  get input(): Input {
    return this.#attempt.job.input as Input;
  }

  /** The run. */
  get runId(): string {
    return this.#attempt.job.run_id;
  }

  /** The flow's name. */
  get flow(): string {
    return this.#attempt.job.flow;
  }

  /** The revision that the run is pinned to. */
  get revision(): string {
    return this.#attempt.job.revision;
  }

  /** The step's name. */
  get step(): string {
    return this.#attempt.job.step;
  }

  /** The number of this attempt, from 1. */
  get attempt(): number {
    return this.#attempt.job.attempt;
  }

  /** The idempotency key: the same for every attempt of this step in this run. */
  get key(): string {
    return this.#attempt.job.key;
  }

  /**
   * The attempt's place in the run's trace, for the header of that name in requests that belong to
   * it; `null` unless the server exports spans.
   */
  get traceparent(): string | null {
    return this.#attempt.job.traceparent ?? null;
  }

  /** Given when the attempt must stop, for whatever reason. */
  get signal(): AbortSignal {
    return this.#attempt.signal;
  }

  /** Whether the attempt must stop. */
  get cancelled(): boolean {
    return this.#attempt.stopReason !== null;
  }

  /** Why the attempt must stop; `null` while it may go on. */
  get stopReason(): StopReason | null {
    return this.#attempt.stopReason;
  }

  /** Throws `Stopped` if the attempt must stop. Leases are renewed without it. */
  heartbeat(): void {
    this.#attempt.check();
  }

  /** Emits an event when the attempt succeeds. An attempt that fails emits nothing. */
  emit(event: string, data?: unknown): void {
    this.#attempt.emit(event, data);
  }

  /** Emits an event at once; it stays even if this attempt fails. */
  async emitNow(event: string, data?: unknown): Promise<void> {
    const emitted = emission(event, data);
    this.#attempt.checkOpen();
    this.#attempt.check();
    await this.#sendNow(emitted);
  }

  /** Keeps a log line of the step. Never waits, and is kept also if the attempt fails. */
  log(level: Level, text: string): void {
    this.#attempt.log(level, text);
  }
}
