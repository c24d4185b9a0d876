//! What a start must be like.

use std::sync::Arc;

use flowgate_core::commit::Due;
use flowgate_core::debounce::Window;
use flowgate_core::decide::Start;
use flowgate_core::flow::{Action, Flow, Span};
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::RunId;
use flowgate_core::limits;
use flowgate_core::run::OWN_TAGS;

use crate::error::EngineError;
use crate::run_ids::RunIds;
use crate::supervisor::StartRequest;
use crate::{debounce, singleton};

/// With which other starts one shares its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// With none, but for those of the same key.
    None,
    /// With those that come while it is open.
    Singleton(Arc<str>),
    /// With those that come before it begins.
    Burst(Arc<str>, Window),
}

/// Checks a start, gives it its run id, and says with which others it shares its run. `gate` is
/// what was known of the gate before the flow was read.
pub(crate) fn check(
    flow: &Flow,
    request: StartRequest,
    gate: GateStamp,
    run_ids: &RunIds,
) -> Result<(Start, Sharing), EngineError> {
    let sharing = sharing(flow, &request)?;
    Ok((Start { gate, ..new_start(flow, request, run_ids)? }, sharing))
}

fn sharing(flow: &Flow, request: &StartRequest) -> Result<Sharing, EngineError> {
    let singleton = singleton::key(flow, request.singleton.as_ref(), &request.input)?;
    let burst = debounce::key(flow, &request.debounce, &request.input)?;
    let refused = |message: &str| Err(EngineError::Invalid(message.to_owned()));
    match (singleton, burst) {
        (None, None) => Ok(Sharing::None),
        (Some(_), Some(_)) => {
            refused("a start is debounced or a singleton, not both: each says which run it gives")
        }
        (Some(_), None) if request.key.is_some() => {
            refused("a start with a key is not a singleton: the key already gives one run")
        }
        (Some(key), None) => Ok(Sharing::Singleton(key)),
        (None, Some(_)) if request.key.is_some() || request.run_id.is_some() => {
            refused("a start with a key or a run id is not debounced: that already gives one run")
        }
        (None, Some(_)) if request.due != Due::Now => {
            refused("a start that is debounced has no delay and no time: its window says when")
        }
        (None, Some((key, window))) => Ok(Sharing::Burst(key, window)),
    }
}

fn new_start(flow: &Flow, request: StartRequest, run_ids: &RunIds) -> Result<Start, EngineError> {
    let StartRequest { input, key, tags, run_id, singleton: _, priority, due, debounce: _ } =
        request;
    flow.check_input(&input).map_err(EngineError::Input)?;
    check_when(flow, priority, due)?;
    if let Some(key) = &key
        && (key.is_empty() || key.len() > limits::KEY_BYTES_MAX || key.contains('\0'))
    {
        let max = limits::KEY_BYTES_MAX;
        return Err(EngineError::Invalid(format!("a key has 1 to {max} bytes and no NUL")));
    }
    if tags.len() > limits::TAGS_MAX {
        let (count, max) = (tags.len(), limits::TAGS_MAX);
        return Err(EngineError::Invalid(format!(
            "the start has {count} tags; the limit is {max}"
        )));
    }
    let is_short = |text: &Arc<str>| text.len() <= limits::NAME_BYTES_MAX && !text.contains('\0');
    if !tags.iter().all(|(name, value)| !name.is_empty() && is_short(name) && is_short(value)) {
        let max = limits::NAME_BYTES_MAX;
        return Err(EngineError::Invalid(format!("a tag and its value have at most {max} bytes")));
    }
    if let Some(name) = tags.keys().find(|name| name.starts_with(OWN_TAGS)) {
        return Err(EngineError::Invalid(format!(
            "the tag `{name}` is flowgate's own; use a name that does not begin with `{OWN_TAGS}`"
        )));
    }
    let run_id = match (&key, run_id) {
        (Some(key), None) => RunId::derived(&flow.name, key),
        (None, Some(run_id)) => run_id,
        (None, None) => run_ids.next(),
        (Some(_), Some(_)) => {
            let message = "a start has a key or a run id, not both: the key gives the run its id";
            return Err(EngineError::Invalid(message.to_owned()));
        }
    };
    // Which instance begins it, and for which pool, is said where it begins.
    let (gate, instance, pool) = (GateStamp::default(), None, None);
    Ok(Start { run_id, input, key, tags, priority, due, gate, instance, pool })
}

/// Whether a start that was checked for one revision is right for this one.
pub(crate) fn suits(flow: &Flow, start: &Start) -> bool {
    flow.check_input(&start.input).is_ok() && check_when(flow, start.priority, start.due).is_ok()
}

fn check_when(flow: &Flow, priority: Option<u8>, due: Due) -> Result<(), EngineError> {
    if let Some(priority) = priority
        && priority > limits::PRIORITY_MAX
    {
        let max = limits::PRIORITY_MAX;
        return Err(EngineError::Invalid(format!("priority {priority} is not from 0 to {max}")));
    }
    let entry = flow.step(flow.entry);
    let runs = !matches!(entry.action, Action::Nothing | Action::Wait(_));
    match due {
        Due::After(delay) if delay > limits::DURATION_MAX => {
            let max = Span(limits::DURATION_MAX);
            Err(EngineError::Invalid(format!("the delay is longer than {max}")))
        }
        Due::After(_) | Due::At(_) if !runs => Err(EngineError::Invalid(format!(
            "the flow begins with `{}`, which has no `run`, so its start cannot be put off; begin \
             with a step that has a `run`, or with a `wait` for the delay",
            entry.name
        ))),
        Due::Now | Due::After(_) | Due::At(_) => Ok(()),
    }
}
