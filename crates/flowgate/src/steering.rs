//! Changing what is not a run: the owner of an embedded store does it, or this process at once.

use std::time::Duration;

use flowgate_core::ids::{Position, RunId};
use flowgate_engine::subscriber::{ResetTo, SubscriberAdmin};
use flowgate_engine::{QueueRate, QueueSettings, change_queue, drop_dead_letter};
use flowgate_store::Store;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cmd::App;
use crate::cmd::runs::steer::send;
use crate::control::Request;
use crate::failure::Failure;
use crate::instance::failure;

/// A change.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Steer {
    /// Let a subscriber go on elsewhere.
    SubscriberReset { id: String, to: To },
    /// Change the settings of a queue.
    Queue { queue: String, change: QueueChange },
    /// Drop a dead letter. Runs are kept this long.
    DropDead { run_id: RunId, kept_ms: u64 },
    /// Let a subscriber try again what it has put aside.
    SubscriberRetryDead { id: String, run_id: Option<RunId> },
}

/// What is to be set for a queue; what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueChange {
    pub(crate) paused: Option<bool>,
    /// `Some(None)` takes the limit away.
    #[serde(default, with = "twice")]
    pub(crate) concurrency: Option<Option<u32>>,
    #[serde(default, with = "twice")]
    pub(crate) rate: Option<Option<QueueRate>>,
}

/// A value that may be absent, or be there and say none.
mod twice {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, clippy::option_option, reason = "serde passes a reference")]
    pub(super) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<Option<T>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(|value| [value]).serialize(serializer)
    }

    #[expect(clippy::option_option, reason = "that is what it is for")]
    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Option<T>>, D::Error> {
        Ok(Option::<[Option<T>; 1]>::deserialize(deserializer)?.map(|[value]| value))
    }
}

/// Where a subscriber is to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum To {
    Start,
    End,
    Positions(Vec<Position>),
}

/// Makes the change; what to tell about it.
pub(crate) async fn carry_out(store: &dyn Store, steer: Steer) -> Result<Value, Failure> {
    match steer {
        Steer::Queue { queue, change } => {
            let set = |settings: &mut QueueSettings| {
                settings.paused = change.paused.unwrap_or(settings.paused);
                settings.concurrency = change.concurrency.unwrap_or(settings.concurrency);
                settings.rate = change.rate.unwrap_or(settings.rate);
            };
            let (was, now) = change_queue(store, &queue, set).await?;
            Ok(json!({ "queue": queue, "was": was, "now": now }))
        }
        Steer::DropDead { run_id, kept_ms } => {
            let kept = Duration::from_millis(kept_ms);
            let dropped = drop_dead_letter(store, run_id, kept).await?;
            Ok(json!({ "run_id": run_id, "dropped": dropped }))
        }
        Steer::SubscriberReset { id, to } => {
            let to = match to {
                To::Start => ResetTo::Start,
                To::End => ResetTo::End,
                To::Positions(positions) => ResetTo::Positions(positions),
            };
            SubscriberAdmin::new(store).reset(&id, &to).await.map_err(failure)?;
            Ok(json!({ "subscriber": id, "reset": true }))
        }
        Steer::SubscriberRetryDead { id, run_id } => {
            let count = SubscriberAdmin::new(store).retry_dead(&id, run_id).await;
            Ok(json!({ "subscriber": id, "retried": count.map_err(failure)? }))
        }
    }
}

/// Has the change made, by whoever may write to the store of the settings.
pub(crate) async fn steer(app: &App, steer: Steer) -> Result<Value, Failure> {
    send(app, Request::Steer(steer)).await?.reply.value()
}
