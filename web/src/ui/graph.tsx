/** The picture of a flow: its steps as nodes with their state, its events as lines. */

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { fit, labelOf, nameRoom, type Line, type Node } from "../model/graph";
import { shortened } from "../model/words";
import type { FlowEdge } from "../net/types";
import { GlyphShape, toneOf } from "./icons";
import { Button } from "./basics";

export interface GraphStep {
  name: string;
  /** Its state in a run; absent for a flow. */
  state: string | null;
  /** A second line: what it does, or how it stands. */
  note: string;
}

export function FlowGraph(props: {
  steps: GraphStep[];
  edges: FlowEdge[];
  selected: string | null;
  onSelect: (step: string) => void;
}) {
  const frame = useRef<HTMLDivElement>(null);
  const [room, setRoom] = useState(0);
  const [zoom, setZoom] = useState<number | null>(null);
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const look = () => setRoom(element.clientWidth);
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const names = props.steps.map((step) => step.name);
  const shape = JSON.stringify([names, props.edges]);
  // Nothing is drawn before it is known how much room there is.
  const fitting = useMemo(() => (room === 0 ? fit([], [], 0) : fit(names, props.edges, room - 2)), [shape, room]);
  const { picture } = fitting;
  const scale = zoom ?? fitting.scale;
  const isZoomed = zoom !== null || fitting.scale < 1 || picture.width * scale > room;
  const stateOf = new Map(props.steps.map((step) => [step.name, step]));

  return (
    <div class={isZoomed ? "graph zoomed" : "graph"}>
      <div class="graph-frame" ref={frame}>
        <svg
          width={Math.ceil(picture.width * scale)}
          height={Math.ceil(picture.height * scale)}
          viewBox={`0 0 ${Math.ceil(picture.width)} ${Math.ceil(picture.height)}`}
          role="group"
          aria-label="the steps of the flow and the events between them"
        >
          <defs>
            <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M1 1l6 3-6 3z" class="arrow" />
            </marker>
          </defs>
          {picture.lines.map((line) => (
            <GraphLine
              key={line.from + "\n" + line.to}
              line={line}
              from={stateOf.get(line.from)?.state ?? null}
              to={stateOf.get(line.to)?.state ?? null}
              labelled={fitting.labels === "shown"}
            />
          ))}
          {picture.nodes.map((node) => (
            <GraphNode
              key={node.name}
              node={node}
              step={stateOf.get(node.name)}
              selected={node.name === props.selected}
              onSelect={props.onSelect}
            />
          ))}
        </svg>
      </div>
      {isZoomed ? <div class="graph-zoom">
        <Button kind="quiet" icon="minus" label="smaller" onClick={() => setZoom(Math.max(0.3, scale - 0.15))}>{""}</Button>
        <Button kind="quiet" icon="fit" label="fit" onClick={() => setZoom(null)}>{""}</Button>
        <Button kind="quiet" icon="plus" label="larger" onClick={() => setZoom(Math.min(2, scale + 0.15))}>{""}</Button>
      </div> : null}
    </div>
  );
}

function GraphNode(props: { node: Node; step: GraphStep | undefined; selected: boolean; onSelect: (step: string) => void }) {
  const { node, step } = props;
  const state = step?.state ?? null;
  const [left, top] = [node.x - node.width / 2, node.y - node.height / 2];
  const select = () => props.onSelect(node.name);
  const tone = state === null ? "plain" : toneOf(state);
  return (
    <g
      class={`node tone-${tone} state-${state ?? "none"} ${props.selected ? "selected" : ""}`}
      transform={`translate(${left} ${top})`}
      role="button"
      tabIndex={0}
      aria-pressed={props.selected}
      aria-label={state === null ? node.name : `${node.name}: ${state}`}
      data-step={node.name}
      data-state={state ?? ""}
      onClick={select}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        select();
      }}
    >
      <title>{[node.name, step?.note].filter(Boolean).join("\n")}</title>
      <rect class="node-ring" x="-3" y="-3" width={node.width + 6} height={node.height + 6} rx="11" />
      <rect class="node-box" width={node.width} height={node.height} rx="8" />
      {state === null ? <circle class="node-dot" cx="18" cy={node.height / 2} r="3.5" /> : <GlyphShape state={state} x={10} y={node.height / 2 - 8} />}
      <text class="node-name" x="34" y="19">{shortened(node.name, nameRoom(node.width))}</text>
      <text class="node-note" x="34" y="34">{shortened(step?.note ?? "", Math.floor((node.width - 44) / 5.7))}</text>
    </g>
  );
}

/** A line is drawn strong once its event has been of use, and moves while its target runs. */
function GraphLine({ line, from, to, labelled }: { line: Line; from: string | null; to: string | null; labelled: boolean }) {
  const isReached = to !== null && to !== "pending" && to !== "skipped" && (from === "succeeded" || from === "failed" || from === "running");
  const isLive = isReached && to === "running";
  const isFailure = line.events.some((event) => event.startsWith("step.failed:"));
  const label = labelOf(line.events);
  const width = label.length * 6.2 + 10;
  return (
    <g class={`line ${isReached ? "reached" : ""} ${isLive ? "live" : ""} ${isFailure ? "failure" : ""}`}>
      <title>{line.events.join("\n")}</title>
      <path d={line.path} marker-end="url(#arrow)" />
      {labelled ? (
        <>
          <rect class="line-label-ground" x={line.label.x - width / 2} y={line.label.y - 8} width={width} height="16" rx="4" />
          <text class="line-label" x={line.label.x} y={line.label.y + 3.5} text-anchor="middle">{label}</text>
        </>
      ) : null}
    </g>
  );
}
