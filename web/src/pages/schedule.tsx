/** One schedule: when it is due, and what became of every time that it was. */

import { useEffect, useState } from "preact/hooks";
import { useQuery } from "../model/route";
import { useForbidden } from "../model/session";
import { absolute, dayAndMinute, minuteAfter } from "../model/time";
import { plural, shortId } from "../model/words";
import { apiPath, call } from "../net/api";
import { useResource } from "../net/resource";
import type { Occurrence, Page, ScheduleDetail } from "../net/types";
import { Ago, Button, Empty, FlowLink, Loading, Message, Panel, Problem, RunLink, State, Table, Took, type Column } from "../ui/basics";
import { ActionDialog, Field } from "../ui/dialog";
import { JsonTree } from "../ui/json_tree";
import { toast } from "../ui/toast";
import { When } from "./schedules";

const FATES = ["fired", "late", "queued", "skipped", "missed", "suppressed", "failed"];
const PAGE = 50;

export function SchedulePage({ name }: { name: string }) {
  const path = apiPath("schedules", name);
  const { data, error, reload } = useResource<ScheduleDetail>(path, { every: 10_000 });
  const [dialog, setDialog] = useState<"pause" | "trigger" | "backfill" | null>(null);
  const forbidden = useForbidden("run");
  const close = () => setDialog(null);
  if (!data) return error ? <Problem error={error} retry={reload} /> : <Loading rows={8} />;
  const resume = () => {
    call("POST", path + "/resume", {}).then(
      () => {
        toast("The schedule goes on");
        reload();
      },
      (failed: Error) => toast(failed.message, true),
    );
  };
  return (
    <>
      <header class="page-head">
        <div class="page-title">
          <p class="crumbs"><a href="/schedules">Schedules</a></p>
          <h1>{data.name}</h1>
          <p class="run-facts muted">
            <span><When schedule={data} /></span>
            <span>starts <FlowLink flow={data.flow} /></span>
            {data.paused ? <State state="paused" /> : <span>next <Ago at={data.next_at} empty="never again" /></span>}
            {data.last_run ? <span>last run <RunLink run={data.last_run} /></span> : null}
            {data.pending > 0 ? <span>{plural(data.pending, "occurrence")} to be started</span> : null}
            {data.queued ? <span>one waits for the open run since <Ago at={data.queued} /></span> : null}
          </p>
        </div>
        <div class="actions">
          <Button disabled={forbidden !== undefined} title={forbidden} onClick={() => setDialog("backfill")}>Backfill…</Button>
          {data.paused ? (
            <Button disabled={forbidden !== undefined} title={forbidden} onClick={resume}>Resume</Button>
          ) : (
            <Button disabled={forbidden !== undefined} title={forbidden} onClick={() => setDialog("pause")}>Pause…</Button>
          )}
          <Button kind="primary" disabled={forbidden !== undefined} title={forbidden} onClick={() => setDialog("trigger")}>Trigger…</Button>
        </div>
      </header>
      {error ? <Problem error={error} retry={reload} /> : null}
      <div class="columns run-columns">
        <Ledger path={path} fresh={data.decided_through} />
        <div class="stack">
          <Panel title="Due next" flush>
            {data.next.length === 0 ? <p class="panel-note muted">It is never due again.</p> : (
              <ol class="lines">
                {data.next.map((at) => (
                  <li key={at}><span class="num">{dayAndMinute(Date.parse(at))}</span><span class="push faint"><Ago at={at} /></span></li>
                ))}
              </ol>
            )}
            {data.paused ? <p class="panel-note muted">It is paused: these will be skipped.</p> : null}
          </Panel>
          <Panel title="As it is written"><JsonTree value={data.schedule as never} label="the schedule" /></Panel>
        </div>
      </div>
      {dialog === "pause" ? (
        <ActionDialog title={`Pause ${data.name}`} action="Pause" onClose={close} act={async () => {
          await call("POST", path + "/pause", {});
          toast("The schedule is paused");
          reload();
        }}>
          <p class="muted">Occurrences are skipped until it is resumed. Runs that are open go on.</p>
        </ActionDialog>
      ) : null}
      {dialog === "trigger" ? (
        <ActionDialog title={`Trigger ${data.name}`} action="Start a run now" onClose={close} act={async () => {
          const occurrence = await call<Occurrence>("POST", path + "/trigger", {});
          toast(occurrence.run_id ? <>Run {shortId(occurrence.run_id)} is started</> : `It was ${occurrence.fate}`);
          reload();
        }}>
          <p class="muted">A run of <code>{data.flow}</code> is started with the schedule's input, besides those that are due.</p>
        </ActionDialog>
      ) : null}
      {dialog === "backfill" ? <BackfillDialog path={path} name={data.name} onClose={close} onDone={reload} /> : null}
    </>
  );
}

const COLUMNS: Column<Occurrence>[] = [
  { name: "Due", class: "cell-time", cell: (each) => <Due occurrence={each} /> },
  { name: "Fate", class: "cell-status", cell: (each) => <State state={each.fate} /> },
  { name: "Run", class: "cell-id", cell: (each) => (each.run_id ? <RunLink run={each.run_id} /> : <span class="faint">none</span>) },
  { name: "Why", class: "cell-wrap", cell: (each) => <span class={each.error ? "bad-text" : "muted"}><Message text={whyOf(each)} /></span> },
  { name: "After", class: "cell-num", cell: (each) => <span title={`decided ${each.decided_at}${each.term ? `, in term ${each.term}` : ""}`}><Took ms={Math.max(0, Date.parse(each.decided_at) - Date.parse(each.due_at))} /></span> },
];

/** A ledger is read by the clock: its times are absolute. */
function Due({ occurrence }: { occurrence: Occurrence }) {
  const due = Date.parse(occurrence.due_at);
  const through = occurrence.through ? Date.parse(occurrence.through) : null;
  return (
    <time class="num" dateTime={occurrence.due_at} title={absolute(due)}>
      {dayAndMinute(due)}
      {through === null ? null : ` to ${minuteAfter(through, due)}`}
    </time>
  );
}

function whyOf(occurrence: Occurrence): string {
  const asked = occurrence.asked && occurrence.asked !== "clock" ? `asked for by ${occurrence.asked}` : "";
  return [occurrence.error, occurrence.reason?.replaceAll("_", " "), asked].filter(Boolean).join("; ");
}

/** Every due time and what became of it, page by page. */
function Ledger({ path, fresh }: { path: string; fresh: string | null }) {
  const [query, setQuery] = useQuery();
  const fate = query.get("fate") ?? "";
  const [items, setItems] = useState<Occurrence[] | null>(null);
  const [next, setNext] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const load = (after: string | null) => {
    const filter = (fate ? `&fate=${fate}` : "") + (after ? `&after=${encodeURIComponent(after)}` : "");
    call<Page<Occurrence>>("GET", `${path}/occurrences?limit=${PAGE}${filter}`).then((page) => {
      setItems((old) => (after && old ? [...old, ...page.items] : page.items));
      setNext(page.next === null || page.next === undefined ? null : String(page.next));
      setError(null);
    }, setError);
  };
  useEffect(() => load(null), [path, fate, fresh]);
  const select = (
    <select aria-label="fate" value={fate} onChange={(event) => setQuery({ fate: event.currentTarget.value }, "replace")}>
      <option value="">every fate</option>
      {FATES.map((each) => <option key={each} value={each}>{each}</option>)}
    </select>
  );
  return (
    <Panel title="Ledger" aside={select} flush>
      {error ? <Problem error={error} /> : null}
      {!items && !error ? <Loading rows={5} /> : null}
      {items && items.length === 0 ? <Empty title={fate ? `No occurrence was ${fate}` : "It has not been due yet"} /> : null}
      {items && items.length > 0 ? <Table label="occurrences" columns={COLUMNS} rows={items} keyOf={(each) => each.due_at + each.decided_at + (each.run_id ?? "")} /> : null}
      {next ? <div class="pager"><Button onClick={() => load(next)}>Older</Button></div> : null}
    </Panel>
  );
}

/** A local time of a field as the API wants it. */
function asUtc(local: string): string | null {
  const at = new Date(local);
  return local && Number.isFinite(at.getTime()) ? at.toISOString() : null;
}

function BackfillDialog({ path, name, onClose, onDone }: { path: string; name: string; onClose: () => void; onDone: () => void }) {
  const [from, setFrom] = useState("");
  const [to, setTo] = useState("");
  const [begin, end] = [asUtc(from), asUtc(to)];
  const isBackwards = begin !== null && end !== null && begin >= end;
  return (
    <ActionDialog
      title={`Backfill ${name}`}
      action="Start what is missing"
      disabled={begin === null || end === null || isBackwards}
      onClose={onClose}
      act={async () => {
        const answer = await call<{ items: Occurrence[] }>("POST", path + "/backfill", { from: begin, to: end });
        toast(`${plural(answer.items.filter((each) => each.run_id).length, "run")} started`);
        onDone();
      }}
    >
      <p class="muted">Every occurrence that was due in this time and has no run is started. What has one is left alone.</p>
      <div class="form-row">
        <Field label="From"><input type="datetime-local" required value={from} onInput={(event) => setFrom(event.currentTarget.value)} /></Field>
        <Field label="To" hint={isBackwards ? <span class="bad-text">must come after the beginning</span> : undefined}>
          <input type="datetime-local" required value={to} onInput={(event) => setTo(event.currentTarget.value)} />
        </Field>
      </div>
    </ActionDialog>
  );
}
