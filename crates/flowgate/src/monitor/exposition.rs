//! Metrics in the text form of Prometheus.

use std::time::Duration;

use flowgate_engine::Engine;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::queues::Queues;
use crate::failure::{Exit, Failure};

/// How often measured values are put where they are counted.
pub(super) const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// From half a millisecond, which a commit to a local store takes, to what nobody waits for.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Up to the largest batch.
const SIZES: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// Everything that is counted in this process.
#[derive(Debug)]
pub(super) struct Exposition {
    handle: PrometheusHandle,
    queues: Queues,
}

impl Exposition {
    /// From now on everything that is counted is kept here.
    pub(super) fn install() -> Result<Self, Failure> {
        let failed = |message: String| Failure::new(Exit::Store, "metrics_failed", message);
        let builder = PrometheusBuilder::new();
        let builder = builder
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .and_then(|builder| {
                builder.set_buckets_for_metric(Matcher::Suffix("_size".to_owned()), &SIZES)
            });
        let builder = builder.map_err(|error| failed(error.to_string()))?;
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|error| failed(error.to_string()))?;
        Ok(Self { handle, queues: Queues::default() })
    }

    /// Everything, as it is now.
    pub(super) async fn render(&self, engine: Option<&Engine>) -> String {
        if let Some(engine) = engine {
            engine.measure();
            self.queues.measure(engine).await;
        }
        self.handle.render()
    }

    pub(super) fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}
