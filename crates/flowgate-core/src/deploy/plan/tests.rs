use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::event::RunStarted;
use crate::flow::Span;
use crate::payload::Payload;
use crate::run::StepState;

const OLD: &str = "
flow: order
steps:
  start: {emits: [paid, stocked], run: {worker: w}}
  charge: {subscribes: [paid], emits: [charged, refused], run: {worker: w}}
  approve: {subscribes: [stocked], wait: {signal: approval}, emits: [approved]}
  ship: {subscribes: [charged, approved], run: {worker: w}}
  mourn: {subscribes: {any: [refused]}, run: {worker: w}}
";

fn flow(text: &str) -> Flow {
    Flow::parse(text).expect("the test's flow is valid")
}

fn state(name: &str) -> StepState {
    serde_json::from_value(name.into()).expect("the test names a state")
}

/// A run with these steps (`charge=running`) and these slots filled.
fn run(flow: &Flow, number: u128, steps: &str, slots: &str) -> Run {
    let started = RunStarted {
        flow: Arc::clone(&flow.name),
        revision: flow.revision.clone(),
        input: Payload::null(),
        key: None,
        tags: BTreeMap::new(),
        retry_of: None,
        priority: None,
        hold: None,
        instance: None,
        pool: None,
    };
    let mut run = Run::new(RunId(Uuid::from_u128(number)), flow, &started);
    for (name, is) in steps.split_whitespace().filter_map(|step| step.split_once('=')) {
        let index = flow.step_index(name).expect("the test's step is there");
        run.steps[index.at()].state = state(is);
        run.open += u32::from(state(is).is_open());
    }
    for name in slots.split_whitespace() {
        let slot = flow.slot_index(name).expect("the test's slot is there");
        run.slots[slot.at()] = 2;
    }
    run
}

fn blue_green() -> Settings {
    Settings { strategy: Strategy::BlueGreen, ..Settings::default() }
}

fn map(old: &Flow, new: &Flow, names: &str) -> StepMap {
    let names = names.split_whitespace().filter_map(|pair| pair.split_once('='));
    let names = names.map(|(old, new)| (old.to_owned(), new.to_owned())).collect();
    StepMap::new((old, new), &names).expect("the test's map fits")
}

/// The fate of a run, in a few words.
fn words(fate: &Fate) -> String {
    match fate {
        Fate::Finishes => "finishes".to_owned(),
        Fate::Resumes { steps, starts } if starts.is_empty() => steps.join(" "),
        Fate::Resumes { steps, starts } => format!("{} + {}", steps.join(" "), starts.join(" ")),
        Fate::Pinned { reason } => reason.clone(),
    }
}

fn check(new: &str, names: &str, (steps, slots): (&str, &str), wanted: &str) {
    let (old, new) = (flow(OLD), flow(new));
    let map = map(&old, &new, names);
    let settings = blue_green();
    let change = Change { old: &old, new: &new, map: &map, settings: &settings };
    let found = words(&fate(&change, &run(&old, 1, steps, slots)));
    assert_eq!(found, wanted, "{steps} with {slots} under {names}");
}

const CHARGING: (&str, &str) = ("start=succeeded charge=running approve=waiting", "paid stocked");
const SHIPPING: (&str, &str) = (
    "start=succeeded charge=succeeded approve=succeeded ship=queued",
    "paid stocked charged approved",
);

#[test]
fn a_run_goes_on_at_the_steps_of_the_same_name() {
    check(OLD, "", ("start=running", ""), "start");
    check(OLD, "", CHARGING, "charge approve");
    check(OLD, "", SHIPPING, "ship");
    check(OLD, "", ("start=succeeded charge=failed approve=waiting", "paid stocked"), "approve");
}

#[test]
fn a_run_goes_on_at_the_steps_of_the_map() {
    let new = OLD.replace("charge:", "debit:").replace("start:", "begin:");
    check(
        &new,
        "",
        CHARGING,
        "step `start` is succeeded, and no step of the new revision stands for it",
    );
    check(
        &new,
        "start=begin",
        CHARGING,
        "step `charge` is running, and no step of the new revision stands for it",
    );
    check(&new, "start=begin charge=debit", CHARGING, "debit approve");
    check(&new, "start=begin charge=debit", SHIPPING, "ship");
    // `mourn` of the old revision has lost its namesake to `charge`.
    check(
        OLD,
        "charge=mourn",
        ("start=succeeded mourn=running", "paid refused"),
        "step `mourn` is running, and no step of the new revision stands for it",
    );
}

#[test]
fn a_wait_goes_on_as_a_wait_for_the_same_signal() {
    let worker = OLD.replace("wait: {signal: approval}", "run: {worker: w}");
    check(&worker, "", CHARGING, "step `approve` waits, and `approve` is no wait");
    let other = OLD.replace("signal: approval", "signal: consent");
    check(
        &other,
        "",
        CHARGING,
        "step `approve` waits for the signal `approval`, and `approve` does not",
    );
    let delay = OLD.replace("signal: approval", "delay: 1h");
    check(
        &delay,
        "",
        CHARGING,
        "step `approve` waits for the signal `approval`, and `approve` does not",
    );
    let waiting =
        OLD.replace("charged, refused], run: {worker: w}", "charged, refused], wait: {delay: 1s}");
    check(&waiting, "", CHARGING, "step `charge` is running, and `charge` is a wait");
    // What is over may have been anything.
    check(&waiting, "", SHIPPING, "ship");
}

#[test]
fn an_open_step_needs_its_input() {
    let new = OLD.replace("subscribes: [charged, approved]", "subscribes: [charged, refused]");
    check(
        &new,
        "",
        SHIPPING,
        "step `ship` is open and needs `refused`, which the run does not have",
    );
    let any =
        OLD.replace("subscribes: [charged, approved]", "subscribes: {any: [refused, charged]}");
    check(&any, "", SHIPPING, "ship");
    let inserted = OLD.replace(
        "ship: {subscribes: [charged, approved]",
        "pack: {subscribes: [charged, approved], emits: [packed], run: {worker: w}}\n  ship: {subscribes: [packed]",
    );
    check(
        &inserted,
        "",
        SHIPPING,
        "step `ship` is open and needs `packed`, which the run does not have",
    );
    check(&inserted, "", CHARGING, "charge approve");
}

#[test]
fn no_step_is_left_waiting_for_what_can_no_longer_come() {
    let new = OLD
        .replace("emits: [paid, stocked]", "emits: [paid, stocked, insured]")
        .replace("[charged, approved]", "[charged, approved, insured]");
    check(
        &new,
        "",
        CHARGING,
        "step `ship` needs `insured`, which `start` emits on the new revision only, and it has ended on the old one",
    );
    check(&new, "", ("start=running", ""), "start");
    // `refused` could have been emitted and was not: `mourn` is never asked for, as before.
    let approving = ("start=succeeded charge=succeeded approve=waiting", "paid stocked charged");
    check(OLD, "", approving, "approve");
}

#[test]
fn nothing_new_comes_before_what_has_begun() {
    let new = OLD.replace(
        "charge: {subscribes: [paid]",
        "vet: {subscribes: [paid], emits: [vetted], run: {worker: w}}\n  charge: {subscribes: {any: [vetted, paid]}",
    );
    let late = "step `vet` comes before `charge`, which has begun without it";
    check(&new, "", SHIPPING, late);
    check(&new, "", CHARGING, late);
    check(&new, "", ("start=running", ""), "start");
}

#[test]
fn a_new_step_starts_if_all_that_it_needs_is_there() {
    let new = format!("{OLD}  note: {{subscribes: [charged]}}\n");
    check(&new, "", SHIPPING, "ship + note");
    check(&new, "", CHARGING, "charge approve");
    // When a step ended is only written down where a step of its revision subscribes to that.
    let new = format!("{OLD}  note: {{subscribes: ['step:charge']}}\n");
    let unknown = "a step waits for `charge` to be succeeded, and when it was is not known";
    check(&new, "", SHIPPING, unknown);
    check(&new, "", CHARGING, "charge approve");
    let failing = format!("{OLD}  note: {{subscribes: ['step.failed:charge']}}\n");
    let failed = ("start=succeeded charge=failed approve=waiting", "paid stocked");
    let unknown = "a step waits for `charge` to be failed, and when it was is not known";
    check(&failing, "", failed, unknown);
}

#[test]
fn a_plan_lists_each_run_with_its_fate() {
    let old = flow(OLD);
    let new = flow(&OLD.replace("mourn:", "grieve:"));
    let map = map(&old, &new, "");
    let settings = blue_green();
    let change = Change { old: &old, new: &new, map: &map, settings: &settings };
    let runs = [
        run(&old, 1, "start=running", ""),
        run(&old, 2, CHARGING.0, CHARGING.1),
        run(&old, 3, "start=succeeded charge=succeeded mourn=queued", "paid refused"),
    ];
    let open = |at: usize, ends_by: Option<i64>| OpenRun {
        run: &runs[at],
        ends_by: ends_by.map(Timestamp),
    };
    let plan_of = |change: &Change<'_>| {
        let open = [open(0, Some(30_000)), open(1, Some(30_001)), open(2, None)];
        plan(change, &open, Timestamp(0))
    };
    let found = plan_of(&change).unwrap();
    assert_eq!((found.finishing, found.resuming, found.pinned), (1, 1, 1));
    let fates: Vec<&str> = found.runs.iter().map(|run| run.fate.as_str()).collect();
    assert_eq!(fates, ["finishes", "resumes", "pinned"]);
    assert_eq!(found.runs[1].at, ["charge".into(), "approve".into()]);
    let json = serde_json::to_string(&found).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), found);

    let all = Settings { migration: Migration::All, ..blue_green() };
    let refusal = plan_of(&Change { settings: &all, ..change }).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "1 open runs have no place in the new revision: 00000000-0000-0000-0000-000000000003 \
         (step `mourn` is queued, and no step of the new revision stands for it); map their steps, \
         or leave out `migrate: true` and let them finish"
    );
    let never = Settings { migration: Migration::Never, ..blue_green() };
    assert_eq!(plan_of(&Change { settings: &never, ..change }).unwrap().pinned, 2);
    let rolling = Settings { drain_timeout: Span(Duration::ZERO), ..Settings::default() };
    assert_eq!(plan_of(&Change { settings: &rolling, ..change }).unwrap().finishing, 3);
}

#[test]
fn a_step_map_names_steps_that_are_there() {
    let (old, new) = (flow(OLD), flow(&OLD.replace("charge:", "debit:")));
    let rows = [
        ("chrage=debit", "the old revision has no step `chrage`; did you mean `charge`?"),
        ("charge=debti", "the new revision has no step `debti`; did you mean `debit`?"),
        (
            "charge=debit start=debit",
            "`charge` and `start` both become `debit`; map one of them to another step, or to none",
        ),
    ];
    for (names, wanted) in rows {
        let names = names.split_whitespace().filter_map(|pair| pair.split_once('='));
        let names = names.map(|(old, new)| (old.to_owned(), new.to_owned())).collect();
        let refusal = StepMap::new((&old, &new), &names).unwrap_err();
        assert_eq!(refusal.to_string(), format!("steps: {wanted}"));
    }
}

#[test]
fn a_deployment_is_refused_that_changes_nothing_or_goes_back_unasked() {
    let [older, active, newer] = ["aa", "bb", "cc"].map(|name| Revision(name.into()));
    let standing = Standing { active: &active, is_older: false, open: None };
    assert_eq!(admit(&newer, &standing, false), Ok(()));
    let behind = Standing { is_older: true, ..standing };
    assert_eq!(admit(&older, &behind, true), Ok(()));
    let back = Refusal::Older { revision: older.clone(), active: active.clone() };
    assert_eq!(admit(&older, &behind, false), Err(back));
    for is_forced in [false, true] {
        let same = Refusal::Active { revision: active.clone() };
        assert_eq!(admit(&active, &standing, is_forced), Err(same));
        let deployment_id = DeploymentId("01J".into());
        let busy = Standing { open: Some(&deployment_id), ..standing };
        let refusal = Refusal::InProgress { deployment_id: deployment_id.clone() };
        assert_eq!(admit(&newer, &busy, is_forced), Err(refusal));
    }
}
