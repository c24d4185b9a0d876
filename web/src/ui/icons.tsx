/** Drawn marks. Every state has a shape of its own, so that colour is never all that tells them apart. */

import type { ComponentChildren } from "preact";
import type { RunStatus, StepState } from "../net/types";

export type Tone = "held" | "running" | "waiting" | "good" | "bad" | "off" | "idle";

export function toneOf(state: string): Tone {
  switch (state) {
    case "held":
    case "holding":
    case "draining":
      return "held";
    case "running":
    case "replaying":
    case "now":
    case "plan":
    case "drain":
    case "deploy":
    case "verify":
    case "resume":
    case "audit":
    case "resumes":
      return "running";
    case "waiting":
    case "retried":
    case "lost":
    case "late":
    case "queued":
    case "degraded":
    case "warning":
    case "stopping":
    case "parked":
    case "paused":
    case "alerting":
    case "rolling_back":
    case "pinned":
      return "waiting";
    case "completed":
    case "succeeded":
    case "fired":
    case "ready":
    case "open":
    case "active":
    case "leads":
    case "ok":
    case "carried":
    case "good":
    case "done":
    case "passed":
    case "resumed":
    case "finishes":
      return "good";
    case "failed":
    case "missed":
    case "critical":
    case "bad":
    case "error":
    case "expired":
    case "timed_out":
    case "rolled_back":
    case "turned":
      return "bad";
    case "cancelled":
    case "skipped":
    case "released":
    case "silent":
    case "suppressed":
    case "inactive":
      return "off";
    default:
      return "idle";
  }
}

const SHAPES: Record<string, ComponentChildren> = {
  running: (
    <>
      <circle cx="8" cy="8" r="6" class="track" />
      <path d="M8 2a6 6 0 0 1 6 6" class="turning" />
    </>
  ),
  held: (
    <>
      <path d="M4 2v12M12 2v12" />
      <path d="M4 8h8" />
    </>
  ),
  waiting: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="M6.300 5.800v4.400M9.700 5.800v4.400" />
    </>
  ),
  good: (
    <>
      <circle cx="8" cy="8" r="6.500" class="solid" />
      <path d="M5.200 8.200l2 2 3.700-4.200" class="on-solid" />
    </>
  ),
  bad: (
    <>
      <path d="M5.300 1.500h5.400l3.800 3.800v5.400l-3.800 3.800H5.300l-3.800-3.800V5.300z" class="solid" />
      <path d="M5.800 5.800l4.400 4.400M10.200 5.800l-4.400 4.400" class="on-solid" />
    </>
  ),
  off: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="M3.900 12.100l8.200-8.200" />
    </>
  ),
  idle: <circle cx="8" cy="8" r="6" stroke-dasharray="2.200 2.200" />,
  queued: (
    <>
      <circle cx="8" cy="8" r="6" stroke-dasharray="2.200 2.200" />
      <circle cx="8" cy="8" r="2" class="solid" />
    </>
  ),
  skipped: <path d="M3 8h10" />,
  resumes: <path d="M2.500 8h10M8.800 4.300L12.500 8l-3.700 3.700" />,
  retried: (
    <>
      <path d="M13 8a5 5 0 1 1-1.500-3.600" />
      <path d="M13.200 2v3h-3" />
    </>
  ),
};

function shapeOf(state: string): ComponentChildren {
  return SHAPES[state] ?? SHAPES[toneOf(state)];
}

/** The mark of a state without its name; whoever uses it says the name beside it. */
export function Glyph({ state, size = 14 }: { state: RunStatus | StepState | string; size?: number }) {
  return (
    <svg class={`glyph tone-${toneOf(state)}`} viewBox="0 0 16 16" width={size} height={size} aria-hidden="true">
      {shapeOf(state)}
    </svg>
  );
}

/** The shapes of a mark, for a picture that is itself an SVG. */
export function GlyphShape({ state, x, y }: { state: string; x: number; y: number }) {
  return (
    <g class={`glyph tone-${toneOf(state)}`} transform={`translate(${x} ${y})`}>
      {shapeOf(state)}
    </g>
  );
}

const ICONS = {
  overview: "M2.500 13.500v-5M6.200 13.500v-9M9.800 13.500v-6M13.500 13.500v-11",
  runs: "M2.500 4h11M2.500 8h11M2.500 12h7",
  flows: "M2 8h3.200M10.800 4h3.200M10.800 12h3.200M5.200 8c3 0 2.600-4 5.600-4M5.200 8c3 0 2.600 4 5.600 4",
  schedules: "M8 4.500V8l2.500 1.500M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0z",
  queues: "M2.500 4.500h11v7h-11zM6.200 4.500v7M9.900 4.500v7",
  hold: "M4 2.500v11M12 2.500v11M4 6h8M4 10h8",
  dead: "M3 5l5 4 5-4M2.500 4h11v8h-11z",
  subscribers: "M3 13a10 10 0 0 1 10-10M3 13a6 6 0 0 1 6-6M3 13h.01",
  instances: "M3 2.800h10v4.200H3zM3 9h10v4.200H3zM5.500 4.900h.01M5.500 11.100h.01",
  deployments: "M8 13V4M4.500 7L8 3.500 11.500 7M3 13h10",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.800 10.800L14 14",
  copy: "M5.500 5.500h8v8h-8zM3 10.500h-.5v-8h8V3",
  check: "M3 8.500l3.200 3.200L13 4.500",
  close: "M4 4l8 8M12 4l-8 8",
  menu: "M2.500 4.500h11M2.500 8h11M2.500 11.500h11",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.500v1.300M8 13.200v1.300M1.500 8h1.300M13.200 8h1.300M3.400 3.400l.9.9M11.700 11.700l.9.9M12.600 3.400l-.9.9M4.300 11.700l-.9.9",
  moon: "M13 9.500A5.500 5.500 0 0 1 6.500 3a5.500 5.500 0 1 0 6.500 6.500z",
  system: "M2.500 3h11v7.500h-11zM6 13.500h4",
  right: "M6 3.500L10.500 8 6 12.500",
  down: "M3.500 6L8 10.500 12.500 6",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  fit: "M2.500 6V2.500H6M10 2.500h3.500V6M13.500 10v3.500H10M6 13.500H2.500V10",
  download: "M8 2.500v7.500M4.800 7L8 10.200 11.200 7M3 13.200h10",
  leader: "M2.500 12.500h11M3 10.500l-.5-6 3.200 2.700L8 3l2.300 4.200 3.200-2.700-.5 6z",
  help: "M8 11.500h.01M6.200 6.200A1.900 1.900 0 1 1 8 8.600v.7M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0z",
} as const;

export type IconName = keyof typeof ICONS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width={size} height={size} aria-hidden="true">
      <path d={ICONS[name]} />
    </svg>
  );
}

/** The mark of the product: a flow through a gate. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
      <rect width="32" height="32" rx="7" class="mark-ground" />
      <path d="M11 7v18M21 7v18" class="mark-gate" />
      <path d="M4.500 20.500c5 0 6.500-9 11.500-9s6.500 9 11.500 9" class="mark-flow" />
    </svg>
  );
}
