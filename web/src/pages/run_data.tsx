/** What went into a run, what it keeps, and what came out of its steps. */

import type { RunDetail } from "../net/types";
import { JsonTree } from "../ui/json_tree";

export function RunData({ run }: { run: RunDetail }) {
  const results = run.steps.filter((step) => step.result !== undefined && step.result !== null);
  return (
    <div class="data">
      <section>
        <h3>Input</h3>
        <JsonTree value={run.input ?? null} label="the input" />
      </section>
      <section>
        <h3>State</h3>
        {Object.keys(run.state ?? {}).length === 0 ? <p class="faint">No step has set a value.</p> : <JsonTree value={run.state} label="the state" />}
      </section>
      <section>
        <h3>Results</h3>
        {results.length === 0 ? <p class="faint">No step has returned anything.</p> : (
          <JsonTree value={Object.fromEntries(results.map((step) => [step.name, step.result ?? null]))} label="the results" />
        )}
      </section>
    </div>
  );
}
