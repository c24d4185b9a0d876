//! Starts that were refused because the hold of a deployment was full.
//!
//! Nothing else of them is stored, so they are counted: each instance has a record for each
//! deployment, and nobody is told that a start was refused before the count of it is written. Those
//! that are refused while a count is being written are in the next one, so a flood of them costs no
//! flood of writes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::deploy::Deployment;
use flowgate_core::ids::InstanceId;
use flowgate_store::control::{Expect, RecordWrite};
use flowgate_store::{Store, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{list_all, read_one, write};

/// Refused starts, by flow, deployment and instance.
const REFUSED: &str = "deploy_refused";
/// How long a count is kept; the record of a deployment that has ended has the sum.
const KEPT: Duration = Duration::from_hours(30 * 24);

/// How many starts an instance has refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Refused {
    count: u64,
}

/// The counts of this instance.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    tallies: Mutex<HashMap<Arc<str>, Tally>>,
    /// Whoever writes has it.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// What the store had before this process began to count.
    before: Option<u64>,
    seen: u64,
    written: u64,
}

impl Refusals {
    /// Counts a start that a deployment of `flow` has no room to hold, and returns when the store
    /// has the count.
    pub(crate) async fn note(
        &self,
        store: &dyn Store,
        (flow, deployment): (&str, &str),
        instance: &InstanceId,
    ) -> Result<(), StoreError> {
        let key: Arc<str> = format!("{flow}/{deployment}/{instance}").into();
        let number = {
            let mut tallies = self.tallies.lock();
            // Those of an earlier deployment are written.
            let of_flow = format!("{flow}/");
            tallies.retain(|known, tally| {
                *known == key || !known.starts_with(&of_flow) || tally.written < tally.seen
            });
            let tally = tallies.entry(Arc::clone(&key)).or_default();
            tally.seen += 1;
            tally.seen
        };
        let _turn = self.turn.lock().await;
        let Some(tally) = self.tallies.lock().get(&key).copied() else { return Ok(()) };
        if tally.written >= number {
            return Ok(());
        }
        let before = match tally.before {
            Some(before) => before,
            None => read_one::<Refused>(store, REFUSED, &key)
                .await?
                .map_or(0, |(_, refused)| refused.count),
        };
        let refused = Refused { count: before + tally.seen };
        let counted = write(REFUSED, Arc::clone(&key), Expect::Anything, Some(&refused));
        // Only this instance writes it.
        let _written =
            store.write_records(vec![RecordWrite { keep: Some(KEPT), ..counted }], None).await?;
        if let Some(known) = self.tallies.lock().get_mut(&key) {
            (known.before, known.written) = (Some(before), tally.seen);
        }
        Ok(())
    }
}

/// How many starts were refused during a deployment, by all instances.
pub(super) async fn count(store: &dyn Store, deployment: &Deployment) -> Result<u64, StoreError> {
    let prefix = format!("{}/{}/", deployment.flow, deployment.deployment_id);
    let counts: Vec<Refused> = list_all(store, REFUSED, &prefix).await?;
    Ok(counts.iter().fold(0, |sum, refused| sum.saturating_add(refused.count)))
}
