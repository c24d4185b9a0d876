//! `flowgate deploy`.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use flowgate_core::flow::Flow;
use flowgate_server::wire::Items;
use flowgate_server::wire::deployments::{
    CanaryItem, DeploymentItem, NewDeployment, PlanItem, ReportItem, RollbackNote, ShadowItem,
    ShadowPlanItem, ShadowResultItem,
};

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Table, short};
use crate::reach::{Reach, segment};

use self::watch::{Watched, bar, watch};

pub(super) mod watch;

/// Replaces a live flow.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A deployment makes another revision of a flow active without losing anything: `rolling` switches \
at once and lets open runs finish where they are; `blue-green` holds what starts, lets open runs \
finish, stops the rest where they are, tries the new revision with its smoke tests, and then lets \
everything go on; `canary` sends a share of what starts to the new revision, and makes it active or \
goes back when enough of those runs have ended. With --shadow the revision is first tried on the \
inputs of the last runs: steps with `effect: true` are not executed, and an output that differs \
rolls it back; `deploy shadow` does no more than that. The instance that leads drives it; if that \
dies, another goes on.

With --pool, only instances of that pool execute the new revision (`flowgate worker start --pool`).

Exit code 1: it was rolled back.

Examples:
  flowgate deploy plan order.yaml --strategy blue-green
  flowgate deploy shadow order.yaml --runs 50
  flowgate deploy start order.yaml --deploy deploy.yaml --note 'new tax rules'
  flowgate deploy start order.yaml --strategy canary --no-wait
  flowgate deploy promote order
  flowgate deploy status --active
  flowgate deploy rollback order
  flowgate deploy report order --html > report.html")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Say what a deployment would do to each open run, and change nothing
    Plan(New),
    /// Try a revision on the inputs of the last runs, compare, and change nothing
    Shadow(Shadow),
    /// Deploy a revision, and watch it
    Start(Start),
    /// Show the deployments, or one
    Status(Which),
    /// Take a canary as good
    Promote(Name),
    /// Go back to the revision that was active before
    Rollback(Rollback),
    /// Report on a deployment: before, after, and the proof that nothing was lost
    Report(ReportArgs),
}

#[derive(Debug, Default, clap::Args)]
pub(super) struct New {
    /// The flow file of the new revision
    pub(super) file: PathBuf,
    /// The deploy file: strategy, timeouts, smoke tests [default: all defaults]
    #[arg(long, value_name = "FILE")]
    pub(super) deploy: Option<PathBuf>,
    /// rolling, blue-green, canary or shadow, whatever the deploy file says
    #[arg(long)]
    pub(super) strategy: Option<String>,
    /// How long open runs may take to finish, whatever the deploy file says
    #[arg(long, value_name = "SPAN")]
    pub(super) drain_timeout: Option<String>,
    /// The pool whose instances execute the new revision, whatever the deploy file says
    #[arg(long)]
    pub(super) pool: Option<String>,
    /// Try the revision on the inputs of this many of the last runs first, whatever the deploy
    /// file says
    #[arg(long, value_name = "RUNS")]
    pub(super) shadow: Option<u32>,
    /// The flow that the file must be of
    #[arg(long)]
    pub(super) flow: Option<String>,
    /// Who deploys it
    #[arg(long)]
    pub(super) author: Option<String>,
    /// What for
    #[arg(long)]
    pub(super) note: Option<String>,
    /// Let an older revision become active again
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Debug, clap::Args)]
struct Shadow {
    /// The flow file of the new revision
    file: PathBuf,
    /// The deploy file, for its smoke tests and its `shadow` [default: all defaults]
    #[arg(long, value_name = "FILE")]
    deploy: Option<PathBuf>,
    /// How many of the last runs that completed, whatever the deploy file says
    #[arg(long)]
    runs: Option<u32>,
}

#[derive(Debug, clap::Args)]
struct Start {
    #[command(flatten)]
    new: New,
    /// Return as soon as it has begun
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The flow [default: all]
    flow: Option<String>,
    /// The deployment, or the beginning of its id
    #[arg(default_value = "latest")]
    deployment: String,
    /// Only those that have not ended
    #[arg(long, conflicts_with = "deployment")]
    active: bool,
}

#[derive(Debug, clap::Args)]
struct Name {
    /// The flow
    flow: String,
}

#[derive(Debug, clap::Args)]
struct Rollback {
    /// The flow
    flow: String,
    /// Why
    #[arg(long)]
    note: Option<String>,
    /// Return as soon as it was asked for
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, clap::Args)]
struct ReportArgs {
    /// The flow
    flow: String,
    /// The deployment, or the beginning of its id
    #[arg(default_value = "latest")]
    deployment: String,
    /// Print a page instead of text
    #[arg(long)]
    html: bool,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::Plan(new) => plan(&app, new).await,
        Verb::Shadow(Shadow { file, deploy, runs }) => {
            let strategy = Some("shadow".to_owned());
            let new = New { file, deploy, strategy, shadow: runs, ..New::default() };
            start(&app, new, true).await
        }
        Verb::Start(Start { new, no_wait }) => start(&app, new, !no_wait).await,
        Verb::Status(Which { flow, active: true, .. }) => list(&app, flow.as_deref(), true).await,
        Verb::Status(Which { flow: None, .. }) => list(&app, None, false).await,
        Verb::Status(Which { flow: Some(flow), deployment, .. }) => {
            status(&app, &flow, &deployment).await
        }
        Verb::Promote(Name { flow }) => promote(&app, &flow).await,
        Verb::Rollback(Rollback { flow, note, no_wait }) => {
            roll_back(&app, &flow, note, !no_wait).await
        }
        Verb::Report(args) => report(&app, &args).await,
    }
}

fn read_text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| {
        Failure::usage("file_unreadable", format!("{} cannot be read", path.display()))
            .source(error)
    })
}

/// The name of the flow, and what is sent.
fn read(new: New) -> Result<(String, NewDeployment), Failure> {
    let text = read_text(&new.file)?;
    let flow = Flow::parse(&text).map_err(|errors| {
        let file = new.file.display().to_string();
        Failure::usage("flow_invalid", errors.in_file(&file).to_string())
    })?;
    let deploy = new.deploy.as_deref().map(read_text).transpose()?;
    let New { strategy, drain_timeout, pool, shadow, author, note, force, .. } = new;
    let body =
        NewDeployment { text, deploy, strategy, drain_timeout, pool, shadow, author, note, force };
    Ok((new.flow.unwrap_or_else(|| flow.name.to_string()), body))
}

pub(super) async fn plan(app: &App, new: New) -> Outcome {
    let (flow, body) = read(new)?;
    let reach = Reach::write(app).await?;
    let path = format!("/flows/{}/deployments/plan", segment(&flow));
    let plan = reach.post(&path, &body).await;
    let plan: PlanItem = reach.finish(plan).await?;
    if app.output.json {
        app.output.json(&plan)?;
        return Ok(Exit::Done);
    }
    app.output.line(format_args!(
        "{} from {} to {}: {} runs finish, {} resume, {} stay where they are",
        Cell::bold(&flow),
        plan.from,
        plan.to,
        plan.finishing,
        plan.resuming,
        plan.pinned
    ))?;
    let mut table = Table::new(&["run", "at", "fate", "then"]);
    for run in &plan.runs {
        let then = run.reason.clone().unwrap_or_else(|| run.steps.join(", "));
        table.row(vec![
            Cell::bold(short(run.run_id)),
            Cell::plain(run.at.join(", ")),
            Cell::plain(&run.fate),
            Cell::plain(then),
        ]);
    }
    if !plan.runs.is_empty() {
        table.print(app.output)?;
    }
    if let Some(ShadowPlanItem { runs, executed, stubbed }) = &plan.shadow {
        let or_none = |names: &[String]| match names {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        let (executed, stubbed) = (or_none(executed), or_none(stubbed));
        app.output.line(format_args!(
            "shadow of {runs} runs: executed {executed}; not executed {stubbed}"
        ))?;
    }
    for warning in &plan.warnings {
        app.output.warning(format_args!("{warning}"));
    }
    Ok(Exit::Done)
}

pub(super) async fn start(app: &App, new: New, is_watched: bool) -> Outcome {
    let (flow, body) = read(new)?;
    let reach = Reach::write(app).await?;
    let path = format!("/flows/{}/deployments", segment(&flow));
    let begun: Result<DeploymentItem, Failure> = reach.post(&path, &body).await;
    let seen = match begun {
        Ok(begun) if is_watched && reach.is_worked_on => watch(app, &reach, begun).await,
        other => {
            note_idle(app, &reach);
            other.map(unwatched)
        }
    };
    let Watched { deployment, stopped } = reach.finish(seen).await?;
    let outcome = tell(app, &deployment)?;
    Ok(stopped.unwrap_or(outcome))
}

/// A deployment that nobody watches.
fn unwatched(deployment: DeploymentItem) -> Watched {
    Watched { deployment, stopped: None }
}

fn note_idle(app: &App, reach: &Reach) {
    if !reach.is_worked_on {
        app.output.note("no instance works on the store; the deployment goes on when one does");
    }
}

fn tell(app: &App, deployment: &DeploymentItem) -> Outcome {
    if app.output.json {
        app.output.json(deployment)?;
    } else {
        let DeploymentItem { deployment_id, flow, from, to, phase, .. } = deployment;
        let flow = Cell::bold(flow);
        app.output.line(format_args!("{flow} {deployment_id}: {phase}, from {from} to {to}"))?;
        app.output.line(format_args!(
            "held {}, released {}, checkpointed {}",
            deployment.held, deployment.released, deployment.checkpointed
        ))?;
        if let Some(pool) = &deployment.pool {
            app.output.line(format_args!("for the pool {pool}"))?;
        }
        if let Some(canary) = &deployment.canary {
            app.output.line(format_args!("{}", say_canary(canary)))?;
        }
        for test in deployment.smoke.iter().filter(|test| !test.passed) {
            for mismatch in &test.mismatches {
                app.output.line(format_args!("smoke test {}: {mismatch}", test.name))?;
            }
        }
        if let Some(shadow) = &deployment.shadow {
            tell_shadow(app, shadow)?;
        }
        match &deployment.rollback {
            Some(reason) if deployment.verdict.as_deref() == Some("tried") => {
                app.output.line(format_args!("nothing was changed: {reason}"))?;
            }
            Some(reason) => app.output.line(format_args!("rolled back: {reason}"))?,
            None => {}
        }
        if deployment.ended_at.is_some() {
            app.output.note(format_args!("see `flowgate deploy report {}`", deployment.flow));
        }
    }
    let is_tried = deployment.verdict.as_deref() == Some("tried");
    let is_rolled_back = deployment.phase == "rolled_back" && !is_tried;
    Ok(if is_rolled_back { Exit::RunFailed } else { Exit::Done })
}

/// How a canary does, in a line.
fn say_canary(canary: &CanaryItem) -> String {
    let CanaryItem { share, samples_min, samples, failed, samples_old, failed_old, .. } = canary;
    let stands =
        if canary.is_promoted { "promoted".to_owned() } else { format!("{share} of what starts") };
    format!(
        "canary: {stands}, {samples} runs of {samples_min} ended, {failed} failed; on the old \
         revision {samples_old}, {failed_old} failed"
    )
}

/// What came of the new revision on the inputs of earlier runs.
fn tell_shadow(app: &App, shadow: &ShadowItem) -> Result<(), Failure> {
    let ShadowItem { runs, compared, differing, differences } = shadow;
    app.output
        .line(format_args!("shadow: {compared} of {runs} runs compared, {differing} differ"))?;
    for ShadowResultItem { original, run_id, mismatches } in differences {
        for mismatch in mismatches {
            app.output.line(format_args!(
                "run {} as {}: {mismatch}",
                short(*original),
                short(*run_id)
            ))?;
        }
    }
    Ok(())
}

async fn list(app: &App, flow: Option<&str>, is_active_only: bool) -> Outcome {
    let query: Vec<(&str, &str)> = flow.iter().map(|flow| ("flow", *flow)).collect();
    let reach = Reach::read(app).await?;
    let mut listed: Items<DeploymentItem> = reach.get("/deployments", &query).await?;
    listed.items.retain(|item| !is_active_only || item.ended_at.is_none());
    if app.output.json {
        app.output.json(&listed)?;
        return Ok(Exit::Done);
    }
    if listed.items.is_empty() {
        let none = if is_active_only { "none is under way" } else { "nothing was deployed yet" };
        app.output.note(none);
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["flow", "deployment", "phase", "to", "strategy", "began", "by"]);
    for item in &listed.items {
        table.row(vec![
            Cell::bold(&item.flow),
            Cell::plain(&item.deployment_id),
            Cell::plain(&item.phase),
            Cell::plain(&item.to),
            Cell::plain(&item.strategy),
            Cell::plain(&item.began_at),
            Cell::plain(item.author.as_deref().unwrap_or_default()),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

async fn status(app: &App, flow: &str, deployment: &str) -> Outcome {
    let path = format!("/flows/{}/deployments/{}", segment(flow), segment(deployment));
    let found: DeploymentItem = Reach::read(app).await?.get(&path, &[]).await?;
    if !app.output.json {
        for entered in &found.phases {
            app.output.line(format_args!("{}  {}", entered.at, bar(&entered.phase)))?;
        }
    }
    tell(app, &found)?;
    Ok(Exit::Done)
}

async fn promote(app: &App, flow: &str) -> Outcome {
    let reach = Reach::write(app).await?;
    let path = format!("/flows/{}/deployments/latest/promote", segment(flow));
    let asked = reach.post(&path, &serde_json::json!({})).await;
    let asked: DeploymentItem = reach.finish(asked).await?;
    tell(app, &asked)
}

pub(super) async fn roll_back(
    app: &App,
    flow: &str,
    note: Option<String>,
    is_watched: bool,
) -> Outcome {
    let reach = Reach::write(app).await?;
    let path = format!("/flows/{}/deployments/latest/rollback", segment(flow));
    let asked: Result<DeploymentItem, Failure> = reach.post(&path, &RollbackNote { note }).await;
    let seen = match asked {
        Ok(asked) if is_watched && reach.is_worked_on => watch(app, &reach, asked).await,
        other => other.map(unwatched),
    };
    let Watched { deployment, stopped } = reach.finish(seen).await?;
    tell(app, &deployment)?;
    // What was asked for is done.
    Ok(stopped.unwrap_or(Exit::Done))
}

async fn report(app: &App, args: &ReportArgs) -> Outcome {
    let path =
        format!("/flows/{}/deployments/{}/report", segment(&args.flow), segment(&args.deployment));
    let reach = Reach::read(app).await?;
    let value: ReportItem = reach.get(&path, &[]).await?;
    if app.output.json {
        app.output.json(&value)?;
        return Ok(Exit::Done);
    }
    let report: flowgate_core::deploy::Report =
        serde_json::from_value(value.0).map_err(|error| {
            Failure::refused("report_unreadable", "the report is of another version").source(error)
        })?;
    let text = if args.html { report.to_html() } else { report.to_text() };
    app.output.line(format_args!("{}", text.trim_end()))?;
    Ok(if report.is_good() { Exit::Done } else { Exit::RunFailed })
}
