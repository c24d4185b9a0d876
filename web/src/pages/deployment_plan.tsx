/** What a deployment does to the runs that are open. */

import { useState } from "preact/hooks";
import { count, plural } from "../model/words";
import type { DeployPlan } from "../net/types";
import { Button, Message, Revision, RunLink, State, Table, type Column } from "../ui/basics";
import { Glyph, Icon } from "../ui/icons";

type PlannedRun = DeployPlan["runs"][number];

const SHOWN = 10;

/** From one revision to another. */
export function Change({ from, to }: { from: string; to: string }) {
  return <span class="change"><Revision revision={from} /> <Icon name="right" size={11} /> <Revision revision={to} /></span>;
}

export function PlanView({ plan }: { plan: DeployPlan }) {
  const [isWhole, setWhole] = useState(false);
  const total = plan.finishing + plan.resuming + plan.pinned;
  const runs = isWhole ? plan.runs : plan.runs.slice(0, SHOWN);
  const fates: [string, number, string][] = [
    ["finishes", plan.finishing, "finish where they are"],
    ["resumes", plan.resuming, "go on on the new revision, if they have not finished in time"],
    ["pinned", plan.pinned, "stay on their revision, however long they take"],
  ];
  return (
    <div class="plan">
      <p class="plan-line"><Change from={plan.from} to={plan.to} /> {total === 0 ? <span class="muted">no run is open</span> : null}</p>
      {total === 0 ? null : (
        <ul class="plan-fates">
          {fates.filter(([, value]) => value > 0).map(([fate, value, text]) => (
            <li key={fate}><Glyph state={fate} /> <span><strong class="num">{count(value)}</strong> {text}</span></li>
          ))}
        </ul>
      )}
      {plan.warnings.map((warning) => <p key={warning} class="plan-warning"><Glyph state="warning" /> <span><Message text={warning} /></span></p>)}
      {runs.length > 0 ? <Table label="open runs and their fate" kind="planned" columns={COLUMNS} rows={runs} keyOf={(run) => run.run_id} /> : null}
      {plan.runs.length > runs.length ? <p><Button kind="quiet" onClick={() => setWhole(true)}>Show all {plan.runs.length}</Button></p> : null}
      {isWhole && total > plan.runs.length ? <p class="muted">{plural(total - plan.runs.length, "more run")} not listed</p> : null}
    </div>
  );
}

const COLUMNS: Column<PlannedRun>[] = [
  { name: "Run", class: "cell-id", cell: (run) => <RunLink run={run.run_id} /> },
  { name: "At", class: "cell-at", cell: (run) => (run.at.length === 0 ? <span class="faint">–</span> : run.at.map((step) => <code key={step} class="spaced">{step}</code>)) },
  { name: "Fate", class: "cell-status", cell: (run) => <State state={run.fate} /> },
  { name: "Then", class: "cell-wrap", cell: (run) => (run.reason ? <span class="muted"><Message text={run.reason} /></span> : run.steps.map((step) => <code key={step} class="spaced">{step}</code>)) },
];
