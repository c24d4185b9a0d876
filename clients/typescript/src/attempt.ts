/** One attempt at a step, as the worker keeps it. */

import { ContextError, Stopped } from "./errors.js";

export type Level = "debug" | "info" | "warn" | "error";
export type StopReason = "cancelled" | "lease_lost" | "timed_out" | "shutdown";

const LEVELS: readonly string[] = ["debug", "info", "warn", "error"];

// The limits of the engine; what is over them is refused here, before it is kept.
export const PAYLOAD_BYTES_MAX = 1 << 20;
export const ERROR_BYTES_MAX = 4 << 10;
const STATE_VALUE_BYTES_MAX = 64 << 10;
const EMITS_MAX = 10_000;
const STATE_KEYS_MAX = 256;
const LOG_LINE_BYTES_MAX = 8 << 10;
/** Log lines that wait to be sent; later ones are counted, not kept. */
const LOG_LINES_MAX = 1_000;
const LOG_LINES_PER_CALL_MAX = 500;
const LOG_BYTES_PER_CALL_MAX = 256 << 10;
/** Bytes of all that one attempt hands over; with result and log lines within what the server reads. */
const OUTPUT_BYTES_MAX = 14 << 20;

/** A job as the server hands it out. */
export interface Job {
  run_id: string;
  flow: string;
  revision: string;
  step: string;
  worker: string;
  attempt: number;
  token: string;
  key: string;
  input: unknown;
  state: Record<string, unknown>;
  lease_ms: number;
  timeout_ms: number | null;
  traceparent?: string | null;
}

/** What an attempt hands over, and whether it may go on. */
export class Attempt {
  readonly job: Job;
  /** When the lease is over, by the clock of this process. */
  deadline: number;
  readonly timeoutAt: number;
  /** Whether renewals name it, and whether its outcome is on its way. */
  isHeld = true;
  isSettling = false;
  /** The sending of its log lines that is under way, so that they keep their order. */
  sendingLogs: Promise<void> = Promise.resolve();
  readonly #stop = new AbortController();
  #stopReason: StopReason | null = null;
  #isOver = false;
  #emits: string[] = [];
  #state = new Map<string, string>();
  #outputBytes = 0;
  #logs: string[] = [];
  #logsDropped = 0;

  constructor(
    job: Job,
    private readonly onLog: () => void,
  ) {
    const now = performance.now();
    this.job = job;
    this.deadline = now + job.lease_ms;
    this.timeoutAt = job.timeout_ms === null ? Infinity : now + job.timeout_ms;
  }

  get signal(): AbortSignal {
    return this.#stop.signal;
  }

  get stopReason(): StopReason | null {
    return this.#stopReason;
  }

  /** Tells the handler to stop. The first reason stays. */
  stop(reason: StopReason): void {
    if (this.#stopReason === null) {
      this.#stopReason = reason;
      this.#stop.abort(new Stopped(reason));
    }
  }

  /** Throws if the attempt must stop. */
  check(): void {
    if (this.#stopReason !== null) {
      throw new Stopped(this.#stopReason);
    }
  }

  emit(event: string, data: unknown): void {
    const emitted = emission(event, data);
    this.checkOpen();
    if (this.#emits.length >= EMITS_MAX) {
      throw new ContextError(`an attempt emits at most ${EMITS_MAX} events`);
    }
    this.#count(emitted.length);
    this.#emits.push(emitted);
  }

  stateSet(name: string, value: unknown): void {
    const encoded = payload(`the state value "${name}"`, value, STATE_VALUE_BYTES_MAX);
    this.checkOpen();
    const earlier = this.#state.get(name);
    if (earlier === undefined && this.#state.size >= STATE_KEYS_MAX) {
      throw new ContextError(`an attempt sets at most ${STATE_KEYS_MAX} state values`);
    }
    this.#count(encoded.length - (earlier?.length ?? 0));
    this.#state.set(name, encoded);
  }

  /** What this attempt set, else what the run had when the attempt began. */
  stateGet(name: string): unknown {
    const encoded = this.#state.get(name);
    if (encoded !== undefined) {
      return JSON.parse(encoded);
    }
    return Object.hasOwn(this.job.state, name) ? this.job.state[name] : undefined;
  }

  log(level: Level, text: string): void {
    if (!LEVELS.includes(level)) {
      throw new ContextError(`the level "${String(level)}" is none of ${LEVELS.join(", ")}`);
    }
    if (this.#isOver) {
      return;
    }
    if (this.#logs.length >= LOG_LINES_MAX) {
      this.#logsDropped += 1;
      return;
    }
    this.#logs.push(JSON.stringify({ level, text: cut(String(text), LOG_LINE_BYTES_MAX) }));
    this.onLog();
  }

  /** Takes the next lines to send, with a word about those that were dropped. */
  takeLogs(): string[] {
    let count = 0;
    let size = 0;
    while (count < this.#logs.length && count < LOG_LINES_PER_CALL_MAX) {
      size += (this.#logs[count] as string).length;
      if (count > 0 && size > LOG_BYTES_PER_CALL_MAX) {
        break;
      }
      count += 1;
    }
    const lines = this.#logs.splice(0, count);
    if (this.#logsDropped > 0 && this.#logs.length === 0) {
      const text = `${this.#logsDropped} log lines were dropped: they came too fast`;
      lines.push(JSON.stringify({ level: "warn", text }));
      this.#logsDropped = 0;
    }
    return lines;
  }

  /** Puts lines back that could not be sent. */
  putBackLogs(lines: string[]): void {
    this.#logs.unshift(...lines);
    this.#logsDropped += Math.max(this.#logs.length - LOG_LINES_MAX, 0);
    this.#logs.length = Math.min(this.#logs.length, LOG_LINES_MAX);
  }

  get hasLogs(): boolean {
    return this.#logs.length > 0 || this.#logsDropped > 0;
  }

  /** The handler has ended: what it does from here on is refused. */
  close(): void {
    this.#isOver = true;
  }

  /** The body of `complete`, without its braces and log lines. */
  completion(result: string): string {
    const state = [...this.#state].map(([name, value]) => `${JSON.stringify(name)}:${value}`);
    const token = JSON.stringify(this.job.token);
    return `"token":${token},"emits":[${this.#emits.join()}],"state":{${state.join()}},"result":${result}`;
  }

  checkOpen(): void {
    if (this.#isOver) {
      throw new ContextError("the attempt has ended, and its output is fixed");
    }
  }

  toString(): string {
    const { flow, step, run_id, attempt } = this.job;
    return `${flow}/${step} of run ${run_id}, attempt ${attempt}`;
  }

  #count(size: number): void {
    if (this.#outputBytes + size > OUTPUT_BYTES_MAX) {
      throw new ContextError(`an attempt hands over at most ${OUTPUT_BYTES_MAX} bytes`);
    }
    this.#outputBytes += size;
  }
}

/** An event as the server takes it. */
export function emission(event: string, data: unknown): string {
  const encoded = payload(`the data of "${event}"`, data, PAYLOAD_BYTES_MAX);
  return `{"event":${JSON.stringify(event)},"data":${encoded}}`;
}

/** A value as JSON text, if it can be kept. Nothing is `null`. */
export function payload(what: string, value: unknown, bytesMax: number): string {
  let encoded: string | undefined;
  try {
    encoded = JSON.stringify(value === undefined ? null : value);
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    throw new ContextError(`${what} cannot be written as JSON: ${text}`, { cause: error });
  }
  if (encoded === undefined) {
    throw new ContextError(`${what} cannot be written as JSON: it is a ${typeof value}`);
  }
  const size = Buffer.byteLength(encoded);
  if (size > bytesMax) {
    throw new ContextError(`${what} has ${size} bytes; the limit is ${bytesMax}`);
  }
  return encoded;
}

/** A text within a limit; what is over it is cut off and said so. */
export function cut(text: string, bytesMax: number): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= bytesMax) {
    return text;
  }
  const mark = " … (cut)";
  let end = bytesMax - Buffer.byteLength(mark);
  // Not inside a letter.
  while (end > 0 && ((bytes[end] as number) & 0xc0) === 0x80) {
    end -= 1;
  }
  return bytes.subarray(0, end).toString() + mark;
}
