/** The step that was chosen in the picture; without one, all of them in a list. */

import { useState } from "preact/hooks";
import { isOpen } from "../model/gates";
import { useForbidden } from "../model/session";
import type { Attempt, FlowDetail, RunDetail, Why } from "../net/types";
import { Ago, Button, Clipped, Copy, Facts, Message, Panel, State, Took } from "../ui/basics";
import { Glyph } from "../ui/icons";
import { JsonTree } from "../ui/json_tree";
import { RetryDialog, SignalDialog } from "./run_actions";
import { isSignal, verbOf } from "./run_why";

export function RunStep(props: {
  run: RunDetail;
  flow: FlowDetail | null;
  step: string | null;
  attempts: Attempt[];
  why: Why | null;
  onSelect: (step: string) => void;
  onDone: () => void;
}) {
  const view = props.run.steps.find((step) => step.name === props.step);
  if (!view) return <StepList run={props.run} onSelect={props.onSelect} />;
  return <StepDetail key={view.name} {...props} name={view.name} />;
}

function StepList({ run, onSelect }: { run: RunDetail; onSelect: (step: string) => void }) {
  return (
    <Panel title="States" aside={<span class="faint">choose a step</span>} flush class="run-step">
      <ul class="lines step-list">
        {run.steps.map((step) => (
          <li key={step.name}>
            <button type="button" class="line-button" onClick={() => onSelect(step.name)}>
              <Glyph state={step.state} />
              <Clipped text={step.name} class="strong" />
              <span class="faint">{step.state}</span>
              <span class="push faint"><Took ms={step.duration_ms} since={step.state === "running" ? (step.started_at ?? null) : null} /></span>
            </button>
          </li>
        ))}
      </ul>
      {run.steps_complete === false ? <p class="panel-note muted">The run has more events than are read for this; the oldest are not counted.</p> : null}
    </Panel>
  );
}

function StepDetail(props: {
  run: RunDetail;
  flow: FlowDetail | null;
  name: string;
  attempts: Attempt[];
  why: Why | null;
  onSelect: (step: string) => void;
  onDone: () => void;
}) {
  const { run, name } = props;
  const [dialog, setDialog] = useState<"retry" | "signal" | null>(null);
  const forbidden = useForbidden("run");
  const view = run.steps.find((step) => step.name === name);
  const def = props.flow?.steps.find((step) => step.name === name);
  const reason = props.why?.reasons.find((each) => each.step === name) ?? null;
  const attempts = props.attempts.filter((attempt) => attempt.step === name);
  const isOver = !isOpen(run.status);
  if (!view) return null;
  return (
    <Panel
      class="run-step"
      title={<span class="strong">{name}</span>}
      aside={<><Copy text={name} label="copy the step's name" /><button type="button" class="link" onClick={() => props.onSelect(name)}>close</button></>}
    >
      <Facts
        facts={[
          ["State", <State state={view.state} />],
          ["Attempts", <span class="num">{view.attempts}{view.failures > 0 ? `, ${view.failures} failed` : ""}</span>],
          ["Took", <Took ms={view.duration_ms} since={view.state === "running" ? (view.started_at ?? null) : null} />],
          ...(def ? ([["Does", <Clipped text={def.does} />], ["Starts on", <StartsOn kind={def.starts_on.kind} events={def.starts_on.events} />]] as [string, preact.ComponentChildren][]) : []),
          ...(def?.queue ? ([["Queue", <code>{def.queue}</code>]] as [string, preact.ComponentChildren][]) : []),
        ]}
      />
      {reason ? <p class="step-reason"><Message text={reason.message} /></p> : null}
      {view.error && !reason ? <p class="step-error"><span class="faint">{view.error.kind}</span> <Message text={view.error.message} /></p> : null}
      <div class="actions">
        {reason && isSignal(reason) ? (
          <Button kind="primary" disabled={forbidden !== undefined} title={forbidden} onClick={() => setDialog("signal")}>{verbOf(reason)}</Button>
        ) : null}
        {isOver ? (
          <Button disabled={forbidden !== undefined} title={forbidden} onClick={() => setDialog("retry")}>Retry from here…</Button>
        ) : null}
      </div>
      {attempts.length > 0 ? (
        <ol class="attempts">
          {attempts.slice(-20).map((attempt, at) => (
            <li key={at}>
              <State state={attempt.state} label={attempt.attempt ? `attempt ${attempt.attempt} ${attempt.state}` : attempt.state} />
              <span class="faint push"><Ago at={attempt.started_at ?? attempt.queued_at} /></span>
              {attempt.instance ? <div class="faint id">{attempt.instance}</div> : null}
              {attempt.error ? <div class="attempt-error"><Clipped text={typeof attempt.error === "string" ? attempt.error : (attempt.error.message ?? "")} /></div> : null}
            </li>
          ))}
        </ol>
      ) : null}
      {view.result === undefined || view.result === null ? null : (
        <>
          <h3>Result</h3>
          <JsonTree value={view.result} label={`the result of ${name}`} />
        </>
      )}
      {dialog === "retry" ? <RetryDialog run={run} from={name} onClose={() => setDialog(null)} /> : null}
      {dialog === "signal" ? <SignalDialog run={run} reason={reason} onClose={() => setDialog(null)} onDone={props.onDone} /> : null}
    </Panel>
  );
}

export function StartsOn({ kind, events }: { kind: string; events: string[] }) {
  if (kind === "start") return <>the start of the run</>;
  return (
    <>
      {events.length > 1 ? (kind === "any" ? "any of " : "all of ") : ""}
      {events.map((event, at) => (
        <span key={event}>{at > 0 ? ", " : ""}<code>{event}</code></span>
      ))}
    </>
  );
}
