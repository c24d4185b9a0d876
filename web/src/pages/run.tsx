/** One run: why it is where it is, its picture, its time, its events, its data. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { NONE, withNewer, withOlder, type EventList } from "../model/events";
import { isOpen as isOpenStatus } from "../model/gates";
import { href, useQuery } from "../model/route";
import { span } from "../model/time";
import { count, plural, shortId } from "../model/words";
import { apiPath, get } from "../net/api";
import { followRun, useLiveWhile } from "../net/live";
import { useResource, useThrottled } from "../net/resource";
import type { Attempt, EventItem, FlowDetail, Page, RunDetail, StepView, Why } from "../net/types";
import { Ago, Copy, Empty, FlowLink, Loading, Panel, Problem, Revision, RunLink, State, Tabs, Tags, Took } from "../ui/basics";
import { Gantt } from "../ui/gantt";
import { FlowGraph, type GraphStep } from "../ui/graph";
import { RunActions } from "./run_actions";
import { RunData } from "./run_data";
import { RunEvents } from "./run_events";
import { RunLogs } from "./run_logs";
import { RunStep } from "./run_step";
import { WhyPanel } from "./run_why";

const EVENTS_PAGE = 200;
const RELOAD_MS = 700;

export function RunPage({ run }: { run: string }) {
  const path = apiPath("runs", run);
  const detail = useResource<RunDetail>(path);
  const why = useResource<Why>(path + "/why");
  const timeline = useResource<Page<Attempt>>(path + "/timeline");
  const data = detail.data;
  const flow = useResource<FlowDetail>(data ? apiPath("flows", data.flow) + "?revision=" + encodeURIComponent(data.revision) : null);
  const [query, setQuery] = useQuery();
  const reload = useThrottled(() => {
    detail.reload();
    why.reload();
    timeline.reload();
  }, RELOAD_MS);
  const isOpen = data !== null && data.ended_at === null && isOpenStatus(data.status);
  useLiveWhile(data !== null && !isOpen);
  const events = useEvents(run, isOpen, reload);
  // What a run waits for may change without an event of its own, such as a lease that ends.
  useEffect(() => {
    if (!isOpen) return;
    const id = setInterval(() => !document.hidden && why.reload(), 10_000);
    return () => clearInterval(id);
  }, [isOpen, why.reload]);

  if (!data) return detail.error ? <Problem error={detail.error} retry={detail.reload} /> : <Loading rows={10} />;
  const tab = query.get("tab") ?? "events";
  const step = query.get("step");
  const select = (name: string) => setQuery({ step: name === step ? null : name }, "replace");
  return (
    <>
      <RunHead run={data} why={why.data} onDone={reload} />
      {detail.error ? <Problem error={detail.error} retry={detail.reload} /> : null}
      {data.status === "completed" ? null : <WhyPanel run={data} why={why.data} error={why.error} onDone={reload} />}
      <div class="columns run-columns">
        <div class="stack">
          <Panel title="Steps" flush aside={<StepTotals steps={data.steps} />}>
            {flow.error ? <Problem error={flow.error} retry={flow.reload} /> : null}
            {flow.data ? (
              <FlowGraph steps={graphSteps(flow.data, data)} edges={flow.data.edges ?? []} selected={step} onSelect={select} />
            ) : flow.error ? null : <Loading rows={4} />}
          </Panel>
          <Panel title="Timeline" aside={<GanttLegend />}>
            {timeline.error ? <Problem error={timeline.error} retry={timeline.reload} /> : null}
            {timeline.data && timeline.data.items.length > 0 ? (
              <Gantt attempts={timeline.data.items} startedAt={data.started_at} endedAt={data.ended_at} selected={step} onSelect={select} />
            ) : timeline.data ? <p class="muted">No attempt has begun yet.</p> : null}
          </Panel>
        </div>
        <RunStep run={data} flow={flow.data} step={step} attempts={timeline.data?.items ?? []} why={why.data} onSelect={select} onDone={reload} />
      </div>
      <section class="panel flush">
        <Tabs
          label="what happened"
          current={tab}
          onChange={(id) => setQuery({ tab: id === "events" ? null : id }, "replace")}
          tabs={[
            { id: "events", name: "Events" },
            { id: "logs", name: "Logs" },
            { id: "data", name: "Data" },
          ]}
        />
        {tab === "events" ? (
          data.events_removed ? (
            <Empty title="The events were removed by retention"><p class="muted">The record of the run is kept for longer than its events.</p></Empty>
          ) : (
            <RunEvents startedAt={data.started_at} list={events.list} error={events.error} loading={events.loading} loadOlder={events.loadOlder} />
          )
        ) : null}
        {tab === "logs" ? <RunLogs run={data.run_id} isOpen={isOpen} steps={data.steps} newest={events.list.items[0]?.seq ?? 0} /> : null}
        {tab === "data" ? <RunData run={data} /> : null}
      </section>
    </>
  );
}

/** The events of the run: the last page first, then whatever comes, and older ones on demand. */
function useEvents(runId: string, isOpen: boolean, onNews: () => void) {
  const [list, setList] = useState<EventList>(NONE);
  const [error, setError] = useState<Error | null>(null);
  const [loading, setLoading] = useState(false);
  const [ready, setReady] = useState(false);
  const latest = useRef(list);
  latest.current = list;
  const busy = useRef(false);

  const loadOlder = useCallback(() => {
    if (busy.current || latest.current.complete) return;
    busy.current = true;
    setLoading(true);
    setError(null);
    const oldest = latest.current.items.at(-1)?.seq;
    const before = oldest === undefined ? "" : `&before=${oldest}`;
    get<Page<EventItem>>(`${apiPath("runs", runId)}/events?order=desc&limit=${EVENTS_PAGE}${before}`).then(
      (page) => setList((old) => withOlder(old, page.items, page.items.length === 0 || page.next === null)),
      setError,
    ).finally(() => {
      busy.current = false;
      setLoading(false);
      setReady(true);
    });
  }, [runId]);

  useEffect(() => {
    setList(NONE);
    latest.current = NONE;
    setReady(false);
    loadOlder();
  }, [loadOlder]);

  useEffect(() => {
    if (!isOpen || !ready) return;
    const from = latest.current.items[0]?.seq ?? 0;
    return followRun(
      runId,
      from,
      (event) => {
        setList((old) => withNewer(old, [event]));
        onNews();
      },
      onNews,
    );
  }, [runId, isOpen, ready, onNews]);

  return { list, error, loading, loadOlder };
}

function RunHead({ run, why, onDone }: { run: RunDetail; why: Why | null; onDone: () => void }) {
  return (
    <header class="page-head run-head">
      <div class="page-title">
        <p class="crumbs"><a href="/runs">Runs</a> <span class="faint">/</span> <FlowLink flow={run.flow} /></p>
        <h1>
          <span class={`status-large status-${run.status}`} data-status={run.status}><State state={run.status} /></span>
          <span class="id" title={run.run_id}>{shortId(run.run_id)}</span>
          <Copy text={run.run_id} label="copy the run's id" />
        </h1>
        <p class="run-facts muted">
          <span>started <Ago at={run.started_at} /></span>
          <span>{run.ended_at ? "took" : "for"} <Took ms={run.ended_at ? run.duration_ms : null} since={run.started_at} /></span>
          <span>revision <Revision revision={run.revision} /></span>
          {run.key ? <span>key <code>{run.key.length > 60 ? run.key.slice(0, 59) + "…" : run.key}</code></span> : null}
          {run.retry_of ? <span>retry of <RunLink run={run.retry_of} /></span> : null}
          <Tags tags={run.tags} />
        </p>
      </div>
      <RunActions run={run} why={why} onDone={onDone} />
    </header>
  );
}

function StepTotals({ steps }: { steps: StepView[] }) {
  const done = steps.filter((step) => step.state === "succeeded").length;
  return <span class="muted num">{count(done)} of {plural(steps.length, "step")} succeeded</span>;
}

function GanttLegend() {
  return (
    <ul class="legend">
      <li><span class="swatch queued" />in its queue</li>
      <li><span class="swatch wait" />waits</li>
      <li><span class="swatch attempt" />attempt</li>
    </ul>
  );
}

/** The steps of the picture: what each does, or how it stands in this run. */
function graphSteps(flow: FlowDetail, run: RunDetail): GraphStep[] {
  const views = new Map(run.steps.map((step) => [step.name, step]));
  return flow.steps.map((def) => {
    const view = views.get(def.name);
    return { name: def.name, state: view?.state ?? "pending", note: noteOf(view) || def.does };
  });
}

function noteOf(step: StepView | undefined): string {
  if (!step) return "";
  const again = step.attempts > 1 ? `attempt ${step.attempts}` : "";
  const took = step.duration_ms === null ? "" : span(step.duration_ms);
  switch (step.state) {
    case "succeeded":
      return [took, again].filter(Boolean).join(" · ") || "succeeded";
    case "failed":
      return step.error?.message ?? "failed";
    case "running":
      return ["running", again].filter(Boolean).join(" · ");
    case "queued":
      return step.failures > 0 ? `tries again after ${plural(step.failures, "failure")}` : "in its queue";
    case "waiting":
      return "waits";
    case "skipped":
      return "skipped";
    case "cancelled":
      return "cancelled";
    case "pending":
      return "";
  }
}

export function runPath(run: string): string {
  return href(["runs", run]);
}
