//! What waits in the queues, read when somebody asks for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowgate_engine::Engine;
use flowgate_store::Queues as Served;
use metrics::gauge;

use crate::clock;

/// How long what was read is good enough.
const GOOD_FOR: Duration = Duration::from_secs(1);
/// How long a read may take.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// The queue of steps that name none.
const DEFAULT: &str = "default";

/// The queues that were ever told of, and when that was.
#[derive(Debug, Default)]
pub(super) struct Queues(tokio::sync::Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    names: BTreeSet<Arc<str>>,
    read_at: Option<Instant>,
}

impl Queues {
    /// Sets the gauges of all queues. What cannot be read is not a number: neither old nor zero.
    pub(super) async fn measure(&self, engine: &Engine) {
        let mut known = self.0.lock().await;
        let now = clock::instant();
        if known.read_at.is_some_and(|at| now.saturating_duration_since(at) < GOOD_FOR) {
            return;
        }
        known.read_at = Some(now);
        match &engine.config().queues {
            Served::All | Served::AllBut(_) | Served::AllOf { .. } => {
                known.names.extend([DEFAULT.into()]);
            }
            Served::Only(names) => known.names.extend(names.iter().cloned()),
        }
        let read = tokio::time::timeout(WAIT_MAX, engine.queues()).await;
        let Ok(Ok(waiting)) = read else {
            known.names.iter().for_each(|name| set(name, [f64::NAN; 3]));
            return;
        };
        for name in &known.names {
            if !waiting.iter().any(|queue| queue.queue == *name) {
                set(name, [0.0; 3]);
            }
        }
        for queue in waiting {
            #[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 jobs")]
            let figures = [queue.due as f64, queue.later as f64, queue.oldest.as_secs_f64()];
            known.names.insert(Arc::clone(&queue.queue));
            set(&queue.queue, figures);
        }
    }
}

fn set(queue: &Arc<str>, [due, later, oldest]: [f64; 3]) {
    let label = || queue.to_string();
    gauge!("flowgate_queue_due", "queue" => label()).set(due);
    gauge!("flowgate_queue_later", "queue" => label()).set(later);
    gauge!("flowgate_queue_oldest_seconds", "queue" => label()).set(oldest);
}
