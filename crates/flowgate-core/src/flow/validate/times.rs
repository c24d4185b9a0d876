//! Rules about retries, timeouts and other lengths of time.

use super::Problems;
use crate::flow::{BackoffFile, Path, RetryFile, Span, StepFile};
use crate::limits::{ATTEMPTS_MAX, DURATION_MAX};
use crate::retry::RetryPolicy;

/// The largest factor by which delays may grow.
const FACTOR_MAX: f64 = 100.0;

/// Checks what a step says about retries and its timeout.
pub(super) fn validate(path: &Path, step: &StepFile, problems: &mut Problems) {
    let kind = if step.wait.is_some() { "a step that waits" } else { "a step without `run`" };
    if let Some(retry) = &step.retry {
        let path = path.key("retry");
        if step.run.is_none() {
            problems.add(
                &path,
                format!("`retry` does nothing on {kind}: it makes no attempts"),
                "remove `retry`, or give the step a `run`",
            );
        }
        validate_retry(&path, retry, problems);
    }
    if let Some(timeout) = step.timeout {
        let path = path.key("timeout");
        if step.run.is_none() {
            let remedy = if step.wait.is_some() {
                "move it into `wait`, next to `signal`"
            } else {
                "remove `timeout`, or give the step a `run`"
            };
            problems.add(
                &path,
                format!("`timeout` does nothing on {kind}: it bounds an attempt of `run`"),
                remedy,
            );
        }
        validate_span(&path, timeout, problems);
    }
}

/// Checks that a length of time is more than none and not over the longest.
pub(super) fn validate_span(path: &Path, span: Span, problems: &mut Problems) {
    if span.0.is_zero() {
        problems.add(path, "`0s` is no time at all", "write at least `1ms`, or leave it out");
    } else if span.0 > DURATION_MAX {
        let longest = Span(DURATION_MAX);
        problems.add(
            path,
            format!("`{span}` is over the limit of `{longest}`"),
            format!("write at most `{longest}`"),
        );
    }
}

fn validate_retry(path: &Path, retry: &RetryFile, problems: &mut Problems) {
    if let Some(attempts) = retry.attempts
        && !(1..=ATTEMPTS_MAX).contains(&attempts)
    {
        problems.add(
            &path.key("attempts"),
            format!("{attempts} attempts are not from 1 to {ATTEMPTS_MAX}"),
            "count the first attempt too: `attempts: 1` never tries again",
        );
    }
    if retry.attempts.is_none() && retry.backoff.is_none() {
        problems.add(path, "`retry` is empty", "give it `attempts` or `backoff`, or remove it");
    }
    if let Some(backoff) = &retry.backoff {
        validate_backoff(&path.key("backoff"), retry, backoff, problems);
    }
}

fn validate_backoff(
    path: &Path,
    retry: &RetryFile,
    backoff: &BackoffFile,
    problems: &mut Problems,
) {
    if *backoff == BackoffFile::default() {
        problems.add(path, "`backoff` is empty", "give it `initial`, `factor`, `max` or `jitter`");
    }
    let before = problems.count();
    for (key, span) in [("initial", backoff.initial), ("max", backoff.max)] {
        if let Some(span) = span {
            validate_span(&path.key(key), span, problems);
        }
    }
    let policy = RetryPolicy::from_file(Some(retry));
    if problems.count() == before && policy.delay_min > policy.delay_max {
        let (initial, max) = (Span(policy.delay_min), Span(policy.delay_max));
        let (key, remedy) = match backoff.initial {
            Some(_) => ("initial", format!("write at most `{max}`, or a longer `max`")),
            None => ("max", format!("write at least `{initial}`, or a shorter `initial`")),
        };
        problems.add(
            &path.key(key),
            format!("the first delay, `{initial}`, is longer than the longest, `{max}`"),
            remedy,
        );
    }
    if let Some(factor) = backoff.factor
        && !(1.0..=FACTOR_MAX).contains(&factor)
    {
        problems.add(
            &path.key("factor"),
            format!("a factor of {factor} is not from 1 to {FACTOR_MAX}"),
            "write `1` for equal delays, or `2` to double them",
        );
    }
    if let Some(jitter) = backoff.jitter
        && !(0.0..=1.0).contains(&jitter)
    {
        problems.add(
            &path.key("jitter"),
            format!("a jitter of {jitter} is not from 0 to 1"),
            "write the share of a delay that is random, such as `0.2`",
        );
    }
}
