//! What the instances run: flows of several shapes, with steps that leave a mark in the sink.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::Flow;
use flowgate_engine::{HandlerError, StepContext, Workers};
use serde_json::{Value, json};

use crate::sink::SinkClient;

/// The name of the handler of every step.
const WORKER: &str = "chaos";
/// Of a hundred attempts that succeed, those that take a good part of a lease.
const LONG_PERCENT: u8 = 12;
/// Attempts of a step that may fail: more than chance can use up.
const ATTEMPTS: u32 = 50;

/// Every shape of flow, by name.
pub(crate) fn all() -> BTreeMap<&'static str, Flow> {
    let retry = json!({ "attempts": ATTEMPTS, "backoff": { "initial": "20ms", "factor": 1.5, "max": "1s" } });
    let step = |subscribes: Value, emits: &[&str]| {
        let mut step = json!({ "run": { "worker": WORKER }, "emits": emits, "retry": retry });
        if !subscribes.is_null() {
            step["subscribes"] = subscribes;
        }
        step
    };
    let chain = json!({ "flow": "chain", "steps": {
        "a": step(Value::Null, &["a.done"]),
        "b": step(json!(["a.done"]), &["b.done"]),
        "c": step(json!(["b.done"]), &["c.done"]),
        "d": step(json!(["c.done"]), &["d.done"]),
        "e": step(json!(["d.done"]), &[]),
    } });
    let diamond = json!({ "flow": "diamond", "steps": {
        "begin": step(Value::Null, &["left", "right"]),
        "one": step(json!(["left"]), &["one.done"]),
        "other": step(json!(["right"]), &["other.done"]),
        "join": step(json!(["one.done", "other.done"]), &["joined"]),
        "pause": { "subscribes": ["joined"], "wait": { "delay": "50ms" } },
        "last": step(json!(["step:pause"]), &[]),
    } });
    let parts: Vec<String> = (0..8).map(|part| format!("part{part}")).collect();
    let dones: Vec<String> = (0..8).map(|part| format!("done{part}")).collect();
    let mut fan = json!({ "flow": "fan", "steps": {
        "split": { "run": { "worker": WORKER }, "emits": parts, "retry": retry },
        "join": { "subscribes": dones, "run": { "worker": WORKER }, "retry": retry },
    } });
    for (part, done) in parts.iter().zip(&dones) {
        fan["steps"][format!("on-{part}")] = step(json!([part]), &[done]);
    }
    let mut rescue = json!({ "flow": "rescue", "steps": {
        "risky": { "run": { "worker": WORKER }, "emits": ["fine"], "retry": { "attempts": 1 } },
        "carry-on": step(json!(["fine"]), &["ended"]),
        "rescue": step(json!(["step.failed:risky"]), &["saved"]),
        "close": step(json!({ "any": ["ended", "saved"] }), &[]),
    } });
    // A lost lease must not use up the only attempt: what fails here fails on purpose.
    rescue["steps"]["risky"]["timeout"] = json!("60s");
    let flows = [chain, diamond, fan, rescue];
    let build = |file: Value| {
        let file = serde_json::from_value(file).expect("these flows are written as files are");
        Flow::new(file).expect("these flows are valid")
    };
    flows.into_iter().map(build).map(|flow| (name_of(&flow), flow)).collect()
}

fn name_of(flow: &Flow) -> &'static str {
    ["chain", "diamond", "fan", "rescue"]
        .into_iter()
        .find(|name| **name == *flow.name)
        .expect("every flow here has one of these names")
}

/// The handlers, which tell `sink` of every execution before they end.
pub(crate) fn workers(sink: &Arc<SinkClient>, lease: Duration) -> Workers {
    let mut workers = Workers::new();
    let sink = Arc::clone(sink);
    workers.register(WORKER, move |_: Value, ctx: StepContext| {
        let sink = Arc::clone(&sink);
        async move {
            // What fails takes its time, so that it often fails when its lease is gone.
            let fails = fails(&ctx);
            let long = fails || fastrand::u8(0..100) < LONG_PERCENT;
            let pause = if long {
                lease.mul_f64(0.3 + fastrand::f64() * 0.6)
            } else {
                Duration::from_micros(fastrand::u64(0..20_000))
            };
            tokio::time::sleep(pause).await;
            sink.record(&ctx.key(), ctx.attempt()).await?;
            if fails {
                return Err(HandlerError::retryable("planned failure"));
            }
            if ctx.step() == "one" {
                ctx.state_set("seen", &ctx.attempt())?;
            }
            for event in emits(ctx.flow(), ctx.step()) {
                ctx.emit(&event, &json!({ "by": ctx.key() }))?;
            }
            Ok::<_, HandlerError>(())
        }
    });
    workers
}

/// Whether this attempt fails: by the run for the risky step, by chance for one other.
fn fails(ctx: &StepContext) -> bool {
    match ctx.step() {
        "risky" => ctx.run_id().0.as_u128().is_multiple_of(3),
        "other" | "c" => fastrand::u8(0..3) == 0,
        _ => false,
    }
}

/// What a step emits when it succeeds: all that it may.
fn emits(flow: &str, step: &str) -> Vec<String> {
    match (flow, step) {
        ("chain", "e") | ("diamond", "last") | ("fan", "join") | ("rescue", "close") => Vec::new(),
        ("diamond", "begin") => vec!["left".into(), "right".into()],
        ("diamond", "join") => vec!["joined".into()],
        ("chain" | "diamond", step) => vec![format!("{step}.done")],
        ("fan", "split") => (0..8).map(|part| format!("part{part}")).collect(),
        ("fan", step) => vec![step.replace("on-part", "done")],
        ("rescue", "risky") => vec!["fine".into()],
        ("rescue", "carry-on") => vec!["ended".into()],
        ("rescue", "rescue") => vec!["saved".into()],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_emits_what_its_flow_lets_it_emit() {
        for (name, flow) in all() {
            for step in &flow.steps {
                let may: Vec<&str> = step.emits.iter().map(|s| &*flow.slot(*s).name).collect();
                let does =
                    if &*step.name == "pause" { Vec::new() } else { emits(name, &step.name) };
                assert_eq!(does, may, "{name}/{}", step.name);
            }
        }
    }
}
