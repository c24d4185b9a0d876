//! A run as it goes, on stderr: redrawn in place on a terminal, a line per step anywhere else.

use std::time::Duration;

use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::flow::{Action, Flow, LimitName, Wait};
use flowgate_core::ids::{RunId, StepIndex};
use flowgate_core::run::StepState;
use flowgate_core::view::Brief;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::output::{Cell, Output, short, shortened};

/// Steps that are drawn in place; a flow with more gets a line per step.
const DRAWN_STEPS_MAX: usize = 24;
const TICK: Duration = Duration::from_millis(100);
/// Letters of an error's message on a progress line.
const MESSAGE_LETTERS: usize = 60;

/// Shows a run as it goes.
#[derive(Debug)]
pub(crate) struct Progress {
    output: Output,
    run_id: RunId,
    step_width: usize,
    drawn: Option<Drawn>,
}

/// The lines that are redrawn, one for each step.
#[derive(Debug)]
struct Drawn {
    output: Output,
    area: MultiProgress,
    title: ProgressBar,
    lines: Vec<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(output: Output, flow: &Flow, run_id: RunId) -> Self {
        let step_width = flow.steps.iter().map(|step| step.name.len()).max().unwrap_or_default();
        let can_draw = output.can_redraw() && flow.steps.len() <= DRAWN_STEPS_MAX;
        let title = format!("run {run_id} of flow `{}`", flow.name);
        let drawn = can_draw.then(|| Drawn::new(output, flow, step_width, title.clone()));
        if drawn.is_none() {
            output.note(title);
        }
        Self { output, run_id, step_width, drawn }
    }

    /// Takes the next event of the run.
    pub(crate) fn note(&mut self, flow: &Flow, stored: &StoredEvent) {
        if let Event::RunStarted(started) = &stored.event
            && started.hold.is_some()
        {
            let flow = &flow.name;
            self.say(&format!("the run is held; let it go with\n  flowgate hold off {flow}"));
        }
        if matches!(stored.event, Event::RunReleased { .. }) {
            self.say("the run is let go");
        }
        let Some(index) = stored.event.step().and_then(|name| flow.step_index(name)) else {
            return;
        };
        if let Some(hint) = self.hint(&flow.step(index).action, &stored.event) {
            self.say(&hint);
        }
        let Some((state, text)) = told(&stored.event) else { return };
        match &self.drawn {
            Some(drawn) => drawn.show(index, state, &text),
            None if is_worth_a_line(state, &text) => {
                let name = &flow.step(index).name;
                let width = self.step_width;
                let line = format!("{name:<width$}  {}  {text}", padded(state));
                self.output.note(line.trim_end());
            }
            None => {}
        }
    }

    /// How to end a wait that has just begun.
    fn hint(&self, action: &Action, event: &Event) -> Option<String> {
        let Action::Wait(Wait::Signal { signal, timeout, matches, .. }) = action else {
            return None;
        };
        if !matches!(event, Event::StepWaiting { .. }) {
            return None;
        }
        let until = timeout.map(|span| format!(" for up to {}", Brief(span))).unwrap_or_default();
        let command = signal_command(self.run_id, signal, matches);
        Some(format!("waiting for the signal `{signal}`{until}; send it with\n  {command}"))
    }

    /// Says something without disturbing the lines that are redrawn.
    pub(crate) fn say(&self, text: &str) {
        match &self.drawn {
            Some(drawn) => drawn.area.suspend(|| self.output.note(text)),
            None => self.output.note(text),
        }
    }

    /// Takes the redrawn lines away: the summary follows.
    pub(crate) fn finish(&self) {
        if let Some(drawn) = &self.drawn {
            drawn.title.finish_and_clear();
            for line in &drawn.lines {
                line.finish_and_clear();
            }
            // A terminal that is gone has no lines left to clear.
            drop(drawn.area.clear());
        }
    }
}

impl Drawn {
    fn new(output: Output, flow: &Flow, step_width: usize, title: String) -> Self {
        let area = MultiProgress::new();
        let head = area.add(ProgressBar::new_spinner());
        head.set_style(style("{msg}", "  "));
        head.set_message(title);
        head.tick();
        let line = |name: &str| {
            let line = area.add(ProgressBar::new_spinner());
            line.set_style(style("  {spinner:.dim} {prefix} {wide_msg}", "· "));
            line.set_prefix(format!("{name:<step_width$}"));
            line.set_message(output.drawn(&Cell::state(StepState::Pending).to_string()));
            line.tick();
            line
        };
        let lines = flow.steps.iter().map(|step| line(&step.name)).collect();
        Self { output, area, title: head, lines }
    }
}

impl Drawn {
    fn show(&self, index: StepIndex, state: StepState, text: &str) {
        let line = &self.lines[index.at()];
        let mark = match state {
            StepState::Queued | StepState::Running | StepState::Waiting => None,
            StepState::Succeeded => Some("✓ "),
            StepState::Failed => Some("✗ "),
            StepState::Pending | StepState::Skipped | StepState::Cancelled => Some("- "),
        };
        if let Some(mark) = mark {
            line.disable_steady_tick();
            line.set_style(style("  {spinner} {prefix} {wide_msg}", mark));
            line.tick();
        } else {
            let template = "  {spinner:.cyan} {prefix} {wide_msg} {elapsed:.dim}";
            line.set_style(style(template, "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ "));
            // Its time counts from the moment that it became due.
            if line.position() == 0 {
                line.reset_elapsed();
                line.set_position(1);
            }
            line.enable_steady_tick(TICK);
        }
        let message = format!("{}  {text}", padded(state));
        line.set_message(self.output.drawn(message.trim_end()));
    }
}

fn style(template: &str, ticks: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("our templates are valid").tick_chars(ticks)
}

fn padded(state: StepState) -> String {
    let padding = "succeeded".len().saturating_sub(state.as_str().len());
    format!("{}{}", Cell::state(state), " ".repeat(padding))
}

/// How to send a run the signal that it waits for.
pub(crate) fn signal_command(
    run_id: RunId,
    signal: &str,
    matches: &serde_json::Map<String, serde_json::Value>,
) -> String {
    let data = serde_json::to_string(matches).expect("a map is JSON");
    format!("flowgate runs signal {} {signal} --data '{data}'", short(run_id))
}

/// Without redrawing, a line is for what has an outcome.
fn is_worth_a_line(state: StepState, text: &str) -> bool {
    match state {
        StepState::Queued => !text.is_empty(),
        StepState::Pending | StepState::Running => false,
        StepState::Waiting
        | StepState::Succeeded
        | StepState::Failed
        | StepState::Skipped
        | StepState::Cancelled => true,
    }
}

/// The state that an event puts its step in, and what to say about it.
fn told(event: &Event) -> Option<(StepState, String)> {
    match event {
        Event::StepQueued { .. } => Some((StepState::Queued, String::new())),
        Event::StepWaiting { .. } => Some((StepState::Waiting, String::new())),
        Event::StepStarted { lease, .. } => {
            let text = if lease.attempt > 1 {
                format!("attempt {}", lease.attempt)
            } else {
                String::new()
            };
            Some((StepState::Running, text))
        }
        Event::StepLost { lease, .. } => {
            Some((StepState::Queued, format!("attempt {} was lost", lease.attempt)))
        }
        Event::StepReleased { .. } => Some((StepState::Queued, "handed back".to_owned())),
        Event::StepParked { limit, .. } => {
            Some((StepState::Queued, format!("waits for a permit of {}", LimitName(limit))))
        }
        Event::AttemptFailed { lease, error, retry_after_ms, .. } => {
            let wait = Brief(Duration::from_millis(*retry_after_ms));
            let message = shortened(&error.message, MESSAGE_LETTERS);
            let text = format!("attempt {}: {message}; next in {wait}", lease.attempt);
            Some((StepState::Queued, text))
        }
        Event::StepSucceeded { elapsed_us, lease, .. } => {
            let attempts = lease.as_ref().map_or(1, |lease| lease.attempt);
            let took = Brief(Duration::from_micros(*elapsed_us));
            Some((
                StepState::Succeeded,
                match (attempts, elapsed_us) {
                    (_, 0) => String::new(),
                    (1, _) => took.to_string(),
                    (attempts, _) => format!("{took}, attempt {attempts}"),
                },
            ))
        }
        Event::StepFailed { error, .. } => {
            Some((StepState::Failed, shortened(&error.message, MESSAGE_LETTERS)))
        }
        Event::StepSkipped { .. } => Some((StepState::Skipped, String::new())),
        Event::StepCancelled { .. } => Some((StepState::Cancelled, String::new())),
        Event::StepCarried { .. } => Some((StepState::Succeeded, "in the run before".to_owned())),
        Event::RunStarted(_)
        | Event::RunReleased { .. }
        | Event::RunMigrated(_)
        | Event::RunCheckpointed { .. }
        | Event::StepRepaired { .. }
        | Event::EventEmitted { .. }
        | Event::EventRepeated { .. }
        | Event::StateSet { .. }
        | Event::SignalReceived { .. }
        | Event::SignalTaken { .. }
        | Event::RunCompleted {}
        | Event::RunFailed { .. }
        | Event::RunCancelled { .. } => None,
    }
}
