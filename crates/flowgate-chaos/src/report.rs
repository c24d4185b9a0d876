//! What is printed.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use crate::faults::Tallies;
use crate::judge::Verdict;

/// A line for people, on standard error.
pub(crate) fn complain(line: &str) {
    // Without a standard error there is nobody to tell.
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// A line of the result, on standard output.
pub(crate) fn say(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{line}").context("writing the result")
}

/// All figures of one run of the harness.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) store: &'static str,
    pub(crate) seed: u64,
    pub(crate) passed: bool,
    /// Why the run has shown nothing, if so.
    pub(crate) void: Vec<String>,
    pub(crate) instances: usize,
    pub(crate) runs_wanted: u32,
    /// Requests whose answer never came.
    pub(crate) unknown_answers: u64,
    /// Reads after acknowledged starts.
    pub(crate) reads: u64,
    pub(crate) faults: Tallies,
    #[serde(serialize_with = "seconds")]
    pub(crate) ended_after_heal: Duration,
    #[serde(serialize_with = "seconds")]
    pub(crate) took: Duration,
    /// What the harness itself could not do.
    pub(crate) errors: Vec<String>,
    #[serde(flatten)]
    pub(crate) verdict: Verdict,
}

fn seconds<S: serde::Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((span.as_secs_f64() * 100.0).round() / 100.0)
}

impl Report {
    pub(crate) fn new(store: &'static str, seed: u64, verdict: Verdict) -> Self {
        Self {
            store,
            seed,
            passed: false,
            void: Vec::new(),
            instances: 0,
            runs_wanted: 0,
            unknown_answers: 0,
            reads: 0,
            faults: Tallies::new(),
            ended_after_heal: Duration::ZERO,
            took: Duration::ZERO,
            errors: Vec::new(),
            verdict,
        }
    }

    /// Decides: a run of the harness whose faults did nothing is void, not passed.
    pub(crate) fn judge(&mut self) {
        for (name, tally) in &self.faults {
            if tally.took_effect == 0 {
                self.void.push(format!("no fault of the kind {name} took effect"));
            }
        }
        let stops = self.faults.get("stop").map_or(0, |tally| tally.took_effect)
            + self.faults.get("kill").map_or(0, |tally| tally.took_effect);
        if stops > 4 && self.verdict.leases_lost == 0 {
            self.void.push("no lease was lost".to_owned());
        }
        let wanted = usize::try_from(self.runs_wanted).unwrap_or(usize::MAX);
        if self.verdict.acknowledged * 100 < wanted * 95 {
            let acknowledged = self.verdict.acknowledged;
            self.void.push(format!("only {acknowledged} of {wanted} starts were acknowledged"));
        }
        self.passed = self.verdict.is_clean() && self.void.is_empty() && self.errors.is_empty();
    }

    /// Prints it, as one JSON object or in lines.
    pub(crate) fn print(&self, as_json: bool) -> anyhow::Result<()> {
        if as_json {
            return say(&serde_json::to_string(self).expect("a report has a JSON form"));
        }
        let Verdict { acknowledged, runs, events, .. } = self.verdict;
        let v = &self.verdict;
        let tallies: Vec<String> = self
            .faults
            .iter()
            .map(|(name, tally)| format!("{name} {}/{}", tally.took_effect, tally.injected))
            .collect();
        let statuses: Vec<String> =
            v.by_status.iter().map(|(status, count)| format!("{count} {status}")).collect();
        for line in [
            format!("store                {} (seed {})", self.store, self.seed),
            format!("instances            {}", self.instances),
            format!("faults               {} (took effect/injected)", tallies.join(", ")),
            format!("starts acknowledged  {acknowledged} of {}", self.runs_wanted),
            format!("answers never came   {}", self.unknown_answers),
            format!("runs                 {runs}: {}", statuses.join(", ")),
            format!("events               {events}"),
            format!("lost                 {}", v.lost),
            format!("phantom runs         {}", v.phantoms),
            format!("duplicate enqueues   {}", v.duplicate_enqueues),
            format!("not one terminal     {}", v.not_one_terminal),
            format!("order broken         {}", v.order_broken),
            format!("stale accepted       {}", v.stale_accepted),
            format!("double outcomes      {}", v.double_outcomes),
            format!("effects wrong        {}", v.effects_wrong),
            format!("stale reads          {} of {}", v.stale_reads, self.reads),
            format!("repairs              {}", v.repairs),
            format!("leases lost          {}", v.leases_lost),
            format!("executed again       {} of {} executions", v.executed_again, v.executions),
            format!("all ended after      {:.1} s of peace", self.ended_after_heal.as_secs_f64()),
            format!("took                 {:.1} s", self.took.as_secs_f64()),
        ] {
            say(&line)?;
        }
        for line in v.violations.iter().take(20).chain(&self.errors).chain(&self.void) {
            say(&format!("  {line}"))?;
        }
        say(match (self.passed, self.void.is_empty()) {
            (true, _) => "passed",
            (false, false) if v.is_clean() => "VOID",
            (false, _) => "FAILED",
        })
    }
}
