/** The last hour, a bar for each minute. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { clock } from "../model/time";
import { count } from "../model/words";
import type { Minute } from "../net/types";

const HEIGHT = 120;
const FOOT = 18;
const HEAD = 14;

/** The next round number, so that the scale does not change with every run. */
export function roundUp(value: number): number {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 4, 5, 8, 10]) if (value <= step * power) return step * power;
  return 10 * power;
}

export function Minutes({ minutes }: { minutes: Minute[] }) {
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const look = () => setWidth(element.clientWidth);
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const top = roundUp(Math.max(1, ...minutes.map((each) => Math.max(each.started, each.completed + each.failed))));
  const plot = HEIGHT - FOOT - HEAD;
  const y = (value: number) => HEAD + plot - (value / top) * plot;
  const left = 10 + count(top).length * 7;
  const slot = minutes.length === 0 ? 0 : (width - left) / minutes.length;
  const x = (at: number) => left + at * slot;
  const gap = slot > 8 ? 2 : 1;
  const started = minutes.map((each, at) => `${at === 0 ? "M" : "L"}${(x(at) + slot / 2).toFixed(1)} ${y(each.started).toFixed(1)}`).join("");
  const total = (name: "started" | "completed" | "failed") => minutes.reduce((sum, each) => sum + each[name], 0);
  const label = `runs of the last hour: ${total("started")} started, ${total("completed")} completed, ${total("failed")} failed`;
  return (
    <div class="minutes" ref={frame}>
      {width > 0 ? (
        <svg width={width} height={HEIGHT} role="img" aria-label={label}>
          {[0, top / 2, top].map((value) => (
            <g key={value} class="tick">
              <path d={`M${left} ${y(value)}H${width}`} />
              <text x={left - 6} y={y(value) + 4} text-anchor="end">{count(value)}</text>
            </g>
          ))}
          {minutes.map((each, at) => (
            <g key={each.at} class="minute">
              <title>{`${clock(Date.parse(each.at)).slice(0, 5)}\n${each.started} started\n${each.completed} completed\n${each.failed} failed`}</title>
              <rect class="minute-ground" x={x(at)} y={HEAD} width={slot} height={plot} />
              <rect class="minute-completed" x={x(at) + gap / 2} y={y(each.completed)} width={Math.max(1, slot - gap)} height={y(0) - y(each.completed)} rx="1" />
              {each.failed > 0 ? (
                <rect class="minute-failed" x={x(at) + gap / 2} y={y(each.completed + each.failed)} width={Math.max(1, slot - gap)} height={Math.max(2, y(0) - y(each.failed))} rx="1" />
              ) : null}
            </g>
          ))}
          <path class="minute-started" d={started} />
          {minutes.map((each, at) =>
            at % 15 === 0 || at === minutes.length - 1 ? (
              <text key={each.at} class="minute-label" x={x(at) + slot / 2} y={HEIGHT - 3} text-anchor={at === 0 ? "start" : at === minutes.length - 1 ? "end" : "middle"}>
                {clock(Date.parse(each.at)).slice(0, 5)}
              </text>
            ) : null,
          )}
        </svg>
      ) : null}
    </div>
  );
}
