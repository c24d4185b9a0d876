//! `flowgate flows`.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use flowgate_core::flow::{Flow, FlowFile, diff, schema};
use flowgate_core::view::Brief;
use flowgate_server::ops;
use flowgate_server::wire::Items;
use flowgate_server::wire::flows::{
    FlowDetail, FlowDiff, FlowItem, FlowProblem, GraphFormat, StartKind, StartsOn, Validation,
};
use serde_json::json;

use super::App;
use crate::clock;
use crate::failure::{Exit, Failure, Outcome};
use crate::flow_files::{self, LoadError};
use crate::output::{Cell, Table};
use crate::reach::{Reach, segment};

mod revisions;

/// Looks at flows.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  flowgate flows validate flows/*.yaml
  flowgate flows graph examples/order.yaml")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the flows in the store
    List,
    /// Show a flow: its revision, its steps and what they do
    #[command(after_help = "Examples:
  flowgate flows show examples/order.yaml
  flowgate flows show order@3f2a --file > order.json")]
    Show {
        /// A flow file, FLOW or FLOW@REVISION
        flow: String,
        /// Print the flow file itself, as JSON
        #[arg(long)]
        file: bool,
    },
    /// List the revisions of a flow: who registered each, when and what for, and its open runs
    #[command(after_help = "Examples:
  flowgate flows revisions order
  flowgate flows revisions order --json")]
    Revisions {
        /// The flow
        flow: String,
    },
    /// Register a revision of a flow: new runs start on it
    Register(revisions::Register),
    /// Check flow files
    #[command(after_help = "\
Prints `FILE:LINE:COLUMN: cause; remedy` for every problem of every file, and ends with exit code \
2 if there is one.

Examples:
  flowgate flows validate flows/*.yaml
  flowgate flows validate order.yaml --json")]
    Validate {
        /// The files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Draw a flow
    #[command(after_help = "Examples:
  flowgate flows graph examples/order.yaml
  flowgate flows graph order --format svg > order.svg")]
    Graph {
        /// A flow file, FLOW or FLOW@REVISION
        flow: String,
        /// How to draw it
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
    /// Say what is different between two flows
    #[command(after_help = "Examples:
  flowgate flows diff order order.yaml
  flowgate flows diff order@3f2a order@91bc")]
    Diff {
        /// The old one: a flow file, FLOW or FLOW@REVISION
        old: String,
        /// The new one
        new: String,
    },
    /// Print the JSON Schema of flow files, for editors
    #[command(after_help = "Example:
  flowgate flows schema > flow.schema.json")]
    Schema,
}

/// How to draw a flow.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Mermaid,
    Dot,
    Svg,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::List => list(&app).await,
        Verb::Show { flow, file } => show(&app, &flow, file).await,
        Verb::Revisions { flow } => revisions::list(&app, &flow).await,
        Verb::Register(args) => revisions::register(&app, args).await,
        Verb::Validate { files } => validate(&app, &files),
        Verb::Graph { flow, format } => {
            let (_, flow) = find(&app, &flow).await?;
            show_graph(&app, &flow, format)
        }
        Verb::Diff { old, new } => {
            let (old, new) = (find(&app, &old).await?, find(&app, &new).await?);
            show_diff(&app, &old.1.file, &new.1.file)
        }
        Verb::Schema => {
            let text = serde_json::to_string_pretty(&schema()).expect("a schema is JSON");
            app.output.line(text)?;
            Ok(Exit::Done)
        }
    }
}

/// The flow that `text` names: a file if there is one, else one in the store.
async fn find(app: &App, text: &str) -> Result<(FlowDetail, Flow), Failure> {
    let path = Path::new(text);
    if path.is_file() {
        let loaded = flow_files::load(path).map_err(|error| error.into_failure(path))?;
        let detail = ops::flows::detail(&loaded.flow);
        return Ok((FlowDetail { folder: Some(loaded.folder), ..detail }, loaded.flow));
    }
    if flow_files::is_path(text) {
        return Err(flow_files::missing(path));
    }
    let (name, revision) = match text.split_once('@') {
        Some((name, revision)) => (name, Some(revision)),
        None => (text, None),
    };
    let query: Vec<_> = revision.map(|revision| ("revision", revision)).into_iter().collect();
    let path = format!("/flows/{}", segment(name));
    let detail: FlowDetail = Reach::read(app).await?.get(&path, &query).await?;
    let invalid = || {
        let message = format!("flow `{name}` in the store is not valid here");
        Failure::refused("flow_invalid", message).help("use the version that registered it")
    };
    let flow = Flow::new((*detail.file).clone()).map_err(|_| invalid())?;
    Ok((detail, flow))
}

async fn list(app: &App) -> Outcome {
    let listed: Items<FlowItem> = Reach::read(app).await?.get("/flows", &[]).await?;
    if app.output.json {
        app.output.json(&listed)?;
        return Ok(Exit::Done);
    }
    if listed.items.is_empty() {
        app.output.note("no flows yet; `flowgate run FILE` and `flowgate dev` add them");
        return Ok(Exit::Done);
    }
    let now = clock::now();
    let mut table = Table::new(&["flow", "revision", "of", "steps", "registered", "description"]);
    for item in &listed.items {
        let ago = Brief(now.since(clock::read(&item.registered_at)));
        table.row(vec![
            Cell::bold(&item.flow),
            Cell::plain(&item.revision),
            Cell::plain(item.revisions),
            Cell::plain(item.steps),
            Cell::dim(format!("{ago} ago")),
            Cell::dim(item.description.as_deref().unwrap_or_default()),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

async fn show(app: &App, text: &str, file_only: bool) -> Outcome {
    let (detail, flow) = find(app, text).await?;
    if file_only {
        let file = serde_json::to_string_pretty(&flow.file).expect("a flow file is JSON");
        app.output.line(file)?;
        return Ok(Exit::Done);
    }
    if app.output.json {
        app.output.json(&detail)?;
        return Ok(Exit::Done);
    }
    app.output.line(format_args!("flow      {}", Cell::bold(&detail.flow)))?;
    let standing = match detail.active {
        None => Cell::dim("(not in the store)"),
        Some(true) => Cell::dim("(active)"),
        Some(false) => Cell::dim("(not active)"),
    };
    app.output.line(format_args!("revision  {} {standing}", detail.revision))?;
    if let Some(author) = &detail.author {
        app.output.line(format_args!("author    {author}"))?;
    }
    if let Some(note) = &detail.note {
        app.output.line(format_args!("note      {}", note.replace('\n', " ")))?;
    }
    if let Some(folder) = &detail.folder {
        app.output.line(format_args!("folder    {folder}"))?;
    }
    if let Some(description) = &detail.description {
        app.output.line(format_args!("about     {description}"))?;
    }
    app.output.line("")?;
    let mut table = Table::new(&["step", "starts on", "emits", "does"]);
    for step in &detail.steps {
        let effect = if step.effect { " (effect)" } else { "" };
        table.row(vec![
            Cell::bold(&step.name),
            Cell::plain(starts_on(&step.starts_on)),
            Cell::plain(step.emits.join(", ")),
            Cell::dim(format!("{}{effect}", step.does)),
        ]);
    }
    table.print(app.output)?;
    show_schedules(app, &flow)
}

fn show_schedules(app: &App, flow: &Flow) -> Outcome {
    if flow.file.schedules.is_empty() {
        return Ok(Exit::Done);
    }
    app.output.line("")?;
    let mut table = Table::new(&["schedule", "when", "zone", "overlap", "catch up"]);
    for (name, schedule) in &flow.file.schedules {
        table.row(vec![
            Cell::bold(name),
            Cell::plain(schedule.when()),
            Cell::plain(schedule.zone_name().unwrap_or_default()),
            Cell::plain(text_of(&schedule.overlap.unwrap_or_default())),
            Cell::plain(text_of(&schedule.catch_up.unwrap_or_default())),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

/// A value as it is written in a flow file.
fn text_of(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).expect("a flow file has a JSON form");
    text.replace('"', "")
}

fn starts_on(starts_on: &StartsOn) -> String {
    match starts_on.kind {
        StartKind::Start => "the start".to_owned(),
        StartKind::All => starts_on.events.join(" and "),
        StartKind::Any => starts_on.events.join(" or "),
    }
}

fn show_graph(app: &App, flow: &Flow, format: Format) -> Outcome {
    let drawn = ops::flows::draw(
        flow,
        match format {
            Format::Text => GraphFormat::Text,
            Format::Mermaid => GraphFormat::Mermaid,
            Format::Dot => GraphFormat::Dot,
            Format::Svg => GraphFormat::Svg,
        },
    );
    if app.output.json {
        app.output.json(&drawn)?;
    } else {
        app.output.text(&drawn.graph)?;
    }
    Ok(Exit::Done)
}

fn show_diff(app: &App, old: &FlowFile, new: &FlowFile) -> Outcome {
    let changes = FlowDiff::new(&diff(old, new));
    if app.output.json {
        app.output.json(&changes)?;
        return Ok(Exit::Done);
    }
    if changes.changes.is_empty() {
        app.output.note("no difference");
    }
    for change in changes.changes {
        app.output.line(change)?;
    }
    Ok(Exit::Done)
}

/// What is wrong with a file, as programs read it.
fn invalid(name: &str, errors: Vec<FlowProblem>) -> serde_json::Value {
    let mut value = json!(Validation { errors, ..Validation::default() });
    value["file"] = name.into();
    value
}

fn validate(app: &App, files: &[PathBuf]) -> Outcome {
    let mut exit = Exit::Done;
    let mut results = Vec::new();
    for path in files {
        let name = path.display().to_string();
        match flow_files::load(path) {
            Ok(loaded) if app.output.json => {
                let mut value = json!(Validation {
                    valid: true,
                    flow: Some(loaded.flow.name.to_string()),
                    revision: Some(loaded.flow.revision.to_string()),
                    steps: Some(loaded.flow.steps.len()),
                    errors: Vec::new(),
                });
                value["file"] = name.into();
                results.push(value);
            }
            Ok(loaded) => {
                let (flow, steps) = (&loaded.flow.name, loaded.flow.steps.len());
                let revision = &loaded.flow.revision;
                let plural = if steps == 1 { "" } else { "s" };
                app.output.line(format_args!(
                    "{name}: ok: flow `{flow}`, {steps} step{plural}, revision {revision}"
                ))?;
            }
            Err(LoadError::Invalid(errors)) => {
                exit = Exit::Usage;
                if app.output.json {
                    results.push(invalid(&name, FlowProblem::of(&errors)));
                } else {
                    app.output.line(errors.in_file(&name))?;
                }
            }
            Err(LoadError::Unreadable(error)) => {
                exit = Exit::Usage;
                let message = format!("cannot be read: {error}");
                if app.output.json {
                    let (remedy, path) = ("check its name".to_owned(), String::new());
                    let problem = FlowProblem { line: 1, column: 1, message, remedy, path };
                    results.push(invalid(&name, vec![problem]));
                } else {
                    app.output.line(format_args!("{name}:1:1: {message}; check its name"))?;
                }
            }
        }
    }
    if app.output.json {
        app.output.json(&json!({ "files": results }))?;
    }
    Ok(exit)
}
