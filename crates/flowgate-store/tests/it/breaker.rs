//! What a breaker does while the store behind it does not answer.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::{InstanceId, Position};
use flowgate_store::breaker::{FAILURES_MAX, PAUSE_MAX, PAUSE_MIN};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{
    Breaker, BreakerState, Claimant, MemoryStore, Queues, Retention, Store, StoreError,
};
use tokio::time::{Instant, advance, timeout};

const HOUR: Duration = Duration::from_hours(1);

/// A breaker, and the store behind it.
fn broken() -> (Breaker, Arc<Faulty>) {
    let faulty = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let breaker = Breaker::new(faulty.clone());
    (breaker, faulty)
}

/// Opens `breaker` by calls that its store does not answer.
async fn open(breaker: &Breaker, faulty: &Faulty) {
    faulty.plan(Call::Now, Fault::NotDone, u32::MAX);
    for _ in 0..FAILURES_MAX {
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.now().await.is_err());
    }
    assert!(is_open(breaker));
}

fn is_open(breaker: &Breaker) -> bool {
    matches!(breaker.state(), BreakerState::Open { .. })
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_fails_fast_and_says_since_when_and_until_when() {
    let (breaker, faulty) = broken();
    open(&breaker, &faulty).await;
    faulty.plan(Call::Read, Fault::Delayed(HOUR), 1);
    let began = Instant::now();
    let error = breaker.list_instances().await.unwrap_err();
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(error.is_transient());
    let text = error.to_string();
    for part in ["no answer for", "tried again in", "Now was not done"] {
        assert!(text.contains(part), "{text}");
    }
    let BreakerState::Open { since, reason } = breaker.state() else { panic!("it is open") };
    assert_eq!(since, began);
    assert!(reason.contains("Now was not done"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_between_failures_keeps_it_closed() {
    let (breaker, faulty) = broken();
    for _ in 0..10 {
        faulty.plan(Call::Now, Fault::NotDone, FAILURES_MAX - 1);
        for _ in 1..FAILURES_MAX {
            assert!(breaker.now().await.is_err());
        }
        assert!(breaker.now().await.is_ok());
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn one_call_at_a_time_is_the_probe_and_its_answer_closes() {
    let (breaker, faulty) = broken();
    open(&breaker, &faulty).await;
    faulty.plan(Call::Read, Fault::Delayed(Duration::from_millis(50)), 1);
    advance(PAUSE_MIN).await;
    let others = async {
        for _ in 0..10 {
            assert!(breaker.list_instances().await.is_err(), "somebody else is probing");
        }
        advance(Duration::from_millis(60)).await;
    };
    let (probe, ()) = tokio::join!(breaker.list_instances(), others);
    assert!(probe.is_ok());
    assert_eq!(breaker.state(), BreakerState::Closed);
    assert!(breaker.list_instances().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_up_to_the_longest_and_begin_anew() {
    let (breaker, faulty) = broken();
    open(&breaker, &faulty).await;
    let mut expected = PAUSE_MIN;
    for _ in 0..10 {
        let BreakerState::Open { .. } = breaker.state() else { panic!("it is open") };
        let began = Instant::now();
        breaker.wait_due(&Queues::All, HOUR).await.unwrap();
        let pause = began.elapsed();
        let slack = Duration::from_millis(2);
        assert!(pause + slack >= expected / 2 && pause <= expected + slack, "{pause:?}");
        assert!(breaker.now().await.is_err());
        expected = (expected * 2).min(PAUSE_MAX);
    }
    faulty.plan(Call::Now, Fault::NotDone, 0);
    breaker.wait_due(&Queues::All, HOUR).await.unwrap();
    assert!(breaker.now().await.is_ok());
    open(&breaker, &faulty).await;
    let began = Instant::now();
    breaker.wait_due(&Queues::All, HOUR).await.unwrap();
    assert!(began.elapsed() <= PAUSE_MIN + Duration::from_millis(2));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_gives_its_place_up() {
    let (breaker, faulty) = broken();
    open(&breaker, &faulty).await;
    faulty.plan(Call::Read, Fault::Delayed(HOUR), 1);
    advance(PAUSE_MIN).await;
    let others = async {
        assert!(breaker.list_instances().await.is_err(), "somebody else is probing");
        advance(Duration::from_secs(6)).await;
        assert!(breaker.list_instances().await.is_ok());
    };
    tokio::select! {
        biased;
        _ = breaker.list_instances() => panic!("it hangs"),
        () = others => {}
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_a_caller_without_patience_does_not_put_off_the_next_ones() {
    let (breaker, faulty) = broken();
    open(&breaker, &faulty).await;
    faulty.plan(Call::Read, Fault::Delayed(HOUR), u32::MAX);
    for _ in 0..10 {
        let began = Instant::now();
        breaker.wait_due(&Queues::All, HOUR).await.unwrap();
        assert!(began.elapsed() <= PAUSE_MIN + Duration::from_millis(2), "{:?}", began.elapsed());
        let quick = timeout(Duration::from_millis(500), breaker.list_instances()).await;
        assert!(quick.is_err(), "it hangs");
    }
    faulty.plan(Call::Now, Fault::NotDone, 0);
    breaker.wait_due(&Queues::All, HOUR).await.unwrap();
    assert!(breaker.now().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_given_up_count() {
    let (breaker, faulty) = broken();
    faulty.plan(Call::Read, Fault::Delayed(HOUR), u32::MAX);
    for _ in 0..10 {
        let quick = timeout(Duration::from_millis(10), breaker.list_instances()).await;
        assert!(quick.is_err(), "it hangs");
    }
    assert_eq!(breaker.state(), BreakerState::Closed, "nobody waited for long");
    for _ in 0..FAILURES_MAX {
        assert!(timeout(Duration::from_secs(2), breaker.list_instances()).await.is_err());
    }
    assert!(is_open(&breaker));
}

#[tokio::test(start_paused = true)]
async fn waits_wait_for_the_next_try() {
    let (breaker, faulty) = broken();
    open(&breaker, &faulty).await;
    let (began, short) = (Instant::now(), Duration::from_millis(1));
    breaker.wait_due(&Queues::All, short).await.unwrap();
    breaker.wait_feed(0, Position::START, short).await.unwrap();
    assert_eq!(began.elapsed(), 2 * short);
    // A probe of somebody else that is answered ends them.
    faulty.plan(Call::Now, Fault::NotDone, 0);
    let probe = async {
        while breaker.now().await.is_err() {
            advance(Duration::from_millis(100)).await;
        }
    };
    let (waited, ()) = tokio::join!(breaker.wait_due(&Queues::All, HOUR), probe);
    waited.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waits_that_fail_count() {
    let (breaker, faulty) = broken();
    faulty.plan(Call::WaitDue, Fault::NotDone, u32::MAX);
    for _ in 0..FAILURES_MAX {
        assert!(breaker.wait_due(&Queues::All, HOUR).await.is_err());
    }
    assert!(is_open(&breaker));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_always_tried_and_its_answer_closes() {
    let (breaker, faulty) = broken();
    open(&breaker, &faulty).await;
    faulty.plan(Call::Renew, Fault::NotDone, 1);
    let failed = breaker.renew(&[], HOUR).await.unwrap_err().to_string();
    assert!(failed.contains("Renew was not done"), "it reached the store: {failed}");
    assert!(is_open(&breaker));
    assert!(breaker.renew(&[], HOUR).await.is_ok());
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test]
async fn an_error_that_is_an_answer_does_not_open_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flowgate.db");
    let options = crate::harness::options(&flowgate_store::Clock::wall());
    let owner = flowgate_store::SqliteStore::open(&path, options).await.unwrap();
    let reader = flowgate_store::SqliteStore::open_read_only(&path).await.unwrap();
    let breaker = Breaker::new(Arc::new(reader));
    for _ in 0..2 * FAILURES_MAX {
        let refused = breaker.sweep(&Retention::DEFAULT).await;
        assert!(matches!(refused, Err(StoreError::ReadOnly)), "{refused:?}");
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    owner.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ten_breakers_of_a_dead_store_do_not_probe_in_step() {
    const COUNT: usize = 10;
    let faulty = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    faulty.plan(Call::Claim, Fault::NotDone, u32::MAX);
    let began = Instant::now();
    let probes = (0..COUNT).map(|number| {
        let breaker = Breaker::new(faulty.clone());
        let instance = InstanceId(format!("i{number}").into());
        let claimant = Claimant { instance, queues: Queues::All, slots: 1, lease: HOUR };
        async move {
            let mut probed = Vec::new();
            while began.elapsed() < Duration::from_mins(1) {
                assert!(breaker.claim(&claimant).await.is_err());
                if is_open(&breaker) {
                    probed.push(began.elapsed());
                    breaker.wait_due(&claimant.queues, HOUR).await.unwrap();
                }
            }
            probed
        }
    });
    let probed: Vec<Vec<Duration>> = futures_util::future::join_all(probes).await;
    let late = |probes: &Vec<Duration>| probes.iter().filter(|at| at.as_secs() >= 20).count();
    for probes in &probed {
        let count = late(probes);
        assert!((7..=17).contains(&count), "{count} probes in 40 s");
    }
    let total: usize = probed.iter().map(late).sum();
    let mut buckets = vec![0; 600];
    for at in probed.iter().flatten().filter(|at| at.as_secs() >= 20) {
        buckets[usize::try_from(at.as_millis() / 100).unwrap().min(599)] += 1;
    }
    let most: usize = buckets.into_iter().max().unwrap();
    assert!(most <= COUNT / 2, "{most} of {total} probes fell into one tenth of a second");
}
