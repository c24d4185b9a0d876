/** What the steps of a run said. */

import { useEffect, useRef, useState } from "preact/hooks";
import { useQuery } from "../model/route";
import { absolute, clock } from "../model/time";
import { apiPath, get } from "../net/api";
import { useThrottled } from "../net/resource";
import type { LogLine, Page, StepView } from "../net/types";
import { Button, Command, Empty, Loading, Problem } from "../ui/basics";

const PAGE = 200;
const LINES_MAX = 5_000;

export function RunLogs({ run, isOpen, steps, newest }: { run: string; isOpen: boolean; steps: StepView[]; newest: number }) {
  const [query, setQuery] = useQuery();
  const step = query.get("log") ?? "";
  const [lines, setLines] = useState<LogLine[] | null>(null);
  const [more, setMore] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const last = useRef(0);

  const load = useRef(async () => {});
  load.current = async () => {
    const filter = step ? `&step=${encodeURIComponent(step)}` : "";
    try {
      const page = await get<Page<LogLine>>(`${apiPath("runs", run)}/logs?limit=${PAGE}&after=${last.current}${filter}`);
      last.current = page.items.at(-1)?.number ?? last.current;
      setLines((old) => [...(old ?? []), ...page.items.filter((line) => line.number > (old?.at(-1)?.number ?? 0))].slice(-LINES_MAX));
      setMore(page.next !== null && page.next !== undefined && page.items.length > 0);
      setError(null);
    } catch (failed) {
      setError(failed as Error);
    }
  };
  const soon = useThrottled(() => void load.current(), 1_500);
  useEffect(() => {
    last.current = 0;
    setLines(null);
    void load.current();
  }, [run, step]);
  // Lines are kept beside the events, so an event says that there may be more of them.
  useEffect(() => {
    if (isOpen || newest > 0) soon();
  }, [newest, isOpen, soon]);
  useEffect(() => {
    if (!isOpen) return;
    const id = setInterval(() => !document.hidden && soon(), 5_000);
    return () => clearInterval(id);
  }, [isOpen, soon]);

  return (
    <div class="logs">
      <div class="logs-head">
        <select aria-label="step" value={step} onChange={(event) => setQuery({ log: event.currentTarget.value }, "replace")}>
          <option value="">every step</option>
          {steps.map((each) => <option key={each.name} value={each.name}>{each.name}</option>)}
        </select>
        {lines ? <span class="faint">{lines.length} lines</span> : null}
      </div>
      {error ? <Problem error={error} retry={() => void load.current()} /> : null}
      {lines === null && !error ? <Loading rows={4} /> : null}
      {lines && lines.length === 0 ? (
        <Empty title="Nothing was logged">
          <p class="muted">A line that a program prints is one of its log lines. In a terminal:</p>
          <Command text={`flowgate runs logs ${run.slice(0, 13)}`} />
        </Empty>
      ) : null}
      {lines && lines.length > 0 ? (
        <ol class="log-lines">
          {lines.map((line) => (
            <li key={line.number} class={`log-line level-${levelOf(line.level)}`}>
              <time class="faint num" dateTime={line.time} title={absolute(Date.parse(line.time))}>{clock(Date.parse(line.time))}</time>
              <span class="log-level">{line.level}</span>
              <span class="log-step muted" title={`${line.step}, attempt ${line.attempt}`}>{line.step}<span class="faint">#{line.attempt}</span></span>
              <span class="log-text">{line.text}</span>
            </li>
          ))}
        </ol>
      ) : null}
      {more ? <div class="pager"><Button onClick={() => void load.current()}>Load more</Button></div> : null}
    </div>
  );
}

function levelOf(level: string): string {
  return ["error", "warn", "info", "debug", "trace"].includes(level) ? level : "info";
}
