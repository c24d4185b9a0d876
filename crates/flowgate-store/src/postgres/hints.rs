//! Hints that something is worth a look.
//!
//! A hint is never needed: whoever waits also looks again by itself. Within this process a commit
//! hints at once. Other instances hear of it by one `NOTIFY` for all commits of the last moments,
//! sent from a connection of its own: inside the transaction of a commit it would take a lock that
//! all commits of the server share. Topics go the same way, each once for all that is told of it in
//! the last moments. What is said while nobody listens is lost, and that is fine; but whoever tells
//! waits until it is said, or a process that ends right after would have told nobody.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use super::endpoint::Endpoint;
use super::fault::Fault;
use super::pool::ask;
use crate::told::Told;

/// The least time between two hints of this instance, and between two that it listens to.
const HINT_PAUSE: Duration = Duration::from_millis(50);
/// How long whoever tells of a topic waits for it to be said.
const TELL_MAX: Duration = Duration::from_millis(500);
/// The least and the longest time before it connects again.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Who waits here for what.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// A job may be due, now or earlier than was known.
    pub(super) jobs: Notify,
    /// The feed may have grown.
    pub(super) feed: Notify,
    /// Somebody has told of a topic.
    pub(super) told: Told,
    /// Others have to be told.
    untold: Notify,
    jobs_untold: AtomicBool,
    feed_untold: AtomicBool,
    topics: Mutex<Topics>,
    /// How many of the tellings of topics were said.
    said: watch::Sender<u64>,
}

/// Topics that others have to be told of.
#[derive(Debug, Default)]
struct Topics {
    untold: BTreeSet<Box<str>>,
    /// How often somebody told of one so far.
    tellings: u64,
}

impl Hints {
    /// A commit was applied; `has_queued` if it left a job in a queue.
    pub(super) fn committed(&self, has_queued: bool) {
        self.feed.notify_waiters();
        if has_queued {
            self.jobs.notify_waiters();
            self.jobs_untold.store(true, Ordering::Release);
        }
        self.feed_untold.store(true, Ordering::Release);
        self.untold.notify_one();
    }

    /// A job is due that was in its queue before.
    pub(super) fn queued(&self) {
        self.jobs.notify_waiters();
        self.jobs_untold.store(true, Ordering::Release);
        self.untold.notify_one();
    }

    /// Wakes whoever waits for `topic`, here and elsewhere; returns when it is said, or cannot be.
    pub(super) async fn tell(&self, topic: &str) {
        self.told.tell(topic);
        let number = {
            let mut topics = self.topics.lock();
            if topics.untold.len() < TOPICS_UNTOLD_MAX {
                topics.untold.insert(topic.into());
            }
            topics.tellings += 1;
            topics.tellings
        };
        self.untold.notify_one();
        let mut said = self.said.subscribe();
        let is_said = tokio::time::timeout(TELL_MAX, said.wait_for(|said| *said >= number)).await;
        if is_said.is_err() {
            tracing::debug!(topic, "others were not told in time; they look by themselves");
        }
    }

    fn heard(&self, payload: &str) {
        self.feed.notify_waiters();
        if payload != FEED {
            self.jobs.notify_waiters();
        }
    }

    /// All that others have to be told, each a payload, and how many tellings that covers.
    fn take_untold(&self) -> (Vec<String>, u64) {
        let (topics, tellings) = {
            let mut topics = self.topics.lock();
            (std::mem::take(&mut topics.untold), topics.tellings)
        };
        let mut payloads: Vec<String> =
            topics.into_iter().map(|topic| format!("{TOPIC}{topic}")).collect();
        let has_grown = self.feed_untold.swap(false, Ordering::AcqRel);
        if self.jobs_untold.swap(false, Ordering::AcqRel) {
            payloads.push(JOBS.to_owned());
        } else if has_grown {
            payloads.push(FEED.to_owned());
        }
        (payloads, tellings)
    }
}

const JOBS: &str = "jobs";
const FEED: &str = "feed";
/// What is before a topic in a payload.
const TOPIC: &str = "topic ";
/// Topics that wait for the connection. What is told of more of them while there is none is lost.
const TOPICS_UNTOLD_MAX: usize = 1_000;

/// Tells and listens until it is dropped.
pub(super) fn keep_in_touch(
    hints: Arc<Hints>,
    endpoint: Endpoint,
    channel: String,
    call_timeout: Duration,
) -> JoinSet<()> {
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut pause = RECONNECT.0;
        let mut is_again = false;
        loop {
            match in_touch(&hints, &endpoint, &channel, call_timeout, is_again).await {
                Ok(()) => pause = RECONNECT.0,
                Err(fault) => {
                    let error = fault.into_error("listening for hints");
                    tracing::debug!(%error, "polling goes on without hints");
                    pause = (pause * 2).min(RECONNECT.1);
                }
            }
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            is_again = true;
        }
    });
    task
}

/// Tells and listens as long as one connection lasts.
async fn in_touch(
    hints: &Arc<Hints>,
    endpoint: &Endpoint,
    channel: &str,
    call_timeout: Duration,
    is_again: bool,
) -> Result<(), Fault> {
    let connect = endpoint.config.connect(endpoint.tls.clone());
    let connected = tokio::time::timeout(call_timeout, connect).await;
    let (client, mut connection) = connected.map_err(|_| Fault::Silence(call_timeout))??;
    let (said, mut heard) = mpsc::channel::<String>(64);
    let mut driver = JoinSet::new();
    let topics = Arc::clone(hints);
    driver.spawn(async move {
        // A hint that finds the channel full says what the ones before it say. Topics differ, and
        // wait for nothing.
        while let Some(Ok(message)) =
            std::future::poll_fn(|context| connection.poll_message(context)).await
        {
            if let AsyncMessage::Notification(note) = message {
                match note.payload().strip_prefix(TOPIC) {
                    Some(topic) => topics.told.tell(topic),
                    None => drop(said.try_send(note.payload().to_owned())),
                }
            }
        }
    });
    let listen = format!("LISTEN \"{channel}\"");
    let listening = tokio::time::timeout(call_timeout, client.batch_execute(&listen)).await;
    listening.map_err(|_| Fault::Silence(call_timeout))??;
    // What was said before nobody heard.
    hints.heard(JOBS);
    if is_again {
        hints.told.tell_all();
    }
    loop {
        tokio::select! {
            note = heard.recv() => match note {
                None => return Ok(()),
                Some(note) => hints.heard(&note),
            },
            () = hints.untold.notified() => tell(hints, &client, channel, call_timeout).await?,
        }
        tokio::time::sleep(HINT_PAUSE).await;
    }
}

async fn tell(
    hints: &Hints,
    client: &Client,
    channel: &str,
    call_timeout: Duration,
) -> Result<(), Fault> {
    let (payloads, tellings) = hints.take_untold();
    let params = [(&channel as _, Type::TEXT), (&payloads as _, Type::TEXT_ARRAY)];
    let sql = "SELECT pg_notify($1, payload) FROM unnest($2) AS payload";
    ask(client, call_timeout, sql, &params).await?;
    hints.said.send_replace(tellings);
    Ok(())
}
