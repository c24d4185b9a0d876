//! Whether the run of a smoke test came out as expected.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::record::{SmokeMismatch, SmokeResult};
use super::settings::{SmokeTest, Wanted};
use crate::event::{Event, StoredEvent};
use crate::flow::{compile_schema, shortened};
use crate::payload::Payload;
use crate::run::Run;

/// Mismatches that are told apart; one more says that there are others.
pub const MISMATCHES_MAX: usize = 20;
/// Differences that one value may tell.
const DIFFERENCES_MAX: usize = 5;

/// How the run of a smoke test came out, by its record and its whole log.
pub fn check(test: &SmokeTest, run: &Run, log: &[StoredEvent]) -> SmokeResult {
    let mut mismatches = Vec::new();
    let wanted = test.expect.status.as_str();
    if run.status.as_str() != wanted {
        mismatches.push(mismatch("status", wanted, ended(run)));
    }
    let emitted = emitted(log);
    for (event, wanted) in &test.expect.emits {
        let path = format!("emits.{event}");
        match emitted.get(event.as_str()) {
            None => mismatches.push(mismatch(path, "the event", "it was not emitted")),
            Some(data) => compare(&path, wanted, &data.value(), &mut mismatches),
        }
    }
    let results = results(log);
    for (step, wanted) in &test.expect.result {
        let path = format!("result.{step}");
        match results.get(step.as_str()) {
            None => mismatches.push(mismatch(path, "a result", "the step did not succeed")),
            Some(result) => {
                let value = result.map_or(Value::Null, Payload::value);
                compare(&path, wanted, &value, &mut mismatches);
            }
        }
    }
    cut_short(&mut mismatches);
    SmokeResult { name: test.name.clone(), run_id: Some(run.run_id), mismatches }
}

/// Leaves so many mismatches as are told apart.
pub(super) fn cut_short(mismatches: &mut Vec<SmokeMismatch>) {
    if mismatches.len() > MISMATCHES_MAX {
        let more = mismatches.len() - MISMATCHES_MAX;
        mismatches.truncate(MISMATCHES_MAX);
        mismatches.push(mismatch("…", "no more", format!("{more} others")));
    }
}

/// The status of a run, and what failed.
pub(super) fn ended(run: &Run) -> String {
    let status = run.status.as_str();
    match &run.failure {
        None => status.to_owned(),
        Some(failure) => {
            let message = shortened(failure.error.message.to_string());
            format!("{status}: step `{}`: {message}", failure.step)
        }
    }
}

/// The data of each event of a run.
pub(super) fn emitted(log: &[StoredEvent]) -> BTreeMap<&str, Payload> {
    let mut emitted: BTreeMap<&str, Payload> = BTreeMap::new();
    for stored in log {
        if let Event::EventEmitted { event, data, .. } = &stored.event {
            emitted.entry(event).or_insert_with(|| data.clone());
        }
        if let Event::SignalTaken { signal_seq, events, .. } = &stored.event {
            let signal = log.iter().find(|other| other.seq == *signal_seq);
            let data = signal.map_or_else(Payload::null, |signal| signal.event.payload());
            for event in events {
                emitted.entry(event).or_insert_with(|| data.clone());
            }
        }
    }
    emitted
}

/// What each step that succeeded returned.
pub(super) fn results(log: &[StoredEvent]) -> BTreeMap<&str, Option<&Payload>> {
    let mut results = BTreeMap::new();
    for stored in log {
        if let Event::StepSucceeded { step, result, .. } = &stored.event {
            results.insert(Arc::as_ref(step), result.as_ref());
        }
    }
    results
}

fn compare(path: &str, wanted: &Wanted, found: &Value, mismatches: &mut Vec<SmokeMismatch>) {
    match wanted {
        Wanted::Equals(wanted) => {
            let mut differences = Vec::new();
            differ(path, wanted, found, &mut differences);
            mismatches.extend(differences);
        }
        Wanted::Schema(schema) => match compile_schema(schema) {
            Err(error) => {
                mismatches.push(mismatch(path, "a valid schema", shortened(error.to_string())));
            }
            Ok(validator) => {
                let errors = validator.iter_errors(found).take(DIFFERENCES_MAX);
                mismatches.extend(errors.map(|error| {
                    let place = format!("{path}{}", error.instance_path());
                    mismatch(place, "what the schema says", shortened(error.to_string()))
                }));
            }
        },
    }
}

/// Notes the places where two values differ, each as deep as both are objects or lists of one
/// length.
pub(super) fn differ(
    path: &str,
    wanted: &Value,
    found: &Value,
    differences: &mut Vec<SmokeMismatch>,
) {
    if differences.len() >= DIFFERENCES_MAX || is_same(wanted, found) {
        return;
    }
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (key, wanted) in wanted {
                let path = format!("{path}/{}", pointer_part(key));
                match found.get(key) {
                    Some(found) => differ(&path, wanted, found, differences),
                    None => differences.push(mismatch(path, text(wanted), "nothing")),
                }
            }
            for (key, found) in found.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
                let path = format!("{path}/{}", pointer_part(key));
                differences.push(mismatch(path, "nothing", text(found)));
            }
            differences.truncate(DIFFERENCES_MAX);
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (at, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                differ(&format!("{path}/{at}"), wanted, found, differences);
            }
        }
        (wanted, found) => differences.push(mismatch(path, text(wanted), text(found))),
    }
}

/// Whether two values mean the same: `1` and `1.0` do.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.is_f64() || other.is_f64()) && one.as_f64() == other.as_f64()
        }
        (one, other) => one == other,
    }
}

fn pointer_part(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

pub(super) fn text(value: &Value) -> String {
    shortened(value.to_string())
}

pub(super) fn mismatch(
    path: impl Into<String>,
    wanted: impl Into<String>,
    found: impl Into<String>,
) -> SmokeMismatch {
    SmokeMismatch { path: path.into(), wanted: wanted.into(), found: found.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::deploy::Settings;
    use crate::flow::Flow;
    use crate::ids::{Position, RunId};
    use crate::time::Timestamp;

    const FLOW: &str = "
flow: order
steps:
  start: {run: {worker: w}, emits: [paid]}
  approve: {subscribes: [paid], wait: {signal: ok}, emits: [approved]}
  ship: {subscribes: [approved], run: {worker: w}}";

    /// A run that has done what these events say.
    fn run_of(events: &Value) -> (Run, Vec<StoredEvent>) {
        let flow = Flow::parse(FLOW).expect("the test's flow is valid");
        let run_id = RunId(Uuid::from_u128(7));
        let input = json!({"flow": "order", "revision": flow.revision, "input": null});
        let started = json!({"type": "run.started", "data": input});
        let rest = events.as_array().expect("the test lists events");
        let event = |event: &Value| {
            // An event is only read if its type comes first, as it is written.
            let text = format!(r#"{{"type":{},"data":{}}}"#, event["type"], event["data"]);
            serde_json::from_str(&text).expect("the test's event is read")
        };
        let events: Vec<Event> = std::iter::once(&started).chain(rest).map(event).collect();
        let run = Run::fold(run_id, &[&flow], &events).expect("the test's log is folded");
        let stored = |(seq, event)| {
            let position = Position::counted(seq);
            StoredEvent { position, run_id, seq, at: Timestamp(0), event }
        };
        (run, (1..).zip(events).map(stored).collect())
    }

    fn succeeded(step: &str, result: &Value) -> Value {
        json!({"type": "step.succeeded", "data": {"step": step, "elapsed_us": 1, "result": result}})
    }

    fn good() -> Value {
        json!([
            {"type": "event.emitted", "data": {"step": "start", "event": "paid",
                "data": {"amount": 7, "items": ["a", "b"], "by/whom": "ann"}}},
            succeeded("start", &json!(null)),
            {"type": "signal.received", "data": {"signal": "ok", "data": {"level": 2}}},
            {"type": "signal.taken", "data":
                {"step": "approve", "signal_seq": 4, "events": ["approved"]}},
            succeeded("ship", &json!({"shipped": true})),
            {"type": "run.completed", "data": {}},
        ])
    }

    fn found(expect: &str, events: &Value) -> Vec<String> {
        let text = format!("smoke_tests: [{{name: one, expect: {expect}}}]");
        let settings = Settings::parse(&text).expect("the test's expectation is valid");
        let (run, log) = run_of(events);
        let result = check(&settings.smoke_tests[0], &run, &log);
        assert_eq!(result.has_passed(), result.mismatches.is_empty());
        result.mismatches.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_run_that_is_as_expected_passes() {
        for expect in [
            "{}",
            "{emits: {paid: {equals: {items: [a, b], amount: 7.0, by/whom: ann}}}}",
            "{emits: {paid: {schema: {required: [amount]}}, approved: {equals: {level: 2}}}}",
            "{result: {ship: {equals: {shipped: true}}, start: {equals: null}}}",
        ] {
            assert_eq!(found(expect, &good()), Vec::<String>::new(), "{expect}");
        }
    }

    #[test]
    fn a_mismatch_names_the_place_and_both_values() {
        let rows = [
            ("{status: failed}", vec!["status: wanted failed, found completed"]),
            (
                "{emits: {paid: {equals: {items: [a, c], amount: 8, more: 1}}}}",
                vec![
                    "emits.paid/items/1: wanted \"c\", found \"b\"",
                    "emits.paid/amount: wanted 8, found 7",
                    "emits.paid/more: wanted 1, found nothing",
                    "emits.paid/by~1whom: wanted nothing, found \"ann\"",
                ],
            ),
            (
                "{emits: {paid: {schema: {properties: {amount: {maximum: 5}}}}}}",
                vec![
                    "emits.paid/amount: wanted what the schema says, found 7 is greater than the maximum of 5",
                ],
            ),
            (
                "{emits: {lost: {equals: 1}}, result: {approve: {equals: 1}}}",
                vec![
                    "emits.lost: wanted the event, found it was not emitted",
                    "result.approve: wanted a result, found the step did not succeed",
                ],
            ),
        ];
        for (expect, mut wanted) in rows {
            let mut found = found(expect, &good());
            found.sort();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{expect}");
        }
    }

    #[test]
    fn a_run_that_fails_says_why() {
        let failed = json!([
            {"type": "step.failed", "data": {"step": "start", "elapsed_us": 1,
                "error": {"kind": "failed", "message": "no such order"}}},
            {"type": "run.failed", "data": {"step": "start"}},
        ]);
        let wanted = "status: wanted completed, found failed: step `start`: no such order";
        assert_eq!(found("{}", &failed), [wanted]);
        assert_eq!(found("{status: failed}", &failed), Vec::<String>::new());
    }

    #[test]
    fn many_differences_are_cut_short() {
        let list: Vec<String> = (0..50).map(|number| format!("k{number}: 1")).collect();
        let expect = format!("{{emits: {{paid: {{equals: {{{}}}}}}}}}", list.join(", "));
        assert_eq!(found(&expect, &good()).len(), DIFFERENCES_MAX);
    }
}
