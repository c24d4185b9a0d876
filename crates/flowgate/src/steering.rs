//! Changing what is not a run: the owner of an embedded store does it, or this process at once.

use flowgate_core::ids::{Position, RunId};
use flowgate_engine::subscriber::{ResetTo, SubscriberAdmin};
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
    send(app, Request::Steer(steer)).await?.reply.value()
}
