//! The revisions that this instance has used, ready for use.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flowgate_core::flow::{Action, Flow, Step};
use flowgate_core::ids::{Revision, StepIndex};
use flowgate_core::limits::{AUTHOR_BYTES_MAX, NOTE_BYTES_MAX};
use flowgate_store::{Authored, NewRevision, Store, StoreError, StoredRevision};
use parking_lot::RwLock;
use tokio::time::Instant;

use crate::clock;
use crate::error::{EngineError, FlowError};
use crate::executor::worker::{Handler, Workers};
use crate::queues::QueueBook;

/// How long the active revision of a flow is remembered: another instance may register one.
const ACTIVE_FOR: Duration = Duration::from_secs(1);

/// How many flows can be asked for at a time at the least.
const TURNS: usize = 16;

/// When a read of an active revision began that failed, and why.
type FailedRead = (Instant, Arc<StoreError>);

/// A revision as it is stored; whoever wrote it is told if they said too much of themselves.
pub(crate) fn revision(
    flow: &Flow,
    folder: Option<&PathBuf>,
    authored: Authored,
) -> Result<NewRevision, EngineError> {
    let texts =
        [("author", &authored.author, AUTHOR_BYTES_MAX), ("note", &authored.note, NOTE_BYTES_MAX)];
    for (name, text, bytes_max) in texts {
        let Some(text) = text else { continue };
        if text.len() > bytes_max {
            let message = format!("the {name} has more than {bytes_max} bytes; make it shorter");
            return Err(EngineError::Invalid(message));
        }
        // A note may have several lines.
        if text.contains(|c: char| c.is_control() && !(name == "note" && "\n\t".contains(c))) {
            let message = format!("the {name} has control characters; leave them out");
            return Err(EngineError::Invalid(message));
        }
    }
    Ok(NewRevision {
        revision: flow.revision.clone(),
        file: flow.file.clone(),
        folder: folder.map(|folder| folder.to_string_lossy().into_owned()),
        authored,
    })
}

/// A revision with what its execution needs.
pub(crate) struct LoadedFlow {
    pub(crate) flow: Flow,
    /// The folder that its programs start in.
    pub(crate) folder: Option<PathBuf>,
    /// The handler of each step that has one here.
    handlers: Vec<Option<Arc<dyn Handler>>>,
    /// Whether it has steps of workers that have no handler here.
    has_foreign: bool,
    /// For each step, whether the last first poll of its handler did not hold up its thread.
    quick: Vec<AtomicBool>,
}

impl LoadedFlow {
    pub(crate) fn new(flow: Flow, folder: Option<PathBuf>, workers: &Workers) -> Self {
        let handler = |action: &Action| workers.get(action.worker()?).cloned();
        let handlers: Vec<_> = flow.steps.iter().map(|step| handler(&step.action)).collect();
        let quick = flow.steps.iter().map(|_| AtomicBool::new(false)).collect();
        let mut steps = flow.steps.iter().zip(&handlers);
        let has_foreign = steps.any(|(step, handler)| is_foreign(step, handler.as_ref()));
        Self { flow, folder, handlers, has_foreign, quick }
    }

    /// Whether it is the same revision of the same flow, loaded here or there.
    pub(crate) fn is_same(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || self.flow.revision == other.flow.revision
    }

    /// Whether some of its steps can only be executed by others.
    pub(crate) fn has_foreign(&self) -> bool {
        self.has_foreign
    }

    /// Whether a step can only be executed by others: it needs a handler that is not here.
    pub(crate) fn is_foreign(&self, step: StepIndex) -> bool {
        self.has_foreign && is_foreign(self.flow.step(step), self.handler(step))
    }

    /// Its steps by their queues, and whether they can be executed here.
    fn uses(&self) -> impl Iterator<Item = (&str, bool)> {
        let steps = self.flow.steps.iter().zip(&self.handlers);
        steps.map(|(step, handler)| (&*step.queue, !is_foreign(step, handler.as_ref())))
    }

    pub(crate) fn is_quick(&self, step: StepIndex) -> bool {
        self.quick[step.at()].load(Ordering::Relaxed)
    }

    pub(crate) fn set_quick(&self, step: StepIndex, is_quick: bool) {
        if self.is_quick(step) != is_quick {
            self.quick[step.at()].store(is_quick, Ordering::Relaxed);
        }
    }

    pub(crate) fn handler(&self, step: StepIndex) -> Option<&Arc<dyn Handler>> {
        self.handlers[step.at()].as_ref()
    }
}

fn is_foreign(step: &Step, handler: Option<&Arc<dyn Handler>>) -> bool {
    step.action.worker().is_some() && handler.is_none()
}

impl std::fmt::Debug for LoadedFlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedFlow")
            .field("flow", &self.flow.name)
            .field("revision", &self.flow.revision)
            .finish_non_exhaustive()
    }
}

/// Revisions by flow and content address. They never change, so they are never dropped.
#[derive(Debug)]
pub(crate) struct Flows {
    known: RwLock<HashMap<Arc<str>, OfFlow>>,
    /// Held by whoever reads which revision of a flow is active, by a hash of its name.
    turns: [tokio::sync::Mutex<Option<FailedRead>>; TURNS],
    /// Told of every revision before its first use.
    queues: Arc<QueueBook>,
}

#[derive(Debug, Default)]
struct OfFlow {
    /// Grows whenever the active revision is to be read anew.
    asked_anew: u64,
    revisions: HashMap<Revision, Arc<LoadedFlow>>,
    active: Option<(Arc<LoadedFlow>, Instant)>,
}

impl Flows {
    pub(crate) fn new(queues: Arc<QueueBook>) -> Self {
        Self { known: RwLock::default(), turns: Default::default(), queues }
    }

    /// A revision that was used before.
    pub(crate) fn get(&self, flow: &str, revision: &Revision) -> Option<Arc<LoadedFlow>> {
        self.known.read().get(flow)?.revisions.get(revision).cloned()
    }

    /// A revision, read from the store at its first use.
    pub(crate) async fn load(
        &self,
        store: &dyn Store,
        workers: &Workers,
        (flow, revision): (&Arc<str>, &Revision),
    ) -> Result<Arc<LoadedFlow>, FlowError> {
        if let Some(loaded) = self.get(flow, revision) {
            return Ok(loaded);
        }
        let found = store.read_revision(flow, Some(revision)).await;
        let found = found.map_err(|error| FlowError::Store(Arc::new(error)))?;
        let unknown = || FlowError::Unknown { flow: Arc::clone(flow), revision: revision.clone() };
        self.compile(found.ok_or_else(unknown)?, workers)
    }

    /// The revision that new runs of `flow` start on, if there is such a flow.
    pub(crate) async fn active(
        &self,
        store: &dyn Store,
        workers: &Workers,
        flow: &str,
    ) -> Result<Option<Arc<LoadedFlow>>, FlowError> {
        if let Ok(active) = self.known_active(flow) {
            return Ok(Some(active));
        }
        // Whoever comes while one reads it is given what that one finds, or is told why not.
        let came = clock::now();
        let mut failed = self.turn(flow).lock().await;
        let asked_anew = match self.known_active(flow) {
            Ok(active) => return Ok(Some(active)),
            Err(asked_anew) => asked_anew,
        };
        if let Some((_, error)) = failed.as_ref().filter(|(began, _)| *began >= came) {
            return Err(FlowError::Store(Arc::clone(error)));
        }
        let now = clock::now();
        let found = match store.read_revision(flow, None).await {
            Ok(found) => found,
            Err(error) => {
                let error = Arc::new(error);
                *failed = Some((now, Arc::clone(&error)));
                return Err(FlowError::Store(error));
            }
        };
        let Some(found) = found else { return Ok(None) };
        let known = self.get(flow, &found.revision.revision);
        let loaded = known.map_or_else(|| self.compile(found, workers), Ok)?;
        let mut known = self.known.write();
        let of_flow = known.entry(Arc::clone(&loaded.flow.name)).or_default();
        // What was asked for before it was to be read anew may be what was active then.
        if of_flow.asked_anew == asked_anew {
            of_flow.active = Some((Arc::clone(&loaded), now));
        }
        Ok(Some(loaded))
    }

    fn turn(&self, flow: &str) -> &tokio::sync::Mutex<Option<FailedRead>> {
        let mut hasher = DefaultHasher::new();
        flow.hash(&mut hasher);
        let at = hasher.finish() % u64::try_from(TURNS).expect("a few");
        &self.turns[usize::try_from(at).expect("less than a few")]
    }

    /// The active revision as far as it is known; or else how often it was to be read anew.
    fn known_active(&self, flow: &str) -> Result<Arc<LoadedFlow>, u64> {
        let known = self.known.read();
        let of_flow = known.get(flow).ok_or(0_u64)?;
        let is_fresh = |at: &Instant| clock::now().saturating_duration_since(*at) < ACTIVE_FOR;
        let active = of_flow.active.as_ref().filter(|(_, at)| is_fresh(at));
        active.map(|(active, _)| Arc::clone(active)).ok_or(of_flow.asked_anew)
    }

    fn compile(
        &self,
        stored: StoredRevision,
        workers: &Workers,
    ) -> Result<Arc<LoadedFlow>, FlowError> {
        let name: Arc<str> = stored.revision.file.flow.as_str().into();
        let revision = stored.revision.revision;
        let flow = Flow::new(stored.revision.file).map_err(|problems| FlowError::Invalid {
            flow: name,
            revision,
            problems,
        })?;
        Ok(self.keep(LoadedFlow::new(flow, stored.revision.folder.map(PathBuf::from), workers)))
    }

    /// Keeps a revision; the one that is known already, if there is one in the same folder.
    pub(crate) fn keep(&self, loaded: LoadedFlow) -> Arc<LoadedFlow> {
        self.queues.note_uses(loaded.uses());
        let mut known = self.known.write();
        let of_flow = known.entry(Arc::clone(&loaded.flow.name)).or_default();
        if let Some(kept) = of_flow.revisions.get(&loaded.flow.revision)
            && kept.folder == loaded.folder
        {
            return Arc::clone(kept);
        }
        let revision = loaded.flow.revision.clone();
        let loaded = Arc::new(loaded);
        of_flow.revisions.insert(revision, Arc::clone(&loaded));
        loaded
    }

    /// Whether this is the revision that was last seen to be active.
    pub(crate) fn is_active(&self, loaded: &LoadedFlow) -> bool {
        let known = self.known.read();
        let active = known.get(&loaded.flow.name).and_then(|of_flow| of_flow.active.as_ref());
        // What is to be read anew was active when this one was read, as far as is known.
        active.is_none_or(|(active, _)| active.flow.revision == loaded.flow.revision)
    }

    /// Has the active revision of a flow read anew by whoever asks for it from now on.
    pub(crate) fn forget_active(&self, flow: &Arc<str>) {
        let mut known = self.known.write();
        let of_flow = known.entry(Arc::clone(flow)).or_default();
        of_flow.active = None;
        of_flow.asked_anew += 1;
    }

    pub(crate) fn remember_active(&self, loaded: &Arc<LoadedFlow>, now: Instant) {
        let mut known = self.known.write();
        let of_flow = known.entry(Arc::clone(&loaded.flow.name)).or_default();
        of_flow.active = Some((Arc::clone(loaded), now));
    }
}

#[cfg(test)]
mod tests {
    use flowgate_core::flow::{FlowBuilder, StepBuilder};
    use flowgate_store::faulty::{Call, Fault, Faulty};
    use flowgate_store::{MemoryStore, Queues};
    use futures_util::future::join_all;

    use super::*;

    async fn faulty() -> Faulty {
        let faulty = Faulty::new(Arc::new(MemoryStore::new()));
        let flow = FlowBuilder::new("one").step(StepBuilder::new("a")).build().unwrap();
        let revision = revision(&flow, None, Authored::default()).unwrap();
        faulty.register_flow(revision).await.unwrap();
        faulty
    }

    fn flows(workers: &Workers) -> Flows {
        Flows::new(Arc::new(QueueBook::new(&Queues::All, None, workers)))
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_while_the_active_revision_is_read_is_given_what_that_finds() {
        let (faulty, workers) = (faulty().await, Workers::new());
        let flows = flows(&workers);
        let late = Duration::from_millis(100);
        for round in 0..2 {
            // Only the first is late: who read it for himself would have it at once.
            faulty.plan(Call::Read, Fault::Delayed(late), 1);
            let began = clock::now();
            let ask = async || {
                assert!(flows.active(&faulty, &workers, "one").await.unwrap().is_some());
                clock::now() - began
            };
            let took = join_all((0..50).map(|_| ask())).await;
            assert_eq!(took, [late; 50], "round {round}");
            flows.forget_active(&"one".into());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_a_read_that_fails_is_told_so_and_the_next_reads_anew() {
        let (faulty, workers) = (faulty().await, Workers::new());
        let flows = flows(&workers);
        faulty.plan(Call::Read, Fault::NotDone, 1);
        let asked = join_all((0..50).map(|_| flows.active(&faulty, &workers, "one"))).await;
        assert!(asked.iter().all(Result::is_err), "{asked:?}");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(flows.active(&faulty, &workers, "one").await.unwrap().is_some());
    }
}
