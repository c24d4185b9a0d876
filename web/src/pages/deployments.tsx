/** All deployments: which revision took over from which, how, and what became of it. */

import { useState } from "preact/hooks";
import { hasEnded, inOrder, standing, tookMs } from "../model/deployments";
import { href, useQuery } from "../model/route";
import { useForbidden } from "../model/session";
import { count, plural } from "../model/words";
import { useReloadOnRuns, useResource } from "../net/resource";
import type { DeploymentItem, FlowItem, Page } from "../net/types";
import { Ago, Button, Clipped, Command, Empty, FlowLink, Loading, PageHead, Problem, State, Table, Took, type Column } from "../ui/basics";
import { NewDeploymentDialog } from "./deployment_new";
import { Change } from "./deployment_plan";

const SHOWN = 100;

export function DeploymentsPage() {
  const [query, setQuery] = useQuery();
  const flow = query.get("flow");
  const isNew = query.has("new");
  const setNew = (wanted: boolean) => setQuery({ new: wanted ? "1" : null }, "replace");
  const [isOpen, setOpen] = useState(false);
  const [shown, setShown] = useState(SHOWN);
  const forbidden = useForbidden("deploy");
  const path = "/deployments" + (flow ? `?flow=${encodeURIComponent(flow)}` : "");
  const { data, error, reload } = useResource<Page<DeploymentItem>>(path, { every: isOpen ? 1_000 : 5_000 });
  useReloadOnRuns(reload, 2_500);
  const flows = useResource<Page<FlowItem>>("/flows");
  const items = data ? inOrder(data.items) : [];
  const open = items.filter((item) => !hasEnded(item)).length;
  if (data && open > 0 !== isOpen) setOpen(open > 0);
  return (
    <>
      <PageHead title="Deployments" about={data ? <>{plural(items.length, "deployment")}{open > 0 ? `, ${open} under way` : ""}</> : " "}>
        <Button kind="primary" disabled={forbidden !== undefined} title={forbidden} onClick={() => setNew(true)}>Deploy a revision…</Button>
      </PageHead>
      {error ? <Problem error={error} retry={reload} /> : null}
      {(flow || items.length > 0) && flows.data ? (
        <div class="filters">
          <select aria-label="flow" value={flow ?? ""} onChange={(event) => setQuery({ flow: event.currentTarget.value || null })}>
            <option value="">all flows</option>
            {flow && !flows.data.items.some((each) => each.flow === flow) ? <option value={flow}>{flow}</option> : null}
            {flows.data.items.map((each) => <option key={each.flow} value={each.flow}>{each.flow}</option>)}
          </select>
        </div>
      ) : null}
      {!data && !error ? <Loading rows={5} /> : null}
      {data && items.length === 0 ? (
        <Empty title={flow ? `${flow} was never deployed` : "Nothing was deployed yet"}>
          <p class="muted">
            A saved flow file becomes the active revision at once. A deployment takes more care: it tries the new revision before
            it takes over, holds what starts meanwhile if it must, rolls back by itself, and shows that nothing was lost.
          </p>
          <Command text={`flowgate deploy start ${flow ?? "order"}.yaml --strategy blue-green`} />
        </Empty>
      ) : null}
      {items.length > 0 ? <Table label="deployments" kind="deployments" columns={COLUMNS} rows={items.slice(0, shown)} keyOf={(item) => item.deployment_id} /> : null}
      {items.length > shown ? (
        <nav class="pager" aria-label="more deployments"><Button onClick={() => setShown(shown + SHOWN)}>Older</Button></nav>
      ) : null}
      {isNew ? <NewDeploymentDialog flow={flow} onClose={() => setNew(false)} /> : null}
    </>
  );
}

const COLUMNS: Column<DeploymentItem>[] = [
  { name: "How it stands", class: "cell-status", cell: (item) => <a class="name" href={href(["deployments", item.flow, item.deployment_id])} title={item.deployment_id}><State state={standing(item)} label={labelOf(item)} /></a> },
  { name: "Flow", class: "cell-flow", cell: (item) => <div class="two-lines"><FlowLink flow={item.flow} /><About item={item} /></div> },
  { name: "Revision", class: "cell-change", cell: (item) => <div class="two-lines"><Change from={item.from} to={item.to} /><span class="muted">{item.strategy}</span></div> },
  { name: "Held", class: "cell-num", cell: (item) => <Count value={item.held} /> },
  { name: "Let go", class: "cell-num", cell: (item) => <Count value={item.released} /> },
  { name: "Stopped", class: "cell-num", cell: (item) => <Count value={item.checkpointed} /> },
  { name: "Took", class: "cell-num", cell: (item) => <Took ms={tookMs(item)} since={item.began_at} /> },
  { name: "Began", class: "cell-time", cell: (item) => <Ago at={item.began_at} /> },
];

/** How it stands in words: the phase while it is under way, and then how it ended. */
export function labelOf(item: DeploymentItem): string {
  switch (item.verdict) {
    case "good":
      return "completed";
    case "alerting":
      return "completed, alerting";
    default:
      return (item.verdict ?? item.phase).replaceAll("_", " ");
  }
}

function Count({ value }: { value: number }) {
  return <span class={value === 0 ? "num faint" : "num"}>{count(value)}</span>;
}

/** Why it was rolled back; else what it was for and who asked for it. */
function About({ item }: { item: DeploymentItem }) {
  if (item.rollback) return <Clipped text={item.rollback} class="bad-text" />;
  const parts = [item.author ? `by ${item.author}` : null, item.note].filter((part) => part !== null);
  return parts.length === 0 ? null : <Clipped text={parts.join(": ")} class="muted" />;
}
