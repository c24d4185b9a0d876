//! What the user sees of a demo besides the dashboard.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::deploy::Report;
use flowgate_core::run::Run;
use flowgate_core::view::Brief;
use flowgate_server::wire::deployments::DeploymentItem;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::judge::{Figures, Verdict};
use crate::failure::Failure;
use crate::output::{Cell, Output};

/// Looks between two lines of figures, where they are not redrawn in place.
const LOOKS_PER_LINE: u32 = 10;

/// What there is to see, and where.
const SIGHTS: [(&str, &str); 4] = [
    ("Runs", "orders come and go; open one and watch its graph move"),
    ("Flows", "`expense` waits for a person: open a waiting run, send it the signal `approval`"),
    ("Dead letters", "imports that failed for good; try them again"),
    ("Schedules", "`report` is started by the clock, once for each due time"),
];

pub(super) struct Screen {
    output: Output,
    crashes: bool,
    /// The figures, where they are redrawn in place.
    area: Option<ProgressBar>,
    looks: u32,
}

impl Screen {
    pub(super) fn new(output: Output, crashes: bool) -> Self {
        let area = (output.can_redraw() && !output.json).then(|| {
            let style = ProgressStyle::with_template("{msg}").expect("the template is valid");
            ProgressBar::new_spinner().with_style(style)
        });
        Self { output, crashes, area, looks: 0 }
    }

    pub(super) fn greet(
        &self,
        folder: &Path,
        address: SocketAddr,
        took: Duration,
    ) -> Result<(), Failure> {
        if self.output.json {
            return self.output.json_line(&json!({
                "event": "ready", "url": format!("http://{address}/"), "folder": folder,
                "took_ms": millis(took),
            }));
        }
        let note = |name: &str, text: &str| self.say(&format!("  {name:<13} {text}"));
        self.say(&format!("flowgate {} demo", env!("CARGO_PKG_VERSION")));
        note("open", &Cell::bold(format_args!("http://{address}/")).to_string());
        note("store", &format!("{}, gone when this ends", folder.display()));
        for (place, sight) in SIGHTS {
            note(place, sight);
        }
        if self.crashes {
            note("--crash", "the process that does all of it is killed with SIGKILL in a moment");
        }
        self.say(&format!("ready in {}; Ctrl-C ends it and removes everything", Brief(took)));
        Ok(())
    }

    pub(super) fn greet_redeploy(
        &self,
        folder: &Path,
        address: SocketAddr,
        took: Duration,
    ) -> Result<(), Failure> {
        if self.output.json {
            return self.greet(folder, address, took);
        }
        let page = Cell::bold(format_args!("http://{address}/deployments"));
        self.say(&format!("flowgate {} demo --redeploy", env!("CARGO_PKG_VERSION")));
        self.say(&format!("  open   {page}, where every phase is shown as it happens"));
        self.say("  load   about 60 orders a second, from now until the end");
        self.say("  end    by itself, in half a minute; Ctrl-C ends it before");
        Ok(())
    }

    pub(super) fn deploying(&self, note: &str) -> Result<(), Failure> {
        if self.output.json {
            return self.output.json_line(&json!({ "event": "deploying", "note": note }));
        }
        let deploying = Cell::bold(format_args!("deploying: {note}"));
        self.say(&format!("{deploying}, blue-green with a smoke test"));
        Ok(())
    }

    pub(super) fn report(
        &self,
        deployment: &DeploymentItem,
        report: &Report,
    ) -> Result<(), Failure> {
        if self.output.json {
            return self.output.json_line(&json!({
                "event": "deployed", "deployment": deployment, "report": report,
            }));
        }
        self.output.line(format_args!("\n{}\n", report.to_text().trim_end()))
    }

    /// What was sent and what became of it.
    pub(super) fn counted(&self, verdict: &Verdict) -> Result<(), Failure> {
        if self.output.json {
            return self.output.json_line(&json!({ "event": "counted", "verdict": verdict }));
        }
        let Verdict { runs, finished, lost, doubled, .. } = verdict;
        self.output.line(Cell::bold(format_args!(
            "sent {runs}, ended {finished}, lost {lost}, doubled {doubled}: counted by whoever sent \
             them and by the checker of the log, not by the deployments"
        )))
    }

    /// The first run has ended.
    pub(super) fn first(&self, took: Duration) -> Result<(), Failure> {
        if self.output.json {
            let line = json!({ "event": "first_run", "took_ms": millis(took) });
            return self.output.json_line(&line);
        }
        self.say(&format!("the first run ended {} after the start of this program", Brief(took)));
        Ok(())
    }

    pub(super) fn show(&mut self, figures: &[Figures]) -> Result<(), Failure> {
        self.looks += 1;
        let is_due = self.looks.is_multiple_of(LOOKS_PER_LINE);
        if self.output.json {
            let line = json!({ "event": "figures", "flows": figures });
            return if is_due { self.output.json_line(&line) } else { Ok(()) };
        }
        if let Some(area) = &self.area {
            let rows: Vec<String> = figures.iter().map(row).collect();
            area.set_message(self.output.drawn(&rows.join("\n")));
        } else if is_due {
            let rows: Vec<String> = figures.iter().map(brief).collect();
            self.output.note(rows.join(" · "));
        }
        Ok(())
    }

    pub(super) fn killed(&self, process: u32, in_flight: &[Arc<Run>]) -> Result<(), Failure> {
        let mut flows: BTreeMap<&str, usize> = BTreeMap::new();
        for run in in_flight {
            *flows.entry(&run.flow).or_default() += 1;
        }
        let count = in_flight.len();
        if self.output.json {
            return self.output.json_line(&json!({
                "event": "killed", "process": process, "in_flight": count, "flows": flows,
            }));
        }
        let of: Vec<String> = flows.iter().map(|(flow, n)| format!("{n} {flow}")).collect();
        let killed = Cell::bold(format_args!("kill -9 {process}"));
        let of = of.join(", ");
        self.say(&format!("{killed}: {count} runs were in flight ({of}); starting again"));
        Ok(())
    }

    pub(super) fn restarted(&self, process: u32, took: Duration) -> Result<(), Failure> {
        if self.output.json {
            return self.output.json_line(&json!({
                "event": "restarted", "process": process, "took_ms": millis(took),
            }));
        }
        self.say(&format!("process {process} serves again {} after the kill", Brief(took)));
        Ok(())
    }

    pub(super) fn verdict(&self, verdict: &Verdict, took: Duration) -> Result<(), Failure> {
        if self.output.json {
            return self.output.json_line(&json!({
                "event": "recovered", "took_ms": millis(took), "verdict": verdict,
            }));
        }
        let Verdict { runs, finished, lost, doubled, repeated, .. } = verdict;
        let said = format!(
            "of {runs} runs in flight {finished} finished, {lost} lost, {doubled} steps doubled, \
             {repeated} attempts repeated; {} after the kill, by the checker of the log",
            Brief(took)
        );
        self.say(&Cell::bold(said).to_string());
        Ok(())
    }

    /// Says something without disturbing what is redrawn.
    fn say(&self, text: &str) {
        match &self.area {
            Some(area) => area.suspend(|| self.output.note(text)),
            None => self.output.note(text),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(area) = &self.area {
            area.finish_and_clear();
        }
    }
}

fn row(figures: &Figures) -> String {
    let Figures { flow, running, waiting, completed, failed } = figures;
    let flow = Cell::bold(format_args!("{flow:<8}"));
    format!(
        "  {flow} {running:>4} running {waiting:>4} waiting {completed:>6} completed {failed:>4} failed"
    )
}

fn brief(figures: &Figures) -> String {
    let Figures { flow, running, waiting, completed, failed } = figures;
    let open = running + waiting;
    format!("{flow}: {open} open, {completed} completed, {failed} failed")
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
