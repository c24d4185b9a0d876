//! Steps that publish, by whoever was handed in for it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Engine, EngineConfig, HandlerError, OutgoingMessage, Publisher, StepContext, Workers,
};
use flowgate_store::Queues;
use parking_lot::Mutex;
use serde_json::Value;

use crate::world::{World, config, is, store};

/// Keeps what it is to publish: topic, payload and key.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<(String, String, String)>>);

#[async_trait]
impl Publisher for Kept {
    async fn publish(&self, message: OutgoingMessage) -> Result<(), HandlerError> {
        let (topic, key) = (message.topic.to_string(), message.context.key());
        self.0.lock().push((topic, message.payload, key));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_publishes_is_left_to_instances_that_can() {
    let yaml = "{flow: f, steps: {first: {run: {worker: local}},
        out: {subscribes: [\"step:first\"], run: {mqtt: {topic: a/b}}}}}";
    let mut local = Workers::new();
    local.register("local", async |_: Value, _: StepContext| Ok::<_, HandlerError>(()));
    let world = World::with(store(), yaml, vec![(local, config("a"))]).await;
    let run_id = world.start(1).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    let story = world.story(run_id).await;
    assert_eq!(story.last().map(String::as_str), Some("step.queued out"), "{story:?}");
    assert!(!story.iter().any(|event| event.starts_with("step.released")), "{story:?}");

    // One that names `default` serves the queue of what it can publish too.
    let kept = Arc::new(Kept::default());
    let mut workers = Workers::new();
    workers.publish_by(Arc::clone(&kept) as _);
    let queues = Queues::Only(vec!["default".into()]);
    let config = EngineConfig { queues, ..config("b") };
    let able = Engine::start(Arc::clone(&world.store), workers, config).unwrap();
    is(&able.wait(run_id).await.unwrap(), RunStatus::Completed);
    let expected = ("a/b".to_owned(), r#"{"step:first":null}"#.to_owned());
    let (topic, payload, key) = kept.0.lock().remove(0);
    assert_eq!((topic, payload), expected);
    assert_eq!(key, format!("{run_id}/out/1"));
    able.shutdown().await;
    world.shutdown().await;
}
