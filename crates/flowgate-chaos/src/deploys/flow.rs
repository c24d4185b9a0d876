//! The flow that is deployed again and again: a message is taken, and sent to the sink.

use std::sync::Arc;
use std::time::Duration;

use flowgate_engine::{HandlerError, StepContext, Workers};
use serde_json::{Value, json};

use crate::sink::SinkClient;

/// The flow's name.
pub(super) const FLOW: &str = "messages";
/// The handler of both steps.
const GOOD: &str = "deploys-good";
/// The handler that a broken revision sends with: it always fails.
const BROKEN: &str = "deploys-broken";
/// How long sending a message takes, at most.
const SHORT_MAX: Duration = Duration::from_millis(15);
/// How long it takes for a few, which a drain does not wait for.
const LONG: Duration = Duration::from_millis(600);
/// Of a thousand messages, those that take long.
const LONG_PERMILLE: u16 = 8;

/// How every deployment is done.
pub(super) const SETTINGS: &str = "
strategy: blue-green
drain_timeout: 300ms
verify_timeout: 8s
replay_rate: unlimited
before_window: 20
smoke_tests: [{name: sends, input: {}, expect: {result: {send: {equals: {sent: true}}}}}]
";

/// Whether what a revision does is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quality {
    Good,
    Broken,
}

/// The text of a revision.
pub(super) fn text(number: usize, quality: Quality) -> String {
    let (worker, attempts) = match quality {
        Quality::Good => (GOOD, 20),
        Quality::Broken => (BROKEN, 1),
    };
    format!(
        "
flow: {FLOW}
description: revision {number}
steps:
  take: {{ run: {{ worker: {GOOD} }}, emits: [taken] }}
  send:
    subscribes: [taken]
    run: {{ worker: {worker} }}
    retry: {{ attempts: {attempts}, backoff: {{ initial: 20ms, max: 500ms }} }}
"
    )
}

/// Adds the handlers, which tell `sink` of every message that they send.
pub(crate) fn register(workers: &mut Workers, sink: &Arc<SinkClient>) {
    let sink = Arc::clone(sink);
    workers.register(GOOD, move |input: Value, ctx: StepContext| {
        let sink = Arc::clone(&sink);
        async move { work(&input, &ctx, &sink).await }
    });
    workers.register(BROKEN, |_: Value, _: StepContext| async {
        Err::<Value, _>(HandlerError::retryable("this revision is broken"))
    });
}

async fn work(input: &Value, ctx: &StepContext, sink: &SinkClient) -> Result<Value, HandlerError> {
    if ctx.step() == "take" {
        ctx.emit("taken", input)?;
        return Ok(Value::Null);
    }
    // A smoke test has no message.
    if input.pointer("/taken/key").is_some() {
        let is_long = fastrand::u16(0..1_000) < LONG_PERMILLE;
        let pause = if is_long { LONG } else { SHORT_MAX.mul_f64(fastrand::f64()) };
        tokio::time::sleep(pause).await;
        sink.record(&ctx.key(), ctx.attempt()).await?;
    }
    Ok(json!({ "sent": true }))
}

#[cfg(test)]
mod tests {
    use flowgate_core::deploy::Settings;
    use flowgate_core::flow::Flow;

    use super::*;

    #[test]
    fn every_revision_is_another_one() {
        let revision = |number, quality| Flow::parse(&text(number, quality)).unwrap().revision;
        assert_ne!(revision(1, Quality::Good), revision(2, Quality::Good));
        assert_ne!(revision(1, Quality::Good), revision(1, Quality::Broken));
        assert_eq!(Settings::parse(SETTINGS).unwrap().smoke_tests.len(), 1);
    }
}
