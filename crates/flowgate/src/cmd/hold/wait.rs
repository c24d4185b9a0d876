//! Waiting until a gate is open.

use std::time::Duration;

use flowgate_core::gate::GateState;
use flowgate_server::wire::gates::GateItem;
use indicatif::{ProgressBar, ProgressStyle};

use super::super::App;
use super::path_of;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::reach::Reach;

/// How often the gate is looked at.
const POLL: Duration = Duration::from_millis(250);
/// Looks between two lines where nothing is redrawn, and until it is said that nothing is let go.
const LOOKS_PER_LINE: u32 = 8;
const LOOKS_IDLE_MAX: u32 = 60;

/// How a gate stood and stands, and whether somebody did not want to wait for more.
pub(super) struct Waited {
    pub(super) before: GateItem,
    pub(super) now: GateItem,
    pub(super) stopped: Option<Exit>,
}

/// Shows how a gate lets go, until it is open.
pub(super) async fn until_open(
    app: &App,
    reach: &Reach,
    before: GateItem,
) -> Result<Waited, Failure> {
    let mut progress = Progress::new(app.output, before.held);
    let mut now = before.clone();
    let mut stop = crate::signals::Stop::listen()?;
    loop {
        match now.state {
            GateState::Open => {
                progress.finish();
                return Ok(Waited { before, now, stopped: None });
            }
            GateState::Holding | GateState::Draining => {
                progress.finish();
                let message = format!("somebody holds `{}` again", now.flow);
                return Err(Failure::refused("gate_closed", message)
                    .help(format!("see `flowgate hold status {}`", now.flow))
                    .path(now.flow));
            }
            GateState::Replaying => progress.show(now.held),
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            exit = stop.next() => {
                progress.finish();
                return Ok(Waited { before, now, stopped: Some(exit) });
            }
        }
        now = reach.get(&path_of(&before.flow), &[]).await?;
    }
}

/// How much is held still, on stderr: redrawn on a terminal, a line now and then anywhere else.
struct Progress {
    output: Output,
    bar: Option<ProgressBar>,
    /// The most that was held, which grows if more starts come than are let go.
    most: u64,
    held: Option<u64>,
    looks: u32,
    looks_idle: u32,
}

impl Progress {
    fn new(output: Output, most: u64) -> Self {
        let template = "{spinner:.cyan} {bar:30} {pos} of {len} let go {elapsed:.dim}";
        let style = ProgressStyle::with_template(template).expect("our templates are valid");
        let bar = output.can_redraw().then(|| ProgressBar::new(most).with_style(style));
        Self { output, bar, most, held: None, looks: 0, looks_idle: 0 }
    }

    fn show(&mut self, held: u64) {
        self.most = self.most.max(held);
        self.looks_idle = if self.held == Some(held) { self.looks_idle + 1 } else { 0 };
        if self.looks_idle == LOOKS_IDLE_MAX {
            self.say("nothing was let go for a while; does an instance lead? see `flowgate instances --leader`");
        }
        match &self.bar {
            Some(bar) => {
                bar.set_length(self.most);
                bar.set_position(self.most - held);
            }
            None if self.looks.is_multiple_of(LOOKS_PER_LINE) && self.held != Some(held) => {
                self.output.note(format_args!("{held} held"));
            }
            None => {}
        }
        self.looks += 1;
        self.held = Some(held);
    }

    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.note(text)),
            None => self.output.note(text),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
