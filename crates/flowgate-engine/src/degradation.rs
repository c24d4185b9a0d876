//! How strained an instance is, and what it does about it.
//!
//! ```text
//!             3 of the last 5 looks at or over a bound
//!   Normal ──────────────► Degraded ──────────────► Critical
//!     ▲                      │   ▲                     │
//!     └──────────────────────┘   └─────────────────────┘
//!          30 s of looks that are all under 80 % of every bound
//! ```
//!
//! It looks after each beat, on the thread of the beats: a runtime that is blocked cannot hide it.
//! A look costs no call of the store beyond the beat, but for one of the queues while the instance
//! does not get through what is due.
//!
//! | looks at | by |
//! |---|---|
//! | store | the 95th percentile of its answers since the last look, to beats, claims, commits and renewals |
//! | event loop | how long a task of the runtime takes to answer the thread of the beats |
//! | memory | what is resident, as a share of the limit |
//! | queues | how many jobs are due in those that it serves, and how long the first has waited |
//!
//! What it does:
//! - *degraded*: claims are smaller and slower, unless it is only the queues that are full, where
//!   that would make it worse; missed occurrences of schedules are not caught up;
//! - *critical*: besides, new runs are refused and schedules pause, if the policy says so. What was
//!   accepted goes on.
//!
//! What cannot be measured is degraded, never good. That goes for a store that does not answer too:
//! it refuses new runs by itself, and takes them at once when it is back. What has no limit is not
//! measured.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::InstanceId;
pub use flowgate_store::Degradation;
use flowgate_store::control::QueueStats;
use flowgate_store::{Store, StoreError};
use metrics::Gauge;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::answers::Answers;
use self::controller::{Change, Controller, Look, Reading};
use self::runtime::Ping;
use crate::clock;
use crate::error::EngineError;
use crate::instance::Instance;

mod answers;
mod controller;
mod memory;
mod runtime;

pub(crate) use runtime::answer;

/// How long a look at the queues may take.
const QUEUES_WAIT_MAX: Duration = Duration::from_secs(1);
/// While degraded, an eighth of the slots is claimed at a time,
const CLAIM_SHARE: usize = 8;
/// and this long passes before the next claim.
pub(crate) const CLAIM_PAUSE: Duration = Duration::from_millis(250);

/// From where on an instance is strained. A bound that is none is not looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct DegradationConfig {
    /// How long the store takes to answer.
    pub store_latency: Option<Bounds<Duration>>,
    /// How late the runtime is.
    pub loop_delay: Option<Bounds<Duration>>,
    /// Resident memory, as a share of the limit.
    pub memory: Option<Bounds<f64>>,
    /// The limit in bytes; none takes that of the control group, if there is one.
    pub memory_limit: Option<u64>,
    /// Jobs that are due in the queues that it serves.
    pub queue_due: Option<Bounds<u64>>,
    /// How long the first of them has waited.
    pub queue_age: Option<Bounds<Duration>>,
    /// Whether schedules pause while the instance that leads is critical.
    pub pauses_schedules: bool,
}

/// Where the levels of one measure begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    /// From here on it is degraded.
    pub degraded: T,
    /// From here on it is critical.
    pub critical: T,
}

impl DegradationConfig {
    /// The store 250 ms and 1 s, the event loop 200 ms and 1 s, memory 80 % and 92 %, 50,000 and
    /// 1,000,000 due jobs, the first of them 5 min and 1 h old.
    pub const DEFAULT: Self = Self {
        store_latency: Some(Bounds {
            degraded: Duration::from_millis(250),
            critical: Duration::from_secs(1),
        }),
        loop_delay: Some(Bounds {
            degraded: Duration::from_millis(200),
            critical: Duration::from_secs(1),
        }),
        memory: Some(Bounds { degraded: 0.80, critical: 0.92 }),
        memory_limit: None,
        queue_due: Some(Bounds { degraded: 50_000, critical: 1_000_000 }),
        queue_age: Some(Bounds {
            degraded: Duration::from_mins(5),
            critical: Duration::from_hours(1),
        }),
        pauses_schedules: true,
    };

    /// The first measure whose bounds are not in order, or not over zero.
    pub(crate) fn wrong(&self) -> Option<&'static str> {
        let bounds = self.in_numbers();
        let names = ["store_latency", "loop_delay", "memory", "queue_due", "queue_age"];
        let is_wrong = |bounds: Option<Bounds<f64>>| {
            bounds.is_some_and(|b| !(b.degraded > 0.0 && b.degraded <= b.critical))
        };
        names.into_iter().zip(bounds).find(|(_, bounds)| is_wrong(*bounds)).map(|(name, _)| name)
    }

    /// The bounds in the order of [`controller::Measure`], in seconds, shares and jobs.
    fn in_numbers(&self) -> [Option<Bounds<f64>>; 5] {
        let seconds = |bounds: Option<Bounds<Duration>>| {
            bounds.map(|Bounds { degraded, critical }| Bounds {
                degraded: degraded.as_secs_f64(),
                critical: critical.as_secs_f64(),
            })
        };
        #[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 jobs")]
        let due = self.queue_due.map(|Bounds { degraded, critical }| Bounds {
            degraded: degraded as f64,
            critical: critical as f64,
        });
        [
            seconds(self.store_latency),
            seconds(self.loop_delay),
            self.memory,
            due,
            seconds(self.queue_age),
        ]
    }
}

/// The strain of one instance.
#[derive(Debug)]
pub(crate) struct Strain {
    instance: InstanceId,
    pub(crate) answers: Answers,
    pub(crate) ping: Ping,
    state: Mutex<State>,
    level: watch::Sender<Degradation>,
    gauge: Gauge,
    pauses_schedules: bool,
}

/// What a strained leader leaves for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    Nothing,
    /// What was missed.
    CatchUp,
    Everything,
}

#[derive(Debug)]
struct State {
    controller: Controller,
    /// What strains it, in words.
    cause: Option<Arc<str>>,
}

impl Strain {
    pub(crate) fn new(instance: InstanceId, config: &DegradationConfig) -> Self {
        let gauge =
            metrics::gauge!("flowgate_degradation_level", "instance" => instance.to_string());
        gauge.set(0.0);
        Self {
            instance,
            answers: Answers::default(),
            ping: Ping::default(),
            state: Mutex::new(State {
                controller: Controller::new(config.in_numbers()),
                cause: None,
            }),
            level: watch::Sender::new(Degradation::Normal),
            gauge,
            pauses_schedules: config.pauses_schedules,
        }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Degradation> {
        self.level.subscribe()
    }

    /// Its level, and what strains it.
    pub(crate) fn now(&self) -> (Degradation, Option<Arc<str>>) {
        let state = self.state.lock();
        (state.controller.level(), state.cause.clone())
    }

    /// How many jobs may be claimed at a time, if claims are slow now.
    pub(crate) fn claims_slowed_to(&self, slots: usize) -> Option<usize> {
        // Most of the time nothing is wrong, and this is one load.
        if *self.level.borrow() == Degradation::Normal {
            return None;
        }
        self.state.lock().controller.slows_claims().then(|| (slots / CLAIM_SHARE).max(1))
    }

    /// Whether new runs are taken.
    pub(crate) fn admit(&self) -> Result<(), EngineError> {
        if *self.level.borrow() != Degradation::Critical {
            return Ok(());
        }
        let state = self.state.lock();
        let retry_after = state.controller.calm_after(clock::now());
        let cause = state.cause.clone().unwrap_or_else(|| "it recovers".into());
        Err(EngineError::Overloaded { cause, retry_after })
    }

    /// What of the schedules is left for later.
    pub(crate) fn pauses(&self) -> Pause {
        match *self.level.borrow() {
            Degradation::Normal => Pause::Nothing,
            Degradation::Critical if self.pauses_schedules => Pause::Everything,
            Degradation::Degraded | Degradation::Critical => Pause::CatchUp,
        }
    }

    fn observe(&self, look: &Look) {
        let mut state = self.state.lock();
        let change = state.controller.observe(clock::now(), look);
        if state.controller.level() == Degradation::Normal {
            state.cause = None;
        } else if let Some(cause) = state.controller.cause(look) {
            state.cause = Some(cause.into());
        }
        let Some(Change { from, to }) = change else { return };
        let cause = state.cause.clone();
        drop(state);
        self.gauge.set(f64::from(to as u8));
        self.level.send_replace(to);
        let instance = &self.instance;
        let is_worse = to > from;
        let (from, to, cause) = (from.as_str(), to.as_str(), cause.as_deref().unwrap_or("nothing"));
        if is_worse {
            tracing::warn!(%instance, from, to, cause, "the instance is strained");
        } else {
            tracing::info!(%instance, from, to, cause, "the instance is less strained");
        }
    }
}

/// Looks at the instance once.
pub(crate) async fn look(instance: &Instance) {
    let config = &instance.config.degradation;
    let (queue_due, queue_age) = queues(instance).await;
    let look = Look {
        store_latency: instance.strain.answers.take_percentile_95(),
        loop_delay: Reading::Value(instance.strain.ping.delay(clock::now()).as_secs_f64()),
        memory: match config.memory {
            Some(_) => memory::share(config.memory_limit),
            None => Reading::None,
        },
        queue_due,
        queue_age,
    };
    instance.strain.observe(&look);
}

/// Jobs that are due in the queues of this instance, and how long the first has waited.
async fn queues(instance: &Instance) -> (Reading, Reading) {
    let config = &instance.config.degradation;
    if config.queue_due.is_none() && config.queue_age.is_none() {
        return (Reading::None, Reading::None);
    }
    // Who has room and got less than asked for has taken all there is.
    if !instance.slots.is_behind() && instance.slots.taken() < instance.config.slots {
        return (Reading::Value(0.0), Reading::Value(0.0));
    }
    match tokio::time::timeout(QUEUES_WAIT_MAX, read_queues(&*instance.store)).await {
        Ok(Ok((queues, now))) => {
            // Those that are paused are meant to fill.
            let open = instance.queues.open();
            let served = queues.iter().filter(|stats| open.contains(&stats.queue));
            let (mut due, mut age) = (0, Duration::ZERO);
            for stats in served {
                due += stats.due;
                age = age.max(stats.oldest_due_at.map_or(Duration::ZERO, |at| now.since(at)));
            }
            #[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 jobs")]
            let due = due as f64;
            (Reading::Value(due), Reading::Value(age.as_secs_f64()))
        }
        Ok(Err(_)) | Err(_) => (Reading::Failed, Reading::Failed),
    }
}

/// What waits in the queues, and the store's time.
pub(crate) async fn read_queues(
    store: &dyn Store,
) -> Result<(Vec<QueueStats>, flowgate_core::time::Timestamp), StoreError> {
    let stats = store.queue_stats().await?;
    Ok((stats, store.now().await?))
}
