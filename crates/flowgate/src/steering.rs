//! Changing what is not a run: the owner of an embedded store does it, or this process at once.

use std::path::Path;
use std::time::Duration;

use flowgate_core::ids::{InstanceId, Position, RunId};
use flowgate_engine::subscriber::{ResetTo, SubscriberAdmin};
use flowgate_store::{Store, StoreUrl};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cmd::App;
use crate::control::{self, Request, Served};
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
    /// Let a subscriber try again what it has put aside.
    SubscriberRetryDead { id: String, run_id: Option<RunId> },
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
        if let Some(served) = control::send(&stores::canonical(path), &request).await? {
            let Served::Steered(value) = served else {
                unreachable!("it was not asked about a run")
            };
            return Ok(value);
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
