/** Deploys a revision: what it would do is shown first, and done when somebody says so. */

import { useEffect, useState } from "preact/hooks";
import { deploymentOf, type NewDeployment } from "../model/deployments";
import { pretty } from "../model/json";
import { href, navigate } from "../model/route";
import { apiPath, call, get } from "../net/api";
import type { DeploymentItem, DeployPlan, FlowDetail } from "../net/types";
import { Button } from "../ui/basics";
import { ActionDialog, Field } from "../ui/dialog";
import { toast } from "../ui/toast";
import { PlanView } from "./deployment_plan";

/** What each strategy does; without a name it is that of the deploy file. */
const STRATEGIES: Record<string, string> = {
  "blue-green": "holds what starts, drains, verifies, switches",
  rolling: "verifies and switches; nothing is held",
  canary: "a share of what starts tries it first; the deploy file says how much",
  "": "rolling, if it says nothing",
};

export function NewDeploymentDialog({ flow, onClose }: { flow: string | null; onClose: () => void }) {
  const [text, setText] = useState("");
  const [deploy, setDeploy] = useState("");
  const [strategy, setStrategy] = useState("blue-green");
  const [drain, setDrain] = useState("");
  const [note, setNote] = useState("");
  const [force, setForce] = useState(false);
  /** What is asked for, as it was when the plan was made, and the plan. */
  const [planned, setPlanned] = useState<{ asked: NewDeployment; plan: DeployPlan } | null>(null);
  useEffect(() => {
    if (flow === null) return;
    // The active revision is what somebody changes; without it they paste a file.
    get<FlowDetail>(apiPath("flows", flow)).then((found) => setText((old) => (old === "" ? pretty(found.file) : old)), () => {});
  }, [flow]);
  const asked = deploymentOf({ text, deploy, strategy, drain, note, force });
  if (planned && "flow" in planned.asked) {
    const { flow: name, body } = planned.asked;
    return (
      <ActionDialog
        key="plan"
        title={`Deploy ${name}: the plan`}
        action="Start the deployment"
        wide
        onClose={onClose}
        act={async () => {
          const begun = await call<DeploymentItem>("POST", apiPath("flows", name, "deployments"), body);
          toast(`The deployment of ${name} has begun`);
          navigate(href(["deployments", name, begun.deployment_id]));
        }}
      >
        <p class="muted">Nothing is changed yet. Whoever leads drives it, and another goes on if that one dies.</p>
        <PlanView plan={planned.plan} />
        <p><Button kind="quiet" onClick={() => setPlanned(null)}>Change it</Button></p>
      </ActionDialog>
    );
  }
  return (
    <ActionDialog
      key="write"
      title="Deploy a revision"
      action="Show the plan"
      wide
      stays
      disabled={"mistake" in asked}
      onClose={onClose}
      act={async () => {
        if ("mistake" in asked) return;
        setPlanned({ asked, plan: await call<DeployPlan>("POST", apiPath("flows", asked.flow, "deployments", "plan"), asked.body) });
      }}
    >
      <Field label="Flow file" hint="of the revision that is to become active, as YAML or JSON">
        <textarea class="mono" rows={10} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </Field>
      <input type="file" aria-label="take the flow file from this machine" accept=".yaml,.yml,.json" onChange={(event) => {
        void event.currentTarget.files?.[0]?.text().then(setText);
      }} />
      <div class="form-row">
        <Field label="Strategy" hint={STRATEGIES[strategy]}>
          <select value={strategy} onChange={(event) => setStrategy(event.currentTarget.value)}>
            {Object.keys(STRATEGIES).map((name) => <option key={name} value={name}>{name || "as the deploy file says"}</option>)}
          </select>
        </Field>
        <Field label="Drain timeout" hint="such as 30s; that of the deploy file if empty">
          <input type="text" value={drain} onInput={(event) => setDrain(event.currentTarget.value)} />
        </Field>
        <Field label="Note" hint="for whoever wonders">
          <input type="text" value={note} maxLength={1_000} onInput={(event) => setNote(event.currentTarget.value)} />
        </Field>
      </div>
      <details>
        <summary>Deploy file</summary>
        <Field label="Deploy file" hint="smoke tests, timeouts, alerts; all defaults if empty">
          <textarea class="mono" rows={6} spellcheck={false} value={deploy} onInput={(event) => setDeploy(event.currentTarget.value)} />
        </Field>
      </details>
      <label class="check">
        <input type="checkbox" checked={force} onChange={(event) => setForce(event.currentTarget.checked)} /> Let an older revision become active again
      </label>
      {"mistake" in asked && text.trim() !== "" ? <p class="field-mistake">{asked.mistake}</p> : null}
    </ActionDialog>
  );
}
