//! `flowgate runs migrate`.

use std::collections::BTreeMap;

use flowgate_server::wire::moves::{MigrateRun, MigrateRuns, MoveItem, RunsMoved, StayItem};

use super::super::App;
use crate::confirm;
use crate::failure::{Exit, Failure, Outcome};
use crate::input;
use crate::output::{Cell, Table, short};
use crate::reach::{Reach, segment};

/// Runs that one call moves; there may be more.
const RUNS_MAX: u64 = 10_000;
/// Runs that a plan shows one by one.
const SHOWN_MAX: usize = 50;
/// Why a run stays that is no fault of anybody: it has no place, or has ended meanwhile.
const EXPECTED: [&str; 2] = ["run_unmappable", "run_terminal"];

/// Moves open runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What has happened in a run stays, and what is open is done by the same step of the other revision; \
what is under way is given up, and its late result is refused. A run that has no place there stays \
where it is, and is told why.

The plan is printed first. By filter it asks before it moves, or needs --yes.

Exit code 5: the run has no place there, is held, has ended, or a deployment has stopped it.

Examples:
  flowgate runs migrate latest --revision active
  flowgate runs migrate 019a3f --revision 3f2a --map charge=bill
  flowgate runs migrate --flow order --from 77ab --revision active --dry-run
  flowgate runs migrate --flow order --revision active --tag customer=42 --yes")]
pub(crate) struct Args {
    /// The run
    #[arg(required_unless_present = "flow", conflicts_with = "flow")]
    run: Option<String>,
    /// On this revision of the flow: active, or the first letters of one
    #[arg(long)]
    revision: String,
    /// A step that has another name there; may be repeated
    #[arg(long = "map", value_name = "OLD=NEW", value_parser = input::pair)]
    steps: Vec<(String, String)>,
    /// All open runs of this flow that are on another revision
    #[arg(long)]
    flow: Option<String>,
    /// Only those on this revision: active, or the first letters of one
    #[arg(long, value_name = "REVISION", requires = "flow")]
    from: Option<String>,
    /// Only those in this status: running or waiting; may be repeated
    #[arg(long, requires = "flow")]
    status: Vec<String>,
    /// Only those with this tag; may be repeated, and then they have all of them
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = input::pair, requires = "flow")]
    tags: Vec<(String, String)>,
    /// Print the plan, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub(crate) async fn run(app: &App, args: Args) -> Outcome {
    let steps = steps_of(&args.steps)?;
    let reach = Reach::write(app).await?;
    let outcome = match (&args.run, &args.flow) {
        (Some(run), _) => one(app, &reach, run, &args, steps).await,
        (None, Some(flow)) => many(app, &reach, flow, &args, steps).await,
        (None, None) => unreachable!("one of them is required"),
    };
    reach.finish(outcome).await
}

/// The map of a command line, in which a step has one new name.
fn steps_of(pairs: &[(String, String)]) -> Result<BTreeMap<String, String>, Failure> {
    let mut steps = BTreeMap::new();
    for (old, new) in pairs {
        if steps.insert(old.clone(), new.clone()).is_some_and(|before| before != *new) {
            let message = format!("the step `{old}` is mapped to two steps");
            let help = format!("write --map {old}=NEW once");
            return Err(Failure::usage("step_repeated", message).help(help).path("--map"));
        }
    }
    Ok(steps)
}

async fn one(
    app: &App,
    reach: &Reach,
    run: &str,
    args: &Args,
    steps: BTreeMap<String, String>,
) -> Outcome {
    let path = format!("/runs/{}/migrate", segment(run));
    let mut request = MigrateRun { revision: args.revision.clone(), steps, dry_run: true };
    let plan: MoveItem = reach.post(&path, &request).await?;
    if !app.output.json {
        tell_of_plan(app, std::slice::from_ref(&plan), &[])?;
    }
    if args.dry_run {
        return tell(app, &plan, || "nothing was changed".to_owned());
    }
    // To the revision that the plan is for, whatever is active by now.
    request = MigrateRun { revision: plan.to.to_string(), dry_run: false, ..request };
    let done: MoveItem = reach.post(&path, &request).await?;
    tell(app, &done, || {
        if done.existed {
            return format!("it was on revision {} before", done.to);
        }
        format!("moved to revision {}", done.to)
    })
}

async fn many(
    app: &App,
    reach: &Reach,
    flow: &str,
    args: &Args,
    steps: BTreeMap<String, String>,
) -> Outcome {
    let mut request = MigrateRuns {
        flow: flow.to_owned(),
        from: args.from.clone(),
        status: args.status.clone(),
        tags: input::tags(&args.tags)?,
        revision: args.revision.clone(),
        steps,
        dry_run: true,
        max: Some(RUNS_MAX),
    };
    let plan: RunsMoved = reach.post("/runs/migrate", &request).await?;
    if !app.output.json {
        tell_of_plan(app, &plan.moved, &plan.stayed)?;
        app.output.note(format_args!(
            "{} would move to revision {}, {} stay",
            plan.moved.len(),
            plan.to,
            plan.stayed.len()
        ));
    }
    if args.dry_run || plan.moved.is_empty() {
        return tell(app, &plan, || "nothing was changed".to_owned());
    }
    if !args.yes {
        let count = plan.moved.len();
        let unasked = || {
            Failure::usage("not_confirmed", format!("{count} runs would move"))
                .help("add --yes to move them, or --dry-run to see the plan")
        };
        confirm::ask(app, &format!("move {count} runs?"), &unasked)?;
    }
    request.revision = plan.to.to_string();
    request.dry_run = false;
    let done: RunsMoved = reach.post("/runs/migrate", &request).await?;
    tell(app, &done, || {
        let more = if done.more { "; there are more, call it again" } else { "" };
        format!("{} moved, {} stay where they are{more}", done.moved.len(), done.stayed.len())
    })?;
    let is_expected = |stay: &StayItem| EXPECTED.contains(&&*stay.code);
    Ok(if done.stayed.iter().all(is_expected) { Exit::Done } else { Exit::Refused })
}

fn tell(app: &App, value: &impl serde::Serialize, note: impl Fn() -> String) -> Outcome {
    if app.output.json {
        app.output.json(value)?;
    } else {
        app.output.note(note());
    }
    Ok(Exit::Done)
}

fn tell_of_plan(app: &App, moved: &[MoveItem], stayed: &[StayItem]) -> Result<(), Failure> {
    let mut table = Table::new(&["run", "revision", "at", "becomes"]);
    for item in moved.iter().take(SHOWN_MAX) {
        let mut becomes = if item.existed {
            "is there already".to_owned()
        } else {
            format!("goes on at {}", item.steps.join(", "))
        };
        if !item.starts.is_empty() {
            becomes = format!("{becomes}, begins {}", item.starts.join(", "));
        }
        table.row(vec![
            Cell::bold(short(item.run_id)),
            Cell::plain(&item.from),
            Cell::plain(item.at.join(", ")),
            Cell::plain(becomes),
        ]);
    }
    for item in stayed.iter().take(SHOWN_MAX) {
        table.row(vec![
            Cell::bold(short(item.run_id)),
            Cell::plain(&item.revision),
            Cell::plain(""),
            Cell::plain(format_args!("stays: {}", item.reason)),
        ]);
    }
    if moved.is_empty() && stayed.is_empty() {
        app.output.note("no open runs match");
        return Ok(());
    }
    table.print(app.output)?;
    let hidden = moved.len().saturating_sub(SHOWN_MAX) + stayed.len().saturating_sub(SHOWN_MAX);
    if hidden > 0 {
        app.output.note(format_args!("and {hidden} more; --json has all of them"));
    }
    Ok(())
}
