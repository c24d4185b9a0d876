/** Queues: what waits in each, how long, and what holds it back. */

import { useState } from "preact/hooks";
import { useForbidden } from "../model/session";
import { count, plural } from "../model/words";
import { apiPath, call } from "../net/api";
import { useReloadOnRuns, useResource } from "../net/resource";
import type { Page, QueueItem } from "../net/types";
import { Age, Button, Clipped, Command, Empty, Loading, PageHead, Problem, State, Table, type Column } from "../ui/basics";
import { ActionDialog, Field } from "../ui/dialog";
import { toast } from "../ui/toast";

export function QueuesPage() {
  const { data, error, reload } = useResource<Page<QueueItem>>("/queues", { every: 5_000 });
  useReloadOnRuns(reload, 2_500);
  const [dialog, setDialog] = useState<{ queue: QueueItem; what: "pause" | "limits" } | null>(null);
  const forbidden = useForbidden("admin");
  const resume = (queue: QueueItem) => {
    call("PATCH", apiPath("queues", queue.queue), { paused: false }).then(
      () => {
        toast(`${queue.queue} goes on`);
        reload();
      },
      (failed: Error) => toast(failed.message, true),
    );
  };
  const columns: Column<QueueItem>[] = [
    { name: "Queue", class: "cell-main", cell: (queue) => <Clipped text={queue.queue} class="strong" /> },
    { name: "State", class: "cell-status", cell: (queue) => <QueueState queue={queue} /> },
    { name: "Due", class: "cell-num", cell: (queue) => <span class={queue.due ? "num strong" : "num faint"}>{count(queue.due)}</span> },
    { name: "Oldest waits", class: "cell-num", cell: (queue) => <Age ms={queue.oldest_age_ms} /> },
    { name: "Later", class: "cell-num", cell: (queue) => <span class={queue.later ? "num" : "num faint"}>{count(queue.later)}</span> },
    { name: "Limits", cell: (queue) => <Limits queue={queue} /> },
    { name: "Served by", cell: (queue) => (queue.served_by ? (queue.served_by.length === 0 ? <State state="failed" label="nobody" /> : <Clipped text={queue.served_by.join(", ")} class="muted id" />) : <span class="faint">–</span>) },
    {
      name: "actions",
      class: "cell-actions",
      cell: (queue) => (
        <>
          {queue.paused ? (
            <Button kind="quiet" disabled={forbidden !== undefined} title={forbidden} onClick={() => resume(queue)}>Resume</Button>
          ) : (
            <Button kind="quiet" disabled={forbidden !== undefined} title={forbidden} onClick={() => setDialog({ queue, what: "pause" })}>Pause…</Button>
          )}
          <Button kind="quiet" disabled={forbidden !== undefined} title={forbidden} onClick={() => setDialog({ queue, what: "limits" })}>Limits…</Button>
        </>
      ),
    },
  ];
  return (
    <>
      <PageHead title="Queues" about={data ? <>{plural(data.items.length, "queue")}, {count(data.items.reduce((sum, queue) => sum + (queue.due ?? 0), 0))} jobs due</> : " "} />
      {error ? <Problem error={error} retry={reload} /> : null}
      {!data && !error ? <Loading rows={4} /> : null}
      {data && data.items.length === 0 ? (
        <Empty title="No queue has jobs">
          <p class="muted">Steps wait in the queue <code>default</code>, or in the one that they name with <code>queue</code>. Limits can be set before:</p>
          <Command text="flowgate queues set mail --concurrency 4 --rate 10/s" />
        </Empty>
      ) : null}
      {data && data.items.length > 0 ? <Table label="queues" columns={columns} rows={data.items} keyOf={(queue) => queue.queue} /> : null}
      {dialog?.what === "pause" ? (
        <ActionDialog title={`Pause the queue ${dialog.queue.queue}`} action="Pause" kind="danger" onClose={() => setDialog(null)} act={async () => {
          await call("PATCH", apiPath("queues", dialog.queue.queue), { paused: true });
          toast(`${dialog.queue.queue} is paused`);
          reload();
        }}>
          <p class="muted">
            Nobody takes its jobs until it is resumed; what runs goes on, and new jobs wait.
            {dialog.queue.queue === "default" ? " The timers of waits are in this queue: delays end late while it is paused." : ""}
          </p>
        </ActionDialog>
      ) : null}
      {dialog?.what === "limits" ? <LimitsDialog queue={dialog.queue} onClose={() => setDialog(null)} onDone={reload} /> : null}
    </>
  );
}

function QueueState({ queue }: { queue: QueueItem }) {
  if (queue.paused) return <State state="paused" />;
  return <State state="ready" label="open" />;
}

function Limits({ queue }: { queue: QueueItem }) {
  if (queue.concurrency === null && queue.rate === null) return <span class="faint">none</span>;
  return (
    <span>
      {queue.concurrency === null ? null : <span class="num">{queue.concurrency} at once</span>}
      {queue.concurrency !== null && queue.rate !== null ? ", " : ""}
      {queue.rate === null ? null : <span class="num">{queue.rate}</span>}
    </span>
  );
}

function LimitsDialog({ queue, onClose, onDone }: { queue: QueueItem; onClose: () => void; onDone: () => void }) {
  const [concurrency, setConcurrency] = useState(queue.concurrency === null ? "" : String(queue.concurrency));
  const [rate, setRate] = useState(queue.rate ?? "");
  return (
    <ActionDialog
      title={`Limits of the queue ${queue.queue}`}
      action="Set"
      onClose={onClose}
      act={async () => {
        await call("PATCH", apiPath("queues", queue.queue), {
          concurrency: concurrency.trim() === "" ? null : Number(concurrency),
          rate: rate.trim() === "" ? null : rate.trim(),
        });
        toast(`The limits of ${queue.queue} are set`);
        onDone();
      }}
    >
      <p class="muted">They hold over all instances, on top of the limits of the steps.</p>
      <div class="form-row">
        <Field label="At once" hint="Jobs that run at the same time; empty for no limit.">
          <input type="number" min="1" step="1" value={concurrency} onInput={(event) => setConcurrency(event.currentTarget.value)} />
        </Field>
        <Field label="Rate" hint="Such as 10/s; empty for no limit.">
          <input class="mono" value={rate} onInput={(event) => setRate(event.currentTarget.value)} />
        </Field>
      </div>
    </ActionDialog>
  );
}
