//! What can be asked about deployments, and of them.

use std::sync::Arc;

use flowgate_core::deploy::{DeployFile, Deployment, Report, Settings, ShadowRules, Strategy};
use flowgate_core::flow::{Flow, FlowErrors};
use flowgate_core::ids::is_identifier;
use flowgate_engine::{
    Ask, Checkpoint, DeployRequest, Engine, canary_figures, deployment_progress, deployment_report,
    deployments, find_checkpoint, find_deployment,
};
use flowgate_store::Store;

use super::super::runs::ops::steer::check_reason;
use crate::error::ApiError;
use crate::lookup;
use crate::wire::Items;
use crate::wire::deployments::{CheckpointItem, DeploymentItem, NewDeployment, PlanItem};

/// The word for the latest deployment of a flow.
const LATEST: &str = "latest";

/// Deployments, the latest of each flow first.
pub(super) async fn list(
    store: &dyn Store,
    flow: Option<&str>,
) -> Result<Items<DeploymentItem>, ApiError> {
    let found = deployments(store, flow).await?;
    Ok(Items { items: found.iter().map(DeploymentItem::from).collect() })
}

/// Runs that deployments have stopped.
pub(super) async fn checkpoints(
    store: &dyn Store,
    flow: Option<&str>,
) -> Result<Items<CheckpointItem>, ApiError> {
    let found = flowgate_engine::checkpoints(store, flow).await?;
    Ok(Items { items: found.iter().map(CheckpointItem::from).collect() })
}

/// Lets the run that `name` names go on, which a deployment has stopped.
pub(super) async fn replay(engine: &Engine, name: &str) -> Result<CheckpointItem, ApiError> {
    let found = stopped(engine, name).await?;
    Ok(CheckpointItem::from(&engine.replay_checkpoint(&found).await?))
}

/// Gives up the run that `name` names, which a deployment has stopped.
pub(super) async fn discard(
    engine: &Engine,
    name: &str,
    reason: Option<&str>,
) -> Result<CheckpointItem, ApiError> {
    check_reason(reason)?;
    let found = stopped(engine, name).await?;
    Ok(CheckpointItem::from(&engine.discard_checkpoint(&found, reason).await?))
}

async fn stopped(engine: &Engine, name: &str) -> Result<Checkpoint, ApiError> {
    let store = &**engine.store();
    let run_id = lookup::run_id(store, name).await?;
    let run = lookup::run(store, run_id).await?.row.run;
    Ok(find_checkpoint(store, &run).await?)
}

/// A deployment by the beginning of its id, or the latest.
pub(super) async fn find(
    store: &dyn Store,
    flow: &str,
    deployment: &str,
) -> Result<Deployment, ApiError> {
    let id = (deployment != LATEST).then_some(deployment);
    find_deployment(store, flow, id).await?.ok_or_else(|| {
        let message = match id {
            Some(id) => format!("`{flow}` has no deployment `{id}`"),
            None => format!("`{flow}` was never deployed"),
        };
        ApiError::not_found("deployment_not_found", message)
            .path(deployment)
            .help("`GET /api/v1/deployments` lists them")
    })
}

/// Where a deployment stands, what it has left to do, and how its canary does if it has one.
pub(super) async fn show(
    store: &dyn Store,
    flow: &str,
    deployment: &str,
) -> Result<DeploymentItem, ApiError> {
    let mut found = find(store, flow, deployment).await?;
    if let Some(seen) = canary_figures(store, &found).await? {
        found.canary = Some(seen);
    }
    let progress = deployment_progress(store, &found).await?.map(Into::into);
    Ok(DeploymentItem { progress, ..DeploymentItem::from(&found) })
}

/// What became of a deployment.
pub(super) async fn report(
    store: &dyn Store,
    flow: &str,
    deployment: &str,
) -> Result<Report, ApiError> {
    let deployment = find(store, flow, deployment).await?;
    Ok(deployment_report(store, &deployment).await?)
}

/// What a deployment would do.
pub(super) async fn plan(
    engine: &Engine,
    flow: &str,
    new: NewDeployment,
) -> Result<PlanItem, ApiError> {
    let request = request(engine, flow, new).await?;
    Ok(PlanItem::from(&engine.plan_deployment(&request).await?))
}

/// Begins a deployment.
pub(super) async fn start(
    engine: &Engine,
    flow: &str,
    new: NewDeployment,
) -> Result<DeploymentItem, ApiError> {
    let request = request(engine, flow, new).await?;
    Ok(DeploymentItem::from(&engine.start_deployment(request).await?))
}

/// Asks for a rollback.
pub(super) async fn roll_back(
    engine: &Engine,
    place: (&str, &str),
    note: Option<String>,
) -> Result<DeploymentItem, ApiError> {
    ask(engine, place, &Ask::Rollback { note: note.map(Into::into) }).await
}

/// Asks to take a canary as good.
pub(super) async fn promote(
    engine: &Engine,
    place: (&str, &str),
) -> Result<DeploymentItem, ApiError> {
    ask(engine, place, &Ask::Promote {}).await
}

async fn ask(
    engine: &Engine,
    (flow, deployment): (&str, &str),
    ask: &Ask,
) -> Result<DeploymentItem, ApiError> {
    let found = find(&**engine.store(), flow, deployment).await?;
    if found.phase.is_terminal() {
        let message = format!("deployment {} has ended: {}", found.deployment_id, found.phase);
        return Err(ApiError::conflict("deploy_ended", message)
            .help("deploy the revision that you want instead"));
    }
    Ok(DeploymentItem::from(&engine.ask_deployment(flow, ask).await?))
}

async fn request(
    engine: &Engine,
    name: &str,
    new: NewDeployment,
) -> Result<DeployRequest, ApiError> {
    let flow = Flow::parse(&new.text).map_err(|errors| wrong("flow_invalid", "text", &errors))?;
    if *flow.name != *name {
        let message = format!("the file is that of the flow `{}`, not of `{name}`", flow.name);
        return Err(ApiError::invalid("flow_invalid", message).path("text"));
    }
    let settings = settings(&flow, &new)?;
    let known = engine.store().list_revisions(Some(name)).await?;
    if known.is_empty() {
        return Err(ApiError::not_found("flow_not_found", format!("there is no flow `{name}`"))
            .path(name)
            .help("register its first revision with `POST /api/v1/flows`"));
    }
    // Its programs start where those of the same revision, or of the active one, do.
    let same = known.iter().find(|stored| stored.revision.revision == flow.revision);
    let folder = same.or_else(|| known.iter().find(|stored| stored.active));
    let folder = folder.and_then(|stored| stored.revision.folder.clone());
    if let Some(refusal) = engine.config().process.refuses(&flow, folder.is_some()) {
        return Err(super::super::flows::ops::forbidden(&refusal));
    }
    Ok(DeployRequest {
        flow,
        folder: folder.map(Into::into),
        settings,
        author: new.author.map(Arc::from),
        note: new.note.map(Arc::from),
        is_forced: new.force,
    })
}

fn settings(flow: &Flow, new: &NewDeployment) -> Result<Settings, ApiError> {
    let text = new.deploy.as_deref().unwrap_or("{}");
    let mut settings = Settings::parse_for(text, flow)
        .map_err(|errors| wrong("deploy_invalid", "deploy", &errors))?;
    if let Some(name) = &new.strategy {
        let found = Strategy::ALL.into_iter().find(|strategy| strategy.as_str() == name);
        settings.strategy = found.ok_or_else(|| {
            ApiError::invalid("deploy_invalid", format!("there is no strategy `{name}`"))
                .path("strategy")
                .help("use `rolling`, `blue-green`, `canary` or `shadow`")
        })?;
        if settings.strategy == Strategy::Shadow {
            settings.shadow.get_or_insert_default();
        }
    }
    if let Some(pool) = &new.pool {
        if !is_identifier(pool) {
            let message = format!("`{}` cannot be the name of a pool", pool.escape_debug());
            return Err(ApiError::invalid("deploy_invalid", message)
                .path("pool")
                .help("see the pools of instances with `flowgate instances`"));
        }
        settings.pool.clone_from(&new.pool);
    }
    if let Some(span) = &new.drain_timeout {
        let file = DeployFile::parse(&format!("drain_timeout: {span}"));
        let parsed = file.map_err(|errors| wrong("deploy_invalid", "drain_timeout", &errors))?;
        settings.drain_timeout = parsed.drain_timeout.unwrap_or(settings.drain_timeout);
    }
    if let Some(runs) = new.shadow {
        let file = Settings::parse(&format!("shadow: {{runs: {runs}}}"));
        let parsed = file.map_err(|errors| wrong("deploy_invalid", "shadow", &errors))?;
        let rules = settings.shadow.take().or(parsed.shadow);
        settings.shadow = rules.map(|rules| ShadowRules { runs, ..rules });
    }
    Ok(settings)
}

fn wrong(code: &'static str, path: &str, errors: &FlowErrors) -> ApiError {
    let first = errors.as_slice().first().expect("there is at least one");
    let more = errors.as_slice().len() - 1;
    let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
    let (line, column, wrong) = (first.line, first.column, &first.problem);
    ApiError::invalid(code, format!("{line}:{column}: {}{more}", wrong.message))
        .path(path)
        .help(wrong.remedy.clone())
}
