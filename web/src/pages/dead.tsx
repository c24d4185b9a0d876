/** Dead letters: failed runs that nobody has tried again or dropped, by what they have in common. */

import { useEffect, useState } from "preact/hooks";
import { href, navigate, useQuery } from "../model/route";
import { useForbidden } from "../model/session";
import { count, plural, shortened } from "../model/words";
import { call } from "../net/api";
import { useReloadOnRuns, useResource } from "../net/resource";
import type { BulkAnswer, DeadGroup, DeadItem, Page } from "../net/types";
import { Ago, Button, Clipped, Empty, FlowLink, Loading, Message, PageHead, Problem, RunLink, Table, Tabs, Tags, type Column } from "../ui/basics";
import { ActionDialog } from "../ui/dialog";
import { toast } from "../ui/toast";

type Act = { verb: "retry" | "drop"; body: { run_ids: string[] } | { filter: Record<string, string> }; about: string };

const FIELDS = ["flow", "step", "kind", "reason", "since"] as const;

export function DeadPage() {
  const [query, setQuery] = useQuery();
  const view = query.get("view") === "list" ? "list" : "groups";
  const params = new URLSearchParams();
  for (const field of FIELDS) {
    const value = query.get(field);
    if (value) params.set(field, value);
  }
  const [act, setAct] = useState<Act | null>(null);
  const [version, setVersion] = useState(0);
  useReloadOnRuns(() => setVersion((old) => old + 1), 5_000, (live) => live.runs.some((run) => run.status === "failed"));
  return (
    <>
      <PageHead title="Dead letters" about="Failed runs that nobody has tried again or dropped" />
      <div class="filters">
        <Tabs label="view" current={view} onChange={(id) => setQuery({ view: id === "list" ? "list" : null, after: null })} tabs={[{ id: "groups", name: "By cause" }, { id: "list", name: "One by one" }]} />
        {FIELDS.map((field) => {
          const value = params.get(field);
          return value ? (
            <span key={field} class="tag">
              <span class="faint">{field}</span> {shortened(value, 60)}
              <button type="button" class="copy" aria-label={`without ${field}`} onClick={() => setQuery({ [field]: null, after: null })}>×</button>
            </span>
          ) : null;
        })}
        {params.size > 0 ? <button type="button" class="link" onClick={() => navigate(view === "list" ? "/dead?view=list" : "/dead")}>clear</button> : null}
      </div>
      {view === "groups" ? <Groups key={version} query={params.toString()} onAct={setAct} /> : <List key={version} query={params} after={query.get("after")} onAct={setAct} onPage={(after) => setQuery({ after })} />}
      {act ? <ActDialog act={act} onClose={() => setAct(null)} onDone={() => setVersion((old) => old + 1)} /> : null}
    </>
  );
}

function None() {
  return (
    <Empty title="No dead letters">
      <p class="muted">A run that fails for good is listed here until somebody retries or drops it.</p>
    </Empty>
  );
}

/** What the letters of a group have in common, as a filter of the API. */
function filterOf(group: DeadGroup): Record<string, string> {
  const filter: Record<string, string> = { flow: group.flow };
  if (group.step) filter["step"] = group.step;
  if (group.kind) filter["kind"] = group.kind;
  if (group.reason) filter["reason"] = group.reason;
  return filter;
}

function Groups({ query, onAct }: { query: string; onAct: (act: Act) => void }) {
  const { data, error, reload } = useResource<Page<DeadGroup>>("/dead/groups" + (query ? "?" + query : ""));
  const forbidden = useForbidden("run");
  if (error) return <Problem error={error} retry={reload} />;
  if (!data) return <Loading rows={4} />;
  if (data.items.length === 0) return <None />;
  return (
    <>
      {data.complete === false ? <p class="muted">Only the latest failed runs were looked through; there may be more.</p> : null}
      <ul class="cards">
        {data.items.map((group) => (
          <li key={JSON.stringify(filterOf(group))} class="card dead-card">
            <span class="dead-count num">{count(group.count)}</span>
            <div class="dead-about">
              <p class="dead-reason"><Message text={group.reason ?? group.kind ?? "failed"} /></p>
              <p class="muted">
                <span><FlowLink flow={group.flow} />{group.step ? <> at <code>{group.step}</code></> : null}</span>
                {group.kind ? <span>{group.kind.replaceAll("_", " ")}</span> : null}
                <span class="faint">last <Ago at={group.example.ended_at} />, such as <RunLink run={group.example.run_id} /></span>
              </p>
            </div>
            <div class="actions">
              <a class="button quiet" href={href(["dead"], { ...filterOf(group), view: "list" })}>Show</a>
              <Button kind="quiet" disabled={forbidden !== undefined} title={forbidden} onClick={() => onAct({ verb: "drop", body: { filter: filterOf(group) }, about: plural(group.count, "dead letter") })}>Drop…</Button>
              <Button disabled={forbidden !== undefined} title={forbidden} onClick={() => onAct({ verb: "retry", body: { filter: filterOf(group) }, about: plural(group.count, "dead letter") })}>Retry…</Button>
            </div>
          </li>
        ))}
      </ul>
    </>
  );
}

function List(props: { query: URLSearchParams; after: string | null; onAct: (act: Act) => void; onPage: (after: string | null) => void }) {
  const params = new URLSearchParams(props.query);
  if (props.after) params.set("after", props.after);
  const { data, error, reload } = useResource<Page<DeadItem>>("/dead?limit=50&" + params.toString());
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const forbidden = useForbidden("run");
  if (error) return <Problem error={error} retry={reload} />;
  if (!data) return <Loading rows={6} />;
  if (data.items.length === 0) return <None />;
  const toggle = (run: string) => {
    const next = new Set(selected);
    if (!next.delete(run)) next.add(run);
    setSelected(next);
  };
  const columns: Column<DeadItem>[] = [
    { name: "select", class: "cell-select", cell: (letter) => <input type="checkbox" aria-label={`select run ${letter.run_id}`} checked={selected.has(letter.run_id)} onChange={() => toggle(letter.run_id)} /> },
    { name: "Run", class: "cell-id", cell: (letter) => <RunLink run={letter.run_id} /> },
    { name: "Flow", cell: (letter) => <><FlowLink flow={letter.flow} /> {letter.step ? <code>{shortened(letter.step, 40)}</code> : null}</> },
    { name: "Said", class: "cell-about", cell: (letter) => <Clipped text={letter.message ?? letter.reason ?? ""} /> },
    { name: "Kind", cell: (letter) => <span class="muted">{letter.kind?.replaceAll("_", " ") ?? ""}</span> },
    { name: "Failed", class: "cell-time", cell: (letter) => <Ago at={letter.ended_at} /> },
    { name: "Tags", cell: (letter) => <Tags tags={letter.tags ?? {}} /> },
  ];
  const ids = [...selected];
  return (
    <>
      <div class="bulk">
        <span>{ids.length > 0 ? plural(ids.length, "letter") + " selected" : plural(data.total ?? data.items.length, "dead letter")}</span>
        <Button kind="quiet" disabled={forbidden !== undefined || ids.length === 0} title={forbidden} onClick={() => props.onAct({ verb: "drop", body: { run_ids: ids }, about: plural(ids.length, "dead letter") })}>Drop…</Button>
        <Button kind="quiet" disabled={forbidden !== undefined || ids.length === 0} title={forbidden} onClick={() => props.onAct({ verb: "retry", body: { run_ids: ids }, about: plural(ids.length, "dead letter") })}>Retry…</Button>
      </div>
      <Table label="dead letters" columns={columns} rows={data.items} keyOf={(letter) => letter.run_id} />
      {props.after || data.next ? (
        <nav class="pager" aria-label="pages">
          <Button disabled={!props.after} onClick={() => props.onPage(null)}>First</Button>
          <Button disabled={!data.next} onClick={() => props.onPage(String(data.next))}>Next</Button>
        </nav>
      ) : null}
    </>
  );
}

/** Says what would be done before it is. */
function ActDialog({ act, onClose, onDone }: { act: Act; onClose: () => void; onDone: () => void }) {
  const [plan, setPlan] = useState<BulkAnswer | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    call<BulkAnswer>("POST", `/dead/${act.verb}`, { ...act.body, dry_run: true }).then(setPlan, setError);
  }, []);
  const verb = act.verb === "retry" ? "Retry" : "Drop";
  const past = act.verb === "retry" ? "retried" : "dropped";
  const fits = plan?.done.length ?? 0;
  return (
    <ActionDialog
      title={`${verb} ${act.about}`}
      action={plan ? `${verb} ${plural(fits, "letter")}` : verb}
      kind={act.verb === "drop" ? "danger" : "primary"}
      disabled={fits === 0}
      onClose={onClose}
      act={async () => {
        const answer = await call<BulkAnswer>("POST", `/dead/${act.verb}`, { ...act.body, dry_run: false });
        const left = answer.left > 0 ? `, ${answer.left} left` : "";
        const failed = answer.failed.length > 0 ? `, ${answer.failed.length} failed: ${answer.failed[0]?.message}` : "";
        toast(`${plural(answer.done.length, "letter")} ${past}${left}${failed}`, answer.failed.length > 0);
        onDone();
      }}
    >
      {error ? <Problem error={error} /> : null}
      {!plan && !error ? <Loading rows={2} /> : null}
      {plan ? (
        <>
          <p>
            {act.verb === "retry"
              ? `${plural(fits, "run")} would be started anew, the oldest first; each takes over what had succeeded.`
              : `${plural(fits, "letter")} would be dropped. The runs stay as they are, and are listed here no more.`}
          </p>
          {plan.left > 0 ? <p class="muted">{plural(plan.left, "letter")} are left for another call.</p> : null}
          <ul class="sample">
            {plan.done.slice(0, 6).map((each) => <li key={each.run_id}><RunLink run={each.run_id} /></li>)}
            {plan.done.length > 6 ? <li class="faint">and {plan.done.length - 6} more</li> : null}
          </ul>
        </>
      ) : null}
    </ActionDialog>
  );
}
