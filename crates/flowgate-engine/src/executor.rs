//! How a step's work is done: a handler in this process, a program, or an HTTP request.

use std::sync::Arc;

use flowgate_core::decide::Outcome;
use flowgate_core::event::ErrorKind;
use flowgate_core::flow::Action;

use crate::attempt::{Attempt, Ending};

pub(crate) mod http;
mod lines;
mod process;
mod protocol;
pub(crate) mod worker;

/// Begins an attempt. One that ends at once is reported here; the rest of it becomes a task.
pub(crate) fn begin(attempt: Arc<Attempt>) {
    if let Some(stop) = attempt.stop_reason() {
        attempt.end(Ending::Stopped(stop));
        return;
    }
    let flow = Arc::clone(&attempt.flow);
    match &attempt.step().action {
        Action::Worker(name) => {
            let begun = match flow.handler(attempt.claimed.job.job_id.step) {
                Some(handler) => worker::begin(&**handler, &attempt),
                None => Ok(no_handler(&attempt, name)),
            };
            match begun {
                Ok(ending) => attempt.end(ending),
                Err(rest) => {
                    let instance = Arc::clone(&attempt.instance);
                    instance.tasks.spawn(async move {
                        let ending = rest.finish(&attempt).await;
                        attempt.end(ending);
                    });
                }
            }
        }
        Action::Process(_) | Action::Shell(_) => {
            let instance = Arc::clone(&attempt.instance);
            instance.tasks.spawn(async move {
                let ending = process::execute(&attempt).await;
                attempt.end(ending);
            });
        }
        Action::Http(_) => {
            let instance = Arc::clone(&attempt.instance);
            instance.tasks.spawn(async move {
                let ending = http::execute(&attempt).await;
                attempt.end(ending);
            });
        }
        // The rules complete such a step by themselves; a job for it does nothing.
        Action::Nothing | Action::Wait(_) => {
            let output = attempt.take_output(None);
            attempt.end(Ending::Outcome(Outcome::Succeeded(output)));
        }
    }
}

fn no_handler(attempt: &Attempt, name: &str) -> Ending {
    let names: Vec<&str> = attempt.instance.workers.names().collect();
    let registered = match names.as_slice() {
        [] => "none is".to_owned(),
        names => format!("registered: `{}`", names.join("`, `")),
    };
    let message = format!("no worker is registered under `{name}`; {registered}");
    Ending::failed(ErrorKind::Invalid, &message)
}
