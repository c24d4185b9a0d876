//! What the cases share: small flows, and commits that the real rules make.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::{Claimed, Commit, Due};
use flowgate_core::decide::{self, Attempt, Outcome, Output, Report, Start};
use flowgate_core::event::{ErrorKind, StepError, StoredEvent};
use flowgate_core::flow::Flow;
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::{CommitId, CommitIds, InstanceId, Position, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::run::Run;
use serde_json::json;
use uuid::Uuid;

use super::Harness;
use crate::{
    Claimant, CommitOutcome, LeaseRef, Queues, Refusal, RunDetail, RunQuery, RunRow, Store,
};

/// How long a lease of these cases lasts.
pub const LEASE: Duration = Duration::from_secs(30);

/// A harness with one instance that uses its store.
#[derive(Debug)]
pub struct World<'h, H> {
    /// The harness.
    pub harness: &'h mut H,
    /// The instance.
    pub instance: InstanceId,
    ids: CommitIds,
}

impl<'h, H: Harness> World<'h, H> {
    /// An instance that uses the store of `harness`.
    pub fn new(harness: &'h mut H) -> Self {
        let source = Uuid::now_v7().as_u64_pair().1;
        Self { harness, instance: InstanceId("host-1".into()), ids: CommitIds::new(source) }
    }

    /// The store.
    pub fn store(&self) -> Arc<dyn Store> {
        self.harness.store()
    }

    /// Drops the store and opens it again; false where it does not outlive that.
    pub async fn reopen(&mut self) -> bool {
        self.harness.reopen().await
    }

    /// Drops the store and opens it again, where it outlives that.
    pub async fn reopen_if_it_can(&mut self) {
        self.reopen().await;
    }

    /// The same, and every lease of before is over, one way or the other.
    pub async fn reopen_and_lose_leases(&mut self) -> bool {
        if self.harness.is_shared() {
            self.harness.advance(LEASE).await;
        }
        self.reopen().await
    }

    /// All feeds from their starts, one after another, once they hold `count` events. What was
    /// committed last may take a moment to be there.
    pub async fn feed(&self, count: usize) -> Vec<StoredEvent> {
        self.feeds(count).await.into_iter().flatten().collect()
    }

    /// The same, each feed by itself.
    pub async fn feeds(&self, count: usize) -> Vec<Vec<StoredEvent>> {
        let store = self.store();
        let mut feeds = vec![Vec::<StoredEvent>::new(); usize::from(store.feeds())];
        for _ in 0..1_000 {
            for (index, feed) in (0..).zip(&mut feeds) {
                let after = feed.last().map_or(Position::START, |event| event.position);
                feed.extend(store.read_feed(index, after, 100_000).await.expect("reading"));
            }
            let found: usize = feeds.iter().map(Vec::len).sum();
            if found >= count {
                assert_eq!(found, count, "the feeds hold more than was written");
                return feeds;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the feeds never held {count} events");
    }

    /// A commit that starts a run.
    pub fn start(&self, flow: &Flow, input: &str) -> Commit {
        self.start_as(flow, RunId(Uuid::now_v7()), input)
    }

    /// A commit that starts a run with this id.
    pub fn start_as(&self, flow: &Flow, run_id: RunId, input: &str) -> Commit {
        let input = Payload::parse(input).expect("the case wrote JSON");
        decide::start(flow, &Start { input, ..new_start(run_id) }, self.ids.next())
    }

    /// A commit that starts a run with this id and knows this gate.
    pub fn start_at(&self, flow: &Flow, run_id: RunId, gate: GateStamp) -> Commit {
        decide::start(flow, &Start { gate, ..new_start(run_id) }, self.ids.next())
    }

    /// An id for a commit.
    pub fn next_id(&self) -> CommitId {
        self.ids.next()
    }

    /// A commit that starts a run for a pool.
    pub fn start_for(&self, flow: &Flow, pool: &str) -> Commit {
        let start = Start { pool: Some(pool.into()), ..new_start(RunId(Uuid::now_v7())) };
        decide::start(flow, &start, self.ids.next())
    }

    /// A commit that starts a run with these tags.
    pub fn start_tagged(&self, flow: &Flow, tags: &[(&str, &str)]) -> Commit {
        let tags = tags.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let start = Start { tags, ..new_start(RunId(Uuid::now_v7())) };
        decide::start(flow, &start, self.ids.next())
    }

    /// Starts a run.
    pub async fn started(&self, flow: &Flow, input: &str) -> RunId {
        let commit = self.start(flow, input);
        let run_id = commit.run_id;
        self.apply(commit).await;
        run_id
    }

    /// Starts a run and claims its first job.
    pub async fn started_and_claimed(&self, flow: &Flow) -> Claimed {
        self.started(flow, "1").await;
        self.claim_one().await
    }

    /// Starts a run and claims its first job, which is in `queue`.
    pub async fn started_and_claimed_of(&self, flow: &Flow, queue: &str) -> Claimed {
        self.started(flow, "1").await;
        let mut claimed = self.store().claim(&self.claimant_of(queue, 10)).await.expect("claiming");
        assert_eq!(claimed.len(), 1, "one job is due");
        claimed.remove(0)
    }

    /// A commit for what `report` says.
    pub fn decide(&self, flow: &Flow, run: &Run, report: &Report) -> Commit {
        decide::decide(flow, run, report, self.ids.next()).expect("the case makes sense")
    }

    /// The attempt that a claim begins.
    pub fn attempt(&self, claimed: &Claimed) -> Attempt {
        Attempt {
            job_id: claimed.job.job_id,
            stamp: claimed.stamp(&self.instance),
            lost: claimed.lost.clone(),
            logged: false,
        }
    }

    /// A commit that says that the attempt succeeded and emitted all that its step may emit.
    pub fn succeed(&self, flow: &Flow, claimed: &Claimed) -> Commit {
        self.succeed_with(flow, claimed, "1")
    }

    /// The same with this data.
    pub fn succeed_with(&self, flow: &Flow, claimed: &Claimed, data: &str) -> Commit {
        let data = Payload::parse(data).expect("the case wrote JSON");
        let step = flow.step(claimed.job.job_id.step);
        let name = |slot| Arc::clone(&flow.slot(slot).name);
        let emits = step.emits.iter().map(|slot| (name(*slot), data.clone())).collect();
        let outcome = Outcome::Succeeded(Output { emits, ..Output::default() });
        self.ended(flow, claimed, outcome)
    }

    /// A commit that says that the attempt failed.
    pub fn fail(&self, flow: &Flow, claimed: &Claimed) -> Commit {
        let error = StepError { kind: ErrorKind::Failed, message: "no".into() };
        self.ended(flow, claimed, Outcome::Failed { error, retry_after: None })
    }

    fn ended(&self, flow: &Flow, claimed: &Claimed, outcome: Outcome) -> Commit {
        let attempt = self.attempt(claimed);
        let elapsed = Duration::from_millis(1);
        let report = Report::AttemptEnded { attempt, outcome, elapsed, random: 0.5 };
        self.decide(flow, &claimed.run, &report)
    }

    /// A commit that shows that the attempt has begun.
    pub fn begin(&self, flow: &Flow, claimed: &Claimed) -> Commit {
        self.decide(flow, &claimed.run, &Report::AttemptStarted(self.attempt(claimed)))
    }

    /// A commit that hands the job back.
    pub fn release(&self, flow: &Flow, claimed: &Claimed) -> Commit {
        let report = Report::AttemptReleased { attempt: self.attempt(claimed), due: Due::Now };
        self.decide(flow, &claimed.run, &report)
    }

    /// A commit that cancels the run.
    pub fn cancel(&self, flow: &Flow, run: &Run) -> Commit {
        self.decide(flow, run, &Report::Cancel { reason: None })
    }

    /// A claimant of all queues.
    pub fn claimant(&self, slots: usize) -> Claimant {
        Claimant { instance: self.instance.clone(), queues: Queues::All, slots, lease: LEASE }
    }

    /// A claimant of one queue.
    pub fn claimant_of(&self, queue: &str, slots: usize) -> Claimant {
        Claimant { queues: only(queue), ..self.claimant(slots) }
    }

    /// Sends one commit.
    pub async fn send(&self, commit: Commit, claimant: Option<&Claimant>) -> CommitOutcome {
        let mut outcomes = self.store().commit(vec![commit], claimant).await.expect("committing");
        assert_eq!(outcomes.len(), 1, "each commit has an outcome");
        outcomes.remove(0)
    }

    /// Sends one commit that must apply.
    pub async fn apply(&self, commit: Commit) {
        let handed_off = applied(self.send(commit, None).await);
        assert!(handed_off.is_empty(), "nothing is handed off without a claimant");
    }

    /// Sends one commit that must apply, with a claimant of all queues.
    pub async fn apply_and_take(&self, commit: Commit, slots: usize) -> Vec<Claimed> {
        applied(self.send(commit, Some(&self.claimant(slots))).await)
    }

    /// Sends one commit that must be refused.
    pub async fn refused(&self, commit: Commit) -> Refusal {
        refused(&self.send(commit, None).await)
    }

    /// Claims at most this many jobs.
    pub async fn claim(&self, slots: usize) -> Vec<Claimed> {
        self.store().claim(&self.claimant(slots)).await.expect("claiming")
    }

    /// Claims the one job that is due.
    pub async fn claim_one(&self) -> Claimed {
        let mut claimed = self.claim(10).await;
        assert_eq!(claimed.len(), 1, "one job is due");
        claimed.remove(0)
    }

    /// The run, which is there.
    pub async fn run(&self, run_id: RunId) -> RunDetail {
        self.store().read_run(run_id).await.expect("reading").expect("the run is there")
    }

    /// All events of a run.
    pub async fn events(&self, run_id: RunId) -> Vec<StoredEvent> {
        self.store().read_events(run_id, 0, 100_000).await.expect("reading")
    }

    /// The first page of a listing.
    pub async fn list(&self, query: &RunQuery) -> Vec<RunRow> {
        self.store().list_runs(query).await.expect("listing")
    }

    /// Takes a run to its end.
    pub async fn finish(&self, flow: &Flow, run_id: RunId) {
        for _ in 0..100 {
            let due = self.claim(100).await;
            if due.is_empty() {
                break;
            }
            for claimed in due {
                let run = self.run(claimed.job.job_id.run_id).await.row.run;
                self.apply(self.succeed(flow, &Claimed { run, ..claimed })).await;
            }
        }
        assert!(self.run(run_id).await.row.run.status.is_terminal(), "the run has ended");
    }
}

fn new_start(run_id: RunId) -> Start {
    Start {
        run_id,
        input: Payload::parse("1").expect("this is JSON"),
        key: None,
        tags: BTreeMap::new(),
        priority: None,
        due: Due::Now,
        gate: GateStamp::default(),
        instance: None,
        pool: None,
    }
}

/// The jobs that an applied commit handed off.
pub fn applied(outcome: CommitOutcome) -> Vec<Claimed> {
    match outcome {
        CommitOutcome::Applied { handed_off } => handed_off,
        CommitOutcome::Refused(refusal) => panic!("the commit was refused: {refusal:?}"),
    }
}

/// Why a commit was refused.
pub fn refused(outcome: &CommitOutcome) -> Refusal {
    match outcome {
        CommitOutcome::Applied { .. } => panic!("the commit was applied"),
        CommitOutcome::Refused(refusal) => *refusal,
    }
}

/// The lease of a claimed job.
pub fn lease_of(claimed: &Claimed) -> LeaseRef {
    LeaseRef { job_id: claimed.job.job_id, token: claimed.token }
}

/// This queue alone.
pub fn only(queue: &str) -> Queues {
    Queues::Only(vec![queue.into()])
}

pub(super) fn but(queues: &[&str]) -> Queues {
    Queues::AllBut(queues.iter().map(|queue| (*queue).into()).collect())
}

fn flow(file: serde_json::Value) -> Flow {
    let file = serde_json::from_value(file).expect("the case wrote a flow");
    Flow::new(file).expect("the case wrote a valid flow")
}

/// Three steps, one after another.
pub fn chain() -> Flow {
    flow(json!({ "flow": "chain", "steps": {
        "first": { "run": { "shell": "true" }, "emits": ["one"] },
        "second": { "subscribes": ["one"], "run": { "shell": "true" }, "emits": ["two"] },
        "third": { "subscribes": ["two"], "run": { "shell": "true" } },
    } }))
}

/// One step.
pub fn single(name: &str) -> Flow {
    flow(json!({ "flow": name, "steps": { "only": { "run": { "shell": "true" } } } }))
}

/// One step that does nothing.
pub fn nothing() -> Flow {
    flow(json!({ "flow": "nothing", "steps": { "only": {} } }))
}

/// One step, then two in the queue `default` and two in `other`.
pub fn fan() -> Flow {
    let on =
        |queue: &str| json!({ "subscribes": ["go"], "run": { "shell": "true" }, "queue": queue });
    flow(json!({ "flow": "fan", "steps": {
        "begin": { "run": { "shell": "true" }, "emits": ["go"] },
        "a": on("default"), "b": on("other"), "c": on("default"), "d": on("other"),
    } }))
}

/// One step in the queue `queue`.
pub fn queued(queue: &str) -> Flow {
    let only = json!({ "run": { "shell": "true" }, "queue": queue });
    flow(json!({ "flow": format!("queued-{queue}"), "steps": { "only": only } }))
}

/// A step, a wait of an hour, a step.
pub fn nap() -> Flow {
    flow(json!({ "flow": "nap", "steps": {
        "begin": { "run": { "shell": "true" }, "emits": ["tired"] },
        "nap": { "subscribes": ["tired"], "wait": { "delay": "1h" }, "emits": ["rested"] },
        "end": { "subscribes": ["rested"], "run": { "shell": "true" } },
    } }))
}

/// A wait of an hour, and nothing before it.
pub fn later() -> Flow {
    flow(json!({ "flow": "later", "steps": { "nap": { "wait": { "delay": "1h" } } } }))
}

/// One step with three attempts, ten seconds apart.
pub fn flaky() -> Flow {
    let backoff = json!({ "initial": "10s", "factor": 1.0, "max": "10s", "jitter": 0.0 });
    flow(json!({ "flow": "flaky", "steps": {
        "only": { "run": { "shell": "true" }, "retry": { "attempts": 3, "backoff": backoff } },
    } }))
}

/// A step that fails, and one that subscribes to that.
pub fn rescued() -> Flow {
    flow(json!({ "flow": "rescued", "steps": {
        "fails": { "run": { "shell": "true" }, "retry": { "attempts": 1 } },
        "rescue": { "subscribes": ["step.failed:fails"], "run": { "shell": "true" } },
    } }))
}

/// A step that emits `count` events, and one that takes them all.
pub fn join(count: usize) -> Flow {
    let events: Vec<String> = (0..count).map(|at| format!("part{at}")).collect();
    flow(json!({ "flow": "join", "steps": {
        "split": { "run": { "shell": "true" }, "emits": events },
        "join": { "subscribes": events, "run": { "shell": "true" } },
    } }))
}
