use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::commit::Due;
use crate::decide::{self, Attempt, Outcome, Report, Start};
use crate::event::{ErrorKind, LeaseStamp};
use crate::gate::GateStamp;
use crate::ids::{CommitId, InstanceId, JobId, LeaseToken, Position};
use crate::run::SHADOW_TAG;

const OLD: &str = "
flow: order
steps:
  start: {run: {worker: w}, emits: [order.ready]}
  pay: {subscribes: [order.ready], run: {worker: w}, effect: true, emits: [paid, refused]}
  wait: {subscribes: [paid], wait: {signal: ok}, emits: [approved]}
  ship: {subscribes: [approved], run: {worker: w}, emits: [shipped]}
  mail: {subscribes: [refused], run: {worker: w}, effect: true}
";

/// A run and its log, moved on by hand.
struct Story {
    flow: Flow,
    run: Arc<Run>,
    log: Vec<StoredEvent>,
}

impl Story {
    fn new(text: &str, number: u128, shadow_of: Option<RunId>) -> Self {
        let flow = Flow::parse(text).unwrap();
        let tags = shadow_of.map(|run_id| (SHADOW_TAG.into(), run_id.to_string().into()));
        let start = Start {
            run_id: RunId(Uuid::from_u128(number)),
            input: Payload::of(&json!({ "id": 7 })).unwrap(),
            key: None,
            tags: tags.into_iter().collect(),
            priority: None,
            due: Due::Now,
            gate: GateStamp::default(),
            instance: None,
            pool: None,
        };
        let commit = decide::start(&flow, &start, CommitId(Uuid::nil()));
        let mut story = Self { flow, run: Arc::clone(&commit.record), log: Vec::new() };
        story.apply(commit);
        story
    }

    fn apply(&mut self, commit: crate::commit::Commit) {
        for event in commit.events {
            let seq = u64::try_from(self.log.len()).unwrap() + 1;
            let (position, run_id) = (Position::counted(seq), self.run.run_id);
            self.log.push(StoredEvent { position, run_id, seq, at: Timestamp(0), event });
        }
        self.run = commit.record;
    }

    fn report(&mut self, report: &Report) {
        let commit = decide::decide(&self.flow, &self.run, report, CommitId(Uuid::nil())).unwrap();
        self.apply(commit);
    }

    fn end(&mut self, step: &str, outcome: Outcome) {
        let step = self.flow.step_index(step).unwrap();
        assert_eq!(self.run.step(step).state, StepState::Queued);
        let stamp = LeaseStamp {
            attempt: 1,
            token: LeaseToken(u64::try_from(self.log.len()).unwrap()),
            instance: InstanceId("a".into()),
        };
        let job_id = JobId { run_id: self.run.run_id, step };
        let attempt = Attempt { job_id, stamp, lost: Vec::new(), logged: false };
        let elapsed = std::time::Duration::ZERO;
        self.report(&Report::AttemptEnded { attempt, outcome, elapsed, random: 0.0 });
    }

    /// A step ends well, with an event and a result.
    fn done(&mut self, step: &str, emit: Option<(&str, &Value)>, result: &Value) {
        let payload = |value: &Value| Payload::of(value).unwrap();
        let emits = emit.iter().map(|(event, data)| ((*event).into(), payload(data))).collect();
        let result = (!result.is_null()).then(|| payload(result));
        self.end(step, Outcome::Succeeded(Output { emits, state: Vec::new(), result }));
    }

    /// Ends all that is not executed as it was in `original`.
    fn stub(&mut self, map: &StepMap, original: &Original) {
        while let Some(index) = decide::unstubbed(&self.flow, &self.run) {
            let ending = stub(&self.flow, map, index, original);
            let commit =
                decide::stub(&self.flow, &self.run, index, &ending, CommitId(Uuid::nil())).unwrap();
            assert!(commit.jobs.iter().all(|job| !format!("{job:?}").contains("Timer")));
            self.apply(commit);
        }
    }

    fn state(&self, step: &str) -> StepState {
        self.run.step(self.flow.step_index(step).unwrap()).state
    }

    fn original(&self) -> Original {
        Original::new(Arc::clone(&self.run), self.log.clone()).expect("it can be compared with")
    }
}

/// A run of the old revision that has completed.
fn completed() -> Story {
    let mut story = Story::new(OLD, 1, None);
    story.done("start", Some(("order.ready", &json!({ "sum": 5, "at": 1 }))), &json!(null));
    story.done("pay", Some(("paid", &json!({ "receipt": "r1" }))), &json!({ "ok": true }));
    let data = Payload::of(&json!({ "by": "ann" })).unwrap();
    story.report(&Report::Signal { signal: "ok".into(), data });
    story.done("ship", Some(("shipped", &json!({ "box": 3 }))), &json!({ "box": 3 }));
    assert_eq!(story.run.status, RunStatus::Completed);
    story
}

fn map(new: &Flow, renamed: &[(&str, &str)]) -> StepMap {
    let names = renamed.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned()));
    StepMap::new((&Flow::parse(OLD).unwrap(), new), &names.collect()).unwrap()
}

fn differences(new: &Story, map: &StepMap, ignored: &[&str]) -> Vec<String> {
    let ignored: Vec<Ignored> = ignored.iter().map(|text| text.parse().unwrap()).collect();
    let old = Flow::parse(OLD).unwrap();
    let pair = Pair { old: &old, new: &new.flow, map };
    let result = compare(&pair, &ignored, &completed().original(), (&new.run, &new.log));
    assert_eq!((result.original, result.run_id), (completed().run.run_id, new.run.run_id));
    result.mismatches.iter().map(ToString::to_string).collect()
}

/// A shadow of the run that has completed, in which `start` and `ship` say this.
fn shadow(text: &str, start: &Value, ship: &Value) -> (Story, StepMap) {
    let original = completed();
    let mut story = Story::new(text, 2, Some(original.run.run_id));
    let map = map(&story.flow, &[]);
    story.done("start", Some(("order.ready", start)), &json!(null));
    story.stub(&map, &original.original());
    story.done("ship", Some(("shipped", ship)), ship);
    story.stub(&map, &original.original());
    assert_eq!(story.run.status, RunStatus::Completed);
    (story, map)
}

#[test]
fn an_effect_and_a_wait_end_as_they_did_and_nobody_can_claim_them() {
    let original = completed().original();
    let mut story = Story::new(OLD, 2, Some(original.run.run_id));
    story.done("start", Some(("order.ready", &json!({ "sum": 5, "at": 1 }))), &json!(null));
    assert_eq!((story.state("pay"), story.run.status), (StepState::Waiting, RunStatus::Waiting));
    let map = map(&story.flow, &[]);
    story.stub(&map, &original);
    assert_eq!(
        (story.state("pay"), story.state("wait")),
        (StepState::Succeeded, StepState::Succeeded)
    );
    assert_eq!(story.state("ship"), StepState::Queued, "what has no effect is executed");
    story.done("ship", Some(("shipped", &json!({ "box": 3 }))), &json!({ "box": 3 }));
    assert_eq!(differences(&story, &map, &[]), Vec::<String>::new());
    let flow = story.flow.clone();
    assert_eq!(
        crate::check::check_run(&[&flow], story.run.run_id, &story.log, Some(&story.run)),
        []
    );
}

#[test]
fn a_difference_names_the_place_and_both_values() {
    let (story, map) = shadow(OLD, &json!({ "sum": 6, "at": 2 }), &json!({ "box": 4 }));
    assert_eq!(
        differences(&story, &map, &["result.ship"]),
        [
            "emits.order.ready/at: wanted 1, found 2",
            "emits.order.ready/sum: wanted 5, found 6",
            "emits.shipped/box: wanted 3, found 4",
        ]
    );
    let ignored =
        ["emits.order.ready/at", "emits.order.ready/sum", "emits.shipped", "result.ship/box"];
    assert_eq!(differences(&story, &map, &ignored), Vec::<String>::new());
}

#[test]
fn another_way_through_the_flow_is_a_difference() {
    // The payment is not asked for any more.
    let other = OLD.replace(
        "[order.ready], run: {worker: w}, effect",
        "[order.late], run: {worker: w}, effect",
    );
    let other = other.replace("emits: [order.ready]", "emits: [order.ready, order.late]");
    let original = completed();
    let mut story = Story::new(&other, 2, Some(original.run.run_id));
    let map = map(&story.flow, &[]);
    story.done("start", Some(("order.ready", &json!({ "sum": 5, "at": 1 }))), &json!(null));
    assert_eq!(story.run.status, RunStatus::Completed);
    assert_eq!(
        differences(&story, &map, &["steps.ship", "steps.wait"]),
        [
            "steps.pay: wanted succeeded, found skipped",
            r#"emits.approved: wanted {"by":"ann"}, found nothing"#,
            r#"emits.paid: wanted {"receipt":"r1"}, found nothing"#,
            r#"emits.shipped: wanted {"box":3}, found nothing"#,
            r#"result.pay: wanted {"ok":true}, found nothing"#,
            r#"result.ship: wanted {"box":3}, found nothing"#,
        ]
    );
}

#[test]
fn an_effect_that_only_one_revision_has_is_a_difference() {
    let added = format!(
        "{OLD}  post: {{subscribes: [shipped], run: {{worker: w}}, effect: true, emits: [sent]}}\n"
    );
    let (story, map) = shadow(&added, &json!({ "sum": 5, "at": 1 }), &json!({ "box": 3 }));
    assert_eq!(story.state("post"), StepState::Succeeded, "without its events");
    let found = ["steps.post: wanted no such step, found succeeded"];
    assert_eq!(differences(&story, &map, &[]), found);
    assert_eq!(differences(&story, &map, &["steps.post"]), Vec::<String>::new());
    let plan = ShadowPlan::of(&story.flow, 3);
    assert_eq!(quoted(&plan.executed), "`start`, `ship`");
    assert_eq!(quoted(&plan.stubbed), "`pay`, `wait`, `mail`, `post`");
    let old = Flow::parse(OLD).unwrap();
    let warnings = plan.warnings((&old, &story.flow), &map);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[1].contains("add `steps.post` to `shadow.ignore`"), "{warnings:?}");
}

#[test]
fn a_step_with_another_name_ends_as_the_one_that_it_stands_for() {
    let renamed = OLD.replace("pay:", "charge:").replace("ship:", "send:");
    let original = completed().original();
    let mut story = Story::new(&renamed, 2, Some(original.run.run_id));
    let map = map(&story.flow, &[("pay", "charge"), ("ship", "send")]);
    story.done("start", Some(("order.ready", &json!({ "sum": 5, "at": 1 }))), &json!(null));
    story.stub(&map, &original);
    story.done("send", Some(("shipped", &json!({ "box": 3 }))), &json!({ "box": 3 }));
    assert_eq!(differences(&story, &map, &[]), Vec::<String>::new());
}

#[test]
fn what_the_original_did_not_come_to_ends_without_events() {
    let timed =
        OLD.replace("wait: {signal: ok}", "wait: {delay: 1h}").replace("wait: {sub", "nap: {sub");
    let original = completed().original();
    let mut story = Story::new(&timed, 2, Some(original.run.run_id));
    let map = map(&story.flow, &[]);
    // It refuses where the original paid, and mails where that did not.
    story.done("start", Some(("order.ready", &json!({ "sum": 5, "at": 1 }))), &json!(null));
    let nap = story.flow.step_index("nap").unwrap();
    let Stub::Succeeded(output) = stub(&story.flow, &map, nap, &original) else {
        panic!("it fails")
    };
    assert_eq!(output.emits, [("approved".into(), Payload::null())], "a delay is over at once");
    let mail = story.flow.step_index("mail").unwrap();
    let Stub::Succeeded(output) = stub(&story.flow, &map, mail, &original) else {
        panic!("it fails")
    };
    assert!(output.emits.is_empty() && output.result.is_none());
}

#[test]
fn a_step_that_failed_fails_again() {
    let text = "
flow: order
steps:
  pay: {run: {worker: w}, effect: true, retry: {attempts: 1}}
  mail: {subscribes: ['step.failed:pay'], run: {worker: w}, effect: true}
";
    let mut story = Story::new(text, 1, None);
    let error = StepError { kind: ErrorKind::Failed, message: "no funds".into() };
    story.end("pay", Outcome::Failed { error: error.clone(), retry_after: None });
    story.done("mail", None, &json!(null));
    let original = story.original();
    let mut shadow = Story::new(text, 2, Some(original.run.run_id));
    let map = StepMap::new((&story.flow, &shadow.flow), &BTreeMap::new()).unwrap();
    shadow.stub(&map, &original);
    assert_eq!(
        (shadow.state("pay"), shadow.state("mail")),
        (StepState::Failed, StepState::Succeeded)
    );
    let pair = Pair { old: &story.flow, new: &shadow.flow, map: &map };
    let result = compare(&pair, &[], &original, (&shadow.run, &shadow.log));
    assert!(result.is_same() && shadow.run.status == RunStatus::Completed, "{result:?}");
}

#[test]
fn a_run_is_compared_with_if_its_log_says_all_of_it() {
    let story = completed();
    let run = |change: fn(&mut Run)| {
        let mut run = (*story.run).clone();
        change(&mut run);
        Original::new(Arc::new(run), story.log.clone()).is_some()
    };
    assert!(run(|_| {}));
    assert!(!run(|run| run.status = RunStatus::Failed));
    assert!(!run(|run| run.retry_of = Some(run.run_id)));
    assert!(!run(|run| run.version += 1), "a part of the log is gone");
    let shadow: fn(&mut Run) = |run| drop(run.tags.insert(SHADOW_TAG.into(), "a".into()));
    assert!(!run(shadow));
}

#[test]
fn a_shadow_run_is_not_tried_again_and_needs_no_repair() {
    let mut story = Story::new(OLD, 2, Some(RunId(Uuid::from_u128(1))));
    story.done("start", Some(("order.ready", &json!(1))), &json!(null));
    let version = story.run.version;
    let repair = Report::Reconcile { version, jobs: Vec::new() };
    let nothing = decide::decide(&story.flow, &story.run, &repair, CommitId(Uuid::nil()));
    assert_eq!(nothing.unwrap_err(), decide::Rejection::NothingToDo);
    story.report(&Report::Cancel { reason: None });
    let new = decide::RetryAs {
        run_id: RunId(Uuid::from_u128(3)),
        commit_id: CommitId(Uuid::nil()),
        gate: 0,
        instance: None,
        pool: None,
    };
    let again = decide::retry((&story.flow, &story.flow), &story.run, &story.log, None, &new);
    assert_eq!(again.unwrap_err(), decide::Rejection::RunShadow);
}
