//! Somebody who is told what happens, and what waits for them.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// Bytes that wait for whoever does not read.
const WAITING_BYTES_MAX: usize = 64 << 10;

/// Somebody who is told what happens.
#[derive(Debug)]
pub(super) struct Client {
    waiting: Mutex<Waiting>,
    changed: Notify,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Frame>,
    bytes: usize,
    has_lagged: bool,
    is_closed: bool,
}

/// A piece of a stream.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// The number of the event in its run; 0 where there is none.
    pub(super) seq: u64,
    /// Whether nothing happens to the run after it.
    pub(super) is_last: bool,
    pub(super) bytes: Bytes,
}

/// What there is for a client.
#[derive(Clone, Debug)]
pub(super) enum Next {
    Frame(Frame),
    /// It did not read for so long that something was left out.
    Lagged,
    /// Nothing comes any more.
    Closed,
}

impl Client {
    pub(super) fn new(permit: OwnedSemaphorePermit) -> Self {
        let (waiting, changed) = Default::default();
        Self { waiting, changed, _permit: permit }
    }

    /// Adds a frame, unless too much waits already.
    pub(super) fn push(&self, frame: &Frame) {
        let mut waiting = self.waiting.lock();
        if waiting.has_lagged {
            return;
        }
        let bytes = waiting.bytes.saturating_add(frame.bytes.len());
        // One that is large by itself is taken if nothing else waits, or nobody would ever get it.
        if bytes > WAITING_BYTES_MAX && !waiting.frames.is_empty() {
            waiting.has_lagged = true;
        } else {
            waiting.bytes = bytes;
            waiting.frames.push_back(frame.clone());
        }
        self.changed.notify_one();
    }

    /// Nothing comes any more.
    pub(super) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Forgets what waits, as somebody does who reads it elsewhere.
    pub(super) fn forget(&self) {
        let mut waiting = self.waiting.lock();
        *waiting = Waiting { is_closed: waiting.is_closed, ..Waiting::default() };
    }

    #[cfg(test)]
    pub(super) fn waiting_frames(&self) -> usize {
        self.waiting.lock().frames.len()
    }

    /// The next frame.
    pub(super) async fn next(&self) -> Next {
        loop {
            let changed = self.changed.notified();
            {
                let mut waiting = self.waiting.lock();
                if let Some(frame) = waiting.frames.pop_front() {
                    waiting.bytes -= frame.bytes.len();
                    return Next::Frame(frame);
                }
                if waiting.has_lagged {
                    return Next::Lagged;
                }
                if waiting.is_closed {
                    return Next::Closed;
                }
            }
            changed.await;
        }
    }
}
