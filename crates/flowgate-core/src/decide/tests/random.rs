//! Random flows under random reports, with losses, repeats and lease expiries.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::world::{World, ended, failure, parked, released, success};
use super::super::{Attempt, Report};
use crate::commit::{Commit, JobKind};
use crate::event::ErrorKind;
use crate::flow::{Flow, FlowFile, Needs};
use crate::ids::JobId;
use crate::payload::Payload;
use crate::run::Run;

/// One step of a random flow, as numbers that pick from what is there.
#[derive(Clone, Debug)]
struct Shape {
    action: u8,
    any: bool,
    needs: Vec<u16>,
    emits: u8,
    shared_event: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let needs = prop::collection::vec(any::<u16>(), 1..4);
    (0..6_u8, any::<bool>(), needs, 0..3_u8, any::<bool>()).prop_map(
        |(action, any, needs, emits, shared_event)| Shape {
            action,
            any,
            needs,
            emits,
            shared_event,
        },
    )
}

fn random_flow() -> impl Strategy<Value = Flow> {
    prop::collection::vec(shape(), 1..8).prop_filter_map("the flow is not valid", |shapes| {
        let file: FlowFile = serde_json::from_value(to_file(&shapes)).ok()?;
        Flow::new(file).ok()
    })
}

fn to_file(shapes: &[Shape]) -> Value {
    let mut steps = serde_json::Map::new();
    let mut offers: Vec<String> = Vec::new();
    for (at, shape) in shapes.iter().enumerate() {
        let name = format!("s{at}");
        let mut step = json!({});
        let mut emits: Vec<String> = (0..shape.emits).map(|n| format!("e{at}.{n}")).collect();
        if shape.shared_event && shape.emits > 0 {
            emits.push("shared".to_owned());
        }
        match shape.action {
            0 => emits.clear(),
            1 => step["wait"] = json!({ "delay": "1h" }),
            2 => {
                let on_timeout = match (shape.emits, emits.first()) {
                    (0, _) => json!("fail"),
                    (1, Some(first)) => json!({ "emit": first }),
                    (_, _) => json!("continue"),
                };
                step["wait"] = json!({ "signal": "go", "timeout": "1h", "on_timeout": on_timeout });
            }
            _ => {
                step["run"] = json!({ "worker": "w" });
                step["retry"] = json!({ "attempts": 2 });
            }
        }
        if !offers.is_empty() {
            let mut needs: Vec<&String> =
                shape.needs.iter().map(|n| &offers[usize::from(*n) % offers.len()]).collect();
            needs.sort();
            needs.dedup();
            step["subscribes"] =
                if shape.any { json!({ "any": needs }) } else { json!({ "all": needs }) };
        }
        if !emits.is_empty() {
            step["emits"] = json!(emits);
        }
        offers.extend(emits.into_iter().filter(|event| event != "shared" || at == 0));
        offers.push(format!("step:{name}"));
        if step.get("run").is_some() {
            offers.push(format!("step.failed:{name}"));
        }
        offers.sort();
        offers.dedup();
        steps.insert(name, step);
    }
    json!({ "flow": "random", "steps": steps })
}

/// What a test does next, as numbers that pick from what is there.
#[derive(Clone, Debug)]
struct Move {
    what: u8,
    pick: u16,
    emits: u8,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = (0..100_u8, any::<u16>(), any::<u8>()).prop_map(|(what, pick, emits)| Move {
        what,
        pick,
        emits,
    });
    prop::collection::vec(one, 0..60)
}

/// Attempts in flight, attempts that were given up, and commits that were sent.
#[derive(Default)]
struct Hands {
    attempts: Vec<Attempt>,
    stale: Vec<Attempt>,
    sent: Vec<Commit>,
}

fn pick<T>(list: &[T], number: u16) -> Option<usize> {
    (!list.is_empty()).then(|| usize::from(number) % list.len())
}

fn end_of(world: &World, attempt: &Attempt, choice: &Move) -> Report {
    let attempt = attempt.clone();
    if world.jobs.get(&attempt.job_id).is_some_and(|open| open.job.kind == JobKind::Timer) {
        return Report::TimerDue(attempt);
    }
    let step = world.flow.step(attempt.job_id.step);
    let emits: Vec<&str> = step
        .emits
        .iter()
        .enumerate()
        .filter(|(at, _)| choice.emits & (1 << (at % 8)) != 0)
        .map(|(_, slot)| &*world.flow.slot(*slot).name)
        .collect();
    let outcome = match choice.emits % 5 {
        0 => failure(ErrorKind::Failed),
        1 => failure(ErrorKind::Final),
        _ => success(&emits),
    };
    ended(attempt, outcome)
}

/// Decides and sends; what is refused or rejected is simply not written.
fn send(world: &mut World, hands: &mut Hands, report: &Report) {
    if let Ok(commit) = world.decide(report) {
        world.apply(&commit);
        hands.sent.push(commit);
    }
}

fn play(world: &mut World, hands: &mut Hands, choice: &Move) {
    match choice.what {
        0..30 => {
            let free = world.claimable();
            if let Some(at) = pick(&free, choice.pick) {
                let attempt = world.claim(free[at]);
                hands.attempts.push(attempt);
            }
        }
        30..60 => {
            if let Some(at) = pick(&hands.attempts, choice.pick) {
                let attempt = hands.attempts.remove(at);
                let report = end_of(world, &attempt, choice);
                send(world, hands, &report);
                hands.stale.push(attempt);
            }
        }
        60..70 => {
            // The lease expires and its holder does not know yet.
            if let Some(at) = pick(&hands.attempts, choice.pick) {
                world.expire(hands.attempts[at].job_id);
            }
        }
        70..78 => {
            if let Some(at) = pick(&hands.stale, choice.pick) {
                let report = end_of(world, &hands.stale[at].clone(), choice);
                send(world, hands, &report);
            }
        }
        78..84 => {
            if let Some(at) = pick(&hands.sent, choice.pick) {
                let commit = hands.sent[at].clone();
                world.apply(&commit);
            }
        }
        84..88 => start_or_emit(world, hands, choice),
        88..91 => {
            if let Some(at) = pick(&hands.attempts, choice.pick) {
                let attempt = hands.attempts.remove(at);
                send(world, hands, &released(attempt));
            }
        }
        91..94 => {
            if let Some(at) = pick(&hands.attempts, choice.pick) {
                let attempt = hands.attempts.remove(at);
                send(world, hands, &parked(attempt));
            }
        }
        94..99 => {
            let (signal, data) = ("go".into(), Payload::null());
            send(world, hands, &Report::Signal { signal, data });
        }
        _ => send(world, hands, &Report::Cancel { reason: None }),
    }
}

/// A running attempt shows itself, or emits before its end.
fn start_or_emit(world: &mut World, hands: &mut Hands, choice: &Move) {
    let Some(at) = pick(&hands.attempts, choice.pick) else { return };
    let attempt = hands.attempts[at].clone();
    let step = world.flow.step(attempt.job_id.step).clone();
    let report = match step.emits.first() {
        Some(slot) if choice.emits.is_multiple_of(2) => Report::EmitNow {
            attempt,
            event: world.flow.slot(*slot).name.clone(),
            data: Payload::null(),
        },
        _ => Report::AttemptStarted(attempt),
    };
    if let Ok(commit) = world.decide(&report) {
        if world.apply(&commit) == super::super::world::Applied::Now {
            hands.attempts[at].logged = true;
        }
        hands.sent.push(commit);
    }
}

/// Everybody comes back and does their work.
fn drain(world: &mut World) {
    for _ in 0..1_000 {
        let open: Vec<JobId> = world.jobs.keys().copied().collect();
        for job_id in open {
            if !world.jobs.contains_key(&job_id) {
                continue;
            }
            world.expire(job_id);
            let attempt = world.claim(job_id);
            let report = end_of(world, &attempt, &Move { what: 0, pick: 0, emits: 0xff });
            world.report(&report).expect("a fresh claim can be decided");
        }
        if world.jobs.is_empty() {
            return;
        }
    }
    panic!("the run does not come to an end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_lost_repeated_or_late_the_run_ends_once_and_its_log_is_true(
        flow in random_flow(),
        moves in moves(),
    ) {
        let mut world = World::of(flow);
        let mut hands = Hands::default();
        world.start();
        for choice in &moves {
            play(&mut world, &mut hands, choice);
            world.check();
        }
        drain(&mut world);
        world.check_ended();
        let folded = Run::fold(super::RUN, &world.flows(), &world.events()).unwrap();
        prop_assert_eq!(&folded, &**world.run.as_ref().unwrap());
        let entries = world.flow.steps.iter().filter(|s| s.needs == Needs::Start).count();
        prop_assert_eq!(entries, 1);
    }
}
