//! Changing what is not a run: the owner of an embedded store does it, or this process at once.

use std::path::Path;
use std::time::Duration;

use flowgate_core::ids::{InstanceId, Position, RunId};
use flowgate_engine::subscriber::{ResetTo, SubscriberAdmin};
use flowgate_engine::{QueueRate, QueueSettings, change_queue, drop_dead_letter};
use flowgate_store::{Store, StoreUrl};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cmd::App;
use crate::control::{self, Request};
use crate::failure::Failure;
use crate::instance::failure;
use crate::stores;

/// Tries to find the owner or to become it: the owner may just be starting or ending.
const TRIES: u32 = 10;
const TRY_AGAIN: Duration = Duration::from_millis(50);

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
    match &app.config.store {
        StoreUrl::Memory => Err(stores::memory_is_private()),
        StoreUrl::Sqlite(path) => steer_by_owner(app, path, steer).await,
        url @ (StoreUrl::Redis(_) | StoreUrl::Postgres(_)) => {
            let store = url.open_shared().await.map_err(|e| Failure::from(e).at_store(url))?;
            carry_out(&*store, steer).await
        }
    }
}

async fn steer_by_owner(app: &App, path: &Path, steer: Steer) -> Result<Value, Failure> {
    let mut refusal = None;
    for attempt in 0..TRIES {
        if attempt > 0 {
            tokio::time::sleep(TRY_AGAIN).await;
        }
        let request = Request::Steer(steer.clone());
        if let Some(reply) = control::send(&stores::canonical(path), &request).await? {
            return reply.value();
        }
        let owner = InstanceId("steering".into());
        match stores::open_to_write(app, &app.config.store, &owner).await {
            Ok(own) => {
                let value = carry_out(&*own.store, steer).await;
                own.close().await;
                return value;
            }
            Err(failure) if failure.code == "store_in_use" => refusal = Some(failure),
            Err(failure) => return Err(failure),
        }
    }
    let refusal = refusal.expect("every try that did not return was refused");
    Err(refusal.help("that process takes no requests; stop it and try again"))
}
