/** Subscribers: who is given every event, how far each is, and what it has put aside. */

import { useState } from "preact/hooks";
import { useQuery } from "../model/route";
import { useForbidden } from "../model/session";
import { count, plural } from "../model/words";
import { apiPath, call } from "../net/api";
import { useResource } from "../net/resource";
import type { Page, SubscriberDetail, SubscriberItem } from "../net/types";
import { Age, Ago, Button, Clipped, Command, Empty, Loading, PageHead, Panel, Problem, RunLink, State, Table, type Column } from "../ui/basics";
import { ActionDialog, Field } from "../ui/dialog";
import { toast } from "../ui/toast";

export function SubscribersPage() {
  const { data, error, reload } = useResource<Page<SubscriberItem>>("/subscribers", { every: 5_000 });
  const [query, setQuery] = useQuery();
  const chosen = query.get("subscriber");
  const columns: Column<SubscriberItem>[] = [
    {
      name: "Subscriber",
      class: "cell-main",
      cell: (each) => (
        <button type="button" class="link name" aria-expanded={chosen === each.subscriber} onClick={() => setQuery({ subscriber: chosen === each.subscriber ? null : each.subscriber }, "replace")}>
          <Clipped text={each.subscriber} />
        </button>
      ),
    },
    { name: "State", class: "cell-status", cell: (each) => <State state={each.state} /> },
    { name: "Behind", class: "cell-num", cell: (each) => (each.caught_up ? <span class="muted">caught up</span> : <Age ms={each.behind_ms} />) },
    { name: "Put aside", class: "cell-num", cell: (each) => <span class={each.dead > 0 ? "num strong" : "num faint"}>{count(each.dead)}</span> },
    { name: "Kind", cell: (each) => <span class="muted">{each.kind}</span> },
    { name: "Mode", cell: (each) => <span class="muted">{each.mode.replaceAll("_", " ")}</span> },
    { name: "On failure", cell: (each) => <span class="muted">{each.on_failure.replaceAll("_", " ")}</span> },
    { name: "Active on", cell: (each) => <Clipped text={[...new Set(each.partitions.flatMap((part) => part.active_on ?? []))].join(", ") || "–"} class="id" /> },
  ];
  return (
    <>
      <PageHead title="Subscribers" about={data ? plural(data.items.length, "subscriber") : " "} />
      {error ? <Problem error={error} retry={reload} /> : null}
      {!data && !error ? <Loading rows={4} /> : null}
      {data && data.items.length === 0 ? (
        <Empty title="Nobody subscribes to the events">
          <p class="muted">A sink is a table <code>[subscribers.NAME]</code> of <code>flowgate.toml</code>; a program that embeds flowgate adds projections and sagas.</p>
          <Command text="flowgate subscribers list" />
        </Empty>
      ) : null}
      {data && data.items.length > 0 ? <Table label="subscribers" columns={columns} rows={data.items} keyOf={(each) => each.subscriber} rowClass={(each) => (each.subscriber === chosen ? "chosen" : "")} /> : null}
      {chosen ? <Detail key={chosen} subscriber={chosen} onDone={reload} /> : null}
    </>
  );
}

function Detail({ subscriber, onDone }: { subscriber: string; onDone: () => void }) {
  const path = apiPath("subscribers", subscriber);
  const { data, error, reload } = useResource<SubscriberDetail>(path, { every: 10_000 });
  const [dialog, setDialog] = useState<"retry" | "reset" | null>(null);
  const [to, setTo] = useState<"start" | "end">("end");
  const forbidden = useForbidden("admin");
  const done = () => {
    reload();
    onDone();
  };
  if (!data) return error ? <Problem error={error} retry={reload} /> : <Loading rows={4} />;
  const actions = (
    <>
      <Button kind="quiet" disabled={forbidden !== undefined} title={forbidden} onClick={() => setDialog("reset")}>Reset…</Button>
      <Button disabled={forbidden !== undefined || (data.dead === 0 && data.state !== "failed")} title={forbidden} onClick={() => setDialog("retry")}>Try again…</Button>
    </>
  );
  return (
    <Panel title={<span class="strong">{subscriber}</span>} aside={actions} flush>
      <Table
        label="partitions"
        rows={data.partitions}
        keyOf={(part) => String(part.partition)}
        columns={[
          { name: "Partition", class: "cell-num", cell: (part) => <span class="num">{part.partition}</span> },
          { name: "Active on", cell: (part) => (part.active_on ? <><span class="id">{part.active_on}</span> <span class="faint">{part.term ? `term ${part.term}` : ""}</span></> : <span class="faint">nobody</span>) },
          { name: "Position", cell: (part) => <span class="id">{part.positions?.join(", ") ?? "–"}</span> },
          { name: "Handled", class: "cell-num", cell: (part) => <span class="num">{count(part.handled)}</span> },
          { name: "Written", class: "cell-time", cell: (part) => <Ago at={part.written_at} /> },
          { name: "Stopped at", cell: (part) => (part.failed ? <span class="bad-text">{part.failed.run ? <RunLink run={part.failed.run} /> : null} <Clipped text={part.failed.error} /></span> : <span class="faint">–</span>) },
        ]}
      />
      {data.members.length > 0 ? (
        <p class="panel-note muted">
          {data.members.map((member) => `${member.instance} ${member.partitions === 0 ? "stands by" : `has ${member.partitions}`}`).join(", ")}
        </p>
      ) : null}
      {data.dead_letters.length > 0 ? (
        <Table
          label="events that were put aside"
          rows={data.dead_letters.slice(0, 50)}
          keyOf={(letter) => letter.run + letter.seq}
          columns={[
            { name: "Run", class: "cell-id", cell: (letter) => <RunLink run={letter.run} /> },
            { name: "Event", cell: (letter) => <><span class="num faint">{letter.seq}</span> {letter.type}</> },
            { name: "Attempts", class: "cell-num", cell: (letter) => <span class="num">{letter.attempts}</span> },
            { name: "Put aside", class: "cell-time", cell: (letter) => <Ago at={letter.put_aside_at} /> },
            { name: "Said", class: "cell-about", cell: (letter) => <><Clipped text={letter.error} /> {letter.to_be_retried ? <span class="faint">to be tried again</span> : null}</> },
          ]}
        />
      ) : null}
      {dialog === "retry" ? (
        <ActionDialog title={`Let ${subscriber} try again`} action="Try again" onClose={() => setDialog(null)} act={async () => {
          await call("POST", path + "/retry-dead", {});
          toast(`${subscriber} tries again`);
          done();
        }}>
          <p class="muted">The active instance tries what was put aside, or the event that it stopped at. These come out of their order: later events were handled before.</p>
        </ActionDialog>
      ) : null}
      {dialog === "reset" ? (
        <ActionDialog title={`Reset ${subscriber}`} action={to === "start" ? "Begin anew" : "Skip to the end"} kind="danger" onClose={() => setDialog(null)} act={async () => {
          await call("POST", path + "/reset", { to });
          toast(`${subscriber} goes on from the ${to}`);
          done();
        }}>
          <p class="muted">Whoever is active goes on there at once, without the state that it had. From the start it is given every event again; at the end it never sees those in between.</p>
          <Field label="Go on from">
            <select value={to} onChange={(event) => setTo(event.currentTarget.value as "start" | "end")}>
              <option value="end">the end</option>
              <option value="start">the start</option>
            </select>
          </Field>
        </ActionDialog>
      ) : null}
    </Panel>
  );
}
