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

/// What is to be set for a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueChange {
    /// Unchanged if none.
    pub(crate) paused: Option<bool>,
    pub(crate) concurrency: Change<u32>,
    pub(crate) rate: Change<QueueRate>,
}

/// What is to become of a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change<T> {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is this.
    Set(T),
    /// It is gone.
    Unset,
}

impl<T> Change<T> {
    /// The setting after it.
    fn of(self, before: Option<T>) -> Option<T> {
        match self {
            Self::Keep => before,
            Self::Set(value) => Some(value),
            Self::Unset => None,
        }
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
                settings.concurrency = change.concurrency.of(settings.concurrency);
                settings.rate = change.rate.of(settings.rate);
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
