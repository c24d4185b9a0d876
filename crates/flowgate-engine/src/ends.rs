//! Waiting for the end of a run, on whichever instance it ends.
//!
//! - A run that is in flight here can hardly end elsewhere: whoever waits for it is told by the
//!   committer, without a call of the store. When it leaves this instance, they are told that too.
//! - For all other runs one follower of the feeds looks for ends, as long as anybody waits: however
//!   many do, the store is asked the same. Whoever begins to wait reads the run once, after the
//!   follower is there, so no end falls between the two.
//! - Where one instance owns the store there is no elsewhere, and no follower.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::RunId;
use flowgate_core::run::Run;
use flowgate_store::RunDetail;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use crate::backoff::{Backoff, jittered};
use crate::error::EngineError;
use crate::follow::{FollowFrom, Follower, follow};
use crate::id_map::RunMap;
use crate::instance::Instance;

/// How long a run that was just started has to be taken up here before others are looked at.
const GRACE: Duration = Duration::from_millis(10);
/// How long a run that is no longer in flight here has for its end to be told: the committer lets go
/// of it a moment before it tells.
const TOLD: Duration = Duration::from_millis(2);
/// How often somebody who waits looks for himself, should all else have failed.
const LOOK: Duration = Duration::from_secs(30);

/// How a run ended.
#[derive(Debug)]
pub(crate) enum End {
    /// By a commit of this instance.
    Here(Arc<Run>),
    /// By another one's, or before anybody waited.
    Read(Box<RunDetail>),
}

/// What those are told who wait for a run.
#[derive(Clone, Debug)]
enum News {
    /// It ended by a commit of this instance.
    Ended(Arc<Run>),
    /// It ended by a commit of another one.
    EndedElsewhere,
    /// Nothing of it is in flight here any more.
    Left,
}

/// Who waits for the end of a run.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Whether there is an elsewhere.
    is_shared: bool,
    waiting: Mutex<Waiting>,
    /// Whether the feeds are followed. It changes under the lock of `waiting`.
    followed: watch::Sender<bool>,
    /// How many wait for a run that may end elsewhere has changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    runs: RunMap<Vec<oneshot::Sender<News>>>,
    /// How many wait for a run that may end elsewhere.
    elsewhere: usize,
}

impl Ends {
    pub(crate) fn new(is_shared: bool) -> Self {
        let (waiting, followed, changed) = Default::default();
        Self { is_shared, waiting, followed, changed }
    }

    /// Hears of the run from now on.
    pub(crate) fn listen(&self, run_id: RunId) -> Listener<'_> {
        let (sender, news) = oneshot::channel();
        self.waiting.lock().runs.entry(run_id).or_default().push(sender);
        Listener { ends: self, run_id, news }
    }

    /// The run ended by a commit of this instance.
    pub(crate) fn ended(&self, run: &Arc<Run>) {
        self.tell(run.run_id, &News::Ended(Arc::clone(run)));
    }

    /// Nothing of the run is in flight here any more, and it may not have ended.
    pub(crate) fn left(&self, run_id: RunId) {
        if self.is_shared {
            self.tell(run_id, &News::Left);
        }
    }

    fn tell(&self, run_id: RunId, news: &News) {
        let listening = self.waiting.lock().runs.remove(&run_id);
        for sender in listening.into_iter().flatten() {
            // Whoever waited may be gone.
            drop(sender.send(news.clone()));
        }
    }

    /// Has the feeds followed until it is dropped.
    fn want_followed(&self) -> Wanting<'_> {
        self.waiting.lock().elsewhere += 1;
        self.changed.notify_one();
        Wanting(self)
    }

    async fn are_followed(&self) {
        let mut followed = self.followed.subscribe();
        drop(followed.wait_for(|followed| *followed).await.expect("the sender is part of it"));
    }

    /// Returns when the feeds should be followed, if `wanted`, or else when they should not.
    async fn until(&self, wanted: bool) {
        while (self.waiting.lock().elsewhere > 0) != wanted {
            self.changed.notified().await;
        }
    }

    fn begin_following(&self) {
        let _waiting = self.waiting.lock();
        self.followed.send_replace(true);
    }

    /// Nobody follows any more, unless somebody wants it again; whether nobody does.
    fn end_following(&self) -> bool {
        let waiting = self.waiting.lock();
        let is_unwanted = waiting.elsewhere == 0;
        if is_unwanted {
            self.followed.send_replace(false);
        }
        is_unwanted
    }
}

/// Somebody who waits for a run.
#[derive(Debug)]
pub(crate) struct Listener<'a> {
    ends: &'a Ends,
    run_id: RunId,
    news: oneshot::Receiver<News>,
}

impl Listener<'_> {
    /// Whether it has been told something, and hears nothing more.
    fn is_spent(&self) -> bool {
        self.news.is_terminated()
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.news.close();
        let mut waiting = self.ends.waiting.lock();
        if let Some(of_run) = waiting.runs.get_mut(&self.run_id) {
            of_run.retain(|sender| !sender.is_closed());
            if of_run.is_empty() {
                waiting.runs.remove(&self.run_id);
            }
        }
    }
}

/// Somebody who waits for a run that may end elsewhere.
#[derive(Debug)]
struct Wanting<'a>(&'a Ends);

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.0.waiting.lock().elsewhere -= 1;
        self.0.changed.notify_one();
    }
}

/// What somebody who begins to wait for a run knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It was started after he began to listen.
    Started,
    /// It may have ended already, or never have been there.
    Nothing,
}

/// Returns when the run that `listener` listens to has ended.
pub(crate) async fn ended<'a>(
    instance: &'a Instance,
    mut listener: Listener<'a>,
    known: Known,
) -> Result<End, EngineError> {
    let (ends, run_id) = (&instance.ends, listener.run_id);
    if known == Known::Nothing
        && !instance.in_flight.holds(run_id)
        && let Some(detail) = read_ended(instance, run_id).await?
    {
        return Ok(End::Read(Box::new(detail)));
    }
    let (mut wanting, mut must_read, mut is_missed) = (None, false, false);
    let mut pause = GRACE;
    loop {
        match hear(instance, &mut listener, pause).await {
            Some(News::Ended(run)) => return Ok(End::Here(run)),
            Some(News::EndedElsewhere | News::Left) => must_read = true,
            None => must_read |= pause > GRACE,
        }
        if listener.is_spent() {
            listener = ends.listen(run_id);
        }
        // After a shutdown nobody tells anybody: then everybody looks for himself.
        let is_closed = instance.giving_up.is_cancelled();
        let is_here = !is_closed && instance.in_flight.holds(run_id);
        if ends.is_shared && wanting.is_none() && !is_here && !is_closed {
            if !is_missed {
                (is_missed, pause) = (true, TOLD);
                continue;
            }
            wanting = Some(ends.want_followed());
            instance.giving_up.run_until_cancelled(ends.are_followed()).await;
            must_read = true;
        }
        if must_read && !is_here {
            if let Some(detail) = read_ended(instance, run_id).await? {
                return Ok(End::Read(Box::new(detail)));
            }
            must_read = false;
        }
        pause = if is_closed { instance.config.poll_max } else { LOOK };
    }
}

/// What the listener is told within `pause`.
async fn hear(instance: &Instance, listener: &mut Listener<'_>, pause: Duration) -> Option<News> {
    let is_closed = instance.giving_up.is_cancelled();
    tokio::select! {
        biased;
        news = &mut listener.news => Some(news.unwrap_or(News::Left)),
        () = tokio::time::sleep(jittered(pause)) => None,
        () = instance.giving_up.cancelled(), if !is_closed => None,
    }
}

/// The run, if it has ended. A store that does not answer is waited for.
pub(crate) async fn read_ended(
    instance: &Instance,
    run_id: RunId,
) -> Result<Option<RunDetail>, EngineError> {
    let mut backoff = Backoff::new(Duration::from_millis(20), instance.config.poll_max);
    loop {
        match instance.store.read_run(run_id).await {
            Ok(None) => return Err(EngineError::NoRun(run_id)),
            Ok(Some(detail)) => {
                return Ok(Some(detail).filter(|detail| detail.row.run.status.is_terminal()));
            }
            Err(error) if error.is_transient() => backoff.wait().await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Follows the feeds while somebody waits for a run that may end elsewhere, until the end of the
/// instance.
pub(crate) async fn follow_for_those_who_wait(instance: Arc<Instance>) {
    let mut from = FollowFrom::Now;
    loop {
        if instance.giving_up.run_until_cancelled(instance.ends.until(true)).await.is_none() {
            return;
        }
        let mut follower = match follow(&instance, from.clone()).await {
            Ok(follower) => follower,
            Err(EngineError::Closed) => return,
            Err(error) => {
                tracing::error!(%error, "the feeds cannot be followed; trying on");
                tokio::time::sleep(jittered(instance.config.poll_max)).await;
                continue;
            }
        };
        instance.ends.begin_following();
        from = match follow_while_wanted(&instance, &mut follower).await {
            Ok(()) => FollowFrom::Now,
            Err(EngineError::Closed) => return,
            Err(error) => {
                // Those who wait rely on it: it goes on where it ended.
                tracing::error!(%error, "a feed cannot be followed; trying on");
                tokio::time::sleep(jittered(instance.config.poll_max)).await;
                FollowFrom::Positions(follower.positions().to_vec())
            }
        };
    }
}

async fn follow_while_wanted(
    instance: &Instance,
    follower: &mut Follower,
) -> Result<(), EngineError> {
    let ends = &instance.ends;
    // A little longer than somebody waits: others often come right after.
    let unwanted = async || {
        ends.until(false).await;
        tokio::time::sleep(jittered(instance.config.poll_max)).await;
    };
    let mut is_unwanted = Box::pin(unwanted());
    loop {
        tokio::select! {
            event = follower.next() => {
                let event = event?;
                // What is in flight here is told by the committer, or leaves.
                if event.event.is_terminal() && !instance.in_flight.holds(event.run_id) {
                    ends.tell(event.run_id, &News::EndedElsewhere);
                }
            }
            () = &mut is_unwanted => {
                if ends.end_following() {
                    return Ok(());
                }
                is_unwanted = Box::pin(unwanted());
            }
        }
    }
}
