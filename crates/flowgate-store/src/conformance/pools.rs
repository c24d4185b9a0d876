//! Queues of pools: who names neither the pool nor the queue gets nothing of them.

use super::Harness;
use super::waking::{ends_soon, waiting};
use super::world::{World, applied, but, only, queued};
use crate::{Claimant, Queues};

fn all_of(pool: &str, but: &[&str]) -> Queues {
    let but = but.iter().map(|queue| (*queue).into()).collect();
    Queues::AllOf { pool: pool.into(), but }
}

/// Claims all that is due of these queues; in which it waited.
async fn claim<H: Harness>(world: &World<'_, H>, queues: Queues) -> Vec<String> {
    let claimant = Claimant { queues, ..world.claimant(10) };
    let claimed = world.store().claim(&claimant).await.unwrap();
    claimed.iter().map(|claimed| claimed.job.queue.to_string()).collect()
}

pub async fn whoever_wants_all_queues_gets_none_of_a_pool_that_it_does_not_name(
    harness: &mut impl Harness,
) {
    let mut world = World::new(harness);
    for pool in ["green", "blue"] {
        world.apply(world.start_for(&queued("a"), pool)).await;
    }
    world.reopen_if_it_can().await;
    assert_eq!(claim(&world, Queues::All).await, [""; 0]);
    assert_eq!(claim(&world, but(&["b"])).await, [""; 0]);
    assert_eq!(claim(&world, only("a")).await, [""; 0]);
    assert_eq!(claim(&world, all_of("grey", &[])).await, [""; 0]);
    assert_eq!(claim(&world, all_of("green", &["a", "a@green"])).await, [""; 0]);
    world.started(&queued("b"), "1").await;
    let mut taken = claim(&world, all_of("green", &["a"])).await;
    taken.sort();
    assert_eq!(taken, ["a@green", "b"]);
    assert_eq!(claim(&world, only("a@blue")).await, ["a@blue"]);
}

pub async fn a_hand_off_takes_nothing_of_another_pool(harness: &mut impl Harness) {
    let world = World::new(harness);
    for (queues, expected) in [
        (Queues::All, ""),
        (but(&["b"]), ""),
        (only("a"), ""),
        (all_of("blue", &[]), ""),
        (all_of("green", &["a@green"]), ""),
        (all_of("green", &["a"]), "a@green"),
        (only("a@green"), "a@green"),
    ] {
        let claimant = Claimant { queues: queues.clone(), ..world.claimant(10) };
        let start = world.start_for(&queued("a"), "green");
        let taken = applied(world.send(start, Some(&claimant)).await);
        let taken: Vec<&str> = taken.iter().map(|claimed| &*claimed.job.queue).collect();
        assert_eq!(taken.concat(), expected, "{queues:?}");
    }
}

pub async fn whoever_waits_for_a_pool_is_woken_by_its_jobs(harness: &mut impl Harness) {
    let world = World::new(harness);
    let waits = waiting(world.store(), all_of("green", &[])).await;
    world.apply(world.start_for(&queued("a"), "green")).await;
    ends_soon(waits).await;
    let stats = world.store().queue_stats().await.unwrap();
    let shown: Vec<_> = stats.iter().map(|stats| (&*stats.queue, stats.due)).collect();
    assert_eq!(shown, [("a@green", 1)]);
}
