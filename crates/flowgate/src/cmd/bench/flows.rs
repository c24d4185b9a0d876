//! The flows that are measured.

use flowgate_core::flow::Flow;
use flowgate_engine::{HandlerError, StepContext, Workers};
use serde::de::IgnoredAny;
use serde_json::json;

/// A flow to measure.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// For each step: its name, what it subscribes to, what it emits.
    steps: &'static [(&'static str, &'static [&'static str], &'static [&'static str])],
}

pub(crate) const SINGLE: Scenario = Scenario { name: "single", steps: &[("a", &[], &[])] };

pub(crate) const CHAIN: Scenario = Scenario {
    name: "chain",
    steps: &[
        ("a", &[], &["a.done"]),
        ("b", &["a.done"], &["b.done"]),
        ("c", &["b.done"], &["c.done"]),
        ("d", &["c.done"], &["d.done"]),
        ("e", &["d.done"], &[]),
    ],
};

pub(crate) const DIAMOND: Scenario = Scenario {
    name: "diamond",
    steps: &[
        ("a", &[], &["a.left", "a.right"]),
        ("b", &["a.left"], &["b.done"]),
        ("c", &["a.right"], &["c.done"]),
        ("d", &["b.done", "c.done"], &[]),
    ],
};

pub(crate) const ALL: [&Scenario; 3] = [&SINGLE, &CHAIN, &DIAMOND];

impl Scenario {
    /// Registers a handler for each step that does nothing but emit what it declares.
    pub(crate) fn register(&self, workers: &mut Workers) {
        for (name, _, emits) in self.steps {
            let worker = format!("{}.{name}", self.name);
            workers.register(&worker, move |_: IgnoredAny, ctx: StepContext| async move {
                for event in *emits {
                    ctx.emit(event, &1)?;
                }
                Ok::<_, HandlerError>(())
            });
        }
    }

    /// The flow, with no-op handlers.
    pub(crate) fn flow(&self) -> Flow {
        let mut steps = serde_json::Map::new();
        for (name, needs, emits) in self.steps {
            let worker = format!("{}.{name}", self.name);
            let mut step = json!({ "run": { "worker": worker } });
            if !needs.is_empty() {
                step["subscribes"] = json!(needs);
            }
            if !emits.is_empty() {
                step["emits"] = json!(emits);
            }
            steps.insert((*name).to_owned(), step);
        }
        flow(self.name, &serde_json::Value::Object(steps))
    }
}

/// The flow with these steps.
pub(crate) fn flow(name: &str, steps: &serde_json::Value) -> Flow {
    let file = serde_json::from_value(json!({ "flow": name, "steps": steps }));
    Flow::new(file.expect("a scenario has the form of a flow")).expect("a scenario is valid")
}
