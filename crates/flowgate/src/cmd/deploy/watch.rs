//! What somebody sees who watches a deployment: its phases, and how far it is with the one that it
//! is in. Redrawn on a terminal, a line now and then anywhere else.

use std::time::Duration;

use flowgate_core::view::Brief;
use flowgate_server::wire::deployments::{DeploymentItem, PhaseItem, ProgressItem};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::MissedTickBehavior;

use super::super::App;
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::reach::{Reach, segment};
use crate::signals::Stop;

/// How often a deployment is looked at while somebody watches it.
pub(in crate::cmd) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Looks between two lines where nothing is redrawn.
const LOOKS_PER_LINE: u32 = 10;
/// The phases of a deployment that goes well.
const PHASES: [&str; 6] = ["plan", "drain", "deploy", "verify", "resume", "audit"];

/// A deployment that was watched.
pub(super) struct Watched {
    pub(super) deployment: DeploymentItem,
    /// Whoever watched it did not want to see its end.
    pub(super) stopped: Option<Exit>,
}

/// Looks at a deployment until it has ended, and tells of its phases.
pub(super) async fn watch(
    app: &App,
    reach: &Reach,
    begun: DeploymentItem,
) -> Result<Watched, Failure> {
    let path = path_of(&begun);
    let mut stop = Stop::listen()?;
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut view = View::new(app.output);
    let mut deployment = begun;
    loop {
        view.show(&deployment);
        if deployment.ended_at.is_some() {
            return Ok(Watched { deployment, stopped: None });
        }
        tokio::select! {
            _ = ticks.tick() => {}
            exit = stop.next() => {
                drop(view);
                app.output.note(format_args!(
                    "the deployment goes on; see `flowgate deploy status {}`",
                    deployment.flow
                ));
                return Ok(Watched { deployment, stopped: Some(exit) });
            }
        }
        deployment = reach.get(&path, &[]).await?;
    }
}

/// Where the API has a deployment.
pub(in crate::cmd) fn path_of(deployment: &DeploymentItem) -> String {
    let (flow, id) = (segment(&deployment.flow), segment(&deployment.deployment_id));
    format!("/flows/{flow}/deployments/{id}")
}

/// How far a deployment is: `[###···] drain`.
pub(super) fn bar(phase: &str) -> String {
    let done = PHASES.iter().position(|name| *name == phase);
    let done = done.map_or(if phase == "completed" { PHASES.len() } else { 0 }, |at| at + 1);
    format!("[{}{}] {phase}", "#".repeat(done), "·".repeat(PHASES.len() - done))
}

/// The deployment as it is shown on stderr.
pub(in crate::cmd) struct View {
    output: Output,
    /// The phase that it is in, where that is redrawn.
    area: Option<ProgressBar>,
    /// Phases that were told of.
    told: usize,
    looks: u32,
    line: String,
}

impl View {
    pub(in crate::cmd) fn new(output: Output) -> Self {
        let area = (output.can_redraw() && !output.json).then(ProgressBar::new_spinner);
        Self { output, area, told: 0, looks: 0, line: String::new() }
    }

    pub(in crate::cmd) fn show(&mut self, deployment: &DeploymentItem) {
        match &self.area {
            Some(area) => {
                // A phase has its line when it is over; until then it is drawn.
                let is_over = |at: usize| at + 1 < deployment.phases.len();
                while is_over(self.told)
                    || deployment.ended_at.is_some() && self.has_more(deployment)
                {
                    let line = told(&deployment.phases, self.told);
                    area.suspend(|| self.output.note(line));
                    self.told += 1;
                }
                if deployment.ended_at.is_some() {
                    area.finish_and_clear();
                } else {
                    draw(area, deployment);
                }
            }
            None => self.write(deployment),
        }
    }

    fn has_more(&self, deployment: &DeploymentItem) -> bool {
        self.told < deployment.phases.len()
    }

    /// A line for each phase when it is entered, and one now and then about what is left to do.
    fn write(&mut self, deployment: &DeploymentItem) {
        for entered in deployment.phases.iter().skip(self.told) {
            self.output.note(bar(&entered.phase));
            self.looks = 0;
        }
        self.told = deployment.phases.len();
        self.looks += 1;
        if let Some(Left { text, .. }) = left(deployment)
            && self.looks.is_multiple_of(LOOKS_PER_LINE)
            && text != self.line
        {
            self.output.note(format_args!("{}: {text}", bar(&deployment.phase)));
            self.line = text;
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(area) = &self.area {
            area.finish_and_clear();
        }
    }
}

fn draw(area: &ProgressBar, deployment: &DeploymentItem) {
    let left = left(deployment);
    let share = left.as_ref().and_then(|left| left.share);
    let template = match share {
        Some(_) => "{prefix:.bold} {bar:24} {msg}",
        None => "{prefix:.bold} {spinner:.cyan} {msg}",
    };
    area.set_style(ProgressStyle::with_template(template).expect("our templates are valid"));
    if let Some((done, all)) = share {
        area.set_length(all);
        area.set_position(done.min(all));
    }
    area.set_prefix(bar(&deployment.phase));
    let rest = deployment.progress.as_ref().and_then(until).unwrap_or_default();
    area.set_message(format!("{}{rest}", left.map(|left| left.text).unwrap_or_default()));
    area.tick();
}

/// The line of a phase that is over.
fn told(phases: &[PhaseItem], at: usize) -> String {
    let phase = &phases[at];
    let took = phases.get(at + 1).map(|next| {
        let took = clock::read(&next.at).since(clock::read(&phase.at));
        format!(" {}", Brief(took))
    });
    format!("{}{}", bar(&phase.phase), took.unwrap_or_default())
}

/// What a phase has left to do.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    text: String,
    /// How much is done, of how much.
    share: Option<(u64, u64)>,
}

fn left(deployment: &DeploymentItem) -> Option<Left> {
    let ProgressItem { open, held, stopped, .. } = deployment.progress.as_ref()?;
    let (text, share) = match &*deployment.phase {
        "drain" => {
            let all = (deployment.plan.finishing + deployment.plan.resuming).max(*open);
            (format!("{open} open runs left, {held} held"), Some((all - open, all)))
        }
        "resume" | "rolling_back" => {
            let all = deployment.released + held;
            let stopped = if *stopped > 0 { format!(", {stopped} stopped") } else { String::new() };
            let text = format!("{} of {all} held runs let go{stopped}", deployment.released);
            (text, Some((deployment.released, all)))
        }
        "verify" => ("smoke tests run on the new revision".to_owned(), None),
        "audit" => ("runs of the new revision are counted".to_owned(), None),
        _ => return None,
    };
    Some(Left { text, share: share.filter(|(_, all)| *all > 0) })
}

/// How long the phase waits at the most.
fn until(progress: &ProgressItem) -> Option<String> {
    let rest = clock::read(progress.until.as_deref()?).since(clock::now());
    Some(format!(", {} at most", Brief(Duration::from_secs(rest.as_secs()))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(phase: &str, progress: &serde_json::Value) -> DeploymentItem {
        let plan = json!({ "from": "a", "to": "b", "finishing": 6, "resuming": 4, "pinned": 1,
            "runs": [], "warnings": [] });
        serde_json::from_value(json!({
            "deployment_id": "d1", "flow": "order", "from": "a", "to": "b", "strategy": "blue-green",
            "phase": phase, "phases": [], "author": null, "note": null, "driver": null,
            "began_at": "2026-01-01T00:00:00Z", "ended_at": null, "verdict": null, "rollback": null,
            "smoke": [], "held": 0, "released": 30, "checkpointed": 0, "plan": plan,
            "progress": progress,
        }))
        .unwrap()
    }

    #[test]
    fn what_is_left_depends_on_the_phase() {
        let of = |open, held, stopped| json!({ "open": open, "held": held, "stopped": stopped, "until": null });
        let rows = [
            ("drain", of(4, 9, 0), Some(("4 open runs left, 9 held", Some((6, 10))))),
            ("drain", of(12, 0, 0), Some(("12 open runs left, 0 held", Some((0, 12))))),
            (
                "resume",
                of(0, 10, 2),
                Some(("30 of 40 held runs let go, 2 stopped", Some((30, 40)))),
            ),
            ("rolling_back", of(0, 0, 0), Some(("30 of 30 held runs let go", Some((30, 30))))),
            ("verify", of(0, 0, 0), Some(("smoke tests run on the new revision", None))),
            ("plan", of(0, 0, 0), None),
            ("drain", json!(null), None),
        ];
        for (phase, progress, expected) in rows {
            let expected = expected.map(|(text, share)| Left { text: text.to_owned(), share });
            assert_eq!(left(&deployment(phase, &progress)), expected, "{phase}");
        }
    }

    #[test]
    fn a_phase_that_is_over_says_how_long_it_took() {
        let phase = |phase: &str, at: &str| PhaseItem { phase: phase.into(), at: at.into() };
        let phases =
            [phase("plan", "2026-01-01T00:00:00Z"), phase("drain", "2026-01-01T00:00:02.500Z")];
        assert_eq!(told(&phases, 0), "[#·····] plan 2.5s");
        assert_eq!(told(&phases, 1), "[##····] drain");
    }
}
