import { expect, test } from "vitest";
import { Stream, isSeen, waitAfter, type Connection, type EventSourceLike } from "../src/net/stream";
import { errorOf } from "../src/net/api";

class FakeSource implements EventSourceLike {
  onopen: ((event: Event) => void) | null = null;
  onerror: ((event: Event) => void) | null = null;
  closed = false;
  private listeners = new Map<string, (event: MessageEvent<string>) => void>();

  constructor(readonly url: string) {}

  addEventListener(name: string, listener: (event: MessageEvent<string>) => void): void {
    this.listeners.set(name, listener);
  }

  close(): void {
    this.closed = true;
  }

  say(name: string, id: string, data: unknown): void {
    this.listeners.get(name)?.({ lastEventId: id, data: JSON.stringify(data) } as MessageEvent<string>);
  }
}

function world(options: { silenceMax?: number; after?: string } = {}) {
  const sources: FakeSource[] = [];
  const timers: { action: () => void; ms: number; live: boolean }[] = [];
  const seen: [string, unknown][] = [];
  const connections: Connection[] = [];
  const stream = new Stream(
    {
      url: (after) => `/stream?after=${after}`,
      events: ["event"],
      onEvent: (name, data) => seen.push([name, data]),
      onConnection: (connection) => connections.push(connection),
      make: (url) => {
        const source = new FakeSource(url);
        sources.push(source);
        return source;
      },
      later: (action, ms) => {
        const timer = { action, ms, live: true };
        timers.push(timer);
        return () => {
          timer.live = false;
        };
      },
      random: () => 0.5,
      ...(options.silenceMax === undefined ? {} : { silenceMax: options.silenceMax }),
    },
    options.after ?? null,
  );
  const fire = () => {
    const timer = timers.filter((each) => each.live).at(-1);
    if (!timer) throw new Error("no timer waits");
    timer.live = false;
    timer.action();
  };
  return { stream, sources, timers, seen, connections, fire, last: () => sources.at(-1)! };
}

test("a lost stream goes on behind the last event, and takes none twice", () => {
  const { stream, seen, fire, last, sources } = world({ after: "4" });
  stream.open();
  expect(last().url).toBe("/stream?after=4");
  last().onopen?.(new Event("open"));
  last().say("event", "5", "five");
  last().say("event", "6", "six");
  last().onerror?.(new Event("error"));
  expect(last().closed).toBe(true);
  fire();
  expect(sources).toHaveLength(2);
  expect(last().url).toBe("/stream?after=6");
  last().say("event", "6", "six again");
  last().say("event", "7", "seven");
  expect(seen).toEqual([["event", "five"], ["event", "six"], ["event", "seven"]]);
});

test("the waits between tries grow, and an open connection makes them short again", () => {
  const { stream, timers, fire, last } = world();
  stream.open();
  for (let n = 0; n < 8; n += 1) {
    last().onerror?.(new Event("error"));
    fire();
  }
  expect(timers.map((timer) => timer.ms)).toEqual([500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000, 15_000]);
  last().onopen?.(new Event("open"));
  last().onerror?.(new Event("error"));
  expect(timers.at(-1)?.ms).toBe(500);
});

test("a part of each wait is left to chance", () => {
  expect([waitAfter(1, 0), waitAfter(1, 1), waitAfter(30, 0)]).toEqual([375, 625, 11_250]);
});

test("the end of a run ends the stream for good", () => {
  const { stream, seen, sources, connections, last } = world();
  stream.open();
  last().say("event", "1", "one");
  last().say("end", "", { status: "completed" });
  expect(last().closed).toBe(true);
  stream.open();
  expect(sources).toHaveLength(1);
  expect(seen.at(-1)).toEqual(["end", { status: "completed" }]);
  expect(connections.at(-1)).toBe("closed");
});

test("one who read too slowly begins again at once where it was", () => {
  const { stream, sources, last } = world();
  stream.open();
  last().say("event", "9", "nine");
  last().say("lagged", "", {});
  expect(sources).toHaveLength(2);
  expect(last().url).toBe("/stream?after=9");
});

test("silence is a lost connection", () => {
  const { stream, sources, connections, fire } = world({ silenceMax: 16_000 });
  stream.open();
  fire();
  expect(connections.at(-1)).toBe("lost");
  fire();
  expect(sources).toHaveLength(2);
});

test("a stream that is paused is silent until it is opened", () => {
  const { stream, sources, timers, last } = world({ silenceMax: 16_000 });
  stream.open();
  last().say("event", "3", "three");
  stream.pause();
  expect(last().closed).toBe(true);
  expect(timers.filter((timer) => timer.live)).toEqual([]);
  stream.open();
  expect(sources).toHaveLength(2);
  expect(last().url).toBe("/stream?after=3");
});

test("what an old connection still says is not heard", () => {
  const { stream, sources, seen, fire } = world();
  stream.open();
  sources[0]!.onerror?.(new Event("error"));
  fire();
  sources[0]!.say("event", "1", "late");
  sources[0]!.onerror?.(new Event("error"));
  expect(seen).toEqual([]);
  expect(sources[1]!.closed).toBe(false);
});

test("numbers grow, other ids are compared as they are", () => {
  expect([isSeen("9", "10"), isSeen("10", "10"), isSeen("11", "10"), isSeen("a", null), isSeen("a", "a"), isSeen("b", "a")])
    .toEqual([true, true, false, false, true, false]);
});

test("an error that is no JSON is still an error with its status", () => {
  expect(errorOf(502, "<html>bad gateway</html>")).toMatchObject({ status: 502, code: "http_502" });
  const body = JSON.stringify({ error: { code: "run_not_found", message: "there is no run", path: null, help: "see" } });
  expect(errorOf(404, body)).toMatchObject({ status: 404, code: "run_not_found", message: "there is no run", help: "see" });
});
