//! A flow in a few lines, for the tests of the machine: starts, runs, a gate, a hold, checkpoints,
//! and a driver that may die at any point or come back late.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::sample::Index;
use uuid::Uuid;

use super::*;
use crate::deploy::record::SmokeMismatch;
use crate::deploy::shadow::ShadowResult;

/// Runs that a shadow compares with.
const SHADOWED: u64 = 25;
/// Rounds after which a deployment that nobody disturbs must have ended.
const ROUNDS_MAX: usize = 5_000;
/// Earlier actions that a late driver may repeat.
const LATE_MAX: usize = 12;

#[derive(Clone, Debug)]
pub(super) enum Op {
    Arrive { has_place: bool, is_stuck: bool },
    End,
    Pass(i64),
    Drive { times: usize, crashes: bool },
    Zombie(Index),
    AskRollback,
    AskPromote,
    KillPool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SmokeOutcome {
    Pass,
    Fail,
    Hang,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    number: u128,
    has_place: bool,
    /// Whether it never ends on the old revision.
    is_stuck: bool,
}

/// What a driver knows and loses when it dies.
#[derive(Default)]
struct Memory {
    before: Option<Figures>,
    after: Option<Figures>,
    last_replay: Option<Replayed>,
    is_alerted: bool,
}

pub(super) struct World {
    record: Deployment,
    now: Timestamp,
    active: Revision,
    share: Option<Share>,
    is_registered: bool,
    is_pool_alive: bool,
    gate: Gate,
    started: u128,
    open: Vec<Item>,
    done: Vec<u128>,
    hold: VecDeque<Item>,
    checkpoints: VecDeque<Item>,
    /// Starts that left the hold, in that order.
    released: Vec<u128>,
    smoke: BTreeSet<String>,
    outcome: SmokeOutcome,
    /// The runs of the shadow, each with whether its steps were stubbed.
    shadow: BTreeMap<RunId, bool>,
    shadow_outcome: SmokeOutcome,
    is_good: bool,
    samples: u64,
    asked: Option<Asked>,
    memory: Memory,
    /// What was to be done before, and for which version of the record.
    past: Vec<(u64, Next)>,
}

impl World {
    pub(super) fn new(record: Deployment, outcome: SmokeOutcome, is_good: bool) -> Self {
        Self {
            now: record.began_at,
            active: record.from.clone(),
            record,
            share: None,
            is_registered: false,
            is_pool_alive: true,
            gate: Gate { is_holding: false, generation: 4 },
            started: 0,
            open: Vec::new(),
            done: Vec::new(),
            hold: VecDeque::new(),
            checkpoints: VecDeque::new(),
            released: Vec::new(),
            smoke: BTreeSet::new(),
            outcome,
            shadow: BTreeMap::new(),
            shadow_outcome: SmokeOutcome::Pass,
            is_good,
            samples: 0,
            asked: None,
            memory: Memory::default(),
            past: Vec::new(),
        }
    }

    /// The same, where the runs of a shadow come out so.
    pub(super) fn shadowed(self, shadow_outcome: SmokeOutcome) -> Self {
        Self { shadow_outcome, ..self }
    }

    pub(super) fn step(&mut self, op: &Op) {
        match op {
            Op::Arrive { has_place, is_stuck } => self.arrive(*has_place, *is_stuck),
            Op::End => self.end(),
            Op::Pass(ms) => self.now = Timestamp(self.now.0 + ms),
            Op::Drive { times, crashes } => drop(self.drive(*times, *crashes)),
            Op::Zombie(index) => {
                let from = self.past.len().saturating_sub(LATE_MAX);
                if from < self.past.len() {
                    let (version, action) =
                        self.past[from..][index.index(self.past.len() - from)].clone();
                    self.apply(version, &action);
                }
            }
            Op::AskRollback => self.asked = Some(Asked::Rollback { note: None }),
            Op::AskPromote => self.asked = Some(Asked::Promote),
            Op::KillPool => self.is_pool_alive = false,
        }
    }

    /// The phases that the deployment went through.
    pub(super) fn phases(&self) -> Vec<Phase> {
        self.record.phases.iter().map(|entered| entered.phase).collect()
    }

    /// Lets everything come to its end: nothing new arrives, and the driver dies at most once, after
    /// this action. Then all that was ever to be done comes once more, late. The number of actions.
    pub(super) fn settle(&mut self, dies_at: Option<usize>) -> usize {
        for round in 0..ROUNDS_MAX {
            while self.open.iter().any(|item| !item.is_stuck) {
                self.end();
            }
            self.samples += 1;
            match self.drive(1, dies_at == Some(round)) {
                Next::Wait { until } => self.now = until.max(self.now),
                Next::Finish => {
                    for (version, action) in self.past.clone() {
                        self.apply(version, &action);
                    }
                    return round;
                }
                Next::Become(_)
                | Next::Measure(_)
                | Next::CloseGate { .. }
                | Next::Checkpoint { .. }
                | Next::Register
                | Next::StartSmoke { .. }
                | Next::StartShadow { .. }
                | Next::StubShadow { .. }
                | Next::Activate { .. }
                | Next::SetShare { .. }
                | Next::Replay { .. }
                | Next::OpenGate { .. }
                | Next::Alert { .. } => {}
            }
        }
        panic!("the deployment does not end: it is in {}", self.record.phase);
    }

    pub(super) fn check(&self) {
        let wanted = match self.record.phase {
            Phase::Completed => &self.record.to,
            Phase::RolledBack => &self.record.from,
            Phase::Plan
            | Phase::Drain
            | Phase::Deploy
            | Phase::Verify
            | Phase::Resume
            | Phase::Audit
            | Phase::RollingBack => panic!("{} is no end", self.record.phase),
        };
        assert_eq!(self.active, *wanted, "the active revision");
        assert_eq!(self.share, None, "no share is left");
        assert!(!self.gate.is_holding, "the gate is open");
        assert!(self.hold.is_empty(), "nothing is held");
        assert!(self.checkpoints.is_empty(), "nothing is checkpointed");
        assert!(self.released.is_sorted(), "the hold is let go in its order");
        assert_eq!(self.record.rollback.is_some(), self.record.phase == Phase::RolledBack);
        let is_shadowed = self.record.settings.shadow.is_some();
        let shadow_fails = is_shadowed && self.shadow_outcome != SmokeOutcome::Pass;
        if self.outcome != SmokeOutcome::Pass || shadow_fails {
            assert_eq!(self.record.phase, Phase::RolledBack, "a revision that fails is not kept");
        }
        let chosen = self.record.shadow.as_ref().map_or(&[][..], |shadow| &shadow.originals);
        assert!(self.shadow.keys().all(|run| chosen.contains(run)), "only what was written down");
        if is_shadowed && self.record.phase == Phase::Completed {
            let compared = self.record.shadow.as_ref().map(|shadow| shadow.compared);
            assert_eq!(compared, Some(SHADOWED), "all are compared before the switch");
        }
        let mut runs: Vec<u128> = self.open.iter().map(|item| item.number).collect();
        runs.extend(&self.done);
        runs.sort_unstable();
        assert_eq!(runs, (0..self.started).collect::<Vec<_>>(), "no run is lost or doubled");
        let times: Vec<Timestamp> = self.record.phases.iter().map(|phase| phase.at).collect();
        assert!(times.is_sorted(), "phases follow each other");
    }

    fn arrive(&mut self, has_place: bool, is_stuck: bool) {
        let item = Item { number: self.started, has_place, is_stuck };
        self.started += 1;
        if self.gate.is_holding {
            self.hold.push_back(item);
        } else if self.share.is_some() && item.number.is_multiple_of(2) {
            self.samples += 1;
            self.done.push(item.number);
        } else {
            self.go_on(item);
        }
    }

    /// A run on the active revision. The new one ends its runs at once.
    fn go_on(&mut self, item: Item) {
        if self.active == self.record.from {
            self.open.push(item);
        } else {
            self.done.push(item.number);
        }
    }

    fn end(&mut self) {
        if let Some(at) = self.open.iter().position(|item| !item.is_stuck) {
            self.done.push(self.open.remove(at).number);
        }
    }

    fn drive(&mut self, times: usize, crashes: bool) -> Next {
        let version = self.record.version;
        let action = next(&self.record, &self.seen());
        self.past.push((version, action.clone()));
        for _ in 0..times {
            self.apply(version, &action);
        }
        if crashes || times == 0 {
            self.memory = Memory::default();
            return action;
        }
        match &action {
            Next::Measure(Moment::Before) => self.memory.before = Some(Figures::default()),
            Next::Measure(Moment::After) => self.memory.after = Some(Figures::default()),
            Next::Replay { count: by_rate, .. } => {
                let (at, count, left) = (self.now, *by_rate, self.hold.len());
                let left = u64::try_from(left).expect("a count fits");
                self.memory.last_replay = Some(Replayed { at, count, left });
            }
            Next::Alert { .. } => self.memory.is_alerted = true,
            Next::Become(_)
            | Next::Wait { .. }
            | Next::CloseGate { .. }
            | Next::Checkpoint { .. }
            | Next::Register
            | Next::StartSmoke { .. }
            | Next::StartShadow { .. }
            | Next::StubShadow { .. }
            | Next::Activate { .. }
            | Next::SetShare { .. }
            | Next::OpenGate { .. }
            | Next::Finish => {}
        }
        action
    }

    /// Does one thing, if the record still has the version that it was decided for. The gate asks
    /// for its generation alone: in a store with partitions it is not where the record is.
    fn apply(&mut self, version: u64, action: &Next) {
        let is_of_gate = matches!(action, Next::CloseGate { .. } | Next::OpenGate { .. });
        if self.record.version != version && !is_of_gate {
            return;
        }
        match action {
            Next::Become(record) => {
                let (was, is) = (self.record.phase, record.phase);
                assert!(was == is || was.may_become(is), "{was} is followed by {is}");
                assert_eq!(record.version, version + 1, "a record counts its writes");
                self.record = (**record).clone();
            }
            Next::CloseGate { generation } => {
                if self.gate.generation < *generation {
                    self.gate = Gate { is_holding: true, generation: *generation };
                }
            }
            Next::OpenGate { generation } => {
                if self.hold.is_empty() && self.gate.generation <= *generation {
                    self.gate = Gate { is_holding: false, generation: *generation };
                }
            }
            Next::Checkpoint { runs } => {
                let is_named = |item: &Item| runs.contains(&RunId(Uuid::from_u128(item.number)));
                self.checkpoints.extend(self.open.extract_if(.., |item| is_named(item)));
            }
            Next::Register => self.is_registered = true,
            Next::StartSmoke { tests } => self.smoke.extend(tests.iter().cloned()),
            Next::StartShadow { originals } => {
                for original in originals {
                    self.shadow.entry(*original).or_insert(false);
                }
                let open = self.shadow.values().filter(|is_stubbed| !**is_stubbed).count();
                assert!(open <= SHADOW_OPEN_MAX, "few at a time");
            }
            Next::StubShadow { originals } => {
                self.shadow.extend(originals.iter().map(|original| (*original, true)));
            }
            Next::Activate { revision } => {
                assert!(*revision == self.record.from || self.is_registered);
                self.active = revision.clone();
                self.share = None;
            }
            Next::SetShare { share } => self.share = Some(*share),
            Next::Replay { source, count, besides } => self.replay(*source, *count + *besides),
            Next::Wait { .. } | Next::Measure(_) | Next::Alert { .. } | Next::Finish => {}
        }
    }

    fn replay(&mut self, source: Source, count: u32) {
        for _ in 0..count {
            let item = match source {
                Source::Checkpoints => self.checkpoints.pop_front(),
                Source::Hold => {
                    assert!(self.checkpoints.is_empty(), "checkpoints go first");
                    self.hold.pop_front()
                }
            };
            let Some(item) = item else { return };
            if source == Source::Hold {
                self.released.push(item.number);
            }
            self.go_on(item);
        }
    }

    fn seen(&self) -> Seen {
        let fate = |item: &Item| {
            if item.has_place {
                Fate::Resumes { steps: vec!["a".into()], starts: Vec::new() }
            } else {
                Fate::Pinned { reason: "it has no place".to_owned() }
            }
        };
        let open = self.open.iter().map(|item| PlannedRun {
            run_id: RunId(Uuid::from_u128(item.number)),
            at: vec!["a".into()],
            fate: fate(item),
        });
        let error_rate = if self.is_good { 0.0 } else { 1.0 };
        let new = Figures { count: self.samples, error_rate, ..Figures::default() };
        let count = |number: usize| u64::try_from(number).expect("a count fits");
        Seen {
            now: self.now,
            active: self.active.clone(),
            share: self.share,
            is_registered: self.is_registered,
            is_pool_alive: self.is_pool_alive,
            gate: self.gate,
            open: open.collect(),
            checkpoints: count(self.checkpoints.len()),
            held: count(self.hold.len()),
            last_replay: self.memory.last_replay,
            smoke: self.smoke.iter().map(|name| self.smoke_seen(name)).collect(),
            shadow: self.shadow_seen(),
            canary: Some(CanarySeen { old: Figures::default(), new }),
            before: self.memory.before.clone(),
            after: self.memory.after.clone(),
            asked: self.asked.clone(),
            fault: None,
            is_alerted: self.memory.is_alerted,
            counts: Counts::default(),
        }
    }

    fn shadow_seen(&self) -> ShadowSeen {
        // Runs end all the time, so the last ones are others at each look.
        let first = u128::try_from(self.past.len()).expect("a count fits");
        let last = (first..first + u128::from(SHADOWED)).map(|n| RunId(Uuid::from_u128(n)));
        let stage = |original: RunId, is_stubbed: bool| match (is_stubbed, self.shadow_outcome) {
            (false, _) => ShadowStage::Unstubbed,
            (true, SmokeOutcome::Hang) => ShadowStage::Open,
            (true, outcome) => {
                let path = "status".to_owned();
                let (wanted, found) = ("completed".to_owned(), "failed".to_owned());
                let mismatch = SmokeMismatch { path, wanted, found };
                let has_failed = outcome == SmokeOutcome::Fail;
                let mismatches = if has_failed { vec![mismatch] } else { Vec::new() };
                ShadowStage::Ended(ShadowResult { original, run_id: original, mismatches })
            }
        };
        let runs = self.shadow.iter().map(|(original, is_stubbed)| ShadowRunSeen {
            original: *original,
            stage: stage(*original, *is_stubbed),
        });
        ShadowSeen { last: last.collect(), runs: runs.collect() }
    }

    fn smoke_seen(&self, name: &str) -> SmokeSeen {
        let mismatch = SmokeMismatch {
            path: "status".to_owned(),
            wanted: "completed".to_owned(),
            found: "failed".to_owned(),
        };
        let result =
            |mismatches| Some(SmokeResult { name: name.to_owned(), run_id: None, mismatches });
        let result = match self.outcome {
            SmokeOutcome::Pass => result(Vec::new()),
            SmokeOutcome::Fail => result(vec![mismatch]),
            SmokeOutcome::Hang => None,
        };
        SmokeSeen { name: name.to_owned(), result }
    }
}
