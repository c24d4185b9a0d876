//! K4: telling others, and waiting to be told.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Harness;
use super::waking::{LATE, SOON, ends_soon};
use super::world::World;
use crate::faulty::Faulty;
use crate::{Control, Store};

/// Begins to wait, and returns once the store knows of it.
async fn listening(store: Arc<dyn Store>, topic: &'static str) -> JoinSet<()> {
    let mut task = JoinSet::new();
    let (waits, begun) = tokio::sync::oneshot::channel();
    task.spawn(async move {
        let wait = store.wait_told(topic, LATE);
        tokio::pin!(wait);
        let first = timeout(Duration::from_millis(100), &mut wait).await;
        waits.send(()).ok();
        match first {
            Ok(result) => result.unwrap(),
            Err(_) => wait.await.unwrap(),
        }
    });
    begun.await.unwrap();
    task
}

pub async fn a_word_wakes_all_who_wait_for_its_topic(harness: &mut impl Harness) {
    let world = World::new(harness);
    let one = listening(world.store(), "queues").await;
    let other = listening(world.store(), "queues").await;
    world.store().tell("queues").await.unwrap();
    ends_soon(one).await;
    ends_soon(other).await;
    let again = listening(world.store(), "queues").await;
    world.store().tell("queues").await.unwrap();
    ends_soon(again).await;
}

pub async fn a_word_of_another_topic_wakes_nobody(harness: &mut impl Harness) {
    let world = World::new(harness);
    let mut waits = listening(world.store(), "leader").await;
    for topic in ["queues", "leader/é", "lead", "Leader"] {
        world.store().tell(topic).await.unwrap();
    }
    let early = timeout(Duration::from_millis(50), waits.join_next()).await;
    assert!(early.is_err(), "a word of another topic ends no wait");
    world.store().tell("leader").await.unwrap();
    ends_soon(waits).await;
}

pub async fn a_wait_to_be_told_ends_after_its_longest_time(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    store.tell("nobody waits for this").await.unwrap();
    for span in [Duration::ZERO, Duration::from_millis(30)] {
        let wait = store.wait_told("leader", span);
        timeout(SOON, wait).await.expect("it ends by itself").unwrap();
    }
}

pub async fn losing_every_word_costs_a_wait_no_more_than_its_longest_time(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let faulty = Arc::new(Faulty::new(world.store()));
    faulty.drop_wake_ups(true);
    let listener: Arc<dyn Store> = Arc::<Faulty>::clone(&faulty);
    let mut waits = listening(listener, "leader").await;
    faulty.tell("leader").await.unwrap();
    let early = timeout(Duration::from_millis(50), waits.join_next()).await;
    assert!(early.is_err(), "the word is lost");
    let wait = faulty.wait_told("leader", Duration::from_millis(1));
    timeout(SOON, wait).await.expect("it ends by itself").unwrap();
}
