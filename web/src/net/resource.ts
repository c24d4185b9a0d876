/** Data of the API in a component: loaded, kept while it is loaded again, and loaded when asked. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { LiveRuns } from "./types";
import { get } from "./api";
import { useLiveRuns } from "./live";

export interface Resource<T> {
  data: T | null;
  error: Error | null;
  /** Whether it is being loaded for the first time, or for another path. */
  loading: boolean;
  reload: () => void;
  change: (change: (data: T) => T) => void;
}

export interface ResourceOptions {
  /** Load again so often, in milliseconds; at least 1,000, and that only while something is awaited. */
  every?: number | undefined;
}

const EVERY_MIN = 1_000;

export function useResource<T>(path: string | null, options: ResourceOptions = {}): Resource<T> {
  const [state, setState] = useState<{ path: string | null; data: T | null; error: Error | null }>({
    path: null,
    data: null,
    error: null,
  });
  const [asked, setAsked] = useState(0);
  const reload = useCallback(() => setAsked((count) => count + 1), []);

  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    get<T>(path, abort.signal).then(
      (data) => setState({ path, data, error: null }),
      (error: Error) => {
        if (!abort.signal.aborted) setState((old) => ({ path, data: old.path === path ? old.data : null, error }));
      },
    );
    return () => abort.abort();
  }, [path, asked]);

  const { every } = options;
  useEffect(() => {
    if (every === undefined || path === null) return;
    const id = setInterval(() => {
      if (!document.hidden) reload();
    }, Math.max(every, EVERY_MIN));
    return () => clearInterval(id);
  }, [every, path, reload]);

  const change = useCallback((change: (data: T) => T) => {
    setState((old) => (old.data === null ? old : { ...old, data: change(old.data) }));
  }, []);

  const isOfPath = state.path === path;
  return { data: state.data, error: isOfPath ? state.error : null, loading: !isOfPath, reload, change };
}

/**
 * Calls `action` soon after it is asked to, and never more often than once in `ms`.
 *
 * The first ask acts at once, so a page at rest shows a change without delay.
 */
export function useThrottled(action: () => void, ms: number): () => void {
  const latest = useRef(action);
  latest.current = action;
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  const last = useRef(-Infinity);
  useEffect(() => () => {
    if (timer.current) clearTimeout(timer.current);
  }, []);
  return useCallback(() => {
    if (timer.current) return;
    const wait = Math.max(0, last.current + ms - performance.now());
    timer.current = setTimeout(() => {
      timer.current = null;
      last.current = performance.now();
      latest.current();
    }, wait);
  }, [ms]);
}

/** Loads again after something happened to a run, at most once in `ms`. */
export function useReloadOnRuns(reload: () => void, ms = 2_000, wanted?: (live: LiveRuns) => boolean): void {
  const soon = useThrottled(reload, ms);
  const isWanted = useRef(wanted);
  isWanted.current = wanted;
  useLiveRuns(
    useCallback(
      (live: LiveRuns) => {
        if (live.missed > 0 || (isWanted.current?.(live) ?? true)) soon();
      },
      [soon],
    ),
  );
}
