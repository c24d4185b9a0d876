//! The judge: reads what is left, and trusts nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use flowgate_core::check::{check_ended, check_run};
use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::flow::Flow;
use flowgate_core::ids::{LeaseToken, RunId};
use flowgate_core::limits::PAGE_MAX;
use flowgate_store::{RunCursor, RunQuery, RunRow, Store, whole_log};
use serde::Serialize;
use serde_json::json;

use crate::ledger::Ledger;

/// What the log, the ledger and the sink say together.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Verdict {
    /// Starts that were acknowledged.
    pub(crate) acknowledged: usize,
    /// Runs in the store.
    pub(crate) runs: usize,
    /// Runs by their status.
    pub(crate) by_status: BTreeMap<&'static str, usize>,
    /// Acknowledged starts without a run, and runs that never ended.
    pub(crate) lost: usize,
    /// Runs that nobody asked for, or a second run for one start.
    pub(crate) phantoms: usize,
    /// Steps that became due twice.
    pub(crate) duplicate_enqueues: usize,
    /// Runs with no terminal event, or more than one.
    pub(crate) not_one_terminal: usize,
    /// Gaps, doubles and inversions: in a run's numbers, in its positions, in the feed.
    pub(crate) order_broken: usize,
    /// Outcomes of leases that had ended.
    pub(crate) stale_accepted: usize,
    /// Steps with two outcomes.
    pub(crate) double_outcomes: usize,
    /// Steps that succeeded without an execution in the sink, and executions without a lease.
    pub(crate) effects_wrong: usize,
    /// Reads after an acknowledged start that did not find it.
    pub(crate) stale_reads: usize,
    /// Repairs by the reconciler: there was something to repair.
    pub(crate) repairs: usize,
    /// Everything else that is wrong.
    pub(crate) other: usize,
    /// Events in the log.
    pub(crate) events: usize,
    /// Steps that succeeded.
    pub(crate) steps_succeeded: usize,
    /// Leases that ended without a word, as the log says.
    pub(crate) leases_lost: usize,
    /// Executions in the sink.
    pub(crate) executions: u64,
    /// Attempts that were executed although an earlier execution had left its mark.
    pub(crate) executed_again: u64,
    /// What is wrong, in words.
    pub(crate) violations: Vec<String>,
}

impl Verdict {
    /// Whether nothing is wrong.
    pub(crate) fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    fn add(&mut self, count: impl FnOnce(&mut Self) -> &mut usize, what: String) {
        *count(self) += 1;
        self.violations.push(what);
    }
}

/// All runs of a store.
pub(crate) async fn all_runs(store: &dyn Store) -> anyhow::Result<Vec<RunRow>> {
    let mut rows: Vec<RunRow> = Vec::new();
    let mut query = RunQuery { limit: PAGE_MAX, ..RunQuery::default() };
    loop {
        let page = store.list_runs(&query).await.context("listing runs")?;
        let Some(last) = page.last() else { return Ok(rows) };
        query.after = Some(RunCursor { started_at: last.started_at, run_id: last.run.run_id });
        rows.extend(page);
    }
}

/// Judges the store. `followed` is what a reader of the feed saw while it all happened.
pub(crate) async fn judge(
    store: &dyn Store,
    flows: &BTreeMap<&'static str, Flow>,
    ledger: &Ledger,
    executions: &BTreeMap<String, u64>,
    followed: &[StoredEvent],
) -> anyhow::Result<Verdict> {
    let mut verdict = Verdict {
        acknowledged: ledger.acknowledged(),
        executions: executions.values().sum(),
        ..Verdict::default()
    };
    let rows = all_runs(store).await?;
    verdict.runs = rows.len();
    let total = store.count_runs(&RunQuery::default()).await.context("counting runs")?;
    if usize::try_from(total) != Ok(rows.len()) {
        verdict.add(|v| &mut v.other, format!("{total} runs are counted, {} listed", rows.len()));
    }
    judge_ledger(ledger, &rows, &mut verdict);
    let mut logs: BTreeMap<RunId, Vec<StoredEvent>> = BTreeMap::new();
    for row in &rows {
        let run_id = row.run.run_id;
        let log = whole_log(store, run_id).await.context("reading events")?;
        *verdict.by_status.entry(row.run.status.as_str()).or_default() += 1;
        match flows.get(&*row.run.flow) {
            Some(flow) => judge_run(flow, row, &log, executions, &mut verdict),
            None => verdict.add(|v| &mut v.phantoms, format!("run {run_id} of an unknown flow")),
        }
        logs.insert(run_id, log);
    }
    judge_feed(followed, &logs, &mut verdict);
    Ok(verdict)
}

/// L1, L2 and L5: nothing acknowledged is missing, nothing is there that was not asked for.
fn judge_ledger(ledger: &Ledger, rows: &[RunRow], verdict: &mut Verdict) {
    let by_id: BTreeMap<RunId, &RunRow> = rows.iter().map(|row| (row.run.run_id, row)).collect();
    for start in ledger.starts.values() {
        if let Some(run_id) = start.run_id
            && !by_id.contains_key(&run_id)
        {
            let what =
                format!("start {} was acknowledged and run {run_id} is not there", start.key);
            verdict.add(|v| &mut v.lost, what);
        }
        for other in &start.others {
            verdict.add(|v| &mut v.phantoms, format!("start {} has also run {other}", start.key));
        }
    }
    let mut keys: BTreeMap<&str, RunId> = BTreeMap::new();
    for row in rows {
        let run_id = row.run.run_id;
        match row.run.key.as_deref() {
            Some(key) if ledger.starts.contains_key(key) => {
                if let Some(other) = keys.insert(key, run_id) {
                    let what = format!("start {key} has the runs {run_id} and {other}");
                    verdict.add(|v| &mut v.phantoms, what);
                }
            }
            _ => verdict.add(|v| &mut v.phantoms, format!("nobody asked for run {run_id}")),
        }
    }
    for run_id in &ledger.stale_reads {
        let what = format!("run {run_id} was acknowledged, and a read right after did not find it");
        verdict.add(|v| &mut v.stale_reads, what);
    }
}

fn judge_run(
    flow: &Flow,
    row: &RunRow,
    log: &[StoredEvent],
    executions: &BTreeMap<String, u64>,
    verdict: &mut Verdict,
) {
    let run_id = row.run.run_id;
    verdict.events += log.len();
    for violation in check_run(&[flow], run_id, log, Some(&row.run)) {
        let what = violation.to_string();
        match violation.invariant {
            2 => verdict.add(|v| &mut v.order_broken, what),
            3 if what.contains("second time") => verdict.add(|v| &mut v.duplicate_enqueues, what),
            3 if what.contains("second outcome") => verdict.add(|v| &mut v.double_outcomes, what),
            5 => verdict.add(|v| &mut v.stale_accepted, what),
            _ => verdict.add(|v| &mut v.other, what),
        }
    }
    if let Some(violation) = check_ended(run_id, log) {
        verdict.add(|v| &mut v.lost, violation.to_string());
    }
    let terminal = log.iter().filter(|stored| stored.event.is_terminal()).count();
    if terminal != 1 {
        let what = format!("run {run_id} has {terminal} terminal events");
        verdict.add(|v| &mut v.not_one_terminal, what);
    }
    judge_effects(flow, run_id, log, executions, verdict);
}

/// L3 and L4: what succeeded was executed, and nothing was executed without a lease.
fn judge_effects(
    flow: &Flow,
    run_id: RunId,
    log: &[StoredEvent],
    executions: &BTreeMap<String, u64>,
    verdict: &mut Verdict,
) {
    let mut leases: BTreeMap<&str, BTreeSet<LeaseToken>> = BTreeMap::new();
    let mut succeeded: BTreeSet<&str> = BTreeSet::new();
    for stored in log {
        let Some(step) = stored.event.step() else { continue };
        if let Some(lease) = stored.event.lease() {
            leases.entry(step).or_default().insert(lease.token);
        }
        if matches!(stored.event, Event::StepSucceeded { .. }) {
            succeeded.insert(step);
        }
        verdict.leases_lost += usize::from(matches!(stored.event, Event::StepLost { .. }));
        if matches!(stored.event, Event::StepRepaired { .. }) {
            let what = format!("run {run_id}: `{step}` had to be repaired");
            verdict.add(|v| &mut v.repairs, what);
        }
    }
    verdict.steps_succeeded += succeeded.len();
    for step in &flow.steps {
        let name = &*step.name;
        // A wait is not executed by anybody.
        if matches!(step.action, flowgate_core::flow::Action::Wait(_)) {
            continue;
        }
        let executed = executions.get(&format!("{run_id}/{name}/1")).copied().unwrap_or(0);
        let granted = leases.get(name).map_or(0, |tokens| tokens.len() as u64);
        if succeeded.contains(name) && executed == 0 {
            let what = format!("run {run_id}: `{name}` succeeded and was never executed");
            verdict.add(|v| &mut v.effects_wrong, what);
        }
        if executed > granted {
            let what =
                format!("run {run_id}: `{name}` ran {executed} times under {granted} leases");
            verdict.add(|v| &mut v.effects_wrong, what);
        }
        verdict.executed_again += executed.saturating_sub(1);
    }
}

/// A reader that followed the feed saw every event once, those of a run in order.
fn judge_feed(
    followed: &[StoredEvent],
    logs: &BTreeMap<RunId, Vec<StoredEvent>>,
    verdict: &mut Verdict,
) {
    let mut seen: BTreeMap<RunId, u64> = BTreeMap::new();
    for stored in followed {
        let last = seen.entry(stored.run_id).or_default();
        if stored.seq != *last + 1 {
            let what = format!(
                "feed: event {} of run {} came after event {last}",
                stored.seq, stored.run_id
            );
            verdict.add(|v| &mut v.order_broken, what);
        }
        *last = stored.seq;
    }
    for (run_id, log) in logs {
        let (seen, there) = (seen.get(run_id).copied().unwrap_or(0), log.len() as u64);
        if seen != there {
            let what = format!("feed: {seen} of {there} events of run {run_id} were seen");
            verdict.add(|v| &mut v.order_broken, what);
        }
    }
}

/// Leaves the log for an independent check, one JSON object an event, in the order of the feed.
pub(crate) fn export(path: &Path, followed: &[StoredEvent]) -> anyhow::Result<()> {
    let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    let mut file = BufWriter::new(file);
    for stored in followed {
        let lease = stored.event.lease();
        let event = serde_json::to_value(&stored.event).expect("an event has a JSON form");
        let line = json!({
            "position": stored.position,
            "run": stored.run_id,
            "seq": stored.seq,
            "type": stored.event.kind(),
            "step": stored.event.step(),
            "attempt": lease.map(|lease| lease.attempt),
            "token": lease.map(|lease| lease.token),
            "instance": lease.map(|lease| &lease.instance),
            "data": event["data"],
            "time": stored.at.to_string(),
        });
        writeln!(file, "{line}").context("writing the log")?;
    }
    file.flush().context("writing the log")
}
