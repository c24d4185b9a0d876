/** The events of a run, newest first. Only the rows that can be seen are drawn. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { visible, type EventList } from "../model/events";
import { absolute, offset } from "../model/time";
import { shortened } from "../model/words";
import type { EventItem } from "../net/types";
import { Button, Empty, Facts, Loading, Problem } from "../ui/basics";
import { JsonTree } from "../ui/json_tree";

const ROW = 28;
/** How near to the end of what is loaded one must be for more to be loaded. */
const NEAR = ROW * 30;

export function RunEvents(props: { startedAt: string; list: EventList; error: Error | null; loading: boolean; loadOlder: () => void }) {
  const { items, complete } = props.list;
  const frame = useRef<HTMLDivElement>(null);
  const [scroll, setScroll] = useState({ top: 0, height: 480 });
  const [chosen, setChosen] = useState<number | null>(null);
  const newest = useRef(items[0]?.seq ?? 0);

  // Whoever reads further down keeps their place when new events come in on top.
  useLayoutEffect(() => {
    const element = frame.current;
    const first = items[0]?.seq ?? 0;
    if (element && element.scrollTop > ROW && newest.current > 0 && first > newest.current) {
      element.scrollTop += (first - newest.current) * ROW;
    }
    newest.current = first;
  }, [items]);
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const look = () => setScroll({ top: element.scrollTop, height: element.clientHeight });
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, [items.length === 0]);

  if (items.length === 0) {
    if (props.error) return <Problem error={props.error} retry={props.loadOlder} />;
    return props.loading || !complete ? <Loading rows={6} /> : <Empty title="No events yet" />;
  }
  const [from, to] = visible(items.length, ROW, scroll.top, scroll.height);
  const event = items.find((each) => each.seq === chosen);
  const started = Date.parse(props.startedAt);
  const move = (key: KeyboardEvent) => {
    const by = key.key === "ArrowDown" || key.key === "j" ? 1 : key.key === "ArrowUp" || key.key === "k" ? -1 : 0;
    if (by === 0) return;
    key.preventDefault();
    const at = chosen === null ? -1 : items.findIndex((each) => each.seq === chosen);
    const next = Math.min(items.length - 1, Math.max(0, at + by));
    setChosen(items[next]?.seq ?? null);
    const element = frame.current;
    if (!element) return;
    if (next * ROW < element.scrollTop) element.scrollTop = next * ROW;
    if ((next + 1) * ROW > element.scrollTop + element.clientHeight) element.scrollTop = (next + 1) * ROW - element.clientHeight;
  };
  return (
    <div class={event ? "events with-detail" : "events"}>
      <div
        class="events-frame"
        ref={frame}
        style={{ height: `${items.length * ROW + 2}px` }}
        tabIndex={0}
        role="listbox"
        aria-label="events, newest first"
        onKeyDown={move}
        onScroll={(scrolled) => {
          const element = scrolled.currentTarget;
          setScroll({ top: element.scrollTop, height: element.clientHeight });
          if (!complete && element.scrollTop + element.clientHeight > items.length * ROW - NEAR) props.loadOlder();
        }}
      >
        <div class="events-all" style={{ height: `${items.length * ROW}px` }}>
          {items.slice(from, to).map((each, at) => (
            <EventRow key={each.seq} event={each} top={(from + at) * ROW} started={started} chosen={each.seq === chosen} onChoose={() => setChosen(each.seq === chosen ? null : each.seq)} />
          ))}
        </div>
      </div>
      {event ? <EventDetail event={event} onClose={() => setChosen(null)} /> : null}
      <footer class="events-foot muted">
        <span data-loaded={items.length}>{complete ? `all ${items.length} events` : `the last ${items.length} events`}</span>
        {complete ? null : <Button kind="quiet" disabled={props.loading} onClick={props.loadOlder}>Load older</Button>}
        {props.error ? <span class="bad-text">{props.error.message}</span> : null}
      </footer>
    </div>
  );
}

function EventRow({ event, top, started, chosen, onChoose }: { event: EventItem; top: number; started: number; chosen: boolean; onChoose: () => void }) {
  const at = Date.parse(event.time);
  return (
    <div class={`event-row kind-${kindOf(event.type)} ${chosen ? "chosen" : ""}`} role="option" aria-selected={chosen} style={{ top: `${top}px` }} onClick={onChoose}>
      <span class="event-seq num faint">{event.seq}</span>
      <time class="event-time num faint" dateTime={event.time} title={absolute(at)}>{offset(at - started)}</time>
      <span class="event-type">{event.type}</span>
      <span class="event-step">{event.step ?? ""}</span>
      <span class="event-text">{shortened(event.text ?? "", 300)}</span>
    </div>
  );
}

/** What an event means for the run, for the colour of its mark. */
function kindOf(type: string): string {
  if (type.endsWith(".failed") || type === "step.lost") return "bad";
  if (type === "run.completed" || type === "step.succeeded") return "good";
  if (type === "run.released") return "running";
  if (type === "step.started") return "running";
  if (type.startsWith("signal.") || type === "step.waiting" || type === "step.parked") return "waiting";
  return "other";
}

function EventDetail({ event, onClose }: { event: EventItem; onClose: () => void }) {
  const facts: [string, preact.ComponentChildren][] = [
    ["Time", <span class="num">{event.time}</span>],
    ["Position", <span class="id">{event.position}</span>],
  ];
  if (event.step) facts.push(["Step", <code>{event.step}</code>]);
  if (event.attempt) facts.push(["Attempt", <span class="num">{event.attempt}</span>]);
  if (event.instance) facts.push(["Instance", <span class="id">{event.instance}</span>]);
  if (event.token) facts.push(["Token", <span class="id">{String(event.token)}</span>]);
  return (
    <aside class="event-detail" aria-label={`event ${event.seq}`}>
      <header class="panel-head">
        <h2>{event.type} <span class="faint num">{event.seq}</span></h2>
        <button type="button" class="link" onClick={onClose}>close</button>
      </header>
      <Facts facts={facts} />
      <JsonTree value={event.data} label="the data of the event" />
    </aside>
  );
}
