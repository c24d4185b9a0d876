/** Several runs at once: what would happen is shown before it does. */

import { useEffect, useState } from "preact/hooks";
import { isOpen as isOpenStatus } from "../model/gates";
import { bulkFilter, type RunsFilter } from "../model/runs_filter";
import { plural } from "../model/words";
import { apiPath, call } from "../net/api";
import type { BulkAnswer, RunItem, RunRef } from "../net/types";
import { Loading, Message, Problem, RunLink, State } from "../ui/basics";
import { ActionDialog, Dialog, Field } from "../ui/dialog";
import { Button } from "../ui/basics";
import { toast } from "../ui/toast";

export type BulkAction = "cancel" | "retry";

const SHOWN = 8;
const WORD = { cancel: ["Cancel", "cancelled"], retry: ["Retry", "retried"] } as const;

function Sample({ runs }: { runs: { run_id: string }[] }) {
  return (
    <ul class="sample">
      {runs.slice(0, SHOWN).map((run) => <li key={run.run_id}><RunLink run={run.run_id} /></li>)}
      {runs.length > SHOWN ? <li class="faint">and {runs.length - SHOWN} more</li> : null}
    </ul>
  );
}

/** Acts on all that match a filter, by the API's own dry run. */
export function BulkDialog(props: { action: BulkAction; filter: RunsFilter; onClose: () => void; onDone: () => void }) {
  const [plan, setPlan] = useState<BulkAnswer | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [done, setDone] = useState<BulkAnswer | null>(null);
  const [reason, setReason] = useState("");
  const [verb, past] = WORD[props.action];
  const body = { action: props.action, filter: bulkFilter(props.filter) };
  useEffect(() => {
    call<BulkAnswer>("POST", "/runs/bulk", { ...body, dry_run: true }).then(setPlan, setError);
  }, []);
  if (done) return <ResultDialog title={`${done.done.length} ${past}`} answer={done} onClose={props.onClose} />;
  const matched = plan?.done.length ?? 0;
  return (
    <ActionDialog
      title={`${verb} all that match`}
      action={plan ? `${verb} ${plural(matched, "run")}` : verb}
      kind={props.action === "cancel" ? "danger" : "primary"}
      disabled={matched === 0}
      onClose={props.onClose}
      act={async () => {
        const extra = reason.trim() && props.action === "cancel" ? { reason: reason.trim() } : {};
        const answer = await call<BulkAnswer>("POST", "/runs/bulk", { ...body, ...extra, dry_run: false });
        props.onDone();
        if (answer.failed.length === 0 && answer.left === 0) toast(`${plural(answer.done.length, "run")} ${past}`);
        else {
          setDone(answer);
          // The dialog stays, to say what was not done.
          throw new Error(`${answer.done.length} ${past}, ${answer.failed.length} failed, ${answer.left} left`);
        }
      }}
    >
      {error ? <Problem error={error} /> : null}
      {!plan && !error ? <Loading rows={3} /> : null}
      {plan ? (
        <>
          <p>
            {plural(plan.matched ?? 0, "run")} match, of which {matched} would be {past}
            {plan.left > 0 ? `; ${plan.left} are left for another call` : ""}.
          </p>
          {plan.failed.length > 0 ? <p class="muted">{plan.failed.length} would be refused: <Message text={plan.failed[0]?.message ?? ""} /></p> : null}
          <Sample runs={plan.done} />
          {props.action === "cancel" ? <ReasonField reason={reason} onReason={setReason} /> : null}
        </>
      ) : null}
    </ActionDialog>
  );
}

export function ReasonField({ reason, onReason }: { reason: string; onReason: (reason: string) => void }) {
  return (
    <Field label="Reason" hint="Kept in the log of the run.">
      <input value={reason} maxLength={500} onInput={(event) => onReason(event.currentTarget.value)} />
    </Field>
  );
}

function ResultDialog({ title, answer, onClose }: { title: string; answer: BulkAnswer; onClose: () => void }) {
  return (
    <Dialog title={title} onClose={onClose}>
      {answer.left > 0 ? <p class="muted">{plural(answer.left, "run")} are left: do it again to go on.</p> : null}
      <ul class="sample">
        {answer.failed.slice(0, 20).map((each) => (
          <li key={each.run_id}><RunLink run={each.run_id} /> <Message text={each.message} /></li>
        ))}
      </ul>
      <footer class="dialog-foot"><Button onClick={onClose}>Close</Button></footer>
    </Dialog>
  );
}

const isOpen = (run: RunItem) => isOpenStatus(run.status);

/** Acts on the runs that were selected, one after the other. */
export function SelectionDialog(props: { action: BulkAction; runs: RunItem[]; onClose: () => void; onDone: () => void }) {
  const [runs] = useState(props.runs);
  const [reason, setReason] = useState("");
  const [progress, setProgress] = useState(0);
  const [verb, past] = WORD[props.action];
  const fits = runs.filter((run) => (props.action === "cancel" ? isOpen(run) : !isOpen(run)));
  const others = runs.length - fits.length;
  return (
    <ActionDialog
      title={`${verb} ${plural(fits.length, "run")}`}
      action={progress > 0 ? `${progress} of ${fits.length}` : `${verb} ${plural(fits.length, "run")}`}
      kind={props.action === "cancel" ? "danger" : "primary"}
      disabled={fits.length === 0}
      onClose={props.onClose}
      act={async () => {
        const failed: string[] = [];
        for (const [at, run] of fits.entries()) {
          setProgress(at + 1);
          const body = props.action === "cancel" && reason.trim() ? { reason: reason.trim() } : {};
          await call<RunRef>("POST", apiPath("runs", run.run_id, props.action), body).catch((error: Error) => failed.push(error.message));
        }
        props.onDone();
        toast(`${plural(fits.length - failed.length, "run")} ${past}`);
        if (failed.length > 0) throw new Error(`${plural(failed.length, "run")} could not be ${past}: ${failed[0]}`);
      }}
    >
      {others > 0 ? (
        <p class="muted">
          {plural(others, "run")} of the selection {props.action === "cancel" ? "have ended already" : "are still open"} and will be left alone.
        </p>
      ) : null}
      <ul class="sample">
        {fits.slice(0, SHOWN).map((run) => (
          <li key={run.run_id}><State state={run.status} /> <RunLink run={run.run_id} /> <span class="muted">{run.flow}</span></li>
        ))}
        {fits.length > SHOWN ? <li class="faint">and {fits.length - SHOWN} more</li> : null}
      </ul>
      {props.action === "retry" ? <p class="muted">Each is started anew, and takes over what had succeeded.</p> : <ReasonField reason={reason} onReason={setReason} />}
    </ActionDialog>
  );
}
