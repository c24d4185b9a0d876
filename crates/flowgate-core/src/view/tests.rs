use super::*;
use crate::commit::Due;
use crate::decide::{self, Attempt, Outcome, Output, Report, Start};
use crate::event::LeaseStamp;
use crate::flow::FlowFile;
use crate::gate::GateStamp;
use crate::ids::{CommitId, JobId, LeaseToken, Position, RunId};

const NOW: Timestamp = Timestamp(1_700_000_000_000);

const ORDER: &str = r#"{
    "flow": "order",
    "steps": {
        "start": {"run": {"shell": "w"}, "emits": ["pay", "stock"]},
        "charge": {"subscribes": ["pay"], "run": {"worker": "w"}, "emits": ["paid", "declined"],
                   "retry": {"attempts": 2, "backoff": {"initial": "12s", "jitter": 0}}},
        "reserve": {"subscribes": ["stock"], "wait": {"delay": "1h"}, "emits": ["reserved"]},
        "ship": {"subscribes": ["paid", "reserved"], "run": {"worker": "w"}},
        "refund": {"subscribes": ["declined"], "run": {"worker": "w"}},
        "approve": {"subscribes": ["step:ship"], "wait": {"signal": "approval", "timeout": "48h"}},
        "tell": {"subscribes": {"any": ["step:approve", "step:refund"]}, "run": {"worker": "w"}}
    }
}"#;

/// A run that is played step by step, with the store reduced to what the answer needs.
struct Play {
    flow: Flow,
    run: Run,
    events: Vec<StoredEvent>,
    jobs: Vec<OpenJob>,
    commits: u128,
}

impl Play {
    fn start() -> Self {
        let file: FlowFile = serde_json::from_str(ORDER).unwrap();
        let flow = Flow::new(file).unwrap();
        let start = Start {
            run_id: RunId(uuid::Uuid::from_u128(1)),
            input: Payload::null(),
            key: None,
            tags: std::collections::BTreeMap::new(),
            priority: None,
            due: Due::Now,
            gate: GateStamp::default(),
            instance: None,
            pool: None,
        };
        let commit = decide::start(&flow, &start, CommitId(uuid::Uuid::from_u128(1)));
        let run = (*commit.record).clone();
        let mut play = Self { flow, run, events: Vec::new(), jobs: Vec::new(), commits: 1 };
        play.take(commit);
        play
    }

    fn take(&mut self, commit: crate::commit::Commit) {
        use crate::commit::JobChange;
        for event in commit.events {
            let seq = self.events.len() as u64 + 1;
            let run_id = commit.run_id;
            let stored =
                StoredEvent { position: Position::counted(seq), run_id, seq, at: NOW, event };
            self.events.push(stored);
        }
        let at = |due: Due| match due {
            Due::Now => NOW,
            Due::After(delay) => NOW.plus(delay),
            Due::At(at) => at,
        };
        for change in commit.jobs {
            match change {
                JobChange::Add { job, due } => self.jobs.push(OpenJob {
                    step: job.job_id.step,
                    kind: job.kind,
                    attempt: job.attempt,
                    due_at: at(due),
                    lease: None,
                }),
                JobChange::Postpone { job_id, attempt, due } => {
                    let job = self.jobs.iter_mut().find(|job| job.step == job_id.step).unwrap();
                    (job.attempt, job.due_at, job.lease) = (attempt, at(due), None);
                }
                JobChange::Remove(job_id) => self.jobs.retain(|job| job.step != job_id.step),
            }
        }
        self.run = (*commit.record).clone();
    }

    fn report(&mut self, report: &Report) {
        self.commits += 1;
        let commit_id = CommitId(uuid::Uuid::from_u128(self.commits));
        self.take(decide::decide(&self.flow, &self.run, report, commit_id).unwrap());
    }

    fn attempt(&self, step: &str) -> Attempt {
        let step = self.flow.step_index(step).unwrap();
        let failures = self.run.step(step).failures;
        let stamp = LeaseStamp {
            attempt: failures + 1,
            token: LeaseToken(u64::from(failures) + 1),
            instance: InstanceId("host-1".into()),
        };
        let job_id = JobId { run_id: self.run.run_id, step };
        Attempt { job_id, stamp, lost: Vec::new(), logged: false }
    }

    fn end(&mut self, step: &str, outcome: Outcome) {
        let attempt = self.attempt(step);
        let elapsed = Duration::from_millis(40);
        self.report(&Report::AttemptEnded { attempt, outcome, elapsed, random: 0.0 });
    }

    fn succeed(&mut self, step: &str, emits: &[&str]) {
        let emits = emits.iter().map(|name| ((*name).into(), Payload::null())).collect();
        self.end(step, Outcome::Succeeded(Output { emits, ..Output::default() }));
    }

    fn fail(&mut self, step: &str) {
        let error = StepError { kind: ErrorKind::Failed, message: "card declined".into() };
        self.end(step, Outcome::Failed { error, retry_after: None });
    }

    fn timer(&mut self, step: &str) {
        self.report(&Report::TimerDue(self.attempt(step)));
    }

    fn lease(&mut self, step: &str, expires_at: Timestamp) {
        let step = self.flow.step_index(step).unwrap();
        let job = self.jobs.iter_mut().find(|job| job.step == step).unwrap();
        job.attempt += 1;
        job.lease = Some((InstanceId("host-1".into()), expires_at));
    }

    fn check(&self, executor: &Executor, expected: &[&str]) {
        let (run, jobs, events) = (&self.run, &self.jobs[..], &self.events[..]);
        let standing = standing((run, jobs, events), executor);
        let reasons = why(&self.flow, &standing, NOW);
        let lines: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        assert_eq!(lines, expected);
    }
}

use crate::event::ErrorKind;

/// How a run stands of whose surroundings nothing is known.
fn standing<'a>(
    (run, jobs, events): (&'a Run, &'a [OpenJob], &'a [StoredEvent]),
    executor: &'a Executor,
) -> Standing<'a> {
    const NOTHING: &QueuesSeen = &QueuesSeen { paused: Vec::new(), served: None, pools: None };
    Standing {
        run,
        jobs,
        events,
        executor,
        limits: &[],
        workers: None,
        queues: NOTHING,
        gate: None,
    }
}

const PENDING_TAIL: [&str; 4] = [
    "`ship` has not started: `paid` (`charge` has not started) and `reserved` (`reserve` has not \
     started) have not come yet",
    "`refund` has not started: `declined` (`charge` has not started) has not come yet",
    "`approve` has not started: `step:ship` (`ship` has not started) has not come yet",
    "`tell` has not started: none of `step:approve` (`approve` has not started), `step:refund` \
     (`refund` has not started) has come yet",
];

#[test]
fn a_due_step_is_explained_by_who_could_run_it() {
    let mut play = Play::start();
    let pending = [
        "`charge` has not started: `pay` (`start` is queued) has not come yet",
        "`reserve` has not started: `stock` (`start` is queued) has not come yet",
    ];
    let answer = |first: &[&'static str]| [first, &pending[..], &PENDING_TAIL[..]].concat();
    let queued = "`start` is due since 2023-11-14T22:13:20.000Z and waits in the queue `default`";
    let unowned = "no process works on the store, so nothing in it runs";
    play.check(&Executor::Nobody, &answer(&[unowned, queued]));
    let owned = Executor::Known("process 7 (host-1)".to_owned());
    play.check(&owned, &answer(&[queued]));
    play.lease("start", NOW.plus(Duration::from_secs(30)));
    play.check(&owned, &answer(&["`start` is running: attempt 1 on instance host-1"]));
    let abandoned = "`start` was running: attempt 1 ended with its instance host-1";
    play.check(&Executor::Nobody, &answer(&[unowned, abandoned]));
    let other = Executor::Known("process 8 (host-2)".to_owned());
    play.check(&other, &answer(&[abandoned]));
    play.lease("start", NOW);
    play.check(&owned, &answer(&["`start` is running: attempt 2 on instance host-1"]));
    let expired = "`start` was running on instance host-1, whose lease ended at \
                   2023-11-14T22:13:20.000Z; another attempt takes it over";
    play.check(&Executor::Unknown, &answer(&[expired]));
}

#[test]
fn a_failed_attempt_and_a_timer_say_when_they_are_due() {
    let mut play = Play::start();
    play.succeed("start", &["pay", "stock"]);
    play.fail("charge");
    play.check(
        &Executor::Unknown,
        &[
            "`charge` tries again in 12s after failure 1 of 2: card declined",
            "`reserve` waits for its timer, which is due at 2023-11-14T23:13:20.000Z",
            "`ship` has not started: `paid` (`charge` is queued) and `reserved` (`reserve` is \
             waiting) have not come yet",
            "`refund` has not started: `declined` (`charge` is queued) has not come yet",
            PENDING_TAIL[2],
            PENDING_TAIL[3],
        ],
    );
}

#[test]
fn a_failed_run_names_the_step_and_what_was_skipped() {
    let mut play = Play::start();
    play.succeed("start", &["pay", "stock"]);
    play.fail("charge");
    play.fail("charge");
    play.timer("reserve");
    assert_eq!(play.run.status, RunStatus::Failed);
    play.check(
        &Executor::Unknown,
        &[
            "`charge` failed after 2 attempts of 2: card declined",
            "`ship` was skipped: `paid` (`charge` failed) never came",
            "`refund` was skipped: `declined` (`charge` failed) never came",
            "`approve` was skipped: `step:ship` (`ship` was skipped) never came",
            "`tell` was skipped: none of `step:approve` (`approve` was skipped), `step:refund` \
             (`refund` was skipped) came",
        ],
    );
}

#[test]
fn a_signal_is_named_with_its_deadline_and_a_completed_run_with_its_branches() {
    let mut play = Play::start();
    play.succeed("start", &["pay", "stock"]);
    play.succeed("charge", &["paid"]);
    play.timer("reserve");
    play.succeed("ship", &[]);
    play.check(
        &Executor::Unknown,
        &[
            "`approve` waits for the signal `approval` until 2023-11-16T22:13:20.000Z",
            "`refund` has not started: `declined` (`charge` ended without it) has not come yet",
            "`tell` has not started: none of `step:approve` (`approve` is waiting), `step:refund` \
             (`refund` has not started) has come yet",
        ],
    );
    play.report(&Report::Signal { signal: "approval".into(), data: Payload::null() });
    play.succeed("tell", &[]);
    assert_eq!(play.run.status, RunStatus::Completed);
    play.check(
        &Executor::Unknown,
        &[
            "6 of 7 steps succeeded",
            "`refund` was skipped: `declined` (`charge` ended without it) never came",
        ],
    );
}

#[test]
fn a_parked_step_names_the_limit_and_who_uses_it() {
    let mut play = Play::start();
    play.succeed("start", &["pay", "stock"]);
    let (attempt, due) = (play.attempt("charge"), Due::After(Duration::from_mins(5)));
    let limit: Arc<str> = "step/order/charge/concurrency/input.tenant=7".into();
    let reason = "2 may run at once; place 3 in line".into();
    play.report(&Report::AttemptParked { attempt, limit: Arc::clone(&limit), reason, due });
    let holders =
        (2..9).map(|n| JobId { run_id: RunId(uuid::Uuid::from_u128(n)), step: StepIndex(0) });
    let used = [LimitUse { limit: Arc::clone(&limit), holders: holders.collect(), in_line: 4 }];
    assert_eq!(parked_limits(&play.events), [limit]);
    let (run, jobs, events) = (&play.run, &play.jobs[..], &play.events[..]);
    let executor = &Executor::Unknown;
    let standing = standing((run, jobs, events), executor);
    let parked = "`charge` waits for a permit of input.tenant=7 since 2023-11-14T22:13:20.000Z: 2 \
                  may run at once; place 3 in line";
    assert_eq!(why(&play.flow, &standing, NOW)[0].to_string(), parked);
    let standing = Standing { limits: &used, ..standing };
    let first = why(&play.flow, &standing, NOW)[0].to_string();
    let rest = first.strip_prefix(parked).unwrap();
    assert!(rest.starts_with("; in use by 00000000-0000-0000-0000-000000000002, "), "{rest}");
    assert!(rest.ends_with(" and 2 more; 4 in line"), "{rest}");
    // Its turn has come: it is due, and nobody has taken it yet.
    let later = NOW.plus(Duration::from_mins(6));
    assert!(why(&play.flow, &standing, later)[0].to_string().contains("waits in the queue"));
}

#[test]
fn a_step_that_a_shadow_run_does_not_execute_says_so() {
    let mut play = Play::start();
    play.run.tags.insert(SHADOW_TAG.into(), "0199".into());
    play.succeed("start", &["stock"]);
    assert!(play.jobs.is_empty(), "no timer is set");
    let (run, jobs, events) = (&play.run, &play.jobs[..], &play.events[..]);
    let standing = standing((run, jobs, events), &Executor::Unknown);
    let first = &why(&play.flow, &standing, NOW)[0];
    let wanted = "`reserve` is not executed in a shadow run; it ends as in the run 0199 when the \
                  driver of its deployment sees it";
    assert_eq!((first.to_string().as_str(), first.remedy()), (wanted, None));
}

#[test]
fn a_step_whose_worker_nobody_asks_for_says_so() {
    let mut play = Play::start();
    play.succeed("start", &["pay"]);
    let (run, jobs, events) = (&play.run, &play.jobs[..], &play.events[..]);
    let executor = &Executor::Unknown;
    let standing = Standing { workers: Some(&[]), ..standing((run, jobs, events), executor) };
    let due = "`charge` is due since 2023-11-14T22:13:20.000Z and waits";
    let first = |standing: &Standing<'_>, now| why(&play.flow, standing, now)[0].to_string();
    let never = format!("{due} for a worker `w`; none has asked for it; start one that claims it");
    assert_eq!(first(&standing, NOW), never);
    let seen = |worker: &str, queue: &str| WorkerSeen {
        worker: worker.into(),
        queues: Some(vec![queue.into()]),
        pool: None,
        seen_at: NOW,
    };
    // Whoever asks for another worker, or in another queue, will not take it.
    let others = [seen("x", "w"), seen("w", "gpu")];
    assert_eq!(first(&Standing { workers: Some(&others), ..standing }, NOW), never);
    let served = [seen("w", "w")];
    let standing = Standing { workers: Some(&served), ..standing };
    assert_eq!(first(&standing, NOW), format!("{due} in the queue `w`"));
    let late = first(&standing, NOW.plus(Duration::from_secs(61)));
    let gone = "none has asked for it in the last minute, the last one did at \
                2023-11-14T22:13:20.000Z";
    assert_eq!(late, format!("{due} for a worker `w`; {gone}; start one that claims it"));
}

#[test]
fn a_step_in_a_queue_that_is_paused_or_that_nobody_takes_says_so_and_what_to_do() {
    let play = Play::start();
    let seen = |paused: &[&str], served: Option<&[&str]>| QueuesSeen {
        paused: paused.iter().map(|name| Arc::from(*name)).collect(),
        served: served.map(|names| names.iter().map(|name| Arc::from(*name)).collect()),
        pools: None,
    };
    let due = "`start` is due since 2023-11-14T22:13:20.000Z and waits in the queue `default`";
    let paused = (format!("{due}, which is paused"), Some("queues resume default".to_owned()));
    let unserved = (
        format!("{due}, which no instance takes jobs of"),
        Some("worker start --queues default".to_owned()),
    );
    let queued = (due.to_owned(), None);
    for (queues, expected) in [
        (seen(&["other"], None), &queued),
        (seen(&[], Some(&["gpu", "default"])), &queued),
        (seen(&["default"], Some(&["gpu"])), &paused),
        (seen(&[], Some(&["gpu"])), &unserved),
        (seen(&[], Some(&[])), &unserved),
    ] {
        let whole = (&play.run, &play.jobs[..], &play.events[..]);
        let standing = Standing { queues: &queues, ..standing(whole, &Executor::Unknown) };
        let first = &why(&play.flow, &standing, NOW)[0];
        assert_eq!((first.to_string(), first.remedy()), *expected, "{queues:?}");
    }
}

#[test]
fn a_step_of_a_pool_that_nobody_is_in_says_so_and_what_to_do() {
    let mut play = Play::start();
    play.run.pool = Some("green".into());
    let of = |pool: &str, queues: Option<&str>| PoolSeen {
        pool: pool.into(),
        queues: queues.map(|queue| vec![queue.into()]),
    };
    let due = "`start` is due since 2023-11-14T22:13:20.000Z and waits in the queue `default`";
    let queued = (due.to_owned(), None);
    let alone = (
        format!("{due} for the pool `green`, of which no instance takes it"),
        Some("worker start --pool green".to_owned()),
    );
    for (pools, expected) in [
        (None, &queued),
        (Some(vec![]), &alone),
        (Some(vec![of("blue", None)]), &alone),
        (Some(vec![of("green", Some("gpu"))]), &alone),
        (Some(vec![of("blue", None), of("green", None)]), &queued),
        (Some(vec![of("green", Some("default"))]), &queued),
    ] {
        let queues = QueuesSeen { pools, ..QueuesSeen::default() };
        let whole = (&play.run, &play.jobs[..], &play.events[..]);
        let standing = Standing { queues: &queues, ..standing(whole, &Executor::Unknown) };
        let first = &why(&play.flow, &standing, NOW)[0];
        assert_eq!((first.to_string(), first.remedy()), *expected, "{queues:?}");
    }
}

#[test]
fn a_worker_outside_of_the_process_that_owns_the_store_holds_its_lease() {
    let mut play = Play::start();
    play.succeed("start", &["pay"]);
    play.lease("charge", NOW.plus(Duration::from_secs(30)));
    let (run, jobs, events) = (&play.run, &play.jobs[..], &play.events[..]);
    let executor = &Executor::Known("process 8 (host-2)".to_owned());
    let standing = Standing { workers: Some(&[]), ..standing((run, jobs, events), executor) };
    let first = why(&play.flow, &standing, NOW)[0].to_string();
    assert_eq!(first, "`charge` is running: attempt 1 on instance host-1");
}

#[test]
fn a_start_that_is_due_later_says_when() {
    let mut play = Play::start();
    play.jobs[0].due_at = NOW.plus(Duration::from_mins(5));
    let (run, jobs, events) = (&play.run, &play.jobs[..], &play.events[..]);
    let executor = &Executor::Unknown;
    let standing = standing((run, jobs, events), executor);
    let first = why(&play.flow, &standing, NOW)[0].to_string();
    assert_eq!(first, "`start` is due at 2023-11-14T22:18:20.000Z");
}

#[test]
fn a_cancelled_run_says_why() {
    let mut play = Play::start();
    play.report(&Report::Cancel { reason: Some("wrong customer".into()) });
    play.check(&Executor::Unknown, &["somebody cancelled it: wrong customer"]);
}

#[test]
fn a_step_shows_its_attempts_and_how_long_they_took() {
    let mut play = Play::start();
    play.succeed("start", &["pay", "stock"]);
    play.fail("charge");
    play.succeed("charge", &["paid"]);
    let views = steps(&play.flow, &play.run, &play.events);
    let rows: Vec<_> = (views.iter())
        .map(|view| {
            (&*view.name, view.state.as_str(), view.attempts, view.failures, view.duration_ms)
        })
        .collect();
    assert_eq!(
        rows[..4],
        [
            ("start", "succeeded", 1, 0, Some(40)),
            ("charge", "succeeded", 2, 1, Some(80)),
            ("reserve", "waiting", 0, 0, None),
            ("ship", "pending", 0, 0, None),
        ]
    );
    assert_eq!(views[1].error.as_ref().map(|error| &*error.message), Some("card declined"));
}

#[test]
fn a_length_of_time_has_two_units_at_most() {
    let rows = [
        (0, "0ms"),
        (999, "999ms"),
        (1_240, "1.2s"),
        (61_000, "1m01s"),
        (3_660_000, "1h01m"),
        (12_000, "12s"),
        (7_200_000, "2h"),
        (90_000_000, "1d01h"),
    ];
    for (ms, text) in rows {
        assert_eq!(Brief(Duration::from_millis(ms)).to_string(), text);
    }
}
