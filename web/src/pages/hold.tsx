/** Flows that are held: since when, how much, why, and a way to hold one and to let it go. */

import { useState } from "preact/hooks";
import { closed, holdOf, letGoOf, summary } from "../model/gates";
import { href } from "../model/route";
import { useForbidden } from "../model/session";
import { count, plural } from "../model/words";
import { apiPath, call } from "../net/api";
import { useReloadOnRuns, useResource } from "../net/resource";
import type { FlowItem, GateItem, Page } from "../net/types";
import { Age, Ago, Button, Clipped, Command, Empty, FlowLink, Loading, PageHead, Problem, State, Table, type Column } from "../ui/basics";
import { ActionDialog, Field } from "../ui/dialog";
import { Glyph } from "../ui/icons";
import { toast } from "../ui/toast";

type Doing = { what: "hold"; flow: string | null } | { what: "let go"; gate: GateItem };

export function HoldPage() {
  const { data, error, reload } = useResource<Page<GateItem>>("/gates", { every: 5_000 });
  useReloadOnRuns(reload, 2_500);
  const [doing, setDoing] = useState<Doing | null>(null);
  const forbidden = useForbidden("deploy");
  const held = data ? [...closed(data.items).values()] : [];
  const columns: Column<GateItem>[] = [
    { name: "Flow", class: "cell-main", cell: (gate) => <FlowLink flow={gate.flow} /> },
    { name: "Gate", class: "cell-status", cell: (gate) => <State state={gate.state} /> },
    { name: "Held", class: "cell-num", cell: (gate) => <Held gate={gate} /> },
    { name: "Oldest waits", class: "cell-num", cell: (gate) => <Age ms={gate.age_ms} /> },
    { name: "Set", class: "cell-time", cell: (gate) => <Ago at={gate.set_at} /> },
    { name: "Reason", cell: (gate) => <Why gate={gate} /> },
    {
      name: "actions",
      class: "cell-actions",
      cell: (gate) => {
        const because = gate.deployment ? "the deployment opens it" : forbidden;
        return gate.state === "open" ? (
          <Button kind="quiet" disabled={because !== undefined} title={because} onClick={() => setDoing({ what: "hold", flow: gate.flow })}>Hold…</Button>
        ) : (
          <Button kind="quiet" disabled={because !== undefined} title={because} onClick={() => setDoing({ what: "let go", gate })}>Let go…</Button>
        );
      },
    },
  ];
  return (
    <>
      <PageHead
        title="Hold"
        about={data ? <>{held.length === 0 ? "no flow is held" : plural(held.length, "flow")}{held.length === 0 ? "" : `, ${count(held.reduce((sum, gate) => sum + gate.held, 0))} runs held`}</> : " "}
      >
        <Button kind="primary" disabled={forbidden !== undefined} title={forbidden} onClick={() => setDoing({ what: "hold", flow: null })}>Hold a flow…</Button>
      </PageHead>
      {error ? <Problem error={error} retry={reload} /> : null}
      {!data && !error ? <Loading rows={4} /> : null}
      {data && data.items.length === 0 ? (
        <Empty title="No flow was ever held">
          <p class="muted">A flow that is held takes starts and keeps them until it is let go; what runs goes on. It is a switch for incidents:</p>
          <Command text="flowgate hold on FLOW --reason 'the bank does not answer'" />
        </Empty>
      ) : null}
      {data && data.items.length > 0 ? <Table label="gates" columns={columns} rows={data.items} keyOf={(gate) => gate.flow} /> : null}
      {doing?.what === "hold" ? <HoldDialog flow={doing.flow} onClose={() => setDoing(null)} onDone={reload} /> : null}
      {doing?.what === "let go" ? <LetGoDialog gate={doing.gate} onClose={() => setDoing(null)} onDone={reload} /> : null}
    </>
  );
}

function Held({ gate }: { gate: GateItem }) {
  if (gate.held === 0) return <span class="num faint">0</span>;
  return <a class="num strong" href={href(["runs"], { flow: gate.flow, status: "held" })} title={`at most ${count(gate.hold_max)}`}>{count(gate.held)}</a>;
}

function Why({ gate }: { gate: GateItem }) {
  return (
    <span>
      {gate.reason ? <Clipped text={gate.reason} /> : <span class="faint">–</span>}
      {gate.deployment ? <span class="muted"> deployment <a class="id" href={href(["deployments", gate.flow, gate.deployment])}>{gate.deployment}</a></span> : null}
      {gate.canary ? <span class="muted"> {gate.canary.share} of starts to <span class="id">{gate.canary.revision}</span></span> : null}
      {gate.pools.map((each) => <span key={each.revision} class="muted"> <span class="id">{each.revision}</span> for the pool {each.pool}</span>)}
      {gate.deadline ? <span class="muted"> lets go <Ago at={gate.deadline} /></span> : null}
      {gate.state === "replaying" && gate.replay_rate ? <span class="muted"> {gate.replay_rate} a second</span> : null}
    </span>
  );
}

/** That a flow is held, where somebody looks at the flow; nothing if it is not. */
export function GateBadge({ gate }: { gate: GateItem | null | undefined }) {
  if (!gate || gate.state === "open") return null;
  return (
    <a class={`tag gate-badge gate-${gate.state}`} href="/hold" title={gate.reason ?? "its gate is not open"}>
      <Glyph state={gate.state} size={12} /> {summary(gate)}
    </a>
  );
}

export function HoldDialog({ flow, onClose, onDone }: { flow: string | null; onClose: () => void; onDone: () => void }) {
  const flows = useResource<Page<FlowItem>>(flow === null ? "/flows" : null);
  const [chosen, setChosen] = useState(flow ?? "");
  const [reason, setReason] = useState("");
  const [max, setMax] = useState("");
  const [span, setSpan] = useState("");
  const asked = holdOf({ reason, max, span });
  return (
    <ActionDialog
      title={flow === null ? "Hold a flow" : `Hold the flow ${flow}`}
      action="Hold"
      kind="danger"
      disabled={chosen === "" || "mistake" in asked}
      onClose={onClose}
      act={async () => {
        if ("mistake" in asked) return;
        await call<GateItem>("PUT", apiPath("flows", chosen, "gate"), asked.body);
        toast(`${chosen} is held`);
        onDone();
      }}
    >
      <p class="muted">Starts are taken as ever and kept: their runs are held until the flow is let go. Runs that have begun go on.</p>
      {flow === null ? (
        <Field label="Flow">
          <select value={chosen} onChange={(event) => setChosen(event.currentTarget.value)}>
            <option value="">choose one</option>
            {flows.data?.items.map((each) => <option key={each.flow} value={each.flow}>{each.flow}</option>)}
          </select>
        </Field>
      ) : null}
      <Field label="Reason" hint="for whoever wonders">
        <input type="text" value={reason} maxLength={1_000} onInput={(event) => setReason(event.currentTarget.value)} />
      </Field>
      <Field label="At most" hint="runs; what comes after them is refused. 100000 if empty.">
        <input type="text" inputMode="numeric" value={max} onInput={(event) => setMax(event.currentTarget.value)} />
      </Field>
      <Field label="For" hint="a length of time such as 30m, after which it lets go by itself; until somebody does if empty.">
        <input type="text" value={span} onInput={(event) => setSpan(event.currentTarget.value)} />
      </Field>
      {"mistake" in asked ? <p class="field-mistake">{asked.mistake}</p> : null}
    </ActionDialog>
  );
}

export function LetGoDialog({ gate, onClose, onDone }: { gate: GateItem; onClose: () => void; onDone: () => void }) {
  const [rate, setRate] = useState("");
  const asked = letGoOf({ rate });
  return (
    <ActionDialog
      title={`Let go the flow ${gate.flow}`}
      action="Let go"
      disabled={"mistake" in asked}
      onClose={onClose}
      act={async () => {
        if ("mistake" in asked) return;
        await call<GateItem>("PUT", apiPath("flows", gate.flow, "gate"), asked.body);
        toast(`${gate.flow} is let go`);
        onDone();
      }}
    >
      <p class="muted">
        {gate.held === 0 ? "It holds nothing, and opens at once." : `${plural(gate.held, "run")} begin, the oldest first; what starts meanwhile is held behind them, and the gate opens when nothing is left.`}
      </p>
      <Field label="Rate" hint="runs a second at most; as many as can be if empty.">
        <input type="text" inputMode="numeric" value={rate} onInput={(event) => setRate(event.currentTarget.value)} />
      </Field>
      {"mistake" in asked ? <p class="field-mistake">{asked.mistake}</p> : null}
    </ActionDialog>
  );
}
