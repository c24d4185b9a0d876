/**
 * A stream of server-sent events that survives its connection.
 *
 * It remembers the id of the last event and goes on behind it, waits longer after each failure in
 * a row, and drops what it has seen already. It closes while nobody looks, since a browser has six
 * connections for a server and every tab of the dashboard would hold one.
 */

export type Connection = "connecting" | "open" | "lost" | "closed";

export interface EventSourceLike {
  onopen: ((event: Event) => void) | null;
  onerror: ((event: Event) => void) | null;
  addEventListener(name: string, listener: (event: MessageEvent<string>) => void): void;
  close(): void;
}

export interface StreamOptions {
  /** The address to go on from: behind the event with this id, or wherever it begins. */
  url: (after: string | null) => string;
  /** The names of the events. `end` ends the stream for good, `lagged` begins it again. */
  events: string[];
  onEvent: (name: string, data: unknown) => void;
  onConnection: (connection: Connection) => void;
  /** Begin again when nothing was heard for so long. */
  silenceMax?: number;
  make?: (url: string) => EventSourceLike;
  later?: (action: () => void, ms: number) => () => void;
  random?: () => number;
}

const WAIT_MIN = 500;
const WAIT_MAX = 15_000;

/** How long to wait after this many failures in a row: it doubles, and a part is left to chance. */
export function waitAfter(failures: number, random: number): number {
  const wait = Math.min(WAIT_MIN * 2 ** Math.min(failures - 1, 10), WAIT_MAX);
  return Math.round(wait * (0.75 + random / 2));
}

function timer(action: () => void, ms: number): () => void {
  const id = setTimeout(action, ms);
  return () => clearTimeout(id);
}

export class Stream {
  private source: EventSourceLike | null = null;
  private lastId: string | null;
  private failures = 0;
  private ended = false;
  private cancelWait: (() => void) | null = null;
  private cancelSilence: (() => void) | null = null;

  constructor(
    private readonly options: StreamOptions,
    after: string | null = null,
  ) {
    this.lastId = after;
  }

  get after(): string | null {
    return this.lastId;
  }

  open(): void {
    if (this.ended || this.source) return;
    this.cancelWait?.();
    this.cancelWait = null;
    this.options.onConnection(this.failures > 0 ? "lost" : "connecting");
    const make = this.options.make ?? ((url: string) => new EventSource(url) as EventSourceLike);
    const source = make(this.options.url(this.lastId));
    this.source = source;
    source.onopen = () => {
      this.failures = 0;
      this.options.onConnection("open");
      this.listen();
    };
    source.onerror = () => this.failed(source);
    for (const name of [...this.options.events, "end", "lagged"]) {
      source.addEventListener(name, (event) => {
        if (this.source === source) this.take(name, event);
      });
    }
    this.listen();
  }

  /** Closes it until it is opened again. */
  pause(): void {
    this.drop();
    this.cancelWait?.();
    this.cancelWait = null;
  }

  /** Closes it for good. */
  close(): void {
    this.ended = true;
    this.pause();
    this.options.onConnection("closed");
  }

  private take(name: string, event: MessageEvent<string>): void {
    this.listen();
    if (name === "lagged") {
      this.drop();
      this.open();
      return;
    }
    if (event.lastEventId) {
      if (isSeen(event.lastEventId, this.lastId)) return;
      this.lastId = event.lastEventId;
    }
    let data: unknown;
    try {
      data = JSON.parse(event.data);
    } catch {
      data = null;
    }
    this.options.onEvent(name, data);
    if (name === "end") this.close();
  }

  private failed(source: EventSourceLike): void {
    if (this.source !== source) return;
    this.drop();
    this.failures += 1;
    this.options.onConnection("lost");
    const later = this.options.later ?? timer;
    const wait = waitAfter(this.failures, (this.options.random ?? Math.random)());
    this.cancelWait = later(() => this.open(), wait);
  }

  private listen(): void {
    this.cancelSilence?.();
    const { silenceMax } = this.options;
    const source = this.source;
    if (silenceMax === undefined || source === null) return;
    this.cancelSilence = (this.options.later ?? timer)(() => this.failed(source), silenceMax);
  }

  private drop(): void {
    this.cancelSilence?.();
    this.cancelSilence = null;
    this.source?.close();
    this.source = null;
  }
}

/** Whether the event was seen: ids of a run are numbers that grow. */
export function isSeen(id: string, last: string | null): boolean {
  if (last === null) return false;
  const [a, b] = [Number(id), Number(last)];
  return Number.isFinite(a) && Number.isFinite(b) ? a <= b : id === last;
}
