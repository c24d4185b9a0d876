//! Rules about priorities and limits.

use super::times::validate_span;
use super::{Problems, did_you_mean};
use crate::flow::{DebounceFile, KeyPath, Path, StepFile, Subscribes};
use crate::limits::{LIMIT_MAX, PRIORITY_MAX};

/// Checks what a step says about its priority, its limits and its effect.
pub(super) fn validate(path: &Path, step: &StepFile, problems: &mut Problems) {
    let fields = [
        ("priority", step.priority.is_some()),
        ("concurrency", step.concurrency.is_some()),
        ("rate", step.rate.is_some()),
        ("effect", step.effect),
    ];
    for (field, is_there) in fields {
        if is_there && step.run.is_none() {
            problems.add(
                &path.key(field),
                format!(
                    "`{field}` does nothing on a step without `run`: it has no work for a worker \
                     to take"
                ),
                format!("remove `{field}`, or give the step a `run`"),
            );
        }
    }
    if let Some(priority) = step.priority
        && priority > PRIORITY_MAX
    {
        problems.add(
            &path.key("priority"),
            format!("a priority of {priority} is not from 0 to {PRIORITY_MAX}"),
            format!("write `{PRIORITY_MAX}` for what comes first, or leave it out"),
        );
    }
    let subscribes = step.subscribes.as_ref();
    if let Some(concurrency) = &step.concurrency {
        let path = path.key("concurrency");
        validate_count(&path.key("limit"), concurrency.limit, problems);
        if let Some(key) = &concurrency.key {
            validate_key(&path.key("key"), key, subscribes, problems);
        }
    }
    if let Some(rate) = &step.rate {
        let path = path.key("rate");
        validate_count(&path.key("limit"), rate.limit, problems);
        validate_span(&path.key("per"), rate.per, problems);
        if let Some(key) = &rate.key {
            validate_key(&path.key("key"), key, subscribes, problems);
        }
    }
}

/// Checks which starts become one run.
pub(super) fn validate_debounce(path: &Path, debounce: &DebounceFile, problems: &mut Problems) {
    if let Some(key) = &debounce.key {
        validate_key(&path.key("key"), key, None, problems);
    }
    validate_span(&path.key("window"), debounce.window, problems);
    let Some(max) = debounce.max else { return };
    validate_span(&path.key("max"), max, problems);
    if max < debounce.window {
        let window = debounce.window;
        problems.add(
            &path.key("max"),
            format!("`{max}` is shorter than the window of `{window}`"),
            format!("write at least `{window}`, or leave it out"),
        );
    }
}

fn validate_count(path: &Path, count: u32, problems: &mut Problems) {
    if count == 0 {
        problems.add(
            path,
            "a limit of 0 lets nothing run",
            "write at least `1`, or pause the step's queue",
        );
    } else if count > LIMIT_MAX {
        problems.add(
            path,
            format!("{count} is over the limit of {LIMIT_MAX}"),
            "leave the limit out: so many are as good as none",
        );
    }
}

/// Checks a path into the input of a step that subscribes to this, or into that of a start.
pub(super) fn validate_key(
    path: &Path,
    key: &str,
    subscribes: Option<&Subscribes>,
    problems: &mut Problems,
) {
    let parsed = match KeyPath::parse(key) {
        Ok(parsed) => parsed,
        Err(error) => {
            let example = match subscribes.and_then(|subscribes| subscribes.names().first()) {
                Some(event) => format!("write a path such as `input[\"{event}\"].tenant`"),
                None => "write a path such as `input.tenant`".to_owned(),
            };
            problems.add(path, error.to_string(), example);
            return;
        }
    };
    let Some(subscribes) = subscribes else { return };
    let names = subscribes.names();
    let Some(first) = names.first() else { return };
    let example = || format!("write a path such as `input[\"{first}\"].tenant`");
    match parsed.first_name() {
        Some(event) if names.iter().any(|name| name == event) => {}
        Some(event) => problems.add(
            path,
            format!(
                "the input of this step has the events that it subscribes to by name, and no \
                 `{}`",
                event.escape_debug()
            ),
            did_you_mean(event, names.iter().map(String::as_str), example),
        ),
        None => problems.add(
            path,
            "the input of this step has the events that it subscribes to by name",
            example(),
        ),
    }
}
