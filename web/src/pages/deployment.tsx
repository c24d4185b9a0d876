/** One deployment: where it is, what it does, what became of every start, and a way back. */

import { useEffect, useState } from "preact/hooks";
import { serverNow, useTicking } from "../model/clock";
import { hasEnded, phasesOf, progressOf, standing, tookMs, type PhaseView } from "../model/deployments";
import { href } from "../model/route";
import { useForbidden } from "../model/session";
import { relative } from "../model/time";
import { count } from "../model/words";
import { apiPath, call } from "../net/api";
import { useReloadOnRuns, useResource } from "../net/resource";
import type { CheckpointItem, DeploymentItem, DeployReport, Page } from "../net/types";
import { Ago, Button, Copy, FlowLink, Loading, Message, Panel, Problem, RunLink, State, Table, Took, type Column } from "../ui/basics";
import { ActionDialog, Field } from "../ui/dialog";
import { Glyph } from "../ui/icons";
import { toast } from "../ui/toast";
import { Change, PlanView } from "./deployment_plan";
import { ReportPanels, Smoke } from "./deployment_report";
import { labelOf } from "./deployments";

/** How often it is looked at while it is under way. */
const LOOK_MS = 1_000;
/** The phases from which there is a way back. */
const REVERSIBLE = ["plan", "drain", "deploy", "verify", "resume"];

export function DeploymentPage({ flow, deployment }: { flow: string; deployment: string }) {
  const path = apiPath("flows", flow, "deployments", deployment);
  const [isOver, setOver] = useState(false);
  const { data, error, reload } = useResource<DeploymentItem>(path, { every: isOver ? undefined : LOOK_MS });
  const report = useResource<DeployReport>(data ? path + "/report" : null);
  const stopped = (data?.checkpointed ?? 0) + (data?.progress?.stopped ?? 0);
  const checkpoints = useResource<Page<CheckpointItem>>(stopped > 0 ? `/checkpoints?flow=${encodeURIComponent(flow)}` : null);
  const phase = data?.phase;
  useEffect(() => {
    if (phase === undefined) return;
    if (data && hasEnded(data)) setOver(true);
    report.reload();
    checkpoints.reload();
  }, [phase]);
  // What ends after the deployment is still part of its report.
  useReloadOnRuns(() => {
    if (isOver) report.reload();
  }, 5_000, (live) => live.runs.some((run) => run.flow === flow));
  if (!data) return error ? <Problem error={error} retry={reload} /> : <Loading rows={8} />;
  const ours = checkpoints.data?.items.filter((each) => each.deployment_id === data.deployment_id) ?? [];
  return (
    <>
      <Head item={data} path={path} onDone={reload} />
      {error ? <Problem error={error} retry={reload} /> : null}
      {data.rollback ? (
        <section class="why status-failed" aria-label="why it was rolled back">
          <h2><Glyph state="rolled_back" /> {hasEnded(data) ? "Rolled back: the old revision is active, and went on with everything" : "It is being rolled back"}</h2>
          <p class="why-first"><Message text={data.rollback} /></p>
        </section>
      ) : null}
      {data.verdict === "alerting" ? <Alerts alerts={report.data?.alerts ?? []} /> : null}
      <Panel title="Phases" aside={data.driver ? <span class="muted">driven by <code>{data.driver}</code></span> : null}>
        <Phases item={data} />
        <ProgressLine item={data} />
      </Panel>
      <Counts item={data} />
      <div class="columns">
        <div class="stack">
          {report.error ? <Problem error={report.error} retry={report.reload} /> : null}
          {report.data ? <ReportPanels report={report.data} isOver={hasEnded(data)} /> : <Loading rows={5} />}
        </div>
        <div class="stack">
          <Smoke item={data} report={report.data} />
          <Panel title="Plan" flush aside={<span class="muted">as it was when it began</span>}><div class="plan-frame"><PlanView plan={data.plan} /></div></Panel>
          {ours.length > 0 ? (
            <Panel title="Stopped runs" flush aside={<span class="num">{count(ours.length)}</span>}>
              <Table label="stopped runs" kind="planned" columns={CHECKPOINT_COLUMNS} rows={ours.slice(0, 50)} keyOf={(each) => each.run_id} />
            </Panel>
          ) : null}
        </div>
      </div>
    </>
  );
}

function Head({ item, path, onDone }: { item: DeploymentItem; path: string; onDone: () => void }) {
  const [dialog, setDialog] = useState<"rollback" | "promote" | null>(null);
  const forbidden = useForbidden("deploy");
  const isReversible = REVERSIBLE.includes(item.phase);
  const tooLate = isReversible ? forbidden : "the new revision has taken over: deploy the old one to go back";
  return (
    <header class="page-head run-head">
      <div class="page-title">
        <p class="crumbs"><a href="/deployments">Deployments</a> / <a href={href(["deployments"], { flow: item.flow })}>{item.flow}</a></p>
        <h1 data-phase={item.phase}>
          <span class="status-large"><State state={standing(item)} label={labelOf(item)} /></span>
          <span class="id">{item.deployment_id}</span>
          <Copy text={item.deployment_id} label="copy the id" />
        </h1>
        <p class="run-facts muted">
          <span><FlowLink flow={item.flow} /></span>
          <span><Change from={item.from} to={item.to} /></span>
          <span>{item.strategy}</span>
          <span>began <Ago at={item.began_at} />{item.author ? <> by {item.author}</> : null}</span>
          <span>{hasEnded(item) ? "took" : "for"} <Took ms={tookMs(item)} since={item.began_at} /></span>
        </p>
        {item.note ? <p class="muted">{item.note}</p> : null}
      </div>
      <div class="actions">
        <a class="button plain" href={`/api/v1${path}/report?format=html`} target="_blank" rel="noopener">Report</a>
        {item.strategy === "canary" && item.phase === "resume" ? (
          <Button disabled={forbidden !== undefined} title={forbidden} onClick={() => setDialog("promote")}>Promote…</Button>
        ) : null}
        {hasEnded(item) ? null : (
          <Button kind="danger" disabled={tooLate !== undefined} title={tooLate} onClick={() => setDialog("rollback")}>Roll back…</Button>
        )}
      </div>
      {dialog === "rollback" ? <RollbackDialog item={item} path={path} onClose={() => setDialog(null)} onDone={onDone} /> : null}
      {dialog === "promote" ? (
        <ActionDialog title={`Promote the canary of ${item.flow}`} action="Promote" onClose={() => setDialog(null)} act={async () => {
          await call("POST", path + "/promote");
          toast("The canary is taken as good");
          onDone();
        }}>
          <p class="muted">The new revision becomes active for all starts, whatever its samples say.</p>
        </ActionDialog>
      ) : null}
    </header>
  );
}

function RollbackDialog({ item, path, onClose, onDone }: { item: DeploymentItem; path: string; onClose: () => void; onDone: () => void }) {
  const [note, setNote] = useState("");
  return (
    <ActionDialog
      title={`Roll back the deployment of ${item.flow}`}
      action="Roll back"
      kind="danger"
      onClose={onClose}
      act={async () => {
        await call("POST", path + "/rollback", note.trim() === "" ? {} : { note: note.trim() });
        toast("The rollback was asked for");
        onDone();
      }}
    >
      <p class="muted">The old revision stays active, or becomes it again. It goes on with what was stopped and what is held: nothing is lost.</p>
      <Field label="Why" hint="stands in the report">
        <input type="text" value={note} maxLength={1_000} onInput={(event) => setNote(event.currentTarget.value)} />
      </Field>
    </ActionDialog>
  );
}

function Alerts({ alerts }: { alerts: string[] }) {
  return (
    <section class="why status-waiting" aria-label="alerts">
      <h2><Glyph state="alerting" /> The new revision is active, and somebody should look</h2>
      {alerts.map((alert) => <p key={alert} class="why-first"><Message text={alert} /></p>)}
    </section>
  );
}

function Phases({ item }: { item: DeploymentItem }) {
  return (
    <ol class="phases" aria-label="phases">
      {phasesOf(item).map((view) => (
        <li key={view.phase} class={`phase phase-${view.state}`} data-phase={view.phase} data-state={view.state} aria-current={view.state === "now" ? "step" : undefined}>
          <Glyph state={markOf(view)} size={16} />
          <span class="phase-name">{view.phase.replaceAll("_", " ")}</span>
          <span class="phase-time faint">{view.state === "now" ? <Took ms={null} since={view.at} /> : view.at === null ? "" : view.ms === null ? <Ago at={view.at} /> : <Took ms={view.ms} />}</span>
        </li>
      ))}
    </ol>
  );
}

function markOf(view: PhaseView): string {
  return view.phase === "rolled_back" && view.state === "done" ? "rolled_back" : view.state;
}

/** What it does now, and how far it is with it. */
function ProgressLine({ item }: { item: DeploymentItem }) {
  const until = item.progress?.until ?? null;
  const left = useTicking((now) => (until === null ? "" : relative(Date.parse(until), now)), until !== null);
  const progress = progressOf(item, serverNow());
  if (!progress) return null;
  return (
    <div class="progress" role="status">
      {progress.share === null ? <progress aria-label={item.phase} /> : <progress aria-label={item.phase} max={1} value={progress.share} />}
      <p><span>{progress.text}</span>{until === null ? null : <span class="faint push">at the latest {left}</span>}</p>
    </div>
  );
}

function Counts({ item }: { item: DeploymentItem }) {
  const cells: [string, number, string][] = [
    ["Held", Math.max(item.held, item.released + (item.progress?.held ?? 0)), "starts that were held"],
    ["Let go", item.released, "of them, those that went on"],
    ["Stopped", Math.max(item.checkpointed, item.progress?.stopped ?? 0), "runs that were stopped at their step"],
    ["Open before", item.plan.finishing + item.plan.resuming + item.plan.pinned, "runs that were open when it began"],
  ];
  return (
    <div class="band" role="group" aria-label="what became of starts and runs">
      {cells.map(([name, value, about]) => (
        <div key={name} class={value === 0 ? "band-cell none" : "band-cell"} title={about}>
          <span class="band-name">{name}</span>
          <span class="band-count num" data-count={name}>{count(value)}</span>
        </div>
      ))}
    </div>
  );
}

const CHECKPOINT_COLUMNS: Column<CheckpointItem>[] = [
  { name: "Run", class: "cell-id", cell: (each) => <RunLink run={each.run_id} /> },
  { name: "At", class: "cell-at", cell: (each) => each.steps.map((step) => <code key={step.step} class="spaced">{step.step}</code>) },
  { name: "Since", class: "cell-status", cell: (each) => <State state={each.state} label={each.state === "pending" ? "stopped" : each.state === "resumed" ? "on the new revision" : "on its own revision"} /> },
];
