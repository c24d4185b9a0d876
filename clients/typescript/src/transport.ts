/** Requests to one of several servers, over connections that `fetch` keeps. */

import { ApiError, FlowgateError, Unavailable } from "./errors.js";

const API = "/api/v1";
/** Bytes of an answer. A claim holds at most 100 jobs. */
const ANSWER_BYTES_MAX = 256 * 1024 * 1024;
/** What a server asks for by `Retry-After` is kept up to here. */
const RETRY_AFTER_MAX_MS = 60_000;
/** Failures after which the server cannot have got the request. */
const NOT_SENT = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
]);
/** The server closed a kept connection just as it was used. */
const CLOSED = new Set(["UND_ERR_SOCKET", "ECONNRESET", "EPIPE"]);

/** A request. */
export interface Request {
  method: "GET" | "POST";
  path: string;
  /** JSON text. */
  body?: string;
  timeoutMs: number;
  /** Whether it may be sent again although it may have been carried out. */
  repeatable: boolean;
  /** Ends the request before its time. */
  signal?: AbortSignal;
}

/** Growing pauses with jitter, so that many workers do not come back at once. */
export class Backoff {
  #next: number;

  constructor(
    private readonly initialMs = 200,
    private readonly longestMs = 10_000,
  ) {
    this.#next = initialMs;
  }

  /** Milliseconds to wait before the next try. */
  pause(atLeastMs: number | null = null): number {
    const pause = this.#next * (0.5 + Math.random() / 2);
    this.#next = Math.min(this.#next * 2, this.longestMs);
    return Math.max(pause, Math.min(atLeastMs ?? 0, RETRY_AFTER_MAX_MS));
  }

  /** Begins again with the shortest pause. */
  reset(): void {
    this.#next = this.initialMs;
  }
}

/** Sends requests to the first server that answers, and stays with it until it fails. */
export class Transport {
  readonly #servers: string[];
  readonly #headers: Record<string, string>;
  #current = 0;

  constructor(servers: string | readonly string[], token: string | undefined) {
    const urls = typeof servers === "string" ? [servers] : [...servers];
    if (urls.length === 0) {
      throw new TypeError("name at least one server, such as http://127.0.0.1:7420");
    }
    this.#servers = urls.map(parseServer);
    this.#headers = { accept: "application/json", "user-agent": "flowgate-typescript" };
    if (token !== undefined) {
      this.#headers["authorization"] = `Bearer ${token}`;
    }
  }

  /** The value that the server answers; tries each server once, as long as nothing happens twice. */
  async send(request: Request): Promise<unknown> {
    let problem: Unavailable | undefined;
    for (let tried = 0; tried < this.#servers.length; tried += 1) {
      const current = this.#current;
      try {
        return await this.#sendTo(this.#servers[current] as string, request);
      } catch (error) {
        if (error instanceof ApiError && [502, 503, 504].includes(error.status)) {
          this.#leave(current);
        }
        if (!(error instanceof Unavailable)) {
          throw error;
        }
        this.#leave(current);
        problem = error;
        if ((error.sent && !request.repeatable) || request.signal?.aborted) {
          throw error;
        }
      }
    }
    throw problem ?? new FlowgateError("there is no server");
  }

  /** The next call goes to the next server. */
  #leave(failed: number): void {
    if (this.#current === failed) {
      this.#current = (failed + 1) % this.#servers.length;
    }
  }

  async #sendTo(server: string, request: Request): Promise<unknown> {
    try {
      return await this.#exchange(server, request);
    } catch (error) {
      const wasClosed = error instanceof Unavailable && CLOSED.has(codeOf(error.cause));
      if (wasClosed && request.repeatable && !request.signal?.aborted) {
        return this.#exchange(server, request);
      }
      throw error;
    }
  }

  async #exchange(server: string, request: Request): Promise<unknown> {
    const ended = new AbortController();
    const late = setTimeout(() => ended.abort(new Error(`no answer within ${request.timeoutMs} ms`)), request.timeoutMs);
    const abort = () => ended.abort(new Error("the request was aborted"));
    request.signal?.addEventListener("abort", abort, { once: true });
    try {
      if (request.signal?.aborted) {
        abort();
      }
      const headers = { ...this.#headers };
      const init: RequestInit = { method: request.method, headers, signal: ended.signal, redirect: "manual" };
      if (request.body !== undefined) {
        headers["content-type"] = "application/json";
        init.body = request.body;
      }
      const answer = await fetch(server + API + request.path, init);
      return readAnswer(server, answer, await readText(server, answer));
    } catch (error) {
      if (error instanceof FlowgateError) {
        throw error;
      }
      throw unavailable(server, error);
    } finally {
      clearTimeout(late);
      request.signal?.removeEventListener("abort", abort);
    }
  }
}

/** The code of a failure of the system, wherever in its causes it stands. */
function codeOf(error: unknown): string {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    const code = (cause as { code?: unknown }).code;
    if (typeof code === "string") {
      return code;
    }
  }
  return "";
}

function unavailable(server: string, error: unknown): Unavailable {
  // `fetch` says only "fetch failed"; what happened is the cause.
  const inner = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const code = codeOf(error);
  const text = (inner instanceof Error && inner.message) || code || String(inner);
  return NOT_SENT.has(code)
    ? new Unavailable(`cannot connect to ${server}: ${text}`, false, { cause: error })
    : new Unavailable(`${server} did not answer: ${text}`, true, { cause: error });
}

async function readText(server: string, answer: Response): Promise<string> {
  if (answer.body === null) {
    return "";
  }
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  for await (const part of answer.body as unknown as AsyncIterable<Uint8Array>) {
    size += part.byteLength;
    if (size > ANSWER_BYTES_MAX) {
      throw new FlowgateError(`${server} answered with more than ${ANSWER_BYTES_MAX} bytes`);
    }
    text += decoder.decode(part, { stream: true });
  }
  return text + decoder.decode();
}

function readAnswer(server: string, answer: Response, text: string): unknown {
  let value: unknown = null;
  try {
    value = text === "" ? null : JSON.parse(text);
  } catch {
    if (answer.ok) {
      throw new FlowgateError(`${server} answered with something that is no JSON: is it a flowgate server?`);
    }
  }
  if (answer.ok) {
    return value;
  }
  const told = (value as { error?: Record<string, unknown> } | null)?.error ?? {};
  const textOf = (field: unknown): string | null => (typeof field === "string" ? field : null);
  throw new ApiError({
    status: answer.status,
    code: textOf(told["code"]) ?? "unknown",
    message: textOf(told["message"]) ?? `${server} answered ${answer.status} ${answer.statusText}`,
    path: textOf(told["path"]),
    help: textOf(told["help"]),
    retryAfterMs: readRetryAfter(answer.headers.get("retry-after")),
  });
}

/** A date is not used by flowgate and counts as none. */
function readRetryAfter(text: string | null): number | null {
  const seconds = text === null || text.trim() === "" ? NaN : Number(text);
  return seconds >= 0 && seconds < Infinity ? seconds * 1000 : null;
}

function parseServer(text: string): string {
  const example = "it looks like http://127.0.0.1:7420";
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw new TypeError(`"${text}" is not the URL of a server; ${example}`);
  }
  if ((url.protocol !== "http:" && url.protocol !== "https:") || url.hostname === "") {
    throw new TypeError(`"${text}" is not the URL of a server; ${example}`);
  }
  if (url.username !== "" || url.password !== "" || url.search !== "" || url.hash !== "") {
    throw new TypeError(`the URL of a server has no user, query or fragment; ${example}`);
  }
  return url.origin + url.pathname.replace(/\/+$/, "");
}

/** Waits so long, or until the signal is given. */
export function rest(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted || ms <= 0) {
      resolve();
      return;
    }
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    // A timer that is longer than the system can count would end at once.
    const timer = setTimeout(end, Math.min(ms, 2 ** 31 - 1));
    signal?.addEventListener("abort", end, { once: true });
  });
}
