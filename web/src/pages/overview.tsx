/** What goes on: how many, how fast, what is stuck and why. */

import { setServerNow } from "../model/clock";
import { href } from "../model/route";
import { count, plural } from "../model/words";
import { useReloadOnRuns, useResource } from "../net/resource";
import { RUN_STATUSES, type Overview, type StuckRun } from "../net/types";
import { Age, Ago, Clipped, Command, Empty, FlowLink, Help, Loading, Message, PageHead, Panel, Problem, RunLink, State } from "../ui/basics";
import { Glyph, Icon } from "../ui/icons";
import { Minutes } from "../ui/minutes";

export function OverviewPage() {
  const { data, error, reload } = useResource<Overview>("/overview", { every: 10_000 });
  useReloadOnRuns(reload, 2_000);
  if (data) setServerNow(data.now);
  if (!data) return error ? <Problem error={error} retry={reload} /> : <Loading rows={8} />;
  const total = RUN_STATUSES.reduce((sum, status) => sum + data.runs[status], 0);
  return (
    <>
      <PageHead title="Overview" about={<>{data.store} store, seen from <code>{data.instance ?? "this instance"}</code></>} />
      {error ? <Problem error={error} retry={reload} /> : null}
      {total === 0 ? <FirstRun /> : null}
      {data.deployments.map((each) => (
        <a key={each.deployment_id} class="notice" href={href(["deployments", each.flow, each.deployment_id])}>
          <Glyph state={each.phase} /> <span><strong>{each.flow}</strong> is being deployed: {each.phase.replaceAll("_", " ")}</span>
          <span class="push faint"><Ago at={each.began_at} /></span>
        </a>
      ))}
      <StatusBand overview={data} />
      <LastHour overview={data} />
      <div class="columns">
        <div class="stack">
          <Stuck overview={data} />
          <Schedules overview={data} />
        </div>
        <div class="stack">
          <Failures overview={data} />
          <Queues overview={data} />
          <Instances overview={data} />
        </div>
      </div>
    </>
  );
}

function FirstRun() {
  return (
    <Panel>
      <Empty title="No run has been started yet">
        <p class="muted">Start one from the page of a <a href="/flows">flow</a>, or from a terminal:</p>
        <Command text="flowgate runs start FLOW --input '{}'" />
      </Empty>
    </Panel>
  );
}

const TOTAL_NAMES = { held: "Held", running: "Running", waiting: "Waiting", failed: "Failed", completed: "Completed", cancelled: "Cancelled" };

function StatusBand({ overview }: { overview: Overview }) {
  const all = ["held", "running", "waiting", "failed", "completed", "cancelled"] as const;
  // Most flows are never held, and a column that is always empty tells nothing.
  const order = all.filter((status) => status !== "held" || overview.runs.held > 0);
  return (
    <nav class="band" aria-label="runs by status">
      {order.map((status) => (
        <a key={status} href={href(["runs"], { status })} class={overview.runs[status] === 0 ? "band-cell none" : "band-cell"}>
          <span class="band-name"><Glyph state={status} /> {TOTAL_NAMES[status]}</span>
          <span class="band-count num">{count(overview.runs[status])}</span>
        </a>
      ))}
      {overview.dead === null ? null : (
        <a href="/dead" class={overview.dead === 0 ? "band-cell none" : "band-cell"}>
          <span class="band-name"><Icon name="dead" size={14} /> Dead letters</span>
          <span class="band-count num">{count(overview.dead)}</span>
        </a>
      )}
    </nav>
  );
}

function LastHour({ overview }: { overview: Overview }) {
  const sum = (name: "started" | "completed" | "failed") => overview.minutes.reduce((all, each) => all + each[name], 0);
  const aside = (
    <ul class="legend">
      <li><span class="swatch started" />{count(sum("started"))} started</li>
      <li><span class="swatch completed" />{count(sum("completed"))} completed</li>
      <li><span class="swatch failed" />{count(sum("failed"))} failed</li>
    </ul>
  );
  return (
    <Panel title="Last hour, by the minute" aside={aside}>
      <Minutes minutes={overview.minutes} />
    </Panel>
  );
}

function Stuck({ overview }: { overview: Overview }) {
  return (
    <Panel
      title="Open for more than a minute, and why"
      aside={<a href={href(["runs"], { status: "running,waiting" })}>{plural(overview.stuck_total, "open run")}</a>}
      flush
    >
      {overview.stuck.length === 0 ? (
        <p class="panel-note muted">Nothing is stuck: every open run began within the last minute.</p>
      ) : (
        <ul class="stuck">{overview.stuck.map((run) => <StuckRow key={run.run_id} run={run} />)}</ul>
      )}
    </Panel>
  );
}

function StuckRow({ run }: { run: StuckRun }) {
  return (
    <li data-cause={run.cause}>
      <div class="stuck-head">
        <Glyph state={run.status} />
        <FlowLink flow={run.flow} />
        <RunLink run={run.run_id} />
        <span class="faint push"><Age ms={run.age_ms} /></span>
      </div>
      <p class="stuck-why"><Message text={run.message} /></p>
      {run.help ? <p class="stuck-help"><Help text={run.help} /></p> : null}
    </li>
  );
}

function Failures({ overview }: { overview: Overview }) {
  return (
    <Panel title="Last failures" aside={<a href={href(["runs"], { status: "failed" })}>all failed</a>} flush>
      {overview.failures.length === 0 ? (
        <p class="panel-note muted">No run has failed.</p>
      ) : (
        <ul class="stuck">
          {overview.failures.map((run) => (
            <li key={run.run_id}>
              <div class="stuck-head">
                <Glyph state="failed" />
                <FlowLink flow={run.flow} />
                <RunLink run={run.run_id} />
                <span class="faint push"><Ago at={run.ended_at ?? run.started_at} /></span>
              </div>
              <p class="stuck-why one-line">
                {run.failure?.step ? <code>{run.failure.step}</code> : null}
                <Clipped text={run.failure?.message ?? "failed"} />
              </p>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Queues({ overview }: { overview: Overview }) {
  return (
    <Panel title="Queues" aside={<a href="/queues">all</a>} flush>
      {overview.queues.length === 0 ? (
        <p class="panel-note muted">No jobs wait.</p>
      ) : (
        <ul class="lines">
          {overview.queues.slice(0, 6).map((queue) => (
            <li key={queue.queue}>
              <span class="line-name"><Clipped text={queue.queue} class="strong" /></span>
              {queue.paused ? <State state="paused" /> : null}
              {queue.served_by?.length === 0 ? <State state="failed" label="nobody serves it" /> : null}
              <span class="push num">
                {queue.oldest_age_ms ? <span class="faint">oldest <Age ms={queue.oldest_age_ms} />, </span> : null}
                {plural(queue.due ?? 0, "due", "due")}
              </span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Schedules({ overview }: { overview: Overview }) {
  return (
    <Panel title="Due next" aside={<a href="/schedules">all schedules</a>} flush>
      {overview.schedules.length === 0 ? (
        <p class="panel-note muted">No schedule starts runs. A flow file adds one with <code>schedules</code>.</p>
      ) : (
        <ul class="lines">
          {overview.schedules.map((schedule) => (
            <li key={schedule.name}>
              <a class="line-name name" href={href(["schedules", schedule.name])}><Clipped text={schedule.name} /></a>
              {schedule.paused ? <State state="paused" /> : null}
              <span class="push"><Ago at={schedule.next_at} empty="never" /></span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Instances({ overview }: { overview: Overview }) {
  const leader = overview.leader?.instance;
  return (
    <Panel title="Instances" aside={<a href="/instances">all</a>} flush>
      {overview.instances.length === 0 ? (
        <p class="panel-note muted">No instance has been heard of.</p>
      ) : (
        <ul class="lines">
          {overview.instances.slice(0, 6).map((instance) => (
            <li key={instance.instance}>
              <span class="line-name">
                <Glyph state={instance.state} />
                <span class="id clipped" title={instance.instance}>{instance.instance}</span>
                {instance.leads || instance.instance === leader ? <span class="mark-leads"><Icon name="leader" size={13} /> leads</span> : null}
              </span>
              <span class="push num">{instance.running}/{instance.slots}</span>
            </li>
          ))}
        </ul>
      )}
      {leader ? null : <p class="panel-note muted">Nobody leads: schedules wait for an instance that does.</p>}
    </Panel>
  );
}
