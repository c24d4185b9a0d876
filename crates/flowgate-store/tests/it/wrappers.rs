//! What the faulty store does on command.

use std::sync::Arc;

use flowgate_store::conformance::Harness;
use flowgate_store::conformance::world::{World, single};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{Store, StoreError};

use crate::harness::MemoryHarness;

#[tokio::test]
async fn a_call_that_fails_before_it_is_done_changes_nothing() {
    let mut harness = MemoryHarness::plain();
    let faulty = Faulty::new(harness.store());
    let world = World::new(&mut harness);
    let start = world.start(&single("one"), "1");
    faulty.plan(Call::Commit, Fault::NotDone, 2);
    for _ in 0..2 {
        let failed = faulty.commit(vec![start.clone()], None).await;
        assert!(matches!(failed, Err(StoreError::Unavailable { .. })));
    }
    assert!(world.store().read_run(start.run_id).await.unwrap().is_none());
    assert!(faulty.commit(vec![start.clone()], None).await.is_ok());
    assert!(world.store().read_run(start.run_id).await.unwrap().is_some());
}

#[tokio::test]
async fn a_commit_whose_reply_is_lost_is_done_and_can_be_sent_again() {
    let mut harness = MemoryHarness::plain();
    let faulty = Faulty::new(harness.store());
    let world = World::new(&mut harness);
    let start = world.start(&single("one"), "1");
    let claimant = world.claimant(1);
    faulty.plan(Call::Commit, Fault::ReplyLost, 1);
    let lost = faulty.commit(vec![start.clone()], Some(&claimant)).await;
    assert!(lost.unwrap_err().is_transient());
    assert!(world.store().read_run(start.run_id).await.unwrap().is_some());
    let again = faulty.commit(vec![start], Some(&claimant)).await.unwrap().remove(0);
    assert_eq!(flowgate_store::conformance::world::applied(again).len(), 1);
}

#[tokio::test]
async fn random_faults_follow_from_their_seed() {
    let outcomes = async |seed| {
        let store = MemoryHarness::plain().store();
        let faulty = Arc::new(Faulty::random(store, seed, 0.5));
        let mut failed = Vec::new();
        for _ in 0..64 {
            failed.push(faulty.now().await.is_err());
        }
        failed
    };
    let first = outcomes(7).await;
    assert_eq!(outcomes(7).await, first);
    assert_ne!(outcomes(8).await, first);
    assert!(first.contains(&true) && first.contains(&false));
}
