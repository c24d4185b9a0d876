/** The report of a deployment: what changed, and whether every start is in exactly one place. */

import { deltaOf, figure, figuresOf, sumOf, type FigureRow } from "../model/deployments";
import { count, plural } from "../model/words";
import type { Conservation, DeploymentItem, DeployReport } from "../net/types";
import { Message, Panel, RunLink, State, Table, type Column } from "../ui/basics";
import { Glyph } from "../ui/icons";

const BAR_WIDTH = 100;
const BAR_HEIGHT = 7;

export function ReportPanels({ report, isOver }: { report: DeployReport; isOver: boolean }) {
  const rows = figuresOf(report);
  return (
    <>
      {report.conservation ? <Equation conservation={report.conservation} /> : null}
      <Panel title="Before and after" flush aside={<Legend />}>
        {rows.length === 0 ? (
          <p class="panel-note muted">{isOver ? "It ended before anything was measured." : "The figures before are taken when it begins, those after when it has taken over."}</p>
        ) : (
          <Table label="before and after" kind="figures" columns={COLUMNS} rows={rows} keyOf={(row) => row.name} />
        )}
        {rows.length > 0 && !report.after ? <p class="panel-note muted">{isOver ? "The new revision did not take over, so there is nothing after." : "What is after is counted when the new revision has taken over."}</p> : null}
      </Panel>
    </>
  );
}

function Legend() {
  return (
    <ul class="legend">
      <li><span class="swatch before" />before</li>
      <li><span class="swatch after" />after</li>
    </ul>
  );
}

const COLUMNS: Column<FigureRow>[] = [
  { name: "Figure", class: "cell-main", cell: (row) => <>{row.name}{row.unit ? <span class="faint"> {row.unit}</span> : null}</> },
  { name: "Before", class: "cell-num", cell: (row) => <span class="num">{figure(row.before, row.digits)}</span> },
  { name: "After", class: "cell-num", cell: (row) => <span class="num strong">{figure(row.after, row.digits)}</span> },
  { name: "Change", class: "cell-num", cell: (row) => <Delta row={row} /> },
  { name: "Bars", class: "cell-bars", cell: (row) => <Bars row={row} /> },
];

function Delta({ row }: { row: FigureRow }) {
  const { text, tone } = deltaOf(row);
  return <span class={`num delta-${tone}`}>{text}</span>;
}

/** Two bars, the longer as long as there is room. */
function Bars({ row }: { row: FigureRow }) {
  // One bar alone compares nothing.
  if (row.before === null || row.after === null) return null;
  const max = Math.max(row.before, row.after);
  const width = (value: number) => (max > 0 ? Math.max(value > 0 ? 1 : 0, (value / max) * BAR_WIDTH) : 0);
  const label = `${row.name}: before ${figure(row.before, row.digits)}, after ${figure(row.after, row.digits)}`;
  return (
    <svg class="bars" width={BAR_WIDTH} height={2 * BAR_HEIGHT + 2} role="img" aria-label={label}>
      <rect class="bar-before" width={width(row.before).toFixed(1)} height={BAR_HEIGHT} rx="1" />
      <rect class="bar-after" y={BAR_HEIGHT + 2} width={width(row.after).toFixed(1)} height={BAR_HEIGHT} rx="1" />
    </svg>
  );
}

/** Received is what finished, what is open, what is held and what was refused: nothing else. */
function Equation({ conservation }: { conservation: Conservation }) {
  const sum = sumOf(conservation);
  return (
    <section class={`panel equation ${sum.holds ? "holds" : "broken"}`} aria-label="conservation" data-holds={sum.holds}>
      <h2><Glyph state={sum.holds ? "good" : "failed"} size={16} /> {sum.holds ? "Nothing was lost: every start is in exactly one place" : "Something is not where it should be"}</h2>
      <p class="equation-line num">
        <Term name="received" value={sum.received} />
        <span class="equation-sign" aria-label={sum.holds ? "equals" : "does not equal"}>{sum.holds ? "=" : "≠"}</span>
        {sum.terms.map((term, at) => (
          <span key={term.name} class="equation-part">
            {at > 0 ? <span class="equation-sign">+</span> : null}
            <Term name={term.name} value={term.value} />
          </span>
        ))}
      </p>
      {sum.faults.map(({ name, list }) => (
        <div key={name} class="equation-fault">
          <h3>{plural(list.count, "run")} {name}</h3>
          <ul>{list.runs.map((run) => <li key={run}><RunLink run={run} whole /></li>)}</ul>
          {list.count > list.runs.length ? <p class="muted">and {count(list.count - list.runs.length)} more</p> : null}
        </div>
      ))}
    </section>
  );
}

function Term({ name, value }: { name: string; value: number }) {
  return <span class={value === 0 ? "term none" : "term"}><span class="term-value">{count(value)}</span><span class="term-name">{name}</span></span>;
}

/** The smoke tests, and what was not as expected. */
export function Smoke({ item, report }: { item: DeploymentItem; report: DeployReport | null }) {
  if (item.smoke.length === 0) return null;
  const runOf = (name: string) => report?.smoke?.find((each) => each.name === name)?.run_id;
  return (
    <Panel title="Smoke tests" flush>
      <ul class="stuck">
        {item.smoke.map((test) => (
          <li key={test.name} data-smoke={test.name} data-passed={test.passed}>
            <div class="stuck-head">
              <State state={test.passed ? "passed" : "failed"} label={test.name} />
              <span class="faint push">{test.passed ? "passed" : "failed"} {runOf(test.name) ? <RunLink run={runOf(test.name) ?? ""} /> : null}</span>
            </div>
            {test.mismatches.map((mismatch) => <p key={mismatch} class="stuck-why"><Message text={mismatch} /></p>)}
          </li>
        ))}
      </ul>
    </Panel>
  );
}
