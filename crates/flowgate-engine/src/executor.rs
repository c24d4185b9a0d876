//! How a step's work is done: a handler in this process, which also is what publishes, a program, or
//! an HTTP request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use flowgate_core::decide::Outcome;
use flowgate_core::flow::Action;
use futures_util::FutureExt;

use crate::attempt::{Attempt, Ending, Stop};

pub(crate) mod http;
mod lines;
mod process;
mod protocol;
pub(crate) mod publish;
pub(crate) mod worker;

/// Begins an attempt. One that ends at once is reported here, and the caller wakes the committer;
/// the rest of one that does not becomes a task.
pub(crate) fn begin(attempt: Arc<Attempt>) {
    if let Some(stop) = attempt.stop_reason() {
        attempt.end_quietly(Ending::Stopped(stop));
        return;
    }
    let flow = Arc::clone(&attempt.flow);
    match &attempt.step().action {
        Action::Worker(_) | Action::Mqtt(_) => {
            let begun = match flow.handler(attempt.claimed.job.job_id.step) {
                Some(handler) => worker::begin(&**handler, &attempt),
                // Claims and hand-offs see to it that this does not happen; others execute it.
                None => Ok(Ending::Stopped(Stop::Shutdown)),
            };
            match begun {
                Ok(ending) => attempt.end_quietly(ending),
                Err(rest) => go_on(attempt, |attempt| async move { rest.finish(&attempt).await }),
            }
        }
        Action::Process(_) | Action::Shell(_) => {
            go_on(attempt, |attempt| async move { process::execute(&attempt).await });
        }
        Action::Http(_) => {
            go_on(attempt, |attempt| async move { http::execute(&attempt).await });
        }
        // The rules complete such a step by themselves; a job for it does nothing.
        Action::Nothing | Action::Wait(_) => {
            let output = attempt.take_output(None);
            attempt.end_quietly(Ending::Outcome(Outcome::Succeeded(output)));
        }
    }
}

/// Lets the rest of an attempt be a task. Whatever becomes of it, the attempt ends.
fn go_on<F, Fut>(attempt: Arc<Attempt>, work: F)
where
    F: FnOnce(Arc<Attempt>) -> Fut,
    Fut: Future<Output = Ending> + Send + 'static,
{
    let instance = Arc::clone(&attempt.instance);
    let work = AssertUnwindSafe(work(Arc::clone(&attempt))).catch_unwind();
    instance.tasks.spawn(async move {
        let ending = work.await.unwrap_or_else(|panic| worker::panicked(&*panic));
        attempt.end(ending);
    });
}
