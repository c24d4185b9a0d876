//! Events as people read them.

use std::time::Duration;

use flowgate_core::event::Event;
use flowgate_core::flow::LimitName;
use flowgate_core::view::Brief;

/// What an event says, on one line, for people.
pub fn text(event: &Event) -> String {
    match event {
        Event::RunStarted(started) => {
            let held = if started.hold.is_some() { "held, " } else { "" };
            format!("{held}input {}", started.input.get())
        }
        Event::RunReleased { revision, pool } => match pool {
            None => format!("on {revision}"),
            Some(pool) => format!("on {revision}, for the pool {pool}"),
        },
        Event::RunCheckpointed { deployment, .. } => format!("by {deployment}"),
        Event::RunMigrated(migrated) => match &migrated.deployment {
            Some(deployment) => format!("to {} by {deployment}", migrated.revision),
            None => format!("to {}", migrated.revision),
        },
        Event::StepQueued { .. }
        | Event::StepWaiting { .. }
        | Event::StepRepaired { .. }
        | Event::StepSkipped { .. }
        | Event::StepCancelled { .. }
        | Event::StepCarried { .. }
        // A wait that a signal ended took no time of any attempt.
        | Event::StepSucceeded { lease: None, .. }
        | Event::RunCompleted {} => String::new(),
        Event::StepStarted { lease, .. }
        | Event::StepLost { lease, .. }
        | Event::StepReleased { lease, .. } => {
            format!("attempt {} on {}", lease.attempt, lease.instance)
        }
        Event::StepParked { limit, reason, .. } => format!("{}: {reason}", LimitName(limit)),
        Event::EventEmitted { event, data, .. } | Event::EventRepeated { event, data, .. } => {
            format!("{event} {}", data.get())
        }
        Event::StateSet { key, value, .. } => format!("{key} = {}", value.get()),
        Event::AttemptFailed { lease, error, retry_after_ms, .. } => {
            let wait = Brief(Duration::from_millis(*retry_after_ms));
            format!("attempt {}: {}; next in {wait}", lease.attempt, error.message)
        }
        Event::StepSucceeded { elapsed_us, result, .. } => {
            let took = Brief(Duration::from_micros(*elapsed_us));
            result.as_ref().map_or_else(
                || format!("in {took}"),
                |result| format!("in {took}, result {}", result.get()),
            )
        }
        Event::StepFailed { error, .. } => error.message.to_string(),
        Event::SignalReceived { signal, data } => format!("{signal} {}", data.get()),
        Event::SignalTaken { signal_seq, .. } => format!("signal of event {signal_seq}"),
        Event::RunFailed { step } => format!("because of {step}"),
        Event::RunCancelled { reason } => reason.as_deref().unwrap_or_default().to_owned(),
    }
}
