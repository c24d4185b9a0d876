/** One flow: its picture, its steps, its revisions, its file, and a way to start it. */

import { useEffect, useState } from "preact/hooks";
import { href, useQuery } from "../model/route";
import { useForbidden } from "../model/session";
import { plural } from "../model/words";
import { apiPath, get } from "../net/api";
import { useReloadOnRuns, useResource } from "../net/resource";
import type { FlowDetail, GateItem, Page, RevisionItem, RunItem, StepDef } from "../net/types";
import { Ago, Button, Clipped, Command, Empty, Facts, Loading, Panel, Problem, Revision, RunLink, State, Table, Tabs, Took, type Column } from "../ui/basics";
import { FlowGraph } from "../ui/graph";
import { JsonTree } from "../ui/json_tree";
import { Counts } from "./flows";
import { StartDialog } from "./flow_start";
import { GateBadge, HoldDialog, LetGoDialog } from "./hold";
import { StartsOn } from "./run_step";

export function FlowPage({ flow }: { flow: string }) {
  const [query, setQuery] = useQuery();
  const revision = query.get("revision");
  const path = apiPath("flows", flow);
  const { data, error, reload } = useResource<FlowDetail>(path + (revision ? `?revision=${encodeURIComponent(revision)}` : ""));
  const revisions = useResource<Page<RevisionItem>>(path + "/revisions");
  const runs = useResource<Page<RunItem>>(`/runs?limit=8&flow=${encodeURIComponent(flow)}`);
  const gate = useResource<GateItem>(path + "/gate", { every: 10_000 });
  useReloadOnRuns(() => {
    gate.reload();
    runs.reload();
    revisions.reload();
  }, 3_000, (live) => live.runs.some((run) => run.flow === flow));
  const [gating, setGating] = useState(false);
  const [starting, setStarting] = useState(query.has("start"));
  const forbidden = useForbidden("run");
  const ungated = useForbidden("deploy");
  if (!data) return error ? <Problem error={error} retry={reload} /> : <Loading rows={8} />;
  const step = query.get("step");
  const tab = query.get("tab") ?? "steps";
  const select = (name: string) => setQuery({ step: name === step ? null : name }, "replace");
  return (
    <>
      <header class="page-head">
        <div class="page-title">
          <p class="crumbs"><a href="/flows">Flows</a></p>
          <h1>{data.flow} <GateBadge gate={gate.data} /></h1>
          {data.description ? <p class="muted">{data.description}</p> : null}
          <p class="run-facts muted">
            <span>revision <Revision revision={data.revision} /> {data.active ? <State state="active" /> : <State state="inactive" label="not the active one" />}</span>
            <span>registered <Ago at={data.registered_at} /></span>
            {data.folder ? <span>from <code>{data.folder}</code></span> : null}
            {data.schedules.map((name) => <a key={name} class="tag" href={href(["schedules", name])}><span class="faint">schedule</span> {name}</a>)}
          </p>
        </div>
        <div class="actions">
          <a class="button plain" href={href(["runs"], { flow })}>Runs</a>
          <a class="button plain" href={href(["deployments"], { flow })}>Deployments</a>
          {gate.data ? <GateButton gate={gate.data} forbidden={ungated} onClick={() => setGating(true)} /> : null}
          <Button kind="primary" disabled={forbidden !== undefined} title={forbidden} onClick={() => setStarting(true)}>Start a run…</Button>
        </div>
      </header>
      {error ? <Problem error={error} retry={reload} /> : null}
      <div class="columns run-columns">
        <Panel title="Picture" flush aside={<span class="muted">{plural(data.steps.length, "step")}</span>}>
          <FlowGraph steps={data.steps.map((each) => ({ name: each.name, state: null, note: each.does }))} edges={data.edges ?? []} selected={step} onSelect={select} />
        </Panel>
        {step ? <StepPanel step={data.steps.find((each) => each.name === step)} /> : <LastRuns flow={flow} runs={runs.data?.items ?? null} />}
      </div>
      <section class="panel flush">
        <Tabs
          label="about the flow"
          current={tab}
          onChange={(id) => setQuery({ tab: id === "steps" ? null : id }, "replace")}
          tabs={[{ id: "steps", name: "Steps" }, { id: "revisions", name: "Revisions" }, { id: "file", name: "File" }]}
        />
        {tab === "steps" ? <Table label="steps" columns={STEP_COLUMNS} rows={data.steps} keyOf={(each) => each.name} /> : null}
        {tab === "revisions" ? <Revisions flow={flow} shown={data.revision} items={revisions.data?.items ?? null} error={revisions.error} onShow={(each) => setQuery({ revision: each })} /> : null}
        {tab === "file" ? <div class="data"><JsonTree value={data.file} label="the flow file" /></div> : null}
      </section>
      {gating && gate.data ? <GateDialog gate={gate.data} onClose={() => setGating(false)} onDone={gate.reload} /> : null}
      {starting ? <StartDialog flow={data} onClose={() => {
        setStarting(false);
        setQuery({ start: null }, "replace");
      }} /> : null}
    </>
  );
}

function GateButton({ gate, forbidden, onClick }: { gate: GateItem; forbidden: string | undefined; onClick: () => void }) {
  const because = gate.state !== "open" && gate.deployment ? "its deployment opens it" : forbidden;
  return <Button disabled={because !== undefined} title={because} onClick={onClick}>{gate.state === "open" ? "Hold…" : "Let go…"}</Button>;
}

/** Holds a flow that is not held, and lets go one that is; which it was when the dialog was opened. */
function GateDialog({ gate, onClose, onDone }: { gate: GateItem; onClose: () => void; onDone: () => void }) {
  const [first] = useState(gate);
  if (first.state === "open") return <HoldDialog flow={first.flow} onClose={onClose} onDone={onDone} />;
  return <LetGoDialog gate={first} onClose={onClose} onDone={onDone} />;
}

const STEP_COLUMNS: Column<StepDef>[] = [
  { name: "Step", class: "cell-main", cell: (step) => <><span class="strong">{step.name}</span>{step.effect ? <> <span class="tag" title="it changes something outside; a shadow does not execute it">effect</span></> : null}</> },
  { name: "Starts on", cell: (step) => <StartsOn kind={step.starts_on.kind} events={step.starts_on.events} /> },
  { name: "Does", cell: (step) => <Clipped text={step.does} class="muted" /> },
  { name: "Emits", cell: (step) => (step.emits.length === 0 ? <span class="faint">nothing</span> : step.emits.map((event) => <code key={event} class="spaced">{event}</code>)) },
  { name: "Queue", cell: (step) => (step.queue ? <code>{step.queue}</code> : <span class="faint">default</span>) },
];

function StepPanel({ step }: { step: StepDef | undefined }) {
  if (!step) return null;
  return (
    <Panel title={<span class="strong">{step.name}</span>} class="run-step">
      <Facts
        facts={[
          ["Does", <span>{step.does}</span>],
          ["Starts on", <StartsOn kind={step.starts_on.kind} events={step.starts_on.events} />],
          ["Emits", step.emits.length === 0 ? "nothing" : step.emits.map((event) => <code key={event} class="spaced">{event}</code>)],
          ["Queue", <code>{step.queue ?? "default"}</code>],
          ["Effect", step.effect ? "changes something outside; a shadow does not execute it" : "none; a shadow executes it"],
        ]}
      />
    </Panel>
  );
}

function LastRuns({ flow, runs }: { flow: string; runs: RunItem[] | null }) {
  return (
    <Panel title="Last runs" class="run-step" flush aside={<a href={href(["runs"], { flow })}>all</a>}>
      {runs === null ? <Loading rows={4} /> : runs.length === 0 ? (
        <Empty title="No run yet">
          <Command text={`flowgate runs start ${flow}`} />
        </Empty>
      ) : (
        <ul class="lines">
          {runs.map((run) => (
            <li key={run.run_id}>
              <State state={run.status} />
              <RunLink run={run.run_id} />
              <span class="push faint"><Took ms={run.duration_ms} since={run.started_at} /></span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Revisions(props: { flow: string; shown: string; items: RevisionItem[] | null; error: Error | null; onShow: (revision: string) => void }) {
  const [pair, setPair] = useState<[string, string] | null>(null);
  if (props.error) return <Problem error={props.error} />;
  if (!props.items) return <Loading rows={3} />;
  const items = props.items;
  const columns: Column<RevisionItem>[] = [
    { name: "Revision", cell: (each) => <><Revision revision={each.revision} /> {each.active ? <State state="active" /> : null}</> },
    { name: "Registered", class: "cell-time", cell: (each) => <Ago at={each.registered_at} /> },
    { name: "Steps", class: "cell-num", cell: (each) => <span class="num">{each.steps}</span> },
    { name: "Runs", cell: (each) => <Counts flow={props.flow} runs={each.runs} /> },
    {
      name: "actions",
      class: "cell-actions",
      cell: (each) => {
        const before = items[items.indexOf(each) + 1];
        return (
          <>
            {each.revision === props.shown ? <span class="faint">shown above</span> : <button type="button" class="link" onClick={() => props.onShow(each.revision)}>show</button>}
            {before ? <button type="button" class="link" onClick={() => setPair([before.revision, each.revision])}>what changed</button> : null}
          </>
        );
      },
    },
  ];
  return (
    <>
      <Table label="revisions" columns={columns} rows={items} keyOf={(each) => each.revision} />
      {pair ? <Diff key={pair.join()} flow={props.flow} old={pair[0]} next={pair[1]} onClose={() => setPair(null)} /> : null}
    </>
  );
}

function Diff({ flow, old, next, onClose }: { flow: string; old: string; next: string; onClose: () => void }) {
  const [changes, setChanges] = useState<string[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    get<{ changes: string[] }>(`${apiPath("flows", flow)}/diff?old=${encodeURIComponent(old)}&new=${encodeURIComponent(next)}`).then((answer) => setChanges(answer.changes), setError);
  }, []);
  return (
    <section class="diff" aria-label="what changed">
      <header class="panel-head">
        <h2>From <Revision revision={old} /> to <Revision revision={next} /></h2>
        <button type="button" class="link" onClick={onClose}>close</button>
      </header>
      {error ? <Problem error={error} /> : null}
      {changes && changes.length === 0 ? <p class="muted">Nothing but the way it is written.</p> : null}
      <ul>{changes?.map((change, at) => <li key={at}>{change}</li>)}</ul>
    </section>
  );
}
