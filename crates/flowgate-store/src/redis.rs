//! A store in Redis, Redis Cluster or behind Sentinel, for many instances.
//!
//! A data set is divided into partitions; a run lives in the one that its id names, with its
//! record, jobs, log and feed, and every method is one script there (`redis/scripts`). The scripts
//! check guards and apply what was decided before; they know no flows. Their clock is that of the
//! server, and a lease is a field with a deadline: no key ever expires.
//!
//! ```text
//! PREFIX:{pN}:meta          format, number of partitions, epoch, last position and token, clock
//!             run:ID        hash: record, version, status, times; of each open job `job:STEP`
//!                           (where it stands, with its lease) and `lost:STEP`; the log: for each
//!                           commit `SEQ` and `at:SEQ`, named by its last event
//!             feed          stream: a row for each batch, named by its first position, that
//!                           points into logs; `feed:dead` counts what retention removed of it
//!             lines:ID      log lines
//!             queue:NAME    jobs by when they are due, ahead of that by their priority; `queues`
//!                           has their names
//!             leases        runs with leased jobs, by when to look at them: no later than when the
//!                           first of these leases ends
//!             runs, open, failed, cancelled, flow:NAME, tag:…    runs by their start
//!             ended, swept  runs by their end, with and without events
//! PREFIX:{p0}:flows, revisions:FLOW, authors:FLOW, active, instances
//! PREFIX:{pN}:terms…, record…, permits…    see `control.rs`
//! ```
//!
//! What each failure does:
//!
//! - A lost reply: the caller sends the commit again, and the row in the log names the commit.
//! - A server that ends and comes back with its append-only file has every acknowledged commit, but
//!   for the last second if the power failed too.
//! - A failover: commits that had not reached the replica are gone, also acknowledged ones. The
//!   next commit notices that the last position went back, and says so.
//! - A paused or unreachable server: calls end after the call timeout as unavailable, and the
//!   connection is made anew. A connection that was opened by `renew` belongs to it alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::commit::{Claimed, Commit};
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{InstanceId, Position, Revision, RunId};
use flowgate_core::limits::{CLAIM_BATCH_MAX, COMMIT_BATCH_MAX};
use flowgate_core::time::Timestamp;
use futures_util::future::try_join_all;
use redis::{Cmd, Value};

use self::claim::Ahead;
use self::commit::{Answer, Prepared, Slots, Text};
use self::hints::Hints;
use self::link::Link;
use self::options::ServersKind;
pub use self::options::{RedisOptions, RedisUrlError};
use self::partition::Partitions;
use self::script::{Reply, Script};
pub use self::settings::examine;
use crate::open::check_shape;
use crate::{
    Beat, Claimant, CommitOutcome, Imported, InstanceRow, LeaseRef, LogLine, NewLogLine,
    NewRevision, Queues, Renewal, Retention, RunDetail, RunQuery, RunRow, Store, StoreCopy,
    StoreError, StoredRevision, Swept,
};

mod claim;
mod commit;
mod control;
mod fault;
mod gates;
mod hints;
mod keep;
mod link;
mod list;
mod options;
mod partition;
mod permits;
mod queues;
mod range;
mod read;
mod records;
mod rows;
mod script;
mod settings;
mod terms;

/// How often a claim looks again because others were faster.
const CLAIM_ROUNDS_MAX: usize = 16;

/// A store in Redis.
#[derive(Debug)]
pub struct RedisStore {
    kind: &'static str,
    link: Link,
    partitions: Partitions,
    /// The last position of each partition that is known to be written.
    positions: Vec<AtomicU64>,
    hints: Hints,
}

impl RedisStore {
    /// Opens the data set that `options` name, and makes it if there is none.
    ///
    /// Refuses a server that may lose what it acknowledged, unless the options allow that.
    pub async fn open(options: RedisOptions) -> Result<Self, StoreError> {
        settings::use_ring();
        let servers = Arc::new(options.servers.clone());
        let kind = match &servers.kind {
            ServersKind::Cluster(_) => "redis-cluster",
            ServersKind::Single(_) | ServersKind::Sentinel { .. } => "redis",
        };
        let link = Link::new(servers, options.call_timeout);
        settings::check(&link, &options).await?;
        let partitions = settings::open_partitions(&link, &options).await?;
        let positions = partitions.all().map(|_| AtomicU64::new(0)).collect();
        let hints = Hints::new(&options.prefix);
        Ok(Self { kind, link, partitions, positions, hints })
    }

    async fn run(
        &self,
        doing: &str,
        script: &Script,
        prefix: &str,
        write: impl Fn(&mut Cmd),
    ) -> Result<Value, StoreError> {
        script.run(&self.link, prefix, write).await.map_err(|error| fault::error(doing, error))
    }

    async fn call(&self, doing: &str, command: &Cmd) -> Result<Value, StoreError> {
        self.link.call(command).await.map_err(|error| fault::error(doing, error))
    }

    /// Sends the commits of one partition, in order.
    async fn commit_in(
        &self,
        index: usize,
        commits: Vec<Prepared>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<(usize, Answer)>, StoreError> {
        let mut answers = Vec::with_capacity(commits.len());
        for call in commit::in_calls(commits) {
            let known = self.positions[index].load(Ordering::Relaxed);
            let prefix = self.partitions.prefix(index);
            let write = |command: &mut Cmd| {
                command.arg(claimant.map_or("", |claimant| &*claimant.instance.0));
                command.arg(claimant.map_or(0, |claimant| millis(claimant.lease)));
                command.arg(known).arg(self.hints.channel());
                commit::write(command, prefix, &call);
            };
            let answer = self.run("committing", &script::COMMIT, prefix, write).await?;
            let read = commit::read(answer, &call)?;
            if read.is_truncated {
                self.note_truncation(index, known, read.position);
            } else {
                self.positions[index].fetch_max(read.position, Ordering::Relaxed);
            }
            answers.extend(read.answers);
        }
        Ok(answers)
    }

    /// Says that the server lost what it had acknowledged.
    fn note_truncation(&self, partition: usize, known: u64, position: u64) {
        let reset = |current| (current >= known).then_some(position);
        if self.positions[partition]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, reset)
            .is_ok()
        {
            metrics::counter!("flowgate_store_truncations_total", "store" => self.kind)
                .increment(1);
            tracing::error!(
                partition,
                known,
                position,
                "Redis has lost acknowledged commits: the feed ended at `known` and ends now at \
                 `position`; a failover or a restart without the append-only file does that"
            );
        }
    }

    /// When the next `count` jobs of each partition are due.
    async fn peek(
        &self,
        queues: &Queues,
        count: usize,
        wanted: Duration,
    ) -> Result<Vec<Ahead>, StoreError> {
        let write = |command: &mut Cmd| {
            command.arg(count).arg(millis(wanted));
            claim::write_queues(command, queues);
        };
        let peeks = self.partitions.all().map(|(_, prefix)| async move {
            Ahead::read(self.run("looking for due jobs", &script::PEEK, prefix, write).await?)
        });
        try_join_all(peeks).await
    }

    /// How many jobs to claim from each partition.
    async fn shares(&self, claimant: &Claimant, slots: usize) -> Result<Vec<usize>, StoreError> {
        if self.partitions.count() == 1 || slots == 0 {
            return Ok(vec![slots]);
        }
        let ahead = self.peek(&claimant.queues, slots, Duration::ZERO).await?;
        Ok(claim::shares(&ahead, slots))
    }

    async fn claim_in(
        &self,
        index: usize,
        claimant: &Claimant,
        count: usize,
    ) -> Result<Vec<claim::Due>, StoreError> {
        let write = |command: &mut Cmd| claim::write(command, claimant, count);
        let prefix = self.partitions.prefix(index);
        claim::read(self.run("claiming", &script::CLAIM, prefix, write).await?)
    }

    async fn renew_in(
        &self,
        index: usize,
        leases: &[(usize, LeaseRef)],
        lease: Duration,
    ) -> Result<Vec<(usize, Renewal)>, StoreError> {
        let write = |command: &mut Cmd| {
            command.arg(millis(lease)).arg(leases.len());
            for (_, held) in leases {
                command.arg(Text(held.job_id.run_id)).arg(held.job_id.step.0).arg(held.token.0);
            }
        };
        let prefix = self.partitions.prefix(index);
        let answer = self.run("renewing leases", &script::RENEW, prefix, write).await?;
        let mut reply = Reply::of(answer)?;
        let renewals = leases.iter().map(|(at, _)| {
            let renewal = match reply.number()? {
                0 => Renewal::Lost,
                until => Renewal::Held(Timestamp(until)),
            };
            Ok((*at, renewal))
        });
        renewals.collect()
    }

    /// Divides what is in the order of a batch by partition, and remembers its place.
    fn by_partition<T>(
        &self,
        items: impl IntoIterator<Item = (usize, RunId, T)>,
    ) -> Vec<(usize, Vec<(usize, T)>)> {
        let mut parts: Vec<Vec<(usize, T)>> = Vec::new();
        parts.resize_with(usize::from(self.partitions.count()), Vec::new);
        for (at, run_id, item) in items {
            parts[self.partitions.of(run_id)].push((at, item));
        }
        parts.into_iter().enumerate().filter(|(_, part)| !part.is_empty()).collect()
    }
}

/// What tests of the layout need.
#[cfg(feature = "testing")]
impl RedisStore {
    /// Lets `span` pass at once on the clocks of all partitions.
    pub async fn advance(&self, span: Duration) -> Result<(), StoreError> {
        let moved = self.partitions.all().map(|(_, prefix)| async move {
            let mut command = redis::cmd("HINCRBY");
            command.arg(format!("{prefix}meta")).arg("clock_ms").arg(millis(span));
            self.call("moving the clock", &command).await
        });
        try_join_all(moved).await.map(drop)
    }

    /// Sends a command to the server that holds the run, with the run's key of this name first.
    pub async fn ask(&self, words: &[&str], run_id: RunId, key: &str) -> Result<(), StoreError> {
        let mut command = redis::cmd(words[0]);
        command.arg(self.key(run_id, key));
        for word in &words[1..] {
            command.arg(word);
        }
        self.call("asking", &command).await.map(drop)
    }

    /// Sends a command to every primary.
    pub async fn ask_each(&self, words: &[&str]) -> Result<(), StoreError> {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(word);
        }
        let answers = self.link.call_each(&command).await;
        answers.map(drop).map_err(|error| fault::error("asking all servers", error))
    }
}

#[async_trait]
impl Store for RedisStore {
    fn kind(&self) -> &'static str {
        self.kind
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        let prefix = self.partitions.prefix(0);
        let answer = self.run("reading the time", &script::NOW, prefix, |_| {}).await?;
        Reply::of(Value::Array(vec![answer]))?.number().map(Timestamp)
    }

    async fn commit(
        &self,
        commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError> {
        assert!(commits.len() <= COMMIT_BATCH_MAX, "a batch is within its limit");
        let mut answers: Vec<Option<Answer>> = Vec::new();
        answers.resize_with(commits.len(), || None);
        let mut slots = Slots::new(claimant);
        let mut prepared = Vec::with_capacity(commits.len());
        for (at, commit) in commits.into_iter().enumerate() {
            match check_shape(&commit) {
                Ok(()) => {
                    let run_id = commit.run_id;
                    prepared.push((at, run_id, slots.prepare(at, commit)));
                }
                Err(refusal) => answers[at] = Some(Answer::Refused(refusal)),
            }
        }
        let parts = self.by_partition(prepared).into_iter().map(|(index, part)| {
            let part = part.into_iter().map(|(_, prepared)| prepared).collect();
            self.commit_in(index, part, claimant)
        });
        let applied = try_join_all(parts).await;
        // What a commit did whose answer is lost is anybody's guess.
        let may_have_queued = applied.as_ref().map_or(true, |parts| {
            let answers = parts.iter().flatten();
            slots.may_have_queued(answers.map(|(_, answer)| answer.handed_off()).sum())
        });
        self.hints.committed(may_have_queued);
        for (at, answer) in applied?.into_iter().flatten() {
            answers[at] = Some(answer);
        }
        let mut outcomes = Vec::with_capacity(answers.len());
        for answer in answers {
            let answer = answer.expect("every commit was refused or sent");
            outcomes.push(match answer {
                Answer::Refused(refusal) => CommitOutcome::Refused(refusal),
                Answer::Applied(jobs) => {
                    CommitOutcome::Applied { handed_off: self.satisfy(jobs).await? }
                }
            });
        }
        Ok(outcomes)
    }

    async fn claim(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError> {
        let mut slots = claimant.slots.min(CLAIM_BATCH_MAX);
        let mut claimed = Vec::new();
        for _ in 0..CLAIM_ROUNDS_MAX {
            let shares = self.shares(claimant, slots).await?;
            let wanted: usize = shares.iter().sum();
            let shares = shares.into_iter().enumerate().filter(|(_, share)| *share > 0);
            let claims = shares.map(|(index, share)| self.claim_in(index, claimant, share));
            let round = try_join_all(claims).await?;
            let before = claimed.len();
            claimed.extend(round.into_iter().flatten());
            let found = claimed.len() - before;
            slots -= found;
            // Others may have taken some of what was seen; where one script looks and takes,
            // nobody can.
            if slots == 0 || found == wanted || self.partitions.count() == 1 {
                break;
            }
        }
        claimed.sort_by_key(|due| due.order_us);
        self.satisfy(claimed.into_iter().map(|due| due.needy).collect()).await
    }

    async fn wait_due(&self, queues: &Queues, wait_max: Duration) -> Result<(), StoreError> {
        let wakes = self.hints.wakes(&self.link);
        let waiting = async {
            loop {
                let hinted = wakes.due.notified();
                tokio::pin!(hinted);
                // Listens before it looks, so no hint falls between the two.
                hinted.as_mut().enable();
                let ahead = self.peek(queues, 1, hints::WANTED).await?;
                let left = ahead.iter().filter_map(Ahead::until_due).min();
                if left.is_some_and(|left| left.is_zero()) {
                    return Ok(());
                }
                let pause = left.map_or_else(hints::poll, |left| left.min(hints::poll()));
                tokio::select! {
                    () = &mut hinted => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
        };
        tokio::time::timeout(wait_max, waiting).await.unwrap_or(Ok(()))
    }

    async fn renew(
        &self,
        leases: &[LeaseRef],
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        let items = leases.iter().enumerate().map(|(at, held)| (at, held.job_id.run_id, *held));
        let parts = self.by_partition(items);
        let parts = parts.iter().map(|(index, part)| self.renew_in(*index, part, lease));
        let mut renewals = vec![Renewal::Lost; leases.len()];
        for (at, renewal) in try_join_all(parts).await?.into_iter().flatten() {
            renewals[at] = renewal;
        }
        Ok(renewals)
    }

    async fn read_run(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        self.detail(run_id).await
    }

    async fn read_events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.events(run_id, after, limit).await
    }

    fn feeds(&self) -> u16 {
        self.partitions.count()
    }

    async fn read_feed(
        &self,
        feed: u16,
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.feed(feed, after, limit).await
    }

    async fn feed_end(&self, feed: u16) -> Result<Position, StoreError> {
        let prefix = self.partitions.prefix(usize::from(feed));
        let write = |command: &mut Cmd| {
            command.arg(millis(hints::WANTED));
        };
        let answer =
            self.run("reading the end of a feed", &script::FEED_END, prefix, write).await?;
        Ok(Position::counted(Reply::of(Value::Array(vec![answer]))?.number::<u64>()?))
    }

    async fn wait_feed(
        &self,
        feed: u16,
        after: Position,
        wait_max: Duration,
    ) -> Result<(), StoreError> {
        let wakes = self.hints.wakes(&self.link);
        let prefix = self.partitions.prefix(usize::from(feed));
        let waiting = async {
            loop {
                let hinted = wakes.feed.notified();
                tokio::pin!(hinted);
                hinted.as_mut().enable();
                let write = |command: &mut Cmd| {
                    command.arg(millis(hints::WANTED));
                };
                let answer =
                    self.run("waiting for events", &script::FEED_END, prefix, write).await?;
                if Reply::of(Value::Array(vec![answer]))?.number::<u64>()? > after.minor {
                    return Ok(());
                }
                tokio::select! {
                    () = &mut hinted => {}
                    () = tokio::time::sleep(hints::poll()) => {}
                }
            }
        };
        tokio::time::timeout(wait_max, waiting).await.unwrap_or(Ok(()))
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        self.list(query).await
    }

    async fn count_runs(&self, query: &RunQuery) -> Result<u64, StoreError> {
        self.count(query).await
    }

    async fn append_logs(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        self.keep_lines(lines).await
    }

    async fn read_logs(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        self.lines(run_id, after, limit).await
    }

    async fn register_flow(&self, revision: NewRevision) -> Result<(), StoreError> {
        self.keep_revision(&revision).await
    }

    async fn list_revisions(&self, flow: Option<&str>) -> Result<Vec<StoredRevision>, StoreError> {
        self.revisions(flow).await
    }

    async fn read_revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError> {
        self.revision(flow, revision).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError> {
        self.remove_old(retention).await
    }

    async fn beat(&self, beat: &Beat) -> Result<(), StoreError> {
        self.note(beat).await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        self.forget(instance).await
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.instances().await
    }

    async fn import(&self, copy: StoreCopy) -> Result<Imported, StoreError> {
        self.take_over(copy).await
    }
}

/// A span as the scripts take it.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).min(u64::from(u32::MAX) << 10)
}

/// A number of things in memory.
fn count(things: usize) -> u64 {
    u64::try_from(things).unwrap_or(u64::MAX)
}
