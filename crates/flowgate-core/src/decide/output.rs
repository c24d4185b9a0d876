//! Whether what a step or a caller hands over may be written.

use std::sync::Arc;

use super::{Output, Rejection};
use crate::event::{ErrorKind, StepError};
use crate::flow::{Action, Flow, Step, Wait};
use crate::ids::is_identifier;
use crate::limits;
use crate::run::Run;

/// An output that breaks a rule makes its attempt fail, and no other attempt would differ.
pub(super) fn check(flow: &Flow, step: &Step, run: &Run, output: &Output) -> Result<(), StepError> {
    if output.emits.len() > limits::EMITS_PER_ATTEMPT_MAX {
        return Err(invalid(format!(
            "the step emitted {} events; the limit is {}",
            output.emits.len(),
            limits::EMITS_PER_ATTEMPT_MAX
        )));
    }
    for (event, _) in &output.emits {
        check_emit(flow, step, event)?;
    }
    check_state(run, output)?;
    let payloads = output.emits.iter().map(|(_, data)| data.bytes());
    let values = output.state.iter().map(|(_, value)| value.bytes());
    let result = output.result.iter().map(crate::payload::Payload::bytes);
    let bytes: usize = payloads.chain(values).chain(result).sum();
    if bytes > limits::COMMIT_BYTES_MAX {
        return Err(invalid(format!(
            "the step handed over {bytes} bytes; the limit is {}",
            limits::COMMIT_BYTES_MAX
        )));
    }
    Ok(())
}

/// A step emits what it declares.
pub(super) fn check_emit(flow: &Flow, step: &Step, event: &str) -> Result<(), StepError> {
    if step.emits.iter().any(|slot| *flow.slot(*slot).name == *event) {
        return Ok(());
    }
    Err(invalid(format!(
        "the step emitted `{event}`, which is not in its `emits`; add it there or emit a declared event"
    )))
}

fn check_state(run: &Run, output: &Output) -> Result<(), StepError> {
    for (key, value) in &output.state {
        if !is_identifier(key) {
            return Err(invalid(format!("`{key}` cannot name a state value")));
        }
        if value.bytes() > limits::STATE_VALUE_BYTES_MAX {
            return Err(invalid(format!(
                "the state value `{key}` has {} bytes; the limit is {}",
                value.bytes(),
                limits::STATE_VALUE_BYTES_MAX
            )));
        }
    }
    let new = output.state.iter().filter(|(key, _)| !run.state.contains_key(key)).count();
    if run.state.len() + new > limits::STATE_KEYS_MAX {
        return Err(invalid(format!(
            "the run would have {} state values; the limit is {}",
            run.state.len() + new,
            limits::STATE_KEYS_MAX
        )));
    }
    Ok(())
}

/// A signal is for a wait of the flow, and the run has room for it.
pub(super) fn check_signal(flow: &Flow, run: &Run, signal: &Arc<str>) -> Result<(), Rejection> {
    let mut known: Vec<&str> = flow
        .steps
        .iter()
        .filter_map(|step| match &step.action {
            Action::Wait(Wait::Signal { signal, .. }) => Some(&**signal),
            Action::Wait(Wait::Delay(_) | Wait::Until(_))
            | Action::Nothing
            | Action::Process(_)
            | Action::Shell(_)
            | Action::Http(_)
            | Action::Mqtt(_)
            | Action::Worker(_) => None,
        })
        .collect();
    known.sort_unstable();
    known.dedup();
    if !known.contains(&&**signal) {
        let known = match known.as_slice() {
            [] => "no waits for signals".to_owned(),
            names => format!("`{}`", names.join("`, `")),
        };
        return Err(Rejection::SignalUnknown { signal: Arc::clone(signal), known });
    }
    if run.signals.len() >= limits::SIGNALS_KEPT_MAX {
        return Err(Rejection::SignalsFull);
    }
    Ok(())
}

fn invalid(message: String) -> StepError {
    StepError { kind: ErrorKind::Invalid, message: message.into() }
}
