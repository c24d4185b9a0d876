//! `flowgate flows`.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use flowgate_core::flow::{Action, Flow, FlowFile, Needs, Wait, diff, graph, schema};
use flowgate_core::ids::SlotIndex;
use flowgate_core::view::Brief;
use flowgate_store::StoredRevision;
use serde_json::json;

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::flow_files::{self, LoadError};
use crate::lookup;
use crate::output::{Cell, Table};
use crate::stores;

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
        Verb::Validate { files } => validate(&app, &files),
        Verb::Graph { flow, format } => {
            let found = find(&app, &flow).await?;
            show_graph(&app, &found.flow, format)
        }
        Verb::Diff { old, new } => {
            let (old, new) = (find(&app, &old).await?, find(&app, &new).await?);
            show_diff(&app, &old.flow.file, &new.flow.file)
        }
        Verb::Schema => {
            let text = serde_json::to_string_pretty(&schema()).expect("a schema is JSON");
            app.output.line(text)?;
            Ok(Exit::Done)
        }
    }
}

/// A flow from a file or from the store.
struct Found {
    flow: Flow,
    folder: Option<String>,
    /// What the store knows about it.
    stored: Option<(flowgate_core::time::Timestamp, bool)>,
}

/// The flow that `text` names: a file if there is one, else one in the store.
async fn find(app: &App, text: &str) -> Result<Found, Failure> {
    let path = Path::new(text);
    if path.is_file() {
        let loaded = flow_files::load(path).map_err(|error| error.into_failure(path))?;
        return Ok(Found { flow: loaded.flow, folder: Some(loaded.folder), stored: None });
    }
    if flow_files::is_path(text) {
        return Err(flow_files::missing(path));
    }
    let store = stores::open_to_read(app).await?;
    let stored = lookup::revision(&*store, text).await?;
    let folder = stored.revision.folder.clone();
    let known = (stored.registered_at, stored.active);
    Ok(Found { flow: lookup::compile(stored)?, folder, stored: Some(known) })
}

async fn list(app: &App) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let now = store.now().await?;
    let all = store.list_revisions(None).await?;
    let active: Vec<&StoredRevision> = all.iter().filter(|stored| stored.active).collect();
    let count = |name: &str| all.iter().filter(|s| s.revision.file.flow == name).count();
    if app.output.json {
        let items: Vec<_> = active
            .iter()
            .map(|stored| {
                let file = &stored.revision.file;
                json!({
                    "flow": file.flow, "revision": stored.revision.revision,
                    "revisions": count(&file.flow), "steps": file.steps.len(),
                    "description": file.description, "folder": stored.revision.folder,
                    "registered_at": stored.registered_at.to_string(),
                })
            })
            .collect();
        app.output.json(&json!({ "items": items }))?;
        return Ok(Exit::Done);
    }
    if active.is_empty() {
        app.output.note("no flows yet; `flowgate run FILE` and `flowgate dev` add them");
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["flow", "revision", "of", "steps", "registered", "description"]);
    for stored in active {
        let file = &stored.revision.file;
        table.row(vec![
            Cell::bold(&file.flow),
            Cell::plain(&stored.revision.revision),
            Cell::plain(count(&file.flow)),
            Cell::plain(file.steps.len()),
            Cell::dim(format!("{} ago", Brief(now.since(stored.registered_at)))),
            Cell::dim(file.description.as_deref().unwrap_or_default()),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

async fn show(app: &App, text: &str, file_only: bool) -> Outcome {
    let found = find(app, text).await?;
    let flow = &found.flow;
    if file_only {
        let file = serde_json::to_string_pretty(&flow.file).expect("a flow file is JSON");
        app.output.line(file)?;
        return Ok(Exit::Done);
    }
    if app.output.json {
        let registered_at = found.stored.map(|(at, _)| at.to_string());
        let steps: Vec<_> = flow
            .steps
            .iter()
            .map(|step| {
                let emits: Vec<_> = step.emits.iter().map(|s| &*flow.slot(*s).name).collect();
                json!({
                    "name": step.name, "starts_on": starts_on(flow, &step.needs),
                    "does": does(&step.action), "emits": emits, "queue": step.queue,
                })
            })
            .collect();
        app.output.json(&json!({
            "flow": flow.name, "revision": flow.revision, "folder": found.folder,
            "active": found.stored.map(|(_, active)| active), "registered_at": registered_at,
            "steps": steps, "file": flow.file,
        }))?;
        return Ok(Exit::Done);
    }
    app.output.line(format_args!("flow      {}", Cell::bold(&flow.name)))?;
    let standing = match found.stored {
        None => Cell::dim("(not in the store)"),
        Some((_, true)) => Cell::dim("(active)"),
        Some((_, false)) => Cell::dim("(not active)"),
    };
    app.output.line(format_args!("revision  {} {standing}", flow.revision))?;
    if let Some(folder) = &found.folder {
        app.output.line(format_args!("folder    {folder}"))?;
    }
    if let Some(description) = &flow.file.description {
        app.output.line(format_args!("about     {description}"))?;
    }
    app.output.line("")?;
    let mut table = Table::new(&["step", "starts on", "emits", "does"]);
    for step in &flow.steps {
        let emits: Vec<&str> = step.emits.iter().map(|slot| &*flow.slot(*slot).name).collect();
        table.row(vec![
            Cell::bold(&step.name),
            Cell::plain(starts_on(flow, &step.needs)),
            Cell::plain(emits.join(", ")),
            Cell::dim(does(&step.action)),
        ]);
    }
    table.print(app.output)?;
    if !flow.file.schedules.is_empty() {
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
    }
    Ok(Exit::Done)
}

/// A value as it is written in a flow file.
fn text_of(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).expect("a flow file has a JSON form");
    text.replace('"', "")
}

fn starts_on(flow: &Flow, needs: &Needs) -> String {
    let names = |slots: &[SlotIndex], between: &str| {
        let names: Vec<&str> = slots.iter().map(|slot| &*flow.slot(*slot).name).collect();
        names.join(between)
    };
    match needs {
        Needs::Start => "the start".to_owned(),
        Needs::All(slots) => names(slots, " and "),
        Needs::Any(slots) => names(slots, " or "),
    }
}

fn does(action: &Action) -> String {
    match action {
        Action::Nothing => "completes at once".to_owned(),
        Action::Process(process) => format!("runs {}", process.command.join(" ")),
        Action::Shell(line) => format!("runs sh -c {}", line.trim()),
        Action::Http(http) => format!("posts to {}", http.url),
        Action::Worker(name) => format!("calls the worker {name}"),
        Action::Wait(Wait::Delay(delay)) => format!("waits {}", Brief(*delay)),
        Action::Wait(Wait::Until(at)) => format!("waits until {at}"),
        Action::Wait(Wait::Signal { signal, .. }) => format!("waits for the signal {signal}"),
    }
}

fn show_graph(app: &App, flow: &Flow, format: Format) -> Outcome {
    let (name, drawing) = match format {
        Format::Text => ("text", graph::text(flow)),
        Format::Mermaid => ("mermaid", graph::mermaid(flow)),
        Format::Dot => ("dot", graph::dot(flow)),
        Format::Svg => ("svg", graph::svg(flow)),
    };
    if app.output.json {
        app.output.json(&json!({
            "flow": flow.name, "revision": flow.revision, "format": name, "graph": drawing,
        }))?;
    } else {
        app.output.text(&drawing)?;
    }
    Ok(Exit::Done)
}

fn show_diff(app: &App, old: &FlowFile, new: &FlowFile) -> Outcome {
    let changes = diff(old, new);
    if app.output.json {
        app.output.json(&json!({ "changes": changes }))?;
        return Ok(Exit::Done);
    }
    if changes.is_empty() {
        app.output.note("no difference");
    }
    for change in changes {
        app.output.line(change)?;
    }
    Ok(Exit::Done)
}

fn validate(app: &App, files: &[PathBuf]) -> Outcome {
    let mut exit = Exit::Done;
    let mut results = Vec::new();
    for path in files {
        let name = path.display().to_string();
        match flow_files::load(path) {
            Ok(loaded) if app.output.json => results.push(json!({
                "file": name, "valid": true, "flow": loaded.flow.name,
                "revision": loaded.flow.revision, "errors": [],
            })),
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
                    results.push(json!({ "file": name, "valid": false, "errors": errors }));
                } else {
                    app.output.line(errors.in_file(&name))?;
                }
            }
            Err(LoadError::Unreadable(error)) => {
                exit = Exit::Usage;
                let message = format!("cannot be read: {error}");
                if app.output.json {
                    let problem = json!({ "message": message, "remedy": "check its name" });
                    results.push(json!({ "file": name, "valid": false, "errors": [problem] }));
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
