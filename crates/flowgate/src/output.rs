//! The only place that prints: data to stdout, everything else to stderr.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use flowgate_core::gate::GateState;
use flowgate_core::ids::RunId;
use flowgate_core::run::{RunStatus, StepState};
use flowgate_store::Level;
use serde::Serialize;

use crate::failure::Failure;

/// The width that is assumed where there is no terminal to ask.
const WIDTH_DEFAULT: usize = 100;

/// How this process prints.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Output {
    /// Data is JSON, and so are errors.
    pub(crate) json: bool,
    /// Nothing but data, warnings and errors.
    pub(crate) quiet: bool,
    /// When to use colours.
    pub(crate) color: Color,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    // Documented variants would turn every help into its long form.
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    fn choice(self) -> ColorChoice {
        match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        }
    }
}

impl Output {
    /// A line of data.
    pub(crate) fn line(self, line: impl Display) -> Result<(), Failure> {
        let mut stdout = AutoStream::new(io::stdout(), self.color.choice());
        written(writeln!(stdout, "{line}"))
    }

    /// Data that ends its own lines.
    pub(crate) fn text(self, text: &str) -> Result<(), Failure> {
        self.line(text.strip_suffix('\n').unwrap_or(text))
    }

    /// One JSON value on a line of its own.
    pub(crate) fn json_line(self, value: &impl Serialize) -> Result<(), Failure> {
        self.line(serde_json::to_string(value).expect("our values have a JSON form"))
    }

    /// The one JSON value that a verb prints: indented where a person reads it.
    pub(crate) fn json(self, value: &impl Serialize) -> Result<(), Failure> {
        if io::stdout().is_terminal() {
            return self.line(serde_json::to_string_pretty(value).expect("our values are JSON"));
        }
        self.json_line(value)
    }

    /// Something that a person wants to know and a program does not.
    pub(crate) fn note(self, note: impl Display) {
        if !self.quiet && !self.json {
            self.stderr(note);
        }
    }

    /// Something that should not be overlooked.
    pub(crate) fn warning(self, warning: impl Display) {
        if self.json {
            return self.stderr(serde_json::json!({ "warning": warning.to_string() }));
        }
        let style = AnsiColor::Yellow.on_default().bold();
        self.stderr(format_args!("{style}warning:{style:#} {warning}"));
    }

    /// Why the verb failed, and the way out.
    pub(crate) fn failure(self, failure: &Failure) {
        if self.json {
            return self.stderr(failure.json());
        }
        let (error, help) = (AnsiColor::Red.on_default().bold(), AnsiColor::Cyan.on_default());
        // A flow file may have several things wrong with it, each on a line of its own.
        for cause in failure.cause().lines() {
            self.stderr(format_args!("{error}error:{error:#} {cause}"));
        }
        if let Some(text) = &failure.help {
            self.stderr(format_args!("{help}help:{help:#} {text}"));
        }
    }

    fn stderr(self, line: impl Display) {
        let mut stderr = AutoStream::new(io::stderr(), self.color.choice());
        // Nobody can be told that stderr is gone.
        drop(writeln!(stderr, "{line}"));
    }

    /// Whether lines on stderr are redrawn: a person watches, and wants to see more than data.
    pub(crate) fn can_redraw(self) -> bool {
        io::stderr().is_terminal() && !self.quiet
    }

    /// Styled text as it may be drawn on stderr.
    pub(crate) fn drawn(self, text: &str) -> String {
        let choice = match self.color {
            Color::Auto => AutoStream::choice(&io::stderr()),
            Color::Always | Color::Never => self.color.choice(),
        };
        if choice == ColorChoice::Never { strip_str(text).to_string() } else { text.to_owned() }
    }
}

fn written(result: io::Result<()>) -> Result<(), Failure> {
    result.map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::reader_gone();
        }
        Failure::new(crate::failure::Exit::RunFailed, "output_failed", "cannot write to stdout")
            .source(error)
    })
}

/// Text in a style.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn plain(text: impl Display) -> Self {
        Self { text: text.to_string(), style: Style::new() }
    }

    pub(crate) fn dim(text: impl Display) -> Self {
        Self { text: text.to_string(), style: Style::new().dimmed() }
    }

    pub(crate) fn bold(text: impl Display) -> Self {
        Self { text: text.to_string(), style: Style::new().bold() }
    }

    pub(crate) fn status(status: RunStatus) -> Self {
        Self { text: status.as_str().to_owned(), style: status_style(status) }
    }

    pub(crate) fn gate(state: GateState) -> Self {
        let color = match state {
            GateState::Open => AnsiColor::Green,
            GateState::Draining | GateState::Holding => AnsiColor::Blue,
            GateState::Replaying => AnsiColor::Cyan,
        };
        Self { text: state.as_str().to_owned(), style: color.on_default() }
    }

    pub(crate) fn level(level: Level) -> Self {
        let (text, color) = match level {
            Level::Good => ("ok", AnsiColor::Green),
            Level::Warning => ("warning", AnsiColor::Yellow),
            Level::Bad => ("bad", AnsiColor::Red),
        };
        Self { text: text.to_owned(), style: color.on_default() }
    }

    /// What it says, without its style.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn state(state: StepState) -> Self {
        Self { text: state.as_str().to_owned(), style: state_style(state) }
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() {
            return Ok(());
        }
        write!(f, "{}{}{:#}", self.style, self.text, self.style)
    }
}

/// A run's id for people: enough of it to be unique, and accepted wherever an id is.
pub(crate) fn short(run_id: RunId) -> String {
    // The time in milliseconds, and the first random letters.
    const LETTERS: usize = 18;
    let mut text = run_id.to_string();
    text.truncate(LETTERS);
    text
}

/// A status as the end of a sentence: `is waiting`, `completed`, `was cancelled`.
pub(crate) fn status_phrase(status: RunStatus) -> String {
    let verb = match status {
        RunStatus::Held | RunStatus::Running | RunStatus::Waiting => "is ",
        RunStatus::Completed | RunStatus::Failed => "",
        RunStatus::Cancelled => "was ",
    };
    format!("{verb}{}", Cell::status(status))
}

fn status_style(status: RunStatus) -> Style {
    match status {
        RunStatus::Running => AnsiColor::Cyan.on_default(),
        RunStatus::Held => AnsiColor::Blue.on_default(),
        RunStatus::Waiting => AnsiColor::Yellow.on_default(),
        RunStatus::Completed => AnsiColor::Green.on_default(),
        RunStatus::Failed => AnsiColor::Red.on_default(),
        RunStatus::Cancelled => AnsiColor::Magenta.on_default(),
    }
}

fn state_style(state: StepState) -> Style {
    match state {
        StepState::Pending | StepState::Skipped => Style::new().dimmed(),
        StepState::Queued | StepState::Running => AnsiColor::Cyan.on_default(),
        StepState::Waiting => AnsiColor::Yellow.on_default(),
        StepState::Succeeded => AnsiColor::Green.on_default(),
        StepState::Failed => AnsiColor::Red.on_default(),
        StepState::Cancelled => AnsiColor::Magenta.on_default(),
    }
}

/// Rows under a heading, in columns as wide as they need to be.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    heading: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(heading: &[&'static str]) -> Self {
        Self { heading: heading.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.heading.len(), "a row has a cell for every column");
        self.rows.push(cells);
    }

    /// Prints it; the last column is cut where the terminal ends.
    pub(crate) fn print(&self, output: Output) -> Result<(), Failure> {
        let width = io::stdout().is_terminal().then(terminal_width);
        output.text(&self.render(width))
    }

    fn render(&self, width_max: Option<usize>) -> String {
        let heading: Vec<Cell> =
            self.heading.iter().map(|name| Cell::dim(name.to_ascii_uppercase())).collect();
        let lines: Vec<&Vec<Cell>> = std::iter::once(&heading).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..self.heading.len())
            .map(|at| lines.iter().map(|line| line[at].text.chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for line in lines {
            let mut used = 0;
            for (at, cell) in line.iter().enumerate() {
                let is_last = at + 1 == line.len();
                let room = width_max.map_or(usize::MAX, |max| max.saturating_sub(used));
                let shown = shortened(&cell.text, if is_last { room } else { usize::MAX });
                let padding = if is_last { 0 } else { widths[at] - cell.text.chars().count() + 2 };
                used += widths[at] + 2;
                text.push_str(&Cell { text: shown, style: cell.style }.to_string());
                text.extend(std::iter::repeat_n(' ', padding));
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }
}

/// The first line of `text`, cut to `width` letters.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    let cut = line.chars().count() > width || line.len() < text.trim_end().len();
    if !cut {
        return line.to_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Letters that fit on a line of stdout after the first `used`.
pub(crate) fn room_after(used: usize) -> usize {
    if io::stdout().is_terminal() { terminal_width().saturating_sub(used) } else { usize::MAX }
}

/// Whether stdout is a terminal with less than `columns`.
pub(crate) fn is_narrower_than(columns: usize) -> bool {
    io::stdout().is_terminal() && terminal_width() < columns
}

/// How wide the terminal is.
pub(crate) fn terminal_width() -> usize {
    console::Term::stdout().size_checked().map_or(WIDTH_DEFAULT, |(_, columns)| columns.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_cut_at_the_last_column() {
        let mut table = Table::new(&["step", "state", "error"]);
        table.row(vec![Cell::plain("a"), Cell::plain("succeeded"), Cell::plain("")]);
        table.row(vec![Cell::plain("charge"), Cell::plain("failed"), Cell::plain("no such card")]);
        let plain = |width| strip_str(&table.render(width)).to_string();
        let full = "STEP    STATE      ERROR\na       succeeded\ncharge  failed     no such card\n";
        assert_eq!(plain(None), full);
        assert_eq!(plain(Some(26)).lines().last(), Some("charge  failed     no suc…"));
    }

    #[test]
    fn a_heading_keeps_its_units() {
        let heading = Table::new(&["CPU µs/step"]).render(None);
        // The capital of a micro looks like an M.
        assert_eq!(strip_str(&heading).to_string(), "CPU µS/STEP\n");
    }

    #[test]
    fn a_text_is_cut_to_its_first_line() {
        let rows = [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("a\nb", 9, "a…"), ("", 3, "")];
        for (text, width, expected) in rows {
            assert_eq!(shortened(text, width), expected, "{text:?}");
        }
    }
}
