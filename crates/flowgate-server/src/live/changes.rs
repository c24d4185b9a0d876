//! Runs that something happened to, gathered for whoever looks at many of them.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_store::Store;
use indexmap::IndexMap;

use super::client::Frame;
use crate::wire::live::{LiveRun, LiveRuns};

/// Runs that are told at once; of others only how many they are.
const RUNS_MAX: usize = 200;
/// Runs whose flow is remembered.
const KNOWN_MAX: usize = 10_000;

/// What happened since the last time that it was told.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pending: IndexMap<RunId, Last>,
    missed: u64,
    known: HashMap<RunId, Known>,
}

/// What happened last to a run.
#[derive(Clone, Debug)]
struct Last {
    kind: &'static str,
    at: String,
    status: Option<RunStatus>,
}

/// What is known of a run from its start on.
#[derive(Clone, Debug)]
struct Known {
    flow: Arc<str>,
    /// A run of which no step has waited yet is running.
    may_wait: bool,
}

impl Changes {
    pub(super) fn note(&mut self, stored: &StoredEvent) {
        let run_id = stored.run_id;
        let status = match &stored.event {
            Event::RunStarted(started) => {
                if self.known.len() >= KNOWN_MAX {
                    self.known.clear();
                }
                let flow = Arc::clone(&started.flow);
                self.known.insert(run_id, Known { flow, may_wait: started.hold.is_some() });
                None
            }
            Event::StepWaiting { .. } => {
                if let Some(known) = self.known.get_mut(&run_id) {
                    known.may_wait = true;
                }
                None
            }
            Event::RunCompleted {} => Some(RunStatus::Completed),
            Event::RunFailed { .. } => Some(RunStatus::Failed),
            Event::RunCancelled { .. } => Some(RunStatus::Cancelled),
            Event::RunReleased { .. }
            | Event::RunMigrated(_)
            | Event::RunCheckpointed { .. }
            | Event::StepQueued { .. }
            | Event::StepRepaired { .. }
            | Event::StepStarted { .. }
            | Event::StepLost { .. }
            | Event::StepReleased { .. }
            | Event::StepParked { .. }
            | Event::EventEmitted { .. }
            | Event::EventRepeated { .. }
            | Event::StateSet { .. }
            | Event::AttemptFailed { .. }
            | Event::StepSucceeded { .. }
            | Event::StepFailed { .. }
            | Event::StepSkipped { .. }
            | Event::StepCancelled { .. }
            | Event::StepCarried { .. }
            | Event::SignalReceived { .. }
            | Event::SignalTaken { .. } => None,
        };
        if self.pending.len() >= RUNS_MAX && !self.pending.contains_key(&run_id) {
            self.missed += 1;
            self.known.remove(&run_id);
            return;
        }
        let last = Last { kind: stored.event.kind(), at: stored.at.to_string(), status };
        self.pending.insert(run_id, last);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.missed == 0
    }

    /// Forgets everything: nobody looks any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// What is to be told, without the flow and the status of runs that must be read for it.
    pub(super) fn take(&mut self) -> Taken {
        let missed = std::mem::take(&mut self.missed);
        let pending = std::mem::take(&mut self.pending);
        let mut runs = Vec::with_capacity(pending.len());
        for (run_id, last) in pending {
            let known = match last.status {
                // Nothing happens to it any more.
                Some(_) => self.known.remove(&run_id),
                None => self.known.get(&run_id).cloned(),
            };
            let running = known.as_ref().filter(|known| !known.may_wait);
            let status = last.status.or(running.map(|_| RunStatus::Running));
            runs.push((run_id, last, known.map(|known| known.flow), status));
        }
        Taken { runs, missed }
    }
}

/// A run that something happened to: what last, and its flow and status if they are known.
type TakenRun = (RunId, Last, Option<Arc<str>>, Option<RunStatus>);

/// What is to be told.
pub(super) struct Taken {
    runs: Vec<TakenRun>,
    missed: u64,
}

impl Taken {
    /// With what must be read. A run that cannot be read now counts as missed.
    pub(super) async fn complete(self, store: &dyn Store) -> LiveRuns {
        let mut told = LiveRuns { runs: Vec::with_capacity(self.runs.len()), missed: self.missed };
        for (run_id, last, flow, status) in self.runs {
            let (flow, status) = match (flow, status) {
                (Some(flow), Some(status)) => (flow, status),
                (_, status) => {
                    if let Ok(Some(detail)) = store.read_run(run_id).await {
                        let run = detail.row.run;
                        (Arc::clone(&run.flow), status.unwrap_or(run.status))
                    } else {
                        told.missed += 1;
                        continue;
                    }
                }
            };
            let r#type = last.kind.into();
            told.runs.push(LiveRun { run_id, flow, status, r#type, at: last.at });
        }
        told
    }
}

/// What those are sent who look at the runs of `flow`, or of all flows; nothing if nothing happened
/// to them.
pub(super) fn frame(told: &LiveRuns, flow: Option<&str>) -> Option<Frame> {
    let of_flow;
    let told = match flow {
        None => told,
        Some(flow) => {
            let runs = told.runs.iter().filter(|run| *run.flow == *flow).cloned().collect();
            of_flow = LiveRuns { runs, missed: told.missed };
            &of_flow
        }
    };
    if told.runs.is_empty() && told.missed == 0 {
        return None;
    }
    let data = serde_json::to_string(told).expect("it has a JSON form");
    let bytes = Bytes::from(format!("event: runs\ndata: {data}\n\n"));
    Some(Frame { seq: 0, is_last: false, bytes })
}
