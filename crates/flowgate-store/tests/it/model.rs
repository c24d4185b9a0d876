//! Random programs give the same outcomes on the embedded store as on the one in memory.

use flowgate_core::commit::{Claimed, Commit};
use flowgate_core::event::StoredEvent;
use flowgate_core::flow::Flow;
use flowgate_core::ids::{InstanceId, Position, RunId};
use flowgate_core::time::Timestamp;
use flowgate_store::conformance::Harness;
use flowgate_store::conformance::world::{LEASE, World, chain, fan, flaky, nap};
use flowgate_store::{Claimant, Clock, CommitOutcome, LeaseRef, Queues, Refusal, Renewal};
use proptest::prelude::*;
use std::time::Duration;

use crate::harness::{MemoryHarness, SqliteHarness};

/// One call of a program. Numbers choose among what is there.
#[derive(Clone, Debug)]
enum Call {
    Start { flow: usize, slots: usize },
    Claim { slots: usize, queue: Option<bool> },
    Settle { job: usize, ending: usize, slots: usize },
    Resend { commit: usize, slots: usize },
    Renew { job: usize },
    Advance { part: u32 },
    Reopen,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        3 => (0..4_usize, 0..3_usize).prop_map(|(flow, slots)| Call::Start { flow, slots }),
        4 => (0..4_usize, any::<Option<bool>>())
            .prop_map(|(slots, queue)| Call::Claim { slots, queue }),
        8 => (any::<usize>(), 0..5_usize, 0..3_usize)
            .prop_map(|(job, ending, slots)| Call::Settle { job, ending, slots }),
        2 => (any::<usize>(), 0..3_usize).prop_map(|(commit, slots)| Call::Resend { commit, slots }),
        2 => any::<usize>().prop_map(|job| Call::Renew { job }),
        2 => (1..5_u32).prop_map(|part| Call::Advance { part }),
        1 => Just(Call::Reopen),
    ];
    prop::collection::vec(call, 1..40)
}

/// What can be compared of a claimed job: tokens differ between stores.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    job: flowgate_core::commit::Job,
    lost: Vec<u32>,
    version: u64,
    expires_at: Timestamp,
    inputs: Vec<flowgate_core::payload::Payload>,
}

fn seen(claimed: &Claimed) -> Seen {
    Seen {
        job: claimed.job.clone(),
        lost: claimed.lost.iter().map(|stamp| stamp.attempt).collect(),
        version: claimed.run.version,
        expires_at: claimed.expires_at,
        inputs: claimed.inputs.clone(),
    }
}

/// One of the two stores, with what the program has got from it.
struct Side<'h, H> {
    world: World<'h, H>,
    claimed: Vec<Claimed>,
    sent: Vec<Commit>,
}

/// What a call gave.
#[derive(Debug, PartialEq)]
enum Gave {
    Jobs(Vec<Seen>),
    Refused(Refusal),
    Held(bool),
    Nothing,
}

impl<H: Harness> Side<'_, H> {
    fn claimant(slots: usize, queue: Option<bool>) -> Claimant {
        let queues = match queue {
            None => Queues::All,
            Some(true) => Queues::Only(vec!["default".into()]),
            Some(false) => Queues::Only(vec!["other".into()]),
        };
        let instance = InstanceId("host-1".into());
        Claimant { instance, queues, slots, lease: LEASE }
    }

    async fn send(&mut self, commit: Commit, slots: usize) -> Gave {
        self.sent.push(commit.clone());
        let claimant = Self::claimant(slots, None);
        match self.world.send(commit, Some(&claimant)).await {
            CommitOutcome::Applied { handed_off } => self.got(handed_off),
            CommitOutcome::Refused(refusal) => Gave::Refused(refusal),
        }
    }

    fn got(&mut self, jobs: Vec<Claimed>) -> Gave {
        let shown = jobs.iter().map(seen).collect();
        self.claimed.extend(jobs);
        Gave::Jobs(shown)
    }

    async fn call(&mut self, call: &Call, flows: &[Flow], run_id: RunId) -> Gave {
        match call {
            Call::Start { flow, slots } => {
                let start = self.world.start_as(&flows[*flow], run_id, "1");
                self.send(start, *slots).await
            }
            Call::Claim { slots, queue } => {
                let claimant = Self::claimant(*slots, *queue);
                let jobs = self.world.store().claim(&claimant).await.expect("claiming");
                self.got(jobs)
            }
            Call::Settle { job, ending, slots } => {
                let Some(claimed) = self.pick(*job) else { return Gave::Nothing };
                let Some(commit) = self.settle(&claimed, *ending, flows).await else {
                    return Gave::Nothing;
                };
                self.send(commit, *slots).await
            }
            Call::Resend { commit, slots } if !self.sent.is_empty() => {
                let commit = self.sent[commit % self.sent.len()].clone();
                self.send(commit, *slots).await
            }
            Call::Renew { job } => {
                let Some(claimed) = self.pick(*job) else { return Gave::Nothing };
                let lease = LeaseRef { job_id: claimed.job.job_id, token: claimed.token };
                let renewal =
                    self.world.store().renew(&[lease], LEASE).await.expect("renewing").remove(0);
                Gave::Held(matches!(renewal, Renewal::Held(_)))
            }
            Call::Advance { part } => {
                self.world.harness.advance(LEASE.mul_f64(0.3) * *part).await;
                Gave::Nothing
            }
            Call::Resend { .. } | Call::Reopen => Gave::Nothing,
        }
    }

    fn pick(&self, at: usize) -> Option<Claimed> {
        (!self.claimed.is_empty()).then(|| self.claimed[at % self.claimed.len()].clone())
    }

    /// A decision on the latest record, if the rules allow one.
    async fn settle(&self, claimed: &Claimed, ending: usize, flows: &[Flow]) -> Option<Commit> {
        use flowgate_core::commit::JobKind;
        use flowgate_core::decide::{Report, decide};
        let run = self.world.run(claimed.job.job_id.run_id).await.row.run;
        let flow = flows.iter().find(|flow| flow.name == run.flow)?;
        let claimed = Claimed { run, ..claimed.clone() };
        let attempt = self.world.attempt(&claimed);
        let state = claimed.run.step(claimed.job.job_id.step).state;
        if claimed.run.status.is_terminal() || !state.is_open() {
            return None;
        }
        if claimed.job.kind == JobKind::Timer {
            let report = Report::TimerDue(attempt.clone());
            decide(flow, &claimed.run, &report, flowgate_core::ids::CommitIds::new(0).next())
                .ok()?;
            return Some(self.world.decide(flow, &claimed.run, &report));
        }
        Some(match ending {
            0 => self.world.begin(flow, &claimed),
            1 => self.world.fail(flow, &claimed),
            2 => self.world.release(flow, &claimed),
            3 => self.world.succeed(flow, &claimed),
            _ => self.world.cancel(flow, &claimed.run),
        })
    }

    async fn log(&self) -> Vec<(Position, RunId, u64, Timestamp, &'static str)> {
        let feed =
            self.world.store().read_feed(0, Position::START, 100_000).await.expect("reading");
        let shown = |event: StoredEvent| {
            (event.position, event.run_id, event.seq, event.at, event.event.kind())
        };
        feed.into_iter().map(shown).collect()
    }

    /// The run's record and jobs, without tokens and times.
    async fn stands(&self, run_id: RunId) -> (flowgate_core::run::Run, Vec<(u32, bool)>) {
        let detail = self.world.run(run_id).await;
        let jobs = detail.jobs.iter().map(|job| (job.job.attempt, job.lease.is_some()));
        ((*detail.row.run).clone(), jobs.collect())
    }
}

async fn check(program: Vec<Call>) {
    // Both clocks stand still but for what the program says, so both stores see the same times.
    let clock = || Clock::still(Timestamp(1_700_000_000_000));
    let (mut memory, mut sqlite) = (MemoryHarness::on(clock()), SqliteHarness::on(clock()).await);
    let flows = [chain(), fan(), flaky(), nap()];
    let mut one = Side { world: World::new(&mut memory), claimed: vec![], sent: vec![] };
    let mut other = Side { world: World::new(&mut sqlite), claimed: vec![], sent: vec![] };
    let mut run_ids = Vec::new();
    for (number, call) in program.iter().enumerate() {
        let run_id = RunId::derived("model", &number.to_string());
        one.world.harness.advance(Duration::from_millis(100)).await;
        other.world.harness.advance(Duration::from_millis(100)).await;
        if let Call::Reopen = call {
            // A reopen ends all leases; on the other side time does.
            one.world.harness.advance(LEASE * 2).await;
            other.world.harness.advance(LEASE * 2).await;
            assert!(other.world.reopen().await);
            continue;
        }
        let (left, right) =
            (one.call(call, &flows, run_id).await, other.call(call, &flows, run_id).await);
        assert_eq!(left, right, "call {number}, {call:?}");
        if let Call::Start { .. } = call {
            run_ids.push(run_id);
        }
        assert_eq!(one.log().await, other.log().await, "after call {number}");
    }
    one.world.harness.advance(LEASE * 2).await;
    other.world.harness.advance(LEASE * 2).await;
    other.world.reopen().await;
    for run_id in run_ids {
        let (left, right) = (one.stands(run_id).await, other.stands(run_id).await);
        assert_eq!(left.0.version, right.0.version);
        assert_eq!(left.0.status, right.0.status);
        let attempts = |jobs: Vec<(u32, bool)>| jobs.into_iter().map(|j| j.0).collect::<Vec<_>>();
        assert_eq!(attempts(left.1), attempts(right.1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_give_the_same_on_both_stores(program in calls()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check(program));
    }
}
