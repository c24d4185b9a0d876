//! Messages at a rate, each in the order of its lane, and what was said about them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flowgate_core::ids::RunId;
use flowgate_testbed::Stopwatch;
use parking_lot::Mutex;

use super::flow::FLOW;
use crate::cluster::Cluster;
use crate::instance::{Answer, Ask};

/// Lanes: the messages of each are in order, so one is sent when the one before is acknowledged.
pub(super) const LANES: usize = 16;
/// How long a client waits for an answer before it asks another instance.
const ANSWER_MAX: Duration = Duration::from_millis(1_200);
/// How long a client goes on asking for one message.
const TRY_MAX: Duration = Duration::from_mins(1);
/// How long a client waits before it asks again.
const AGAIN: Duration = Duration::from_millis(20);

/// A message that was acknowledged, or that its client gave up.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Sent {
    /// Its id, which is the key of its run.
    pub(super) key: String,
    /// Its ordering key.
    pub(super) lane: usize,
    /// Its number in its lane.
    pub(super) seq: usize,
    /// Every run that an answer has named; none if nobody ever answered.
    pub(super) runs: Vec<RunId>,
    /// How often it was asked for.
    pub(super) asked: u32,
    /// How long it took until it was acknowledged.
    pub(super) took: Duration,
    /// How late it was sent, because its lane was waiting.
    pub(super) late: Duration,
}

/// How many messages are sent, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) messages: usize,
    pub(super) interval: Duration,
    /// Started when the first message was due.
    pub(super) watch: Stopwatch,
}

/// Messages on their way.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) sent: Mutex<Vec<Sent>>,
    acknowledged: AtomicUsize,
}

/// The key of a message.
pub(super) fn key_of(lane: usize, seq: usize) -> String {
    format!("message-{lane}-{seq}")
}

impl Load {
    /// How many messages were acknowledged so far.
    pub(super) fn acknowledged(&self) -> usize {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Sends the messages of one lane.
    pub(super) fn send_lane(&self, cluster: &Cluster, lane: usize, pace: Pace) {
        let Pace { messages, interval, watch } = pace;
        let mut place = lane % cluster.len();
        for (seq, number) in (lane..messages).step_by(LANES).enumerate() {
            let due = interval * u32::try_from(number).unwrap_or(u32::MAX);
            std::thread::sleep(due.saturating_sub(watch.elapsed()));
            let late = watch.elapsed().saturating_sub(due);
            let sent = send(cluster, (lane, seq), late, &mut place);
            let is_acknowledged = !sent.runs.is_empty();
            self.sent.lock().push(sent);
            if !is_acknowledged {
                // What follows would come before it.
                return;
            }
            self.acknowledged.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Sends one message, to the instance that answered last and then to the others.
fn send(cluster: &Cluster, (lane, seq): (usize, usize), late: Duration, place: &mut usize) -> Sent {
    let (key, watch) = (key_of(lane, seq), Stopwatch::start());
    let mut sent = Sent { key, lane, seq, runs: Vec::new(), asked: 0, took: Duration::ZERO, late };
    while watch.elapsed() < TRY_MAX {
        sent.asked += 1;
        let ask = Ask::Start { flow: FLOW.to_owned(), key: sent.key.clone() };
        let answer = cluster.instance(*place).ask(ask, ANSWER_MAX);
        if let Some(Answer::Stored { run_id }) = answer {
            sent.runs.push(run_id);
            break;
        }
        *place = (*place + 1) % cluster.len();
        std::thread::sleep(AGAIN);
    }
    sent.took = watch.elapsed();
    sent
}
