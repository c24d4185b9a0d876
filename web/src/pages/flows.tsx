/** All flows. */

import { closed } from "../model/gates";
import { href } from "../model/route";
import { count, plural } from "../model/words";
import { useReloadOnRuns, useResource } from "../net/resource";
import { RUN_STATUSES, type FlowItem, type GateItem, type Page, type RunCounts, type RunStatus } from "../net/types";
import { Ago, Clipped, Command, Empty, FlowLink, Loading, PageHead, Problem, Revision, Table, type Column } from "../ui/basics";
import { Glyph } from "../ui/icons";
import { GateBadge } from "./hold";

export function FlowsPage() {
  const { data, error, reload } = useResource<Page<FlowItem>>("/flows", { every: 30_000 });
  const gates = useResource<Page<GateItem>>("/gates", { every: 10_000 });
  useReloadOnRuns(() => {
    reload();
    gates.reload();
  }, 5_000);
  const held = closed(gates.data?.items ?? []);
  return (
    <>
      <PageHead title="Flows" about={data ? plural(data.items.length, "flow") : " "} />
      {error ? <Problem error={error} retry={reload} /> : null}
      {!data && !error ? <Loading rows={5} /> : null}
      {data && data.items.length === 0 ? (
        <Empty title="No flow is registered">
          <p class="muted">A flow is a YAML file. Put one into a folder and let flowgate watch it:</p>
          <Command text="flowgate dev flows/" />
        </Empty>
      ) : null}
      {data && data.items.length > 0 ? <Table label="flows" columns={columnsOf(held)} rows={data.items} keyOf={(flow) => flow.flow} /> : null}
    </>
  );
}

const columnsOf = (held: Map<string, GateItem>): Column<FlowItem>[] => [
  {
    name: "Flow",
    class: "cell-main",
    cell: (flow) => (
      <div class="two-lines">
        <span><FlowLink flow={flow.flow} /> <GateBadge gate={held.get(flow.flow)} /></span>
        {flow.description ? <Clipped text={flow.description} class="muted" /> : null}
      </div>
    ),
  },
  { name: "Runs", cell: (flow) => <Counts flow={flow.flow} runs={flow.runs} /> },
  { name: "Steps", class: "cell-num", cell: (flow) => <span class="num">{count(flow.steps)}</span> },
  { name: "Revision", cell: (flow) => <><Revision revision={flow.revision} /> {flow.revisions > 1 ? <span class="faint">of {flow.revisions}</span> : null}</> },
  { name: "Schedules", class: "cell-num", cell: (flow) => <span class={flow.schedules === 0 ? "num faint" : "num"}>{flow.schedules}</span> },
  { name: "Registered", class: "cell-time", cell: (flow) => <Ago at={flow.registered_at} /> },
];

/** Runs by status, each a link to them; a status without runs is left out. */
export function Counts({ flow, runs }: { flow: string; runs: Partial<RunCounts> | null }) {
  if (!runs) return <span class="faint">–</span>;
  const shown = RUN_STATUSES.filter((status: RunStatus) => (runs[status] ?? 0) > 0);
  if (shown.length === 0) return <span class="faint">none</span>;
  return (
    <span class="counts">
      {shown.map((status) => (
        <a key={status} href={href(["runs"], { flow, status })} title={`${count(runs[status])} ${status}`} aria-label={`${count(runs[status])} ${status}`}>
          <Glyph state={status} size={12} /> <span class="num">{count(runs[status])}</span>
        </a>
      ))}
    </span>
  );
}
