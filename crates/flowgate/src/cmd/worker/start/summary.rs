//! A line of figures, now and then.

use std::time::Duration;

use flowgate_engine::{Engine, Leadership};

use crate::logging::SUMMARY;

/// How long the queues may take to be read.
const QUEUES_MAX: Duration = Duration::from_secs(2);

/// Logs a line of figures every `interval`, without end.
pub(super) async fn tell(engine: &Engine, interval: Option<Duration>) {
    let Some(interval) = interval else { return std::future::pending().await };
    loop {
        tokio::time::sleep(interval).await;
        let stats = engine.stats();
        let due = due(engine).await.map_or_else(|| "unknown".to_owned(), |due| due.to_string());
        let store_ms = stats.store_latency.map(|took| took.as_secs_f64() * 1000.0);
        let store_ms = store_ms.map_or_else(|| "no answer".to_owned(), |ms| format!("{ms:.1}"));
        let leadership = match &*engine.leadership().borrow() {
            Leadership::Never => "never",
            Leadership::Standby => "standby",
            Leadership::Leading(_) => "leader",
        };
        let degradation = engine.degradation().borrow().as_str();
        tracing::info!(
            target: SUMMARY,
            instance = %engine.config().instance,
            active = stats.running,
            completed = stats.succeeded,
            failed = stats.failed,
            retried = stats.retried,
            queued = %due,
            store_ms = %store_ms,
            leadership,
            degradation,
            "summary"
        );
    }
}

/// Jobs that are due in the queues that the instance serves; none if they cannot be read.
async fn due(engine: &Engine) -> Option<u64> {
    // One that is idle has taken all there was, and leaves its store alone.
    if engine.is_idle() {
        return Some(0);
    }
    let queues = tokio::time::timeout(QUEUES_MAX, engine.queues()).await.ok()?.ok()?;
    let served = queues.iter().filter(|queue| engine.serves(&queue.queue));
    Some(served.map(|queue| queue.due).sum())
}
