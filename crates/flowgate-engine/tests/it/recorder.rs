//! What an engine says and counts, kept for a test that runs on one thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, LocalRecorderGuard, Metadata, Recorder,
    SharedString, Unit,
};
use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

/// The metrics of this thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Counts {
    /// Records what this thread counts, until the guard goes away.
    pub(crate) fn record(&self) -> LocalRecorderGuard<'_> {
        metrics::set_default_local_recorder(self)
    }

    /// The value of a counter, the bits of a gauge, or how often a histogram was written to, summed
    /// over all labels; `name` may end with some of them, as in `name{outcome=applied`.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        let counts = self.0.lock();
        let is_named =
            |key: &str| key.strip_prefix(name).is_some_and(|rest| !rest.starts_with('_'));
        let of_name = counts.iter().filter(|(key, _)| is_named(key));
        of_name.map(|(_, value)| value.load(Ordering::SeqCst)).sum()
    }

    /// The same over those with this label, wherever it stands.
    pub(crate) fn sum_where(&self, name: &str, label: &str) -> u64 {
        let counts = self.0.lock();
        let is_meant = |key: &str| key.split('{').next() == Some(name) && key.contains(label);
        let of_name = counts.iter().filter(|(key, _)| is_meant(key));
        of_name.map(|(_, value)| value.load(Ordering::SeqCst)).sum()
    }

    /// Whether the only gauge of this name is at 1.
    pub(crate) fn is_one(&self, name: &str) -> bool {
        self.sum(name) == 1_f64.to_bits()
    }

    /// The names that something was registered under.
    pub(crate) fn names(&self) -> std::collections::BTreeSet<String> {
        let counts = self.0.lock();
        counts.keys().map(|key| key.split('{').next().unwrap_or(key).to_owned()).collect()
    }

    fn slot(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::clone(self.0.lock().entry(name).or_default())
    }
}

impl Recorder for Counts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.slot(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.slot(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Records(self.slot(key))))
    }
}

/// Counts how often a histogram is written to.
struct Records(Arc<AtomicU64>);

impl HistogramFn for Records {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The log lines of this thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// Keeps what this thread logs, until the guard goes away.
    pub(crate) fn record(&self) -> tracing::subscriber::DefaultGuard {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(self.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    /// The lines that hold all of `parts`.
    pub(crate) fn with(&self, parts: &[&str]) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock()).into_owned();
        let holds = |line: &&str| parts.iter().all(|part| line.contains(part));
        text.lines().filter(holds).map(ToOwned::to_owned).collect()
    }
}

impl io::Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
