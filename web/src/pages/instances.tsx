/** Instances: who executes runs, who leads, and what the doctor finds. */

import { plural } from "../model/words";
import { useResource } from "../net/resource";
import type { Doctor, InstanceItem, InstanceList, TermItem, WorkerItem } from "../net/types";
import { Ago, Clipped, Command, Empty, Loading, Message, PageHead, Panel, Problem, State, Table, Took, type Column } from "../ui/basics";
import { Glyph, Icon } from "../ui/icons";

interface Leader {
  leader: TermItem | null;
  terms: TermItem[];
  flapping: boolean;
}

export function InstancesPage() {
  const { data, error, reload } = useResource<InstanceList>("/instances", { every: 5_000 });
  const leader = useResource<Leader>("/leader", { every: 5_000 });
  const doctor = useResource<Doctor>("/doctor", { every: 30_000 });
  return (
    <>
      <PageHead title="Instances" about={data ? plural(data.items.length, "process executes", "processes execute") + " runs" : " "} />
      {error ? <Problem error={error} retry={reload} /> : null}
      {!data && !error ? <Loading rows={4} /> : null}
      {data && data.items.length === 0 ? (
        <Empty title="No instance has been heard of">
          <p class="muted">Nothing runs until one is there:</p>
          <Command text="flowgate worker start" />
        </Empty>
      ) : null}
      {data && data.items.length > 0 ? <Table label="instances" columns={COLUMNS} rows={data.items} keyOf={(each) => each.instance} /> : null}
      {data && data.workers.length > 0 ? (
        <Panel title="Remote workers" flush>
          <Table label="remote workers" columns={WORKER_COLUMNS} rows={data.workers} keyOf={(each) => each.worker_id} />
        </Panel>
      ) : null}
      <div class="columns">
        <Panel title="Leader" flush aside={leader.data?.flapping ? <State state="warning" label="flaps" /> : null}>
          {leader.error ? <Problem error={leader.error} /> : null}
          {leader.data?.flapping ? (
            <p class="panel-note">Leadership changes too often: look for instances that restart, and for a store that answers slowly.</p>
          ) : null}
          {leader.data && !leader.data.leader ? <p class="panel-note muted">Nobody leads: schedules wait for an instance that does.</p> : null}
          {leader.data && leader.data.terms.length > 0 ? (
            <Table label="terms" columns={TERM_COLUMNS} rows={leader.data.terms} keyOf={(term) => String(term.term)} />
          ) : null}
        </Panel>
        <Panel title="Doctor" flush aside={doctor.data ? <State state={doctor.data.healthy ? "ok" : "bad"} label={doctor.data.healthy ? "healthy" : "look at this"} /> : null}>
          {doctor.error ? <Problem error={doctor.error} /> : null}
          <ul class="stuck">
            {doctor.data?.findings.map((finding, at) => (
              <li key={at}>
                <div class="stuck-head"><Glyph state={levelOf(finding.level)} /> <span class="strong">{finding.check}</span></div>
                <p class="stuck-why"><Message text={finding.found} /></p>
                {finding.remedy ? <p class="stuck-help muted"><Message text={finding.remedy} /></p> : null}
              </li>
            ))}
          </ul>
          {doctor.data && doctor.data.findings.length === 0 ? <p class="panel-note muted">Nothing to say about the store.</p> : null}
        </Panel>
      </div>
    </>
  );
}

function levelOf(level: string): string {
  switch (level) {
    case "bad":
    case "error":
      return "bad";
    case "warning":
    case "warn":
      return "warning";
    default:
      return "ok";
  }
}

const COLUMNS: Column<InstanceItem>[] = [
  {
    name: "Instance",
    class: "cell-main",
    cell: (each) => (
      <div class="two-lines">
        <span class="line-name">
          <span class="id strong" title={each.instance}>{each.instance}</span>
          {each.leads ? <span class="mark-leads"><Icon name="leader" size={13} /> leads</span> : null}
        </span>
        <span class="faint num">{each.host}, process {each.pid}, {each.version}</span>
      </div>
    ),
  },
  {
    name: "State",
    class: "cell-status",
    cell: (each) => (
      <div class="two-lines">
        <State state={each.state} />
        {each.strained_by ? <Clipped text={each.strained_by} class="muted" /> : null}
      </div>
    ),
  },
  { name: "Attempts", class: "cell-num", cell: (each) => <Load running={each.running} slots={each.slots} /> },
  { name: "Role", cell: (each) => <span class="muted">{[each.role, each.pool].filter(Boolean).join(", ") || "–"}</span> },
  { name: "Queues", cell: (each) => <Clipped text={each.queues ? each.queues.join(", ") : "all"} class="muted" /> },
  { name: "Up", class: "cell-num", cell: (each) => <Took ms={null} since={each.started_at} /> },
  { name: "Heard of", class: "cell-time", cell: (each) => <Ago at={each.seen_at} /> },
];

const WORKER_COLUMNS: Column<WorkerItem>[] = [
  { name: "Worker", class: "cell-main", cell: (each) => <span class="id strong" title={each.worker_id}>{each.worker_id}</span> },
  { name: "Executes", cell: (each) => <Clipped text={each.workers.join(", ")} /> },
  { name: "Queues", cell: (each) => <Clipped text={each.queues.join(", ")} class="muted" /> },
  { name: "Asks", cell: (each) => <span class="id">{each.instance}</span> },
  { name: "Heard of", class: "cell-time", cell: (each) => <Ago at={each.seen_at} /> },
];

/** How many attempts of how many slots, with a bar. */
function Load({ running, slots }: { running: number; slots: number }) {
  const share = slots > 0 ? Math.min(1, running / slots) : 0;
  return (
    <span class="load">
      <svg width="48" height="6" aria-hidden="true"><rect class="load-all" width="48" height="6" rx="3" /><rect class="load-used" width={48 * share} height="6" rx="3" /></svg>
      <span class="num">{running}/{slots}</span>
    </span>
  );
}

const TERM_COLUMNS: Column<TermItem>[] = [
  { name: "Term", class: "cell-num", cell: (term) => <span class="num strong">{term.term}</span> },
  { name: "Instance", cell: (term) => <span class="id">{term.instance}</span> },
  { name: "Began", class: "cell-time", cell: (term) => <Ago at={term.began_at} /> },
  { name: "Lasted", class: "cell-num", cell: (term) => <Took ms={term.ended_at ? Date.parse(term.ended_at) - Date.parse(term.began_at) : null} since={term.began_at} /> },
  { name: "End", class: "cell-status", cell: (term) => <State state={term.end} /> },
];
