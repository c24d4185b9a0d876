//! The reasons that [`super::why`] gives, as values and in words.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::Brief;
use crate::event::ErrorKind;
use crate::flow::LimitName;
use crate::gate::GateState;
use crate::ids::{InstanceId, RunId};
use crate::run::StepState;
use crate::time::Timestamp;

/// Why a step, or the run, is where it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reason {
    /// The step; absent for the run as a whole.
    pub step: Option<Arc<str>>,
    /// The cause.
    #[serde(flatten)]
    pub cause: Cause,
}

/// The causes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    /// The run was accepted while the gate of its flow was closed.
    Held {
        /// The flow.
        flow: Arc<str>,
        /// Since when, if that is known.
        since: Option<Timestamp>,
        /// The state of the gate, if that is known.
        gate: Option<GateState>,
        /// Why the gate was closed, in the words of whoever did.
        reason: Option<Arc<str>>,
        /// The deployment that closed it.
        deployment: Option<Arc<str>>,
    },
    /// The step is due and waits in its queue.
    Queued {
        /// The queue that it waits in.
        queue: Arc<str>,
        /// Since when.
        since: Timestamp,
    },
    /// The step is due and waits in a queue that somebody has paused.
    Paused {
        /// The queue.
        queue: Arc<str>,
        /// Since when the step is due.
        since: Timestamp,
    },
    /// The step is due and waits in a queue that no instance takes jobs of.
    Unserved {
        /// The queue.
        queue: Arc<str>,
        /// Since when the step is due.
        since: Timestamp,
    },
    /// The step is due and calls a worker that nobody has asked for.
    NoWorker {
        /// The worker.
        worker: Arc<str>,
        /// The queue that the step waits in.
        queue: Arc<str>,
        /// Since when it is due.
        since: Timestamp,
        /// When somebody last asked for it, if that is known.
        asked_at: Option<Timestamp>,
    },
    /// The step is due and publishes, and no instance has a broker.
    NoBroker {
        /// The queue that the step waits in.
        queue: Arc<str>,
        /// Since when it is due.
        since: Timestamp,
    },
    /// Nobody executes the jobs of the store.
    Unowned {},
    /// An instance executes the step.
    Leased {
        /// The instance.
        instance: InstanceId,
        /// The attempt.
        attempt: u32,
        /// Since when, if the attempt has run for long enough to be in the log.
        since: Option<Timestamp>,
    },
    /// The instance that executed the step is gone.
    Abandoned {
        /// The instance.
        instance: InstanceId,
        /// The attempt that ended with it.
        attempt: u32,
    },
    /// The instance that executed the step has not been heard of.
    LeaseExpired {
        /// The instance.
        instance: InstanceId,
        /// When its lease ended.
        expired_at: Timestamp,
    },
    /// An attempt failed and the next one is not due yet.
    Retrying {
        /// When it is due.
        due_at: Timestamp,
        /// How long until then.
        wait_ms: u64,
        /// Attempts that failed.
        failures: u32,
        /// Attempts that the step has in all.
        attempts_max: u32,
        /// What the last one said.
        message: Option<Arc<str>>,
    },
    /// The step is due at a later time.
    Delayed {
        /// When it is due.
        due_at: Timestamp,
    },
    /// The step waits for a permit of a limit.
    Parked {
        /// The limit's key.
        limit: Arc<str>,
        /// Why it had to wait, in words.
        reason: Arc<str>,
        /// Since when.
        since: Timestamp,
        /// The runs whose jobs hold the permits now, if that is known.
        holders: Option<Vec<RunId>>,
        /// How many jobs wait for one now, if that is known.
        in_line: Option<u64>,
    },
    /// The step waits for a signal.
    Signal {
        /// The signal.
        signal: Arc<str>,
        /// Fields that its data must have, with these values.
        #[serde(rename = "match")]
        matches: serde_json::Map<String, serde_json::Value>,
        /// Until when; for ever if absent.
        until: Option<Timestamp>,
    },
    /// The step waits for a point in time.
    Timer {
        /// That point.
        due_at: Timestamp,
    },
    /// The step has not started: something that it subscribes to has not happened yet.
    Pending(Missing),
    /// The step was skipped: something that it subscribes to did not happen.
    Skipped(Missing),
    /// The step failed for good.
    Failed {
        /// The kind of failure.
        error_kind: Option<ErrorKind>,
        /// What the last attempt said.
        message: Option<Arc<str>>,
        /// Attempts that failed.
        failures: u32,
        /// Attempts that the step has in all.
        attempts_max: u32,
        /// Whether a step subscribes to the failure, so that the run goes on.
        handled: bool,
    },
    /// The run ended well.
    Completed {
        /// Steps that succeeded.
        succeeded: usize,
        /// Steps in all.
        steps: usize,
    },
    /// The run was cancelled.
    Cancelled {
        /// Why, in the words of whoever cancelled it.
        reason: Option<Arc<str>>,
    },
    /// The step is open and the store shows no job for it.
    Unknown {},
}

/// What a step that has not started lacks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Missing {
    /// Whether one of them would do.
    pub any: bool,
    /// The events that have not happened.
    pub events: Vec<MissingEvent>,
}

/// An event that has not happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MissingEvent {
    /// Its name.
    pub event: Arc<str>,
    /// The steps that can bring it, and how they stand.
    pub sources: Vec<(Arc<str>, StepState)>,
}

impl Reason {
    /// What the user can do about it: the arguments of a flowgate command, where `RUN` stands for
    /// the run.
    pub fn remedy(&self) -> Option<String> {
        match &self.cause {
            Cause::Unowned {} => Some("dev".to_owned()),
            Cause::Held { flow, deployment: None, .. } => Some(format!("hold off {flow}")),
            Cause::Held { flow, deployment: Some(_), .. } => Some(format!("deploy status {flow}")),
            Cause::NoWorker { .. } | Cause::NoBroker { .. } => Some("instances".to_owned()),
            Cause::Paused { queue, .. } => Some(format!("queues resume {queue}")),
            Cause::Unserved { queue, .. } => Some(format!("worker start --queues {queue}")),
            Cause::Signal { signal, matches, .. } => {
                let data = serde_json::to_string(matches).expect("a map is JSON");
                Some(format!("runs signal RUN {signal} --data '{data}'"))
            }
            Cause::Failed { handled: false, .. } | Cause::Cancelled { .. } => {
                Some("runs retry RUN".to_owned())
            }
            Cause::Queued { .. }
            | Cause::Leased { .. }
            | Cause::Abandoned { .. }
            | Cause::LeaseExpired { .. }
            | Cause::Retrying { .. }
            | Cause::Delayed { .. }
            | Cause::Parked { .. }
            | Cause::Timer { .. }
            | Cause::Pending(_)
            | Cause::Skipped(_)
            | Cause::Failed { handled: true, .. }
            | Cause::Completed { .. }
            | Cause::Unknown {} => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Some(step) => write!(f, "`{step}` {}", self.cause),
            None => write!(f, "{}", self.cause),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queued { queue, since } => {
                write!(f, "is due since {since} and waits in the queue `{queue}`")
            }
            Self::Paused { queue, since } => {
                write!(f, "is due since {since} and waits in the queue `{queue}`, which is paused")
            }
            Self::Unserved { queue, since } => write!(
                f,
                "is due since {since} and waits in the queue `{queue}`, which no instance takes \
                 jobs of"
            ),
            Self::NoWorker { worker, queue, since, asked_at } => {
                say_no_worker(f, (worker, queue), *since, *asked_at)
            }
            Self::NoBroker { queue, since } => say_no_broker(f, queue, *since),
            Self::Held { flow, since, gate, reason, deployment } => {
                let closed = (*gate, deployment.as_deref());
                say_held(f, flow, closed, *since)?;
                said(f, reason.as_deref())
            }
            Self::Unowned {} => f.write_str("no process works on the store, so nothing in it runs"),
            Self::Abandoned { instance, attempt } => {
                write!(f, "was running: attempt {attempt} ended with its instance {instance}")
            }
            Self::Leased { instance, attempt, since } => {
                write!(f, "is running: attempt {attempt} on instance {instance}")?;
                since.map_or(Ok(()), |since| write!(f, " since {since}"))
            }
            Self::LeaseExpired { instance, expired_at } => write!(
                f,
                "was running on instance {instance}, whose lease ended at {expired_at}; another \
                 attempt takes it over"
            ),
            Self::Retrying { wait_ms, failures, attempts_max, message, .. } => {
                let wait = Brief(Duration::from_millis(*wait_ms));
                write!(f, "tries again in {wait} after failure {failures} of {attempts_max}")?;
                said(f, message.as_deref())
            }
            Self::Delayed { due_at } => write!(f, "is due at {due_at}"),
            Self::Parked { limit, reason, since, holders, in_line } => {
                write!(f, "waits for a permit of {} since {since}: {reason}", LimitName(limit))?;
                say_use(f, holders.as_deref(), *in_line)
            }
            Self::Signal { signal, until, .. } => {
                write!(f, "waits for the signal `{signal}`")?;
                until.map_or(Ok(()), |until| write!(f, " until {until}"))
            }
            Self::Timer { due_at } => write!(f, "waits for its timer, which is due at {due_at}"),
            Self::Pending(missing) => write!(f, "has not started: {}", missing.say(false)),
            Self::Skipped(missing) => write!(f, "was skipped: {}", missing.say(true)),
            Self::Failed { message, failures, attempts_max, handled, .. } => {
                let plural = if *failures == 1 { "" } else { "s" };
                write!(f, "failed after {failures} attempt{plural} of {attempts_max}")?;
                said(f, message.as_deref())?;
                if *handled { f.write_str("; a step subscribes to this failure") } else { Ok(()) }
            }
            Self::Completed { succeeded, steps } => {
                write!(f, "{succeeded} of {steps} steps succeeded")
            }
            Self::Cancelled { reason: Some(reason) } => {
                write!(f, "somebody cancelled it: {reason}")
            }
            Self::Cancelled { reason: None } => f.write_str("somebody cancelled it"),
            Self::Unknown {} => f.write_str("is open, and the store shows no job for it"),
        }
    }
}

fn say_held(
    f: &mut fmt::Formatter<'_>,
    flow: &str,
    (gate, deployment): (Option<GateState>, Option<&str>),
    since: Option<Timestamp>,
) -> fmt::Result {
    let state = gate.map_or("closed", GateState::as_str);
    write!(f, "the run is held: the gate of `{flow}` is {state}")?;
    if let Some(deployment) = deployment {
        write!(f, " for the deployment {deployment}")?;
    }
    since.map_or(Ok(()), |since| write!(f, ", and it waits there since {since}"))
}

fn say_no_worker(
    f: &mut fmt::Formatter<'_>,
    (worker, queue): (&str, &str),
    since: Timestamp,
    asked_at: Option<Timestamp>,
) -> fmt::Result {
    write!(f, "is due since {since} and waits for a worker `{worker}`")?;
    if queue != worker {
        write!(f, " in the queue `{queue}`")?;
    }
    say_asked(f, asked_at)?;
    f.write_str("; start one that claims it")
}

fn say_no_broker(f: &mut fmt::Formatter<'_>, queue: &str, since: Timestamp) -> fmt::Result {
    write!(
        f,
        "is due since {since} and waits in the queue `{queue}` for an instance with an MQTT \
         broker; none has one: name it as `[mqtt]` in the settings of one that takes jobs of this \
         queue"
    )
}

fn say_asked(f: &mut fmt::Formatter<'_>, asked_at: Option<Timestamp>) -> fmt::Result {
    match asked_at {
        Some(at) => {
            write!(f, "; none has asked for it in the last minute, the last one did at {at}")
        }
        None => f.write_str("; none has asked for it"),
    }
}

/// Runs that are named in one line.
const HOLDERS_SHOWN: usize = 5;

fn say_use(
    f: &mut fmt::Formatter<'_>,
    holders: Option<&[RunId]>,
    in_line: Option<u64>,
) -> fmt::Result {
    if let Some(holders) = holders {
        let shown: Vec<String> =
            holders.iter().take(HOLDERS_SHOWN).map(ToString::to_string).collect();
        match (shown.is_empty(), holders.len().saturating_sub(HOLDERS_SHOWN)) {
            (true, _) => f.write_str("; nobody holds one now")?,
            (false, 0) => write!(f, "; in use by {}", shown.join(", "))?,
            (false, more) => write!(f, "; in use by {} and {more} more", shown.join(", "))?,
        }
    }
    in_line.map_or(Ok(()), |in_line| write!(f, "; {in_line} in line"))
}

fn said(f: &mut fmt::Formatter<'_>, message: Option<&str>) -> fmt::Result {
    message.map_or(Ok(()), |message| write!(f, ": {message}"))
}

impl Missing {
    /// What is missing, in words; `ended` tells whether it can still come.
    fn say(&self, ended: bool) -> String {
        let events: Vec<String> = self.events.iter().map(ToString::to_string).collect();
        let (one_came, none_came, all_came) = if ended {
            ("never came", "came", "never came")
        } else {
            ("has not come yet", "has come yet", "have not come yet")
        };
        match (events.as_slice(), self.any) {
            ([], _) => "nothing is missing".to_owned(),
            ([one], _) => format!("{one} {one_came}"),
            (many, true) => format!("none of {} {none_came}", many.join(", ")),
            (many, false) => format!("{} {all_came}", many.join(" and ")),
        }
    }
}

impl fmt::Display for MissingEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.event)?;
        for (at, (step, state)) in self.sources.iter().enumerate() {
            let stands = match state {
                StepState::Pending => "has not started",
                StepState::Queued => "is queued",
                StepState::Running => "is running",
                StepState::Waiting => "is waiting",
                StepState::Succeeded => "ended without it",
                StepState::Failed => "failed",
                StepState::Skipped => "was skipped",
                StepState::Cancelled => "was cancelled",
            };
            write!(f, "{}`{step}` {stands}", if at == 0 { " (" } else { ", " })?;
        }
        if self.sources.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}
