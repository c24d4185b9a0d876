/** Starts a run: its input is checked against the schema while it is written. */

import { useState } from "preact/hooks";
import { parse, pretty } from "../model/json";
import { href, navigate } from "../model/route";
import { splitTag } from "../model/runs_filter";
import { example, mistakes as mistakesOf } from "../model/schema";
import { spanOf } from "../model/span";
import { shortId } from "../model/words";
import { call } from "../net/api";
import type { FlowDetail, RunRef } from "../net/types";
import { Ago } from "../ui/basics";
import { ActionDialog, Field, JsonField } from "../ui/dialog";
import { toast } from "../ui/toast";

export function StartDialog({ flow, onClose }: { flow: FlowDetail; onClose: () => void }) {
  const [text, setText] = useState(() => (flow.input_schema ? pretty(example(flow.input_schema)) : "{}"));
  const [key, setKey] = useState("");
  const [tags, setTags] = useState("");
  const [priority, setPriority] = useState("");
  const [delay, setDelay] = useState("");
  const parsed = parse(text);
  const mistakes = "mistake" in parsed ? [parsed.mistake] : flow.input_schema ? mistakesOf(flow.input_schema, parsed.value) : [];
  const tagList = tags.split(/[\s,]+/).filter((tag) => tag !== "");
  const badTag = tagList.find((tag) => !tag.includes("="));
  const delayMs = delay.trim() === "" ? null : spanOf(delay);
  const badDelay = delay.trim() !== "" && delayMs === null;
  const act = async () => {
    if (!("value" in parsed)) return;
    const body: Record<string, unknown> = { flow: flow.flow, input: parsed.value };
    if (key.trim()) body["key"] = key.trim();
    if (tagList.length > 0) body["tags"] = Object.fromEntries(tagList.map(splitTag));
    if (priority !== "") body["priority"] = Number(priority);
    if (delayMs !== null) body["delay_ms"] = delayMs;
    const ref = await call<RunRef>("POST", "/runs", body);
    // A debounced start names the run that will be; there is no page of it before it begins.
    if (ref.debounced_until) {
      toast(<>Run {shortId(ref.run_id)} begins <Ago at={ref.debounced_until} />, unless more starts come</>);
      return;
    }
    toast(ref.existed ? <>Run {shortId(ref.run_id)} has that key already</> : <>Run {shortId(ref.run_id)} is started</>);
    navigate(href(["runs", ref.run_id]));
  };
  return (
    <ActionDialog
      title={`Start a run of ${flow.flow}`}
      action="Start"
      wide
      disabled={"mistake" in parsed || badTag !== undefined || badDelay}
      onClose={onClose}
      act={act}
    >
      <JsonField
        label="Input"
        text={text}
        onText={setText}
        mistakes={mistakes}
        hint={flow.input_schema ? "An example that the flow's schema allows. The server has the last word." : "The flow takes any JSON."}
      />
      <div class="form-row">
        <Field label="Key" hint="The same key gives the same run.">
          <input class="mono" value={key} maxLength={256} onInput={(event) => setKey(event.currentTarget.value)} />
        </Field>
        <Field label="Tags" hint={badTag ? <span class="bad-text">write name=value</span> : "name=value, with spaces between"}>
          <input class="mono" value={tags} onInput={(event) => setTags(event.currentTarget.value)} />
        </Field>
        <Field label="Priority" hint="0 to 9">
          <input type="number" min="0" max="9" step="1" value={priority} onInput={(event) => setPriority(event.currentTarget.value)} />
        </Field>
        <Field label="Delay" hint={badDelay ? <span class="bad-text">write 90s, 5m, 2h or 1d</span> : "such as 5m"}>
          <input value={delay} onInput={(event) => setDelay(event.currentTarget.value)} />
        </Field>
      </div>
      {flow.active ? null : <p class="muted">The run is one of the active revision, not of the one that is shown.</p>}
    </ActionDialog>
  );
}
