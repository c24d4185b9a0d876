/** The answer to the question that brings people here: why is it not finished, or why did it fail? */

import { useState } from "preact/hooks";
import { useForbidden } from "../model/session";
import type { Reason, RunDetail, Why } from "../net/types";
import { Ago, Button, Help, Loading, Message, Problem, RunLink } from "../ui/basics";
import { Glyph } from "../ui/icons";
import { SignalDialog } from "./run_actions";

const MORE_SHOWN = 4;

const QUESTION = {
  held: "Why it has not begun",
  running: "Why it is not finished",
  waiting: "What it waits for",
  failed: "Why it failed",
  cancelled: "Why it ended",
  completed: "How it ended",
} as const;

export function WhyPanel({ run, why, error, onDone }: { run: RunDetail; why: Why | null; error: Error | null; onDone: () => void }) {
  const [all, setAll] = useState(false);
  const [signal, setSignal] = useState<Reason | null>(null);
  const forbidden = useForbidden("run");
  if (!why) return error ? <Problem error={error} /> : <section class={`why status-${run.status}`}><Loading rows={1} /></section>;
  const [first, ...others] = why.reasons;
  // Steps that only wait for others say nothing that the first reason does not.
  const shown = all ? others : others.filter((reason) => reason.cause !== "pending" && reason.cause !== "skipped").slice(0, MORE_SHOWN);
  const hidden = others.length - shown.length;
  return (
    <section class={`why status-${why.status}`} aria-label={QUESTION[why.status]} data-cause={first?.cause}>
      <h2><Glyph state={why.status} /> {QUESTION[why.status]}</h2>
      {first ? (
        <>
          <p class="why-first"><Message text={first.message} /></p>
          <div class="why-do">
            {isSignal(first) ? (
              <Button kind="primary" disabled={forbidden !== undefined} title={forbidden} onClick={() => setSignal(first)}>
                {verbOf(first)}
              </Button>
            ) : null}
            {first.cause === "held" ? <a class="button plain" href="/hold">All holds</a> : null}
            {first.help && !why.fate ? <Help text={first.help} /> : null}
          </div>
        </>
      ) : <p class="why-first">Nothing is known.</p>}
      {shown.length > 0 ? (
        <ul class="why-more">
          {shown.map((reason, at) => (
            <li key={at} data-cause={reason.cause}>
              <Message text={reason.message} />
              {isSignal(reason) ? (
                <button type="button" class="link" disabled={forbidden !== undefined} onClick={() => setSignal(reason)}>{verbOf(reason)}</button>
              ) : null}
            </li>
          ))}
        </ul>
      ) : null}
      {hidden > 0 ? <button type="button" class="link" onClick={() => setAll(true)}>{hidden} more {hidden === 1 ? "step" : "steps"}</button> : null}
      {why.strained.map((each) => (
        <p key={each.instance} class="muted">
          The instance <code>{each.instance}</code> is {each.degradation}, so it may take longer: {each.strained_by ?? "it recovers"}
        </p>
      ))}
      {why.fate ? (
        <p class="why-fate">
          {why.fate.run_id ? <>It was tried again as <RunLink run={why.fate.run_id} /></> : `It was ${why.fate.fate}`} <Ago at={why.fate.at} />.
        </p>
      ) : null}
      {signal ? <SignalDialog run={run} reason={signal} onClose={() => setSignal(null)} onDone={onDone} /> : null}
    </section>
  );
}

export function isSignal(reason: Reason): reason is Reason & { signal: string } {
  return reason.cause === "signal" && typeof reason.signal === "string";
}

/** A wait that wants a yes is approved; any other is sent what it waits for. */
export function verbOf(reason: Reason): string {
  return /approv/i.test(reason.signal ?? "") ? "Approve…" : "Send the signal…";
}
