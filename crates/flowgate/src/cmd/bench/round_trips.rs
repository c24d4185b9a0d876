//! Counts what the stores send to their servers: the one metric that a benchmark listens to.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    set_global_recorder,
};

/// As the stores name it.
const METRIC: &str = "flowgate_store_round_trips_total";

static ROUND_TRIPS: LazyLock<Arc<AtomicU64>> = LazyLock::new(Arc::default);

/// Counts from now on.
pub(crate) fn listen() -> anyhow::Result<()> {
    Ok(set_global_recorder(Listener)?)
}

/// How many there were.
pub(crate) fn count() -> u64 {
    ROUND_TRIPS.load(Ordering::Relaxed)
}

struct Listener;

impl Recorder for Listener {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() == METRIC {
            Counter::from_arc(Arc::clone(&ROUND_TRIPS))
        } else {
            Counter::noop()
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
