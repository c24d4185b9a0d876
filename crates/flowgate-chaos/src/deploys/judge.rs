//! The judge of deployments: what the clients, the feed, the sink and the reports say together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use serde::Serialize;

use super::load::Sent;

/// How long an acceptance may take, but for one in a hundred.
const ACCEPTANCE_P99_MAX: Duration = Duration::from_secs(2);
/// How long held runs may wait after the flow was let go on.
const HOLD_MAX: Duration = Duration::from_secs(30);
/// How long messages may come after the flow was let go on before one is let through at once.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// Executions for a hundred messages.
const EXECUTIONS_PERCENT_MAX: u64 = 102;

/// What is left when all is over.
#[derive(Clone, Debug, Default)]
pub(super) struct Left {
    /// How many messages there were to send.
    pub(super) messages: usize,
    /// What the clients were told, in the order of each lane.
    pub(super) sent: Vec<Sent>,
    /// The runs in the store, without smoke tests.
    pub(super) runs: Vec<(RunId, Option<Arc<str>>, RunStatus)>,
    /// What the feeds say of them, each in its order.
    pub(super) feeds: Vec<Vec<Entry>>,
    /// How often the message of each run was sent.
    pub(super) executions: BTreeMap<RunId, u64>,
    /// The deployments in their order.
    pub(super) deployments: Vec<Window>,
}

/// Something that happened to a run, by the feed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) run_id: RunId,
    pub(super) at: Timestamp,
    pub(super) mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Accepted, and due at once.
    Started,
    /// Accepted, and held.
    Held,
    /// Due, after it was held.
    Released,
}

/// A deployment and what its own report says.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) name: String,
    pub(super) began_at: Timestamp,
    /// When the flow was let go on, on whichever revision.
    pub(super) resumed_at: Timestamp,
    pub(super) ended_at: Timestamp,
    /// Starts while it was under way, as its report says.
    pub(super) received: u64,
    /// Of them, those that were held and those that were let go, as its report says.
    pub(super) held: u64,
    pub(super) released: u64,
    /// Whether its report says that nothing was lost.
    pub(super) is_conserved: bool,
}

/// The verdict.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Verdict {
    pub(super) acknowledged: usize,
    pub(super) lost: usize,
    pub(super) doubled: usize,
    /// Messages whose effect is there.
    pub(super) effects: usize,
    pub(super) executions: u64,
    pub(super) order_broken: usize,
    /// Runs that were held.
    pub(super) held: usize,
    pub(super) acceptance_p99_ms: u64,
    pub(super) acceptance_max_ms: u64,
    /// How late a message was sent because its lane waited, but for one in a hundred.
    pub(super) late_p99_ms: u64,
    /// For each deployment, the longest that a run which it held waited after it had let go.
    pub(super) hold_ms: Vec<u64>,
    /// Reports that say something else than the ledger.
    pub(super) reports_wrong: usize,
    /// What is wrong, in words.
    pub(super) violations: Vec<String>,
}

impl Verdict {
    fn add(&mut self, count: impl FnOnce(&mut Self) -> &mut usize, what: String) {
        *count(self) += 1;
        self.violations.push(what);
    }
}

/// Judges what is left.
pub(super) fn judge(left: &Left) -> Verdict {
    let mut verdict = Verdict::default();
    judge_runs(left, &mut verdict);
    judge_effects(left, &mut verdict);
    judge_order(left, &mut verdict);
    judge_acceptance(left, &mut verdict);
    judge_hold(left, &mut verdict);
    judge_gates(left, &mut verdict);
    judge_reports(left, &mut verdict);
    verdict
}

/// Every message has one run, which completed, and there are no others.
fn judge_runs(left: &Left, verdict: &mut Verdict) {
    let mut by_key: BTreeMap<&str, Vec<(RunId, RunStatus)>> = BTreeMap::new();
    for (run_id, key, status) in &left.runs {
        by_key.entry(key.as_deref().unwrap_or("")).or_default().push((*run_id, *status));
    }
    for sent in &left.sent {
        let key = &sent.key;
        let found = by_key.remove(key.as_str()).unwrap_or_default();
        let Some(named) = sent.runs.first() else {
            verdict.violations.push(format!("{key} was asked for {} times in vain", sent.asked));
            continue;
        };
        verdict.acknowledged += 1;
        match found.iter().find(|(run_id, _)| run_id == named) {
            Some((_, RunStatus::Completed)) => {}
            Some((_, status)) => {
                verdict.add(|v| &mut v.lost, format!("{key}: run {named} is {}", status.as_str()));
            }
            None => verdict.add(|v| &mut v.lost, format!("{key}: run {named} is not there")),
        }
        for (other, _) in found.iter().filter(|(run_id, _)| run_id != named) {
            verdict.add(|v| &mut v.doubled, format!("{key} has also run {other}"));
        }
        for other in sent.runs.iter().filter(|run_id| *run_id != named) {
            verdict.add(|v| &mut v.doubled, format!("{key} was also told of run {other}"));
        }
    }
    for (key, runs) in by_key {
        for (run_id, _) in runs {
            verdict.add(|v| &mut v.doubled, format!("nobody asked for run {run_id} of `{key}`"));
        }
    }
    if verdict.acknowledged != left.messages {
        let (acknowledged, messages) = (verdict.acknowledged, left.messages);
        verdict.violations.push(format!("{acknowledged} of {messages} were acknowledged"));
    }
}

/// Every message was sent, once by its idempotency key, and few of them again.
fn judge_effects(left: &Left, verdict: &mut Verdict) {
    verdict.effects = left.executions.len();
    verdict.executions = left.executions.values().sum();
    if verdict.effects != left.messages {
        let (effects, messages) = (verdict.effects, left.messages);
        verdict.violations.push(format!("{effects} effects of {messages} messages"));
    }
    let messages = u64::try_from(left.messages).unwrap_or(u64::MAX);
    if verdict.executions * 100 > messages * EXECUTIONS_PERCENT_MAX {
        let executions = verdict.executions;
        verdict.violations.push(format!("{executions} executions of {messages} messages"));
    }
}

/// Within a feed the runs of a lane became due in the order in which they were acknowledged.
fn judge_order(left: &Left, verdict: &mut Verdict) {
    let places: BTreeMap<RunId, &Sent> =
        left.sent.iter().filter_map(|sent| Some((*sent.runs.first()?, sent))).collect();
    for feed in &left.feeds {
        let mut last: BTreeMap<usize, &Sent> = BTreeMap::new();
        for entry in feed.iter().filter(|entry| entry.mark != Mark::Held) {
            let Some(sent) = places.get(&entry.run_id) else { continue };
            if let Some(before) = last.insert(sent.lane, sent)
                && before.seq >= sent.seq
            {
                let what = format!("{} became due after {}", sent.key, before.key);
                verdict.add(|v| &mut v.order_broken, what);
            }
        }
    }
}

fn judge_acceptance(left: &Left, verdict: &mut Verdict) {
    let mut took: Vec<Duration> = left.sent.iter().map(|sent| sent.took).collect();
    let mut late: Vec<Duration> = left.sent.iter().map(|sent| sent.late).collect();
    let p99 = percentile_99(&mut took);
    verdict.acceptance_p99_ms = millis(p99);
    verdict.acceptance_max_ms = millis(took.last().copied().unwrap_or_default());
    verdict.late_p99_ms = millis(percentile_99(&mut late));
    if p99 > ACCEPTANCE_P99_MAX {
        verdict.violations.push(format!("one acceptance in a hundred took over {p99:?}"));
    }
}

/// What a deployment held was due soon after it had let go, all of it.
fn judge_hold(left: &Left, verdict: &mut Verdict) {
    let mut held: BTreeSet<RunId> = BTreeSet::new();
    let mut longest = vec![Duration::ZERO; left.deployments.len()];
    for entry in left.feeds.iter().flatten() {
        match entry.mark {
            Mark::Started => {}
            Mark::Held => {
                verdict.held += 1;
                held.insert(entry.run_id);
            }
            Mark::Released => {
                held.remove(&entry.run_id);
                let began = left.deployments.iter().map(|window| window.began_at);
                let Some(by) = began.filter(|at| *at <= entry.at).count().checked_sub(1) else {
                    continue;
                };
                let waited = entry.at.since(left.deployments[by].resumed_at);
                longest[by] = waited.max(longest[by]);
            }
        }
    }
    for (window, waited) in left.deployments.iter().zip(&longest) {
        verdict.hold_ms.push(millis(*waited));
        if *waited > HOLD_MAX {
            let name = &window.name;
            verdict.violations.push(format!("{name}: the hold was empty only after {waited:?}"));
        }
    }
    for run_id in held {
        verdict.violations.push(format!("run {run_id} was held and never let go"));
    }
}

/// The gate opened though messages went on coming: a hold that is refilled as fast as it is let go
/// would only be empty when they stop.
fn judge_gates(left: &Left, verdict: &mut Verdict) {
    let accepted = || left.feeds.iter().flatten().filter(|entry| entry.mark != Mark::Released);
    let Some(last) = accepted().map(|entry| entry.at).max() else { return };
    for window in &left.deployments {
        let is_after = |entry: &&Entry| entry.at >= window.resumed_at;
        let mut through = accepted().filter(is_after).filter(|entry| entry.mark == Mark::Started);
        let opened = through.next().map_or(last, |entry| entry.at);
        let waited = opened.since(window.resumed_at);
        if window.resumed_at < last && waited > OPEN_MAX {
            let name = &window.name;
            let what = format!("{name}: every message was held for {waited:?} after the resume");
            verdict.violations.push(what);
        }
    }
}

/// Each report says that nothing was lost, and counts what the ledger counts.
fn judge_reports(left: &Left, verdict: &mut Verdict) {
    let known: BTreeSet<RunId> = left.sent.iter().flat_map(|sent| sent.runs.clone()).collect();
    for window in &left.deployments {
        let is_within = |entry: &&Entry| {
            known.contains(&entry.run_id)
                && window.began_at <= entry.at
                && entry.at < window.ended_at
        };
        let count = |marks: &[Mark]| {
            let entries = left.feeds.iter().flatten().filter(is_within);
            let found = entries.filter(|entry| marks.contains(&entry.mark)).count();
            u64::try_from(found).unwrap_or(u64::MAX)
        };
        let name = &window.name;
        if !window.is_conserved {
            let what = format!("{name}: its report says that something was lost");
            verdict.add(|v| &mut v.reports_wrong, what);
        }
        for (what, reported, found) in [
            ("received", window.received, count(&[Mark::Started, Mark::Held])),
            ("held", window.held, count(&[Mark::Held])),
            ("let go", window.released, count(&[Mark::Released])),
        ] {
            if reported != found {
                let what = format!(
                    "{name}: its report says that {reported} were {what}, the ledger {found}"
                );
                verdict.add(|v| &mut v.reports_wrong, what);
            }
        }
    }
}

fn percentile_99(spans: &mut [Duration]) -> Duration {
    spans.sort_unstable();
    let place = (spans.len() * 99).div_ceil(100).saturating_sub(1);
    spans.get(place).copied().unwrap_or_default()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
