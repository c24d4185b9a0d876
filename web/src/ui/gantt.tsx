/** The attempts of a run along its time. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { serverNow, useTicking } from "../model/clock";
import { absolute, span, ticks } from "../model/time";
import { timeline, type Bar } from "../model/timeline";
import { shortened } from "../model/words";
import type { Attempt } from "../net/types";
import { toneOf } from "./icons";

const ROW = 26;
const HEAD = 24;
const ROWS_SHOWN = 40;
const BAR_MIN = 3;

export function Gantt(props: {
  attempts: Attempt[];
  startedAt: string;
  endedAt: string | null;
  selected: string | null;
  onSelect: (step: string) => void;
}) {
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [all, setAll] = useState(false);
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const look = () => setWidth(element.clientWidth);
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  // Open bars grow with the time.
  useTicking((now) => String(Math.floor(now / 1_000)), props.endedAt === null);

  const { axis, rows } = timeline(props.attempts, props.startedAt, props.endedAt, serverNow());
  const shown = all ? rows : rows.slice(0, ROWS_SHOWN);
  const names = width < 560 ? 96 : 168;
  const plot = Math.max(60, width - names - 12);
  const height = HEAD + shown.length * ROW + 4;
  const x = (ms: number) => names + (ms / axis.length) * plot;

  return (
    <div class="gantt" ref={frame}>
      {width > 0 ? (
        <svg width={width} height={height} role="group" aria-label="the attempts of each step along the time">
          <defs>
            <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
              <path d="M0 0v6" class="hatch" />
            </pattern>
          </defs>
          {ticks(axis.length, Math.max(2, plot / 110)).map((at) => (
            <g key={at} class="tick">
              <path d={`M${x(at)} ${HEAD - 4}V${height}`} />
              <text x={Math.min(x(at), width - 8)} y={12} text-anchor={at === 0 ? "start" : x(at) > width - 30 ? "end" : "middle"}>
                {at === 0 ? "0" : span(at)}
              </text>
            </g>
          ))}
          {shown.map((row, at) => {
            const y = HEAD + at * ROW;
            return (
              <g key={row.step} class={row.step === props.selected ? "gantt-row selected" : "gantt-row"} onClick={() => props.onSelect(row.step)}>
                <rect class="row-ground" x="0" y={y} width={width} height={ROW} rx="4" />
                <text class="row-name" x="6" y={y + 17}>{shortened(row.step, Math.floor((names - 14) / 7))}</text>
                <title>{row.step}</title>
                {row.bars.map((bar, place) => (
                  <BarShape key={place} bar={bar} x={x} y={y} />
                ))}
              </g>
            );
          })}
        </svg>
      ) : null}
      {rows.length > shown.length ? (
        <button type="button" class="link" onClick={() => setAll(true)}>
          {rows.length - shown.length} more steps
        </button>
      ) : null}
    </div>
  );
}

function BarShape({ bar, x, y }: { bar: Bar; x: (ms: number) => number; y: number }) {
  const { attempt } = bar;
  const error = typeof attempt.error === "string" ? attempt.error : attempt.error?.message;
  const lines = [
    `${attempt.step}${attempt.attempt ? `, attempt ${attempt.attempt}` : ""}: ${attempt.state}`,
    attempt.started_at || attempt.queued_at ? absolute(Date.parse(attempt.started_at ?? attempt.queued_at ?? "")) : "",
    span(bar.end - bar.start),
    attempt.instance ? `on ${attempt.instance}` : "",
    error ? shortened(error, 300) : "",
  ];
  const width = Math.max(BAR_MIN, x(bar.end) - x(bar.start));
  const isWait = attempt.state === "waiting" || attempt.state === "queued" || attempt.started_at === null;
  return (
    <g class={`bar tone-${toneOf(attempt.state)} ${bar.isOpen ? "open" : ""}`}>
      <title>{lines.filter(Boolean).join("\n")}</title>
      {bar.queued === null ? null : (
        <rect class="bar-queued" x={x(bar.queued)} y={y + 11} width={Math.max(0, x(bar.start) - x(bar.queued))} height="4" rx="2" />
      )}
      <rect class={isWait ? "bar-wait" : "bar-box"} x={x(bar.start)} y={y + 6} width={width} height="14" rx="3" />
      {isWait ? <rect class="bar-hatch" x={x(bar.start)} y={y + 6} width={width} height="14" rx="3" fill="url(#hatch)" /> : null}
      {attempt.state === "failed" || attempt.state === "retried" || attempt.state === "lost" ? (
        <path class="bar-cross" d={`M${x(bar.start) + width + 4} ${y + 10}l6 6m0-6l-6 6`} />
      ) : null}
    </g>
  );
}
