use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::{Just, ProptestConfig, any, prop, prop_oneof, proptest};
use proptest::strategy::Strategy as _;
use uuid::Uuid;

use super::world::{Op, SmokeOutcome, World};
use super::*;
use crate::deploy::plan::Plan;
use crate::deploy::record::{DeploymentId, Request, SmokeMismatch};
use crate::deploy::settings::{Expectation, Settings, ShadowRules, SmokeTest};
use crate::deploy::shadow::{NAMED_MAX, Shadow, ShadowResult};
use crate::flow::Span;

fn from() -> Revision {
    Revision("aa".into())
}

fn to() -> Revision {
    Revision("bb".into())
}

pub(super) fn begun(settings: Settings) -> Deployment {
    let request = Request {
        deployment_id: DeploymentId("01J".into()),
        flow: "order".into(),
        from: from(),
        to: to(),
        settings,
        author: None,
        note: None,
        is_forced: false,
        plan: Plan::default(),
    };
    Deployment::begin(request, Timestamp(0))
}

fn tested(strategy: Strategy) -> Settings {
    let test = |name: &str| SmokeTest {
        name: name.to_owned(),
        input: serde_json::Value::Null,
        expect: Expectation::default(),
    };
    Settings { strategy, smoke_tests: vec![test("one"), test("two")], ..Settings::default() }
}

fn seen(now: i64) -> Seen {
    Seen {
        now: Timestamp(now),
        active: from(),
        share: None,
        is_registered: false,
        is_pool_alive: true,
        gate: Gate { is_holding: false, generation: 6 },
        open: Vec::new(),
        checkpoints: 0,
        held: 0,
        last_replay: None,
        smoke: Vec::new(),
        shadow: ShadowSeen::default(),
        canary: None,
        before: Some(Figures::default()),
        after: None,
        asked: None,
        fault: None,
        is_alerted: false,
        counts: Counts::default(),
    }
}

fn at_phase(settings: Settings, path: &[Phase]) -> Deployment {
    let mut record = begun(settings);
    for phase in path {
        record = record.entering(*phase, Timestamp(0));
    }
    if record.settings.strategy == Strategy::BlueGreen {
        record.gate_generation = Some(7);
    }
    record
}

/// The record that is to be written.
fn record(next: Next) -> Deployment {
    let Next::Become(record) = next else { panic!("a record was wanted, not {next:?}") };
    *record
}

fn open(number: u128, fate: Fate) -> PlannedRun {
    PlannedRun { run_id: RunId(Uuid::from_u128(number)), at: vec!["a".into()], fate }
}

fn resumes() -> Fate {
    Fate::Resumes { steps: vec!["a".into()], starts: Vec::new() }
}

const HOLDING: Gate = Gate { is_holding: true, generation: 7 };
const DRAIN: [Phase; 1] = [Phase::Drain];
const TO_VERIFY: [Phase; 2] = [Phase::Deploy, Phase::Verify];
const TO_RESUME: [Phase; 2] = [Phase::Deploy, Phase::Resume];

#[test]
fn a_plan_takes_the_figures_before_anything_changes() {
    let deployment = begun(tested(Strategy::BlueGreen));
    let unmeasured = Seen { before: None, ..seen(5) };
    assert_eq!(next(&deployment, &unmeasured), Next::Measure(Moment::Before));
    let drain = record(next(&deployment, &seen(5)));
    assert_eq!((drain.phase, drain.gate_generation, drain.version), (Phase::Drain, Some(7), 2));
    let rolling = record(next(&begun(tested(Strategy::Rolling)), &seen(5)));
    assert_eq!((rolling.phase, rolling.gate_generation), (Phase::Deploy, None));
}

#[test]
fn a_drain_waits_for_open_runs_and_then_checkpoints_those_with_a_place() {
    let deployment = at_phase(tested(Strategy::BlueGreen), &DRAIN);
    assert_eq!(next(&deployment, &seen(5)), Next::CloseGate { generation: 7 });
    let pinned = Fate::Pinned { reason: "no place".to_owned() };
    let open = vec![open(1, resumes()), open(2, pinned.clone()), open(3, Fate::Finishes)];
    let draining = Seen { gate: HOLDING, open, ..seen(29_999) };
    assert_eq!(next(&deployment, &draining), Next::Wait { until: Timestamp(30_000) });
    let late = Seen { now: Timestamp(30_000), ..draining.clone() };
    let runs = vec![RunId(Uuid::from_u128(1))];
    assert_eq!(next(&deployment, &late), Next::Checkpoint { runs });
    let left = Seen { open: draining.open[1..].to_vec(), ..late.clone() };
    assert_eq!(record(next(&deployment, &left)).phase, Phase::Deploy);
    let never = Settings { migration: Migration::Never, ..tested(Strategy::BlueGreen) };
    assert_eq!(record(next(&at_phase(never, &DRAIN), &late)).phase, Phase::Deploy);
    let empty = Seen { open: Vec::new(), now: Timestamp(10), ..draining };
    assert_eq!(record(next(&deployment, &empty)).phase, Phase::Deploy);
}

#[test]
fn a_gate_that_somebody_moves_while_it_drains_is_closed_again() {
    let deployment = at_phase(tested(Strategy::BlueGreen), &DRAIN);
    for is_holding in [false, true] {
        let moved = Seen { gate: Gate { is_holding, generation: 8 }, ..seen(5) };
        let again = record(next(&deployment, &moved));
        assert_eq!((again.phase, again.gate_generation), (Phase::Drain, Some(9)));
        assert_eq!(next(&again, &moved), Next::CloseGate { generation: 9 });
    }
}

#[test]
fn a_rolling_deployment_without_tests_is_not_verified() {
    let registered = Seen { is_registered: true, ..seen(5) };
    for (settings, phase) in [
        (Settings::default(), Phase::Resume),
        (tested(Strategy::Rolling), Phase::Verify),
        (Settings { shadow: Some(ShadowRules::default()), ..Settings::default() }, Phase::Verify),
        (Settings { strategy: Strategy::BlueGreen, ..Settings::default() }, Phase::Verify),
    ] {
        let deployment = at_phase(settings, &[Phase::Deploy]);
        assert_eq!(next(&deployment, &seen(5)), Next::Register);
        assert_eq!(record(next(&deployment, &registered)).phase, phase);
    }
}

fn mismatch() -> SmokeMismatch {
    SmokeMismatch {
        path: "status".to_owned(),
        wanted: "completed".to_owned(),
        found: "failed".to_owned(),
    }
}

fn ended(name: &str, is_good: bool) -> SmokeSeen {
    let mismatches = if is_good { Vec::new() } else { vec![mismatch()] };
    let result = SmokeResult { name: name.to_owned(), run_id: None, mismatches };
    SmokeSeen { name: name.to_owned(), result: Some(result) }
}

#[test]
fn verification_waits_for_every_test_and_one_that_fails_is_enough() {
    let deployment = at_phase(tested(Strategy::Rolling), &TO_VERIFY);
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(next(&deployment, &seen(5)), Next::StartSmoke { tests: names(&["one", "two"]) });
    let running = SmokeSeen { name: "two".to_owned(), result: None };
    let half = Seen { smoke: vec![ended("one", true), running], ..seen(14_999) };
    assert_eq!(next(&deployment, &half), Next::Wait { until: Timestamp(15_000) });
    let late = record(next(&deployment, &Seen { now: Timestamp(15_000), ..half.clone() }));
    let reason = RollbackReason::VerifyTimedOut { tests: names(&["two"]) };
    assert_eq!(
        (late.phase, late.rollback, late.smoke.len()),
        (Phase::RollingBack, Some(reason), 1)
    );
    let bad = Seen { smoke: vec![ended("one", false)], ..seen(5) };
    let failed = record(next(&deployment, &bad));
    assert_eq!(failed.rollback, Some(RollbackReason::SmokeFailed { tests: names(&["one"]) }));
    let good = Seen { smoke: vec![ended("two", true), ended("one", true)], ..half };
    assert_eq!(record(next(&deployment, &good)).phase, Phase::Resume);
}

fn run(number: u128) -> RunId {
    RunId(Uuid::from_u128(number))
}

fn shadow_run(number: u128, stage: ShadowStage) -> ShadowRunSeen {
    ShadowRunSeen { original: run(number), stage }
}

fn compared(number: u128, is_same: bool) -> ShadowRunSeen {
    let mismatches = if is_same { Vec::new() } else { vec![mismatch()] };
    let result = ShadowResult { original: run(number), run_id: run(number + 1_000), mismatches };
    shadow_run(number, ShadowStage::Ended(result))
}

fn shadowed(rules: ShadowRules) -> Settings {
    Settings { shadow: Some(rules), ..tested(Strategy::Rolling) }
}

/// A deployment whose shadow has begun with this many runs.
fn shadowing(rules: ShadowRules, runs: u128) -> Deployment {
    let deployment = at_phase(shadowed(rules), &TO_VERIFY);
    let smoke = vec![ended("one", true), ended("two", true)];
    let last = (0..runs).map(run).collect();
    let shadow = ShadowSeen { last, runs: Vec::new() };
    let chosen = record(next(&deployment, &Seen { smoke, shadow, ..seen(5) }));
    assert_eq!((chosen.phase, chosen.version), (Phase::Verify, deployment.version + 1));
    assert_eq!(chosen.smoke.len(), 2, "what the smoke tests said is kept");
    chosen
}

fn with_runs(now: i64, runs: Vec<ShadowRunSeen>) -> Seen {
    Seen { shadow: ShadowSeen { last: vec![run(77)], runs }, ..seen(now) }
}

#[test]
fn a_shadow_is_of_the_runs_that_were_written_down_a_few_at_a_time() {
    let deployment = shadowing(ShadowRules::default(), 25);
    let chosen: Vec<RunId> = (0..25).map(run).collect();
    assert_eq!(deployment.shadow.as_ref().unwrap().originals, chosen);
    let first = Next::StartShadow { originals: chosen[..SHADOW_OPEN_MAX].to_vec() };
    assert_eq!(next(&deployment, &with_runs(6, Vec::new())), first);
    let open = |number| shadow_run(number, ShadowStage::Open);
    let mut runs: Vec<ShadowRunSeen> = (0..20).map(open).collect();
    let wait = Next::Wait { until: Timestamp(60_005) };
    assert_eq!(next(&deployment, &with_runs(6, runs.clone())), wait);
    runs[3].stage = ShadowStage::Unstubbed;
    let stub = Next::StubShadow { originals: vec![run(3)] };
    assert_eq!(next(&deployment, &with_runs(6, runs.clone())), stub);
    runs[3] = compared(3, true);
    let one_more = Next::StartShadow { originals: vec![run(20)] };
    assert_eq!(next(&deployment, &with_runs(6, runs)), one_more);
}

#[test]
fn a_shadow_decides_by_how_many_differ() {
    let same = |runs: u128| (0..runs).map(|number| compared(number, true)).collect::<Vec<_>>();
    let good = record(next(&shadowing(ShadowRules::default(), 3), &with_runs(6, same(3))));
    assert_eq!((good.phase, good.shadow.as_ref().unwrap().compared), (Phase::Resume, 3));
    let differing: Vec<_> = (0..9).map(|number| compared(number, number == 0)).collect();
    let bad = record(next(&shadowing(ShadowRules::default(), 9), &with_runs(6, differing.clone())));
    let reason = RollbackReason::ShadowDiffers { compared: 9, differing: 8, differ_max: 0 };
    assert_eq!((bad.phase, bad.rollback), (Phase::RollingBack, Some(reason)));
    let shadow = bad.shadow.unwrap();
    assert_eq!((shadow.compared, shadow.differing), (9, 8));
    assert_eq!((shadow.differences.len(), shadow.differences[0].original), (NAMED_MAX, run(1)));
    let lenient = ShadowRules { differ_max: 8, ..ShadowRules::default() };
    let kept = record(next(&shadowing(lenient, 9), &with_runs(6, differing)));
    assert_eq!((kept.phase, kept.shadow.unwrap().differing), (Phase::Resume, 8));
    // With nothing to compare with there is nothing against it.
    let empty = record(next(&shadowing(ShadowRules::default(), 0), &with_runs(6, Vec::new())));
    assert_eq!(empty.phase, Phase::Resume);
}

#[test]
fn a_revision_that_is_only_tried_does_not_become_active() {
    let settings = Settings { strategy: Strategy::Shadow, ..shadowed(ShadowRules::default()) };
    assert_eq!(record(next(&begun(settings.clone()), &seen(5))).phase, Phase::Deploy);
    let mut deployment = at_phase(settings, &TO_VERIFY);
    deployment.shadow = Some(Shadow::of(vec![run(0)], Timestamp(5)));
    let tried = record(next(&deployment, &with_runs(6, vec![compared(0, true)])));
    assert_eq!(tried.rollback, Some(RollbackReason::OnlyTried {}));
    let end = record(next(&tried, &seen(7)));
    assert_eq!((end.phase, end.verdict), (Phase::RolledBack, Some(Verdict::Tried)));
    assert!(end.alerts.is_empty());
    let differs = record(next(&deployment, &with_runs(6, vec![compared(0, false)])));
    let end = record(next(&differs, &seen(7)));
    assert_eq!((end.phase, end.verdict), (Phase::RolledBack, Some(Verdict::RolledBack)));
}

#[test]
fn a_shadow_that_does_not_end_in_time_is_no_proof() {
    let deployment = shadowing(ShadowRules::default(), 3);
    let mut runs = vec![compared(0, true), shadow_run(1, ShadowStage::Open)];
    let late = record(next(&deployment, &with_runs(60_005, runs.clone())));
    assert_eq!(late.rollback, Some(RollbackReason::ShadowTimedOut { open: 2 }));
    assert_eq!(late.shadow.unwrap().compared, 1);
    // What differs says more than what is late.
    runs[0] = compared(0, false);
    let late = record(next(&deployment, &with_runs(60_005, runs)));
    let reason = RollbackReason::ShadowDiffers { compared: 1, differing: 1, differ_max: 0 };
    assert_eq!(late.rollback, Some(reason));
}

#[test]
fn a_dead_pool_is_found_before_anything_changes_and_before_the_switch() {
    let settings = Settings { pool: Some("green".to_owned()), ..Settings::default() };
    let reason = Some(RollbackReason::PoolDead { pool: "green".to_owned() });
    let dead = Seen { is_pool_alive: false, ..seen(5) };
    assert_eq!(record(next(&begun(settings.clone()), &dead)).rollback, reason);
    let verifying = at_phase(settings, &TO_VERIFY);
    assert_eq!(record(next(&verifying, &dead)).rollback, reason);
    assert_eq!(record(next(&verifying, &seen(5))).phase, Phase::Resume);
}

#[test]
fn what_was_stopped_goes_on_in_order_and_then_the_gate_opens() {
    let deployment = at_phase(tested(Strategy::BlueGreen), &[Phase::Deploy, Phase::Resume]);
    let mut now = Seen { gate: HOLDING, checkpoints: 1, held: 2, ..seen(50) };
    assert_eq!(next(&deployment, &now), Next::Activate { revision: to() });
    now.active = to();
    let one = |source| Next::Replay { source, count: 1, besides: 0 };
    assert_eq!(next(&deployment, &now), one(Source::Checkpoints));
    now.checkpoints = 0;
    assert_eq!(next(&deployment, &now), one(Source::Hold));
    now.last_replay = Some(Replayed { at: Timestamp(40), count: 1, left: 2 });
    assert_eq!(next(&deployment, &now), Next::Wait { until: Timestamp(140) });
    now.held = 0;
    assert_eq!(next(&deployment, &now), Next::OpenGate { generation: 7 });
    now.gate.is_holding = false;
    assert_eq!(record(next(&deployment, &now)).phase, Phase::Audit);
}

#[test]
fn the_replay_rate_sets_the_size_of_a_batch() {
    let rows = [
        (ReplayRate::PerSecond(NonZeroU32::MIN), 1),
        (ReplayRate::PerSecond(NonZeroU32::new(15).unwrap()), 1),
        (ReplayRate::PerSecond(NonZeroU32::new(200).unwrap()), 20),
        (ReplayRate::PerSecond(NonZeroU32::MAX), REPLAY_BATCH_MAX),
        (ReplayRate::Unlimited, REPLAY_BATCH_MAX),
    ];
    for (replay_rate, wanted) in rows {
        let settings = Settings { replay_rate, ..tested(Strategy::BlueGreen) };
        let deployment = at_phase(settings, &TO_RESUME);
        let held = Seen { active: to(), gate: HOLDING, held: 9_999, ..seen(5) };
        let replay = Next::Replay { source: Source::Hold, count: wanted, besides: 0 };
        assert_eq!(next(&deployment, &held), replay, "{replay_rate}");
        let few = Seen { held: 1, ..held };
        let one = Next::Replay { source: Source::Hold, count: 1, besides: 0 };
        assert_eq!(next(&deployment, &few), one);
    }
}

#[test]
fn what_is_held_grows_less_by_the_replay_rate_however_many_come() {
    let deployment = at_phase(tested(Strategy::BlueGreen), &TO_RESUME);
    let last_replay = Some(Replayed { at: Timestamp(5), count: 1, left: 40 });
    // How many are held at the next look, of which those over 40 came since; what is let go.
    for (held, besides) in [(40, 0), (47, 7), (2_040, 2_000), (3, 0)] {
        let now = Seen { active: to(), gate: HOLDING, held, last_replay, ..seen(105) };
        let replay = Next::Replay { source: Source::Hold, count: 1, besides };
        assert_eq!(next(&deployment, &now), replay, "{held} are held");
    }
}

#[test]
fn a_canary_is_promoted_rolled_back_or_waited_for() {
    let settings = Settings { strategy: Strategy::Canary, ..Settings::default() };
    let share = settings.canary.share;
    let deployment = at_phase(settings, &TO_RESUME);
    assert_eq!(next(&deployment, &seen(5)), Next::SetShare { share });
    let shared = Seen { share: Some(share), ..seen(5) };
    assert_eq!(next(&deployment, &shared), Next::Wait { until: Timestamp(3_600_000) });
    let late = Seen { now: Timestamp(3_600_000), ..shared.clone() };
    let reason = RollbackReason::CanaryTimedOut { samples: 0 };
    assert_eq!(record(next(&deployment, &late)).rollback, Some(reason));
    let canary = |error_rate: f64| CanarySeen {
        new: Figures { count: 50, error_rate, ..Figures::default() },
        old: Figures::default(),
    };
    let bad = Seen { canary: Some(canary(0.5)), ..shared.clone() };
    assert_eq!(record(next(&deployment, &bad)).phase, Phase::RollingBack);
    let good = Seen { canary: Some(canary(0.0)), ..shared.clone() };
    let promoted = record(next(&deployment, &good));
    assert!(promoted.is_promoted && promoted.phase == Phase::Resume);
    assert_eq!(next(&promoted, &good), Next::Activate { revision: to() });
    let asked = Seen { asked: Some(Asked::Promote), ..shared };
    assert!(record(next(&deployment, &asked)).is_promoted);
}

#[test]
fn a_rollback_can_be_asked_for_until_the_audit() {
    let note: Option<Arc<str>> = Some("wrong".into());
    let asked = Seen { asked: Some(Asked::Rollback { note: note.clone() }), ..seen(5) };
    let broken = Seen { fault: Some("no such worker".to_owned()), ..seen(5) };
    for phase in [Phase::Plan, Phase::Drain, Phase::Deploy, Phase::Verify, Phase::Resume] {
        let deployment = Deployment { phase, ..begun(tested(Strategy::BlueGreen)) };
        let back = record(next(&deployment, &asked));
        assert_eq!(back.phase, Phase::RollingBack);
        assert_eq!(back.rollback, Some(RollbackReason::Asked { note: note.clone() }));
        assert_eq!(record(next(&deployment, &broken)).phase, Phase::RollingBack);
    }
    let audited = Deployment { phase: Phase::Audit, ..begun(Settings::default()) };
    assert_eq!(next(&audited, &asked), Next::Measure(Moment::After));
    for phase in [Phase::Completed, Phase::RolledBack] {
        assert_eq!(next(&Deployment { phase, ..begun(Settings::default()) }, &asked), Next::Finish);
    }
}

#[test]
fn an_audit_waits_for_as_many_runs_as_before_and_tells_of_thresholds() {
    let alerts = Alerts {
        error_rate_max: Some(0.05),
        latency_p99_max: Some(Span(Duration::from_millis(100))),
        webhook: Some("http://127.0.0.1/".to_owned()),
    };
    let mut deployment = at_phase(
        Settings { alerts, ..Settings::default() },
        &[Phase::Deploy, Phase::Resume, Phase::Audit],
    );
    deployment.before = Some(Figures { count: 50, ..Figures::default() });
    let after = |count: u64| {
        Some(Figures { count, error_rate: 0.1, latency_p99_ms: 101, ..Figures::default() })
    };
    let few = Seen { after: after(49), ..seen(5) };
    assert_eq!(next(&deployment, &few), Next::Wait { until: Timestamp(15_000) });
    let texts = vec![
        "the error rate is 10.00 %, over 5.00 %".to_owned(),
        "the 99th percentile of latency is 101 ms, over 100ms".to_owned(),
    ];
    let enough = Seen { after: after(50), ..seen(5) };
    let alert = Next::Alert { texts: texts.clone() };
    assert_eq!(next(&deployment, &enough), alert);
    assert_eq!(next(&deployment, &Seen { now: Timestamp(15_000), ..few }), alert);
    let done = record(next(&deployment, &Seen { is_alerted: true, ..enough }));
    assert_eq!((done.phase, done.verdict), (Phase::Completed, Some(Verdict::Alerting)));
    assert_eq!(done.alerts, texts);
    let idle = Deployment { before: Some(Figures::default()), ..deployment };
    let quiet = Seen { after: Some(Figures::default()), ..seen(5) };
    assert_eq!(record(next(&idle, &quiet)).verdict, Some(Verdict::Good));
}

#[test]
fn a_driver_that_dies_after_any_action_changes_nothing_about_the_end() {
    use SmokeOutcome::{Fail, Hang, Pass};
    let outcomes = [(Pass, Pass), (Fail, Pass), (Hang, Pass), (Pass, Fail), (Pass, Hang)];
    for strategy in Strategy::ALL {
        for (outcome, shadow) in outcomes {
            let end = |dies_at: Option<usize>| {
                let settings =
                    Settings { shadow: Some(ShadowRules::default()), ..tested(strategy) };
                let mut world = World::new(begun(settings), outcome, true).shadowed(shadow);
                for number in 0..20 {
                    let (has_place, is_stuck) = (number % 3 > 0, number % 2 > 0);
                    world.step(&Op::Arrive { has_place, is_stuck });
                }
                let actions = world.settle(dies_at);
                world.check();
                (actions, world.phases())
            };
            let (actions, phases) = end(None);
            for dies_at in 0..actions {
                assert_eq!(
                    end(Some(dies_at)).1,
                    phases,
                    "{strategy} {outcome:?} {shadow:?} {dies_at}"
                );
            }
        }
    }
}

fn ops() -> impl proptest::strategy::Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (any::<bool>(), any::<bool>()).prop_map(|(has_place, is_stuck)| Op::Arrive { has_place, is_stuck }),
        4 => Just(Op::End),
        6 => (0..20_000_i64).prop_map(Op::Pass),
        14 => (0..3_usize, any::<bool>()).prop_map(|(times, crashes)| Op::Drive { times, crashes }),
        4 => any::<prop::sample::Index>().prop_map(Op::Zombie),
        1 => Just(Op::AskRollback),
        1 => Just(Op::AskPromote),
        1 => Just(Op::KillPool),
    ];
    prop::collection::vec(op, 0..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Wherever its driver dies, and whatever is done twice or late, a deployment ends with the
    /// gate open, the right revision active, and nothing held, checkpointed, lost or doubled.
    #[test]
    fn a_deployment_ends_well_whatever_happens_to_its_driver(
        at in 0..Strategy::ALL.len(),
        smoke in prop_oneof![4 => Just(SmokeOutcome::Pass), 1 => Just(SmokeOutcome::Fail), 1 => Just(SmokeOutcome::Hang)],
        shadow in prop_oneof![3 => Just(None), 3 => Just(Some(SmokeOutcome::Pass)), 1 => Just(Some(SmokeOutcome::Fail)), 1 => Just(Some(SmokeOutcome::Hang))],
        is_good in any::<bool>(),
        ops in ops(),
    ) {
        let settings = Settings {
            shadow: shadow.map(|_| ShadowRules::default()),
            pool: Some("green".to_owned()),
            alerts: Alerts { webhook: Some("http://127.0.0.1/".to_owned()), ..Alerts::default() },
            ..tested(Strategy::ALL[at])
        };
        let mut world = World::new(begun(settings), smoke, is_good)
            .shadowed(shadow.unwrap_or(SmokeOutcome::Pass));
        for op in &ops {
            world.step(op);
        }
        world.settle(None);
        world.check();
    }
}
