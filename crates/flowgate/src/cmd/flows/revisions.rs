//! `flowgate flows revisions` and `flowgate flows register`.

use std::path::PathBuf;

use flowgate_core::view::Brief;
use flowgate_server::wire::Items;
use flowgate_server::wire::flows::{NewFlow, Registered, RevisionItem};

use super::super::App;
use crate::clock;
use crate::failure::{Exit, Failure, Outcome};
use crate::flow_files;
use crate::output::{Cell, Table};
use crate::reach::{Reach, segment};

/// Registers a revision.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
New runs start on it at once; `flowgate deploy` replaces a live flow without losing anything. Who \
registered a revision first, and what for, stays with it.

Examples:
  flowgate flows register order.yaml --author ann --note 'new tax rules'")]
pub(crate) struct Register {
    /// The flow file
    file: PathBuf,
    /// Who registers it [default: the name of the token]
    #[arg(long)]
    author: Option<String>,
    /// What for
    #[arg(long)]
    note: Option<String>,
}

pub(super) async fn register(app: &App, args: Register) -> Outcome {
    let Register { file, author, note } = args;
    // What is wrong with the file is told with its lines.
    flow_files::load(&file).map_err(|error| error.into_failure(&file))?;
    let text = std::fs::read_to_string(&file).map_err(|error| {
        Failure::usage("file_unreadable", format!("{} cannot be read", file.display()))
            .source(error)
    })?;
    let reach = Reach::write(app).await?;
    let answer = reach.post("/flows", &NewFlow { text, author, note }).await;
    let registered: Registered = reach.finish(answer).await?;
    if app.output.json {
        app.output.json(&registered)?;
        return Ok(Exit::Done);
    }
    app.output.line(&registered.revision)?;
    let known = if registered.existed { "was known, and " } else { "" };
    app.output.note(format_args!("revision of `{}` {known}is active", registered.flow));
    Ok(Exit::Done)
}

pub(super) async fn list(app: &App, flow: &str) -> Outcome {
    let path = format!("/flows/{}/revisions", segment(flow));
    let listed: Items<RevisionItem> = Reach::read(app).await?.get(&path, &[]).await?;
    if app.output.json {
        app.output.json(&listed)?;
        return Ok(Exit::Done);
    }
    let now = clock::now();
    let mut table =
        Table::new(&["revision", "active", "open runs", "registered", "author", "note"]);
    for item in &listed.items {
        let ago = Brief(now.since(clock::read(&item.registered_at)));
        let open = item.runs.map(|runs| (runs.held + runs.running + runs.waiting).to_string());
        table.row(vec![
            Cell::bold(&item.revision),
            Cell::plain(if item.active { "yes" } else { "" }),
            Cell::plain(open.unwrap_or_else(|| "many".to_owned())),
            Cell::dim(format!("{ago} ago")),
            Cell::plain(item.author.as_deref().unwrap_or_default()),
            Cell::plain(item.note.as_deref().unwrap_or_default().replace('\n', " ")),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}
