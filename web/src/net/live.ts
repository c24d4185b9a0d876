/** The one stream of the page: what happens to runs, and whether the connection stands. */

import { useEffect, useState } from "preact/hooks";
import { setServerNow } from "../model/clock";
import { Stream, type Connection } from "./stream";
import type { EventItem, LiveRuns, RunStatus } from "./types";

const BASE = "/api/v1";
/** A tick comes every 5 s; three that do not come mean that the connection is dead. */
const SILENCE_MAX = 16_000;
/** A tab that is hidden for so long gives its connection back. */
const HIDDEN_MAX = 10_000;

type Listener<T> = (value: T) => void;

let connection: Connection = "closed";
const connectionListeners = new Set<Listener<Connection>>();
const runsListeners = new Set<Listener<LiveRuns>>();

function setConnection(next: Connection): void {
  if (next === connection) return;
  connection = next;
  for (const listener of connectionListeners) listener(next);
}

export function useConnection(): Connection {
  const [value, setValue] = useState(connection);
  useEffect(() => {
    setValue(connection);
    connectionListeners.add(setValue);
    return () => void connectionListeners.delete(setValue);
  }, []);
  return value;
}

/** Keeps a stream open while the page can be seen. */
function whileVisible(stream: Stream, onResume: () => void): () => void {
  let hiding: ReturnType<typeof setTimeout> | undefined;
  let paused = false;
  const look = () => {
    clearTimeout(hiding);
    if (document.hidden) {
      hiding = setTimeout(() => {
        paused = true;
        stream.pause();
      }, HIDDEN_MAX);
      return;
    }
    if (paused) onResume();
    paused = false;
    stream.open();
  };
  document.addEventListener("visibilitychange", look);
  window.addEventListener("online", look);
  look();
  return () => {
    clearTimeout(hiding);
    document.removeEventListener("visibilitychange", look);
    window.removeEventListener("online", look);
    stream.close();
  };
}

let stopLive: (() => void) | null = null;

function startLive(): void {
  if (stopLive) return;
  let wasLost = false;
  const missedAll = () => {
    for (const listener of runsListeners) listener({ runs: [], missed: 1 });
  };
  const stream = new Stream({
    url: () => BASE + "/live",
    events: ["runs", "tick"],
    silenceMax: SILENCE_MAX,
    onConnection: (next) => {
      setConnection(next);
      if (next === "lost") wasLost = true;
      // What happened meanwhile was not told: whoever listens reads again.
      if (next === "open" && wasLost) {
        wasLost = false;
        missedAll();
      }
    },
    onEvent: (name, data) => {
      if (name === "tick") setServerNow((data as { now: string }).now);
      else for (const listener of runsListeners) listener(data as LiveRuns);
    },
  });
  stopLive = whileVisible(stream, missedAll);
}

/** Tells of every run that something happens to. */
export function useLiveRuns(listener: Listener<LiveRuns>): void {
  useEffect(() => listen(listener), [listener]);
}

function listen(listener: Listener<LiveRuns>): () => void {
  runsListeners.add(listener);
  startLive();
  return () => {
    runsListeners.delete(listener);
    if (runsListeners.size > 0) return;
    stopLive?.();
    stopLive = null;
  };
}

const nobody = () => {};

/** Keeps the stream open for its own sake: whoever looks at a page wants to know that it is live. */
export function useLiveWhile(wanted: boolean): void {
  useEffect(() => {
    if (!wanted) return;
    const listener = () => nobody();
    return listen(listener);
  }, [wanted]);
}

/** Follows one run, from behind `after` to its end. */
export function followRun(
  runId: string,
  after: number,
  onEvent: (event: EventItem) => void,
  onEnd: (status: RunStatus) => void,
): () => void {
  const stream = new Stream(
    {
      url: (last) => `${BASE}/runs/${encodeURIComponent(runId)}/stream?after=${last ?? after}`,
      events: ["event"],
      onConnection: setConnection,
      onEvent: (name, data) => {
        if (name === "event") onEvent(data as EventItem);
        else if (name === "end") onEnd((data as { status: RunStatus }).status);
      },
    },
    String(after),
  );
  return whileVisible(stream, () => {});
}
