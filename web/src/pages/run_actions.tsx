/** What can be done to a run. */

import { useState } from "preact/hooks";
import { isOpen as isOpenStatus } from "../model/gates";
import { parse, pretty } from "../model/json";
import { navigate } from "../model/route";
import { useForbidden } from "../model/session";
import { shortId } from "../model/words";
import { apiPath, call } from "../net/api";
import type { Reason, RunDetail, RunItem, RunRef, Why } from "../net/types";
import { Button, Message } from "../ui/basics";
import { ActionDialog, Field, JsonField } from "../ui/dialog";
import { toast } from "../ui/toast";
import { runPath } from "./run";
import { isSignal } from "./run_why";
import { ReasonField } from "./runs_bulk";

type Open = "cancel" | "retry" | "signal" | null;

export function RunActions({ run, why, onDone }: { run: RunDetail; why: Why | null; onDone: () => void }) {
  const [open, setOpen] = useState<Open>(null);
  const forbidden = useForbidden("run");
  const isOpen = isOpenStatus(run.status);
  const close = () => setOpen(null);
  const waits = why?.reasons.filter(isSignal) ?? [];
  return (
    <div class="actions">
      <a class="button plain" href={`/api/v1${apiPath("runs", run.run_id)}/export`} download={`run-${run.run_id}.ndjson`}>Export</a>
      {isOpen ? (
        <>
          {run.status === "held" ? null : (
            <Button disabled={forbidden !== undefined} title={forbidden} onClick={() => setOpen("signal")}>Signal…</Button>
          )}
          <Button kind="danger" disabled={forbidden !== undefined} title={forbidden} onClick={() => setOpen("cancel")}>Cancel…</Button>
        </>
      ) : (
        <Button kind="primary" disabled={forbidden !== undefined} title={forbidden} onClick={() => setOpen("retry")}>Retry…</Button>
      )}
      {open === "cancel" ? <CancelDialog run={run} onClose={close} onDone={onDone} /> : null}
      {open === "retry" ? <RetryDialog run={run} from={null} onClose={close} /> : null}
      {open === "signal" ? <SignalDialog run={run} reason={waits[0] ?? null} onClose={close} onDone={onDone} /> : null}
    </div>
  );
}

function CancelDialog({ run, onClose, onDone }: { run: RunItem; onClose: () => void; onDone: () => void }) {
  const [reason, setReason] = useState("");
  return (
    <ActionDialog
      title={`Cancel run ${shortId(run.run_id)}`}
      action="Cancel the run"
      kind="danger"
      onClose={onClose}
      act={async () => {
        await call<RunRef>("POST", apiPath("runs", run.run_id, "cancel"), reason.trim() ? { reason: reason.trim() } : {});
        toast("The run is cancelled");
        onDone();
      }}
    >
      <p class="muted">Jobs in queues go at once; an attempt that runs is stopped when its lease is renewed. A cancelled run can be retried.</p>
      <ReasonField reason={reason} onReason={setReason} />
    </ActionDialog>
  );
}

export function RetryDialog({ run, from, onClose }: { run: RunDetail; from: string | null; onClose: () => void }) {
  const [step, setStep] = useState(from ?? "");
  const [revision, setRevision] = useState("");
  return (
    <ActionDialog
      title={`Retry run ${shortId(run.run_id)}`}
      action={step ? "Retry from this step" : "Retry"}
      onClose={onClose}
      act={async () => {
        const request = { ...(step ? { from: step } : {}), ...(revision ? { revision } : {}) };
        const ref = await call<RunRef>("POST", apiPath("runs", run.run_id, "retry"), request);
        toast(<>Run {shortId(ref.run_id)} tries it again</>);
        navigate(runPath(ref.run_id));
      }}
    >
      <p class="muted">A new run is started with the same input. It takes over what succeeded; this one stays as it is.</p>
      <Field label="From" hint="This step and all that follow from it are executed again.">
        <select value={step} onChange={(event) => setStep(event.currentTarget.value)}>
          <option value="">what has not succeeded</option>
          {run.steps.map((each) => <option key={each.name} value={each.name}>{each.name} ({each.state})</option>)}
        </select>
      </Field>
      <Field label="Revision" hint="On the active one, a step that succeeded is one of the same name.">
        <select value={revision} onChange={(event) => setRevision(event.currentTarget.value)}>
          <option value="">its own ({run.revision.slice(0, 8)})</option>
          <option value="active">the active one, which new runs start on</option>
        </select>
      </Field>
    </ActionDialog>
  );
}

export function SignalDialog({ run, reason, onClose, onDone }: { run: RunItem; reason: Reason | null; onClose: () => void; onDone: () => void }) {
  const [signal, setSignal] = useState(reason?.signal ?? "");
  const [text, setText] = useState(() => pretty(reason?.match ?? {}));
  const parsed = parse(text);
  const mistakes = "mistake" in parsed ? [parsed.mistake] : [];
  const isApproval = /approv/i.test(signal);
  return (
    <ActionDialog
      title={isApproval ? "Approve" : "Send a signal"}
      action={isApproval ? "Approve" : "Send"}
      disabled={signal.trim() === "" || mistakes.length > 0}
      onClose={onClose}
      act={async () => {
        if (!("value" in parsed)) return;
        const answer = await call<RunRef>("POST", apiPath("runs", run.run_id, "signal"), { signal: signal.trim(), data: parsed.value });
        toast(answer.taken === false ? "The signal is kept for a wait that has not begun" : "The signal was taken");
        onDone();
      }}
    >
      {reason ? <p class="muted"><Message text={reason.message} /></p> : (
        <p class="muted">No step waits for a signal now. One that comes before its wait begins is kept for it.</p>
      )}
      <Field label="Signal">
        <input class="mono" required value={signal} onInput={(event) => setSignal(event.currentTarget.value)} />
      </Field>
      <JsonField label="Data" rows={5} text={text} onText={setText} mistakes={mistakes} hint={reason?.match && Object.keys(reason.match).length > 0 ? "The wait wants the fields that stand here." : "Any JSON."} />
    </ActionDialog>
  );
}
