//! What is sent to one of those who look.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flowgate_core::run::RunStatus;
use flowgate_store::{Store, StoreError};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::time::{Interval, MissedTickBehavior};

use super::client::Next;
use super::{Following, Looking, event_frame};
use crate::shield;
use crate::wire::live::RunEnd;

/// Events of a log that are read at once.
const PAGE: usize = 256;
/// How often somebody is told that the connection is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How often those who look at many runs are told the time.
const TICK: Duration = Duration::from_secs(5);
/// The first that is sent: how long to wait before coming back, in milliseconds.
const HELLO: &[u8] = b"retry: 2000\n\n";
/// What is sent to say that the connection is alive.
const ALIVE: &[u8] = b": alive\n\n";
/// What is sent to whoever did not read for too long.
const LAGGED: &[u8] = b"event: lagged\ndata: {}\n\n";

/// A stream as an answer.
pub(crate) fn answer(
    stream: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        // A proxy that gathers the answer would keep back what is told.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(stream)).into_response()
}

/// The events of a run after the number `after`: what is in the log, then what happens.
pub(crate) fn run_stream(
    store: Arc<dyn Store>,
    following: Following,
    after: u64,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let stream = RunStream { store, following, after, phase: Phase::Hello };
    unfold(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((Ok(bytes), stream))
    })
}

struct RunStream {
    store: Arc<dyn Store>,
    following: Following,
    after: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Hello,
    /// It reads what is in the log.
    Log,
    /// It is told what happens.
    Hub,
    Ended,
}

impl RunStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.phase {
                Phase::Hello => {
                    self.phase = Phase::Log;
                    return Some(Bytes::from_static(HELLO));
                }
                Phase::Log => match self.read().await {
                    Ok(Some(bytes)) => return Some(bytes),
                    Ok(None) => {}
                    Err(error) => {
                        // Whoever looks comes back, and goes on where this ended.
                        tracing::warn!(%error, "the log of a run cannot be read");
                        self.phase = Phase::Ended;
                    }
                },
                Phase::Hub => {
                    if let Some(bytes) = self.hear().await {
                        return Some(bytes);
                    }
                }
                Phase::Ended => return None,
            }
        }
    }

    /// The next part of the log; nothing if it is at its end, and then the hub tells the rest.
    async fn read(&mut self) -> Result<Option<Bytes>, StoreError> {
        // What the hub told until now is in the log.
        self.following.client.forget();
        let run_id = self.following.run_id;
        let page = self.store.read_events(run_id, self.after, PAGE).await?;
        if page.is_empty() {
            // The log of a run that has ended may have been removed.
            let detail = self.store.read_run(run_id).await?;
            let status = detail.map_or(RunStatus::Cancelled, |detail| detail.row.run.status);
            if status.is_terminal() {
                self.phase = Phase::Ended;
                return Ok(Some(end(status)));
            }
        }
        if page.len() < PAGE {
            self.phase = Phase::Hub;
        }
        let mut bytes = Vec::new();
        for stored in &page {
            let frame = event_frame(stored, &self.following.flow, &self.following.revision);
            bytes.extend_from_slice(&frame.bytes);
            self.after = frame.seq;
            if frame.is_last {
                bytes.extend_from_slice(&self.last().await?);
            }
        }
        Ok(Some(Bytes::from(bytes)).filter(|bytes| !bytes.is_empty()))
    }

    /// What the hub tells next; nothing if the log must be read for it.
    async fn hear(&mut self) -> Option<Bytes> {
        let next = tokio::time::timeout(HEARTBEAT, self.following.client.next()).await;
        let Ok(next) = next else { return Some(Bytes::from_static(ALIVE)) };
        match next {
            Next::Frame(frame) if frame.seq <= self.after => None,
            Next::Frame(frame) if frame.seq > self.after + 1 => {
                self.phase = Phase::Log;
                None
            }
            Next::Frame(frame) => {
                self.after = frame.seq;
                if !frame.is_last {
                    return Some(frame.bytes);
                }
                let mut bytes = Vec::from(frame.bytes);
                // Without it the caller comes back and is told then.
                bytes.extend_from_slice(&self.last().await.unwrap_or_default());
                Some(Bytes::from(bytes))
            }
            Next::Lagged => {
                self.phase = Phase::Ended;
                Some(Bytes::from_static(LAGGED))
            }
            Next::Closed => {
                self.phase = Phase::Ended;
                None
            }
        }
    }

    /// What comes after the last event.
    async fn last(&mut self) -> Result<Bytes, StoreError> {
        self.phase = Phase::Ended;
        let detail = self.store.read_run(self.following.run_id).await?;
        Ok(detail.map_or_else(Bytes::new, |detail| end(detail.row.run.status)))
    }
}

fn end(status: RunStatus) -> Bytes {
    let data = serde_json::to_string(&RunEnd { status }).expect("it has a JSON form");
    Bytes::from(format!("event: end\ndata: {data}\n\n"))
}

/// Runs that change, as they do.
pub(crate) fn look_stream(
    looking: Looking,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    unfold(Some((looking, ticks)), |state| async move {
        let (looking, mut ticks) = state?;
        match look_next(&looking, &mut ticks).await {
            Looked::Told(bytes) => Some((Ok(bytes), Some((looking, ticks)))),
            Looked::Last(bytes) => Some((Ok(bytes), None)),
            Looked::Nothing => None,
        }
    })
}

enum Looked {
    Told(Bytes),
    Last(Bytes),
    Nothing,
}

async fn look_next(looking: &Looking, ticks: &mut Interval) -> Looked {
    tokio::select! {
        biased;
        _ = ticks.tick() => {
            let now = shield::now();
            Looked::Told(Bytes::from(format!("event: tick\ndata: {{\"now\":\"{now}\"}}\n\n")))
        }
        next = looking.client.next() => match next {
            Next::Frame(frame) => Looked::Told(frame.bytes),
            Next::Lagged => Looked::Last(Bytes::from_static(LAGGED)),
            Next::Closed => Looked::Nothing,
        },
    }
}
