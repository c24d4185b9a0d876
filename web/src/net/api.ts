/** Calls of the API: JSON in, JSON out, and every failure with its cause and the way out. */

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly help: string | null,
    readonly path: string | null = null,
  ) {
    super(message);
  }
}

const BASE = "/api/v1";

type Listener = () => void;
const onUnauthorized = new Set<Listener>();

/** Calls `listener` whenever the API says that nobody is logged in. */
export function whenUnauthorized(listener: Listener): () => void {
  onUnauthorized.add(listener);
  return () => onUnauthorized.delete(listener);
}

export function apiPath(...segments: string[]): string {
  return "/" + segments.map(encodeURIComponent).join("/");
}

export function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return call<T>("GET", path, undefined, signal);
}

export async function call<T>(
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE",
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<T> {
  const init: RequestInit = { method, credentials: "same-origin", headers: { Accept: "application/json" } };
  if (signal) init.signal = signal;
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { Accept: "application/json", "Content-Type": "application/json" };
  }
  let response: Response;
  try {
    response = await fetch(BASE + path, init);
  } catch (cause) {
    if (signal?.aborted) throw cause;
    throw new ApiError(0, "unreachable", "flowgate does not answer", "is the process running, and is this machine online?");
  }
  const text = await response.text();
  if (response.ok) return (text === "" ? undefined : JSON.parse(text)) as T;
  if (response.status === 401 && path !== "/session") for (const listener of onUnauthorized) listener();
  throw errorOf(response.status, text);
}

/** The error of an answer, whoever gave it: a proxy in between may not speak JSON. */
export function errorOf(status: number, text: string): ApiError {
  try {
    const { error } = JSON.parse(text) as {
      error: { code: string; message: string; help?: string | null; path?: string | null };
    };
    return new ApiError(status, error.code, error.message, error.help ?? null, error.path ?? null);
  } catch {
    return new ApiError(status, "http_" + status, `the server answered ${status}`, null);
  }
}
