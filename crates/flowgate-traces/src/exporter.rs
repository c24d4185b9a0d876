//! Spans on their way to the collector.

use std::time::Duration;

use flowgate_core::ids::InstanceId;
use metrics::Counter;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::mpsc;

use crate::TracesError;
use crate::endpoint::Endpoint;

/// Spans in one request.
const BATCH_MAX: usize = 512;
/// How long spans gather before they leave.
const GATHER: Duration = Duration::from_millis(500);
/// How long the collector has for one request, with all its repeats.
const EXPORT_MAX: Duration = Duration::from_secs(10);

/// What was dropped, by why.
pub(crate) struct Dropped {
    /// Commits that went by too fast, with whatever spans they would have made.
    pub(crate) missed: Counter,
    /// Spans that found no room.
    pub(crate) queue_full: Counter,
    /// Spans that the collector did not take.
    export_failed: Counter,
}

impl Dropped {
    pub(crate) fn new() -> Self {
        let of = |reason: &'static str| metrics::counter!("flowgate_spans_dropped_total", "reason" => reason);
        Self {
            missed: of("missed"),
            queue_full: of("queue_full"),
            export_failed: of("export_failed"),
        }
    }
}

pub(crate) struct Exporter {
    exporter: SpanExporter,
    exported: Counter,
    dropped: Dropped,
    /// Whether the collector took the last batch.
    is_taking: bool,
}

impl Exporter {
    pub(crate) fn new(instance: &InstanceId, endpoint: &Endpoint) -> Result<Self, TracesError> {
        // Another part of this process may have installed a provider: then that one is used.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(EXPORT_MAX)
            .user_agent(concat!("flowgate/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| TracesError(error.into()))?;
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint.traces_url())
            .with_timeout(EXPORT_MAX)
            .build()
            .map_err(|error| TracesError(error.into()))?;
        exporter.set_resource(&resource(instance));
        let exported = metrics::counter!("flowgate_spans_exported_total");
        Ok(Self { exporter, exported, dropped: Dropped::new(), is_taking: true })
    }

    /// Exports until nobody can send any more.
    pub(crate) async fn export(mut self, mut waiting: mpsc::Receiver<SpanData>) {
        loop {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            if waiting.recv_many(&mut batch, BATCH_MAX).await == 0 {
                return;
            }
            gather(&mut batch, &mut waiting).await;
            self.send(batch).await;
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let failed = match tokio::time::timeout(EXPORT_MAX, self.exporter.export(batch)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {EXPORT_MAX:?}")),
        };
        match &failed {
            None => self.exported.increment(count),
            Some(_) => self.dropped.export_failed.increment(count),
        }
        // A collector that is down says so once, and once when it is back.
        match (self.is_taking, failed) {
            (true, Some(error)) => {
                self.is_taking = false;
                tracing::warn!(%error, spans = count, "the trace collector takes no spans; they are dropped");
            }
            (false, None) => {
                self.is_taking = true;
                tracing::info!("the trace collector takes spans again");
            }
            (true, None) | (false, Some(_)) => {}
        }
    }
}

/// Waits a little for more spans, unless nobody can send any.
async fn gather(batch: &mut Vec<SpanData>, waiting: &mut mpsc::Receiver<SpanData>) {
    let over = tokio::time::sleep(GATHER);
    tokio::pin!(over);
    while batch.len() < BATCH_MAX {
        let room = BATCH_MAX - batch.len();
        tokio::select! {
            biased;
            count = waiting.recv_many(batch, room) => if count == 0 { return },
            () = &mut over => return,
        }
    }
}

/// What the spans of this instance have in common. The standard variables `OTEL_SERVICE_NAME` and
/// `OTEL_RESOURCE_ATTRIBUTES` add to it.
fn resource(instance: &InstanceId) -> Resource {
    let detected = Resource::builder().build();
    let name = detected.get(&"service.name".into()).map(|name| name.to_string());
    let is_named = name.is_some_and(|name| !name.starts_with("unknown_service"));
    let mut builder = Resource::builder().with_attributes([
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", instance.to_string()),
    ]);
    if !is_named {
        builder = builder.with_service_name("flowgate");
    }
    builder.build()
}
