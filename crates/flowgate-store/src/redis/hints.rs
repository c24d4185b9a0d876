//! Hints that something may have changed, within this process and from others.
//!
//! A hint only ends a wait sooner; whoever waits looks by itself within [`POLL_MAX`]. Others are
//! told over a channel of Redis, and only while somebody waits: a wait notes in the partition that
//! hints are wanted, and a commit that finds no such note publishes nothing. Topics that somebody
//! tells of are rare and always published.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use redis::RedisResult;
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::link::Link;

/// The longest time between two looks of a wait.
pub(super) const POLL_MAX: Duration = Duration::from_secs(1);
/// How long a wait asks for hints at a time.
pub(super) const WANTED: Duration = Duration::from_secs(30);
/// How long a silent connection is trusted.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// What a message about a topic begins with.
const TOLD: &str = "told:";
/// Topics that a slow waiter may be behind; beyond that it looks whatever they were.
const TOLD_MAX: usize = 64;

/// The hints of a store.
#[derive(Debug)]
pub(super) struct Hints {
    wakes: Arc<Wakes>,
    channel: String,
    /// What messages of this store begin with, so that it does not hear itself.
    own: String,
    /// The task that listens, once somebody waits. It ends with the store.
    listener: Mutex<JoinSet<()>>,
}

/// Who waits.
#[derive(Debug)]
pub(super) struct Wakes {
    /// For a job that is due.
    pub(super) due: Notify,
    /// For an event in a feed.
    pub(super) feed: Notify,
    /// For a topic; none stands for any.
    told: broadcast::Sender<Option<Arc<str>>>,
}

impl Wakes {
    fn new() -> Self {
        Self { due: Notify::new(), feed: Notify::new(), told: broadcast::Sender::new(TOLD_MAX) }
    }

    /// Wakes whoever waits for something that is committed.
    fn committed(&self) {
        self.due.notify_waiters();
        self.feed.notify_waiters();
    }

    fn tell(&self, topic: Option<Arc<str>>) {
        // Without anybody who waits there is nobody to tell.
        drop(self.told.send(topic));
    }
}

impl Hints {
    /// The hints of the data set called `prefix`.
    pub(super) fn new(prefix: &str) -> Self {
        let channel = format!("{prefix}:hints");
        let own = format!("{TOLD}{:016x}:", fastrand::u64(..));
        Self { wakes: Arc::new(Wakes::new()), channel, own, listener: Mutex::default() }
    }

    /// The channel that others listen to.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Whoever waits here. The first call begins to listen to others.
    pub(super) fn wakes(&self, link: &Link) -> &Wakes {
        let mut listener = self.listener.lock();
        if listener.is_empty() {
            let own = Listener {
                link: link.another(),
                channel: self.channel.clone(),
                own: self.own.clone(),
                wakes: Arc::clone(&self.wakes),
            };
            listener.spawn(own.keep_listening());
        }
        &self.wakes
    }

    /// Something was committed here; `has_queued` if a job may be in a queue by it.
    pub(super) fn committed(&self, has_queued: bool) {
        self.wakes.feed.notify_waiters();
        if has_queued {
            self.wakes.due.notify_waiters();
        }
    }

    /// Wakes whoever waits here for `topic`, and says what others are to be sent.
    pub(super) fn tell(&self, topic: &str) -> String {
        self.wakes.tell(Some(topic.into()));
        format!("{}{topic}", self.own)
    }

    /// Returns when somebody may have told of `topic`.
    pub(super) async fn told(&self, link: &Link, topic: &str) {
        let mut told = self.wakes.told.subscribe();
        self.wakes(link);
        // Whoever missed something may have missed this.
        while let Ok(Some(other)) = told.recv().await
            && *other != *topic
        {}
    }
}

/// What listens to others.
struct Listener {
    link: Link,
    channel: String,
    own: String,
    wakes: Arc<Wakes>,
}

impl Listener {
    async fn keep_listening(self) {
        let mut is_again = false;
        loop {
            if let Err(error) = self.listen(is_again).await {
                tracing::debug!(%error, "hints from Redis are interrupted");
            }
            is_again = true;
            let pause = POLL_MAX.mul_f64(0.2 + 0.8 * fastrand::f64());
            tokio::time::sleep(pause).await;
        }
    }

    /// Passes hints on until the connection fails.
    async fn listen(&self, is_again: bool) -> RedisResult<()> {
        let (mut sink, mut stream) = self.link.listen(&self.channel).await?.split();
        // Whatever was published before this is missed. Who waits to be told has just looked when
        // that begins for the first time.
        self.wakes.committed();
        if is_again {
            self.wakes.tell(None);
        }
        loop {
            match timeout(SILENCE_MAX, stream.next()).await {
                Ok(None) => return Ok(()),
                Ok(Some(message)) => self.pass(message.get_payload_bytes()),
                Err(_) => {
                    let answer = timeout(SILENCE_MAX, sink.ping::<redis::Value>()).await;
                    answer.unwrap_or_else(|_| {
                        Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
                    })?;
                }
            }
        }
    }

    fn pass(&self, message: &[u8]) {
        if message == b"feed" {
            self.wakes.feed.notify_waiters();
        } else if message.starts_with(TOLD.as_bytes()) {
            if !message.starts_with(self.own.as_bytes()) {
                let topic =
                    message.get(self.own.len()..).and_then(|topic| str::from_utf8(topic).ok());
                self.wakes.tell(topic.map(Arc::from));
            }
        } else {
            self.wakes.committed();
        }
    }
}

/// The time until the next look: not the same for all who wait.
pub(super) fn poll() -> Duration {
    POLL_MAX.mul_f64(0.5 + 0.5 * fastrand::f64())
}
