//! Deployments.

use flowgate_core::deploy::machine::CanarySeen;
use flowgate_core::deploy::{Deployment, Plan, Settings, Shadow, ShadowPlan, Strategy};
use flowgate_core::ids::RunId;
use flowgate_engine::{Checkpoint, DeployPlan, DeployProgress};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A revision to be deployed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDeployment {
    /// The flow file of the revision.
    pub text: String,
    /// The deploy file: how it is to be done; all defaults without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deploy: Option<String>,
    /// The strategy, whatever the deploy file says: `rolling`, `blue-green`, `canary` or
    /// `shadow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// How long open runs may take to finish, whatever the deploy file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "30s")]
    pub drain_timeout: Option<String>,
    /// The pool whose instances execute the new revision, whatever the deploy file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// On the inputs of how many of the last runs the revision is tried first, whatever the deploy
    /// file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<u32>,
    /// Who asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether an older revision may become active again.
    #[serde(default)]
    pub force: bool,
}

/// What a deployment would do.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlanItem {
    /// The active revision.
    pub from: String,
    /// The one that is to become active.
    pub to: String,
    /// Runs that are expected to finish on their revision.
    pub finishing: u64,
    /// Runs that go on on the new revision if they have not finished in time.
    pub resuming: u64,
    /// Runs that stay on their revision however long they take.
    pub pinned: u64,
    /// The first of them, each with its fate.
    pub runs: Vec<PlannedRunItem>,
    /// What a shadow would do, if there is to be one.
    pub shadow: Option<ShadowPlanItem>,
    /// What somebody should know before they go on.
    pub warnings: Vec<String>,
}

/// An open run and what is going to happen to it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlannedRunItem {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// The steps at which it is.
    pub at: Vec<String>,
    /// `finishes`, `resumes` or `pinned`.
    pub fate: String,
    /// The steps at which it would go on.
    pub steps: Vec<String>,
    /// Why it stays where it is.
    pub reason: Option<String>,
}

/// What the new revision would do on the inputs of earlier runs.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ShadowPlanItem {
    /// How many runs there are to compare with, of those that are asked for.
    pub runs: u64,
    /// Steps that are executed.
    pub executed: Vec<String>,
    /// Steps that are not, and end as they did in the original run.
    pub stubbed: Vec<String>,
}

/// A deployment.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeploymentItem {
    /// Its id.
    pub deployment_id: String,
    /// The flow.
    pub flow: String,
    /// The revision that was active before.
    pub from: String,
    /// The revision that is to become active.
    pub to: String,
    /// How it is done.
    pub strategy: String,
    /// The pool whose instances execute the new revision; any if null.
    pub pool: Option<String>,
    /// How the canary does, if it is one.
    pub canary: Option<CanaryItem>,
    /// Where it stands: `plan`, `drain`, `deploy`, `verify`, `resume`, `audit`, `completed`,
    /// `rolling_back` or `rolled_back`.
    pub phase: String,
    /// When it entered each phase.
    pub phases: Vec<PhaseItem>,
    /// Who asked for it.
    pub author: Option<String>,
    /// What for.
    pub note: Option<String>,
    /// The instance that drives it.
    pub driver: Option<String>,
    /// When it began.
    #[schema(format = DateTime)]
    pub began_at: String,
    /// When it ended.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    /// `good`, `alerting`, `rolled_back` or `tried`, once it has ended.
    pub verdict: Option<String>,
    /// Why it was rolled back.
    pub rollback: Option<String>,
    /// Smoke tests, and what was not as expected.
    pub smoke: Vec<SmokeItem>,
    /// How the new revision did on the inputs of earlier runs, if that was asked for.
    pub shadow: Option<ShadowItem>,
    /// Starts that were held.
    pub held: u64,
    /// Of them, those that were let go.
    pub released: u64,
    /// Runs that were stopped where they were.
    pub checkpointed: u64,
    /// What was planned.
    pub plan: PlanItem,
    /// What is left to do, where one deployment is asked for that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressItem>,
}

/// What a deployment has left to do.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProgressItem {
    /// Runs that are open on the old revision and are not stopped.
    pub open: u64,
    /// Runs that are held.
    pub held: u64,
    /// Runs that are stopped and have not gone on.
    pub stopped: u64,
    /// When what the phase waits for is over, at the latest.
    #[schema(format = DateTime)]
    pub until: Option<String>,
}

/// How a canary does.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CanaryItem {
    /// The share of starts that goes to the new revision until it is decided about.
    #[schema(example = "5%")]
    pub share: String,
    /// How many of its runs must have ended before they decide.
    pub samples_min: u32,
    /// How many have.
    pub samples: u64,
    /// How many of those failed.
    pub failed: u64,
    /// How many runs of the old revision have ended meanwhile.
    pub samples_old: u64,
    /// How many of those failed.
    pub failed_old: u64,
    /// Whether it was found good, or somebody said so.
    pub is_promoted: bool,
}

/// When a phase was entered.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PhaseItem {
    /// The phase.
    pub phase: String,
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
}

/// How a smoke test ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SmokeItem {
    /// The test.
    pub name: String,
    /// Whether all was as expected.
    pub passed: bool,
    /// What was not.
    pub mismatches: Vec<String>,
}

/// How the new revision did on the inputs of earlier runs.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ShadowItem {
    /// How many runs there are to compare with.
    pub runs: u64,
    /// How many were compared.
    pub compared: u64,
    /// How many of them differ.
    pub differing: u64,
    /// The first that differ.
    pub differences: Vec<ShadowResultItem>,
}

/// A run on whose input the new revision did something else.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ShadowResultItem {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub original: RunId,
    /// The run of the new revision.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// In what they differ.
    pub mismatches: Vec<String>,
}

/// What somebody says when they ask for a rollback.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackNote {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What somebody says when they give up a stopped run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscardNote {
    /// Why, for the log of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A run that a deployment has stopped where it was.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckpointItem {
    /// Its id: of all checkpoints it alone has it.
    pub checkpoint_id: String,
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its flow.
    pub flow: String,
    /// The deployment.
    pub deployment_id: String,
    /// The revision that it was on.
    pub from: String,
    /// The steps at which it was, each with its state.
    pub steps: Vec<CheckpointStepItem>,
    /// The names of the state values that the run had.
    pub state_keys: Vec<String>,
    /// `pending`, `resumed` on the new revision, `pinned` to its own, or `discarded`.
    pub state: String,
    /// When it was stopped.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it goes on by itself, if nobody has let it.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// When it went on, or was given up.
    #[schema(format = DateTime)]
    pub settled_at: Option<String>,
}

/// A step at which a run was stopped.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckpointStepItem {
    /// The step.
    pub step: String,
    /// Its state then.
    pub stage: String,
    /// The numbers of the events whose payloads are its input.
    pub inputs: Vec<u64>,
    /// The idempotency key of the step.
    pub idempotency_key: String,
}

/// A report as a value.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = Object)]
pub struct ReportItem(pub serde_json::Value);

impl PlanItem {
    fn of(from: &dyn ToString, to: &dyn ToString, plan: &Plan) -> Self {
        let runs = plan.runs.iter().map(|run| {
            let value = serde_json::to_value(&run.fate).expect("a fate is JSON");
            let texts = |name: &str| -> Vec<String> {
                serde_json::from_value(value[name].clone()).unwrap_or_default()
            };
            PlannedRunItem {
                run_id: run.run_id,
                at: run.at.iter().map(ToString::to_string).collect(),
                fate: run.fate.as_str().to_owned(),
                steps: texts("steps"),
                reason: value["reason"].as_str().map(ToOwned::to_owned),
            }
        });
        Self {
            from: from.to_string(),
            to: to.to_string(),
            finishing: plan.finishing,
            resuming: plan.resuming,
            pinned: plan.pinned,
            runs: runs.collect(),
            shadow: plan.shadow.as_ref().map(ShadowPlanItem::from),
            warnings: plan.warnings.clone(),
        }
    }
}

impl From<&ShadowPlan> for ShadowPlanItem {
    fn from(plan: &ShadowPlan) -> Self {
        let names = |names: &[std::sync::Arc<str>]| names.iter().map(ToString::to_string).collect();
        let (executed, stubbed) = (names(&plan.executed), names(&plan.stubbed));
        Self { runs: plan.runs, executed, stubbed }
    }
}

impl From<&Shadow> for ShadowItem {
    fn from(shadow: &Shadow) -> Self {
        let differences = shadow.differences.iter().map(|result| ShadowResultItem {
            original: result.original,
            run_id: result.run_id,
            mismatches: result.mismatches.iter().map(ToString::to_string).collect(),
        });
        Self {
            runs: u64::try_from(shadow.originals.len()).unwrap_or(u64::MAX),
            compared: shadow.compared,
            differing: shadow.differing,
            differences: differences.collect(),
        }
    }
}

impl From<&DeployPlan> for PlanItem {
    fn from(DeployPlan { from, to, plan }: &DeployPlan) -> Self {
        Self::of(from, to, plan)
    }
}

impl From<&Deployment> for DeploymentItem {
    fn from(deployment: &Deployment) -> Self {
        let text = |text: &Option<std::sync::Arc<str>>| text.as_ref().map(ToString::to_string);
        let smoke = deployment.smoke.iter().map(|result| SmokeItem {
            name: result.name.clone(),
            passed: result.has_passed(),
            mismatches: result.mismatches.iter().map(ToString::to_string).collect(),
        });
        let phase = |entered: &flowgate_core::deploy::PhaseTime| PhaseItem {
            phase: entered.phase.to_string(),
            at: entered.at.to_string(),
        };
        Self {
            deployment_id: deployment.deployment_id.to_string(),
            flow: deployment.flow.to_string(),
            from: deployment.from.to_string(),
            to: deployment.to.to_string(),
            strategy: deployment.settings.strategy.to_string(),
            pool: deployment.settings.pool.clone(),
            canary: canary(deployment),
            phase: deployment.phase.to_string(),
            phases: deployment.phases.iter().map(phase).collect(),
            author: text(&deployment.author),
            note: text(&deployment.note),
            driver: deployment.driver.as_ref().map(ToString::to_string),
            began_at: deployment.began_at.to_string(),
            ended_at: deployment.ended_at().map(|at| at.to_string()),
            verdict: deployment.verdict.map(|verdict| verdict.as_str().to_owned()),
            rollback: deployment.rollback.as_ref().map(ToString::to_string),
            smoke: smoke.collect(),
            shadow: deployment.shadow.as_ref().map(ShadowItem::from),
            held: deployment.counts.held,
            released: deployment.counts.released,
            checkpointed: deployment.counts.checkpointed,
            plan: PlanItem::of(&deployment.from, &deployment.to, &deployment.plan),
            progress: None,
        }
    }
}

fn canary(deployment: &Deployment) -> Option<CanaryItem> {
    let Settings { strategy: Strategy::Canary, canary: rules, .. } = &deployment.settings else {
        return None;
    };
    let CanarySeen { old, new } = deployment.canary.clone().unwrap_or_default();
    Some(CanaryItem {
        share: rules.share.to_string(),
        samples_min: rules.samples_min,
        samples: new.count,
        failed: new.failed,
        samples_old: old.count,
        failed_old: old.failed,
        is_promoted: deployment.is_promoted,
    })
}

impl From<DeployProgress> for ProgressItem {
    fn from(progress: DeployProgress) -> Self {
        let DeployProgress { open, held, stopped, until } = progress;
        Self { open, held, stopped, until: until.map(|at| at.to_string()) }
    }
}

impl From<&Checkpoint> for CheckpointItem {
    fn from(checkpoint: &Checkpoint) -> Self {
        let steps = checkpoint.steps.iter().map(|step| CheckpointStepItem {
            step: step.step.to_string(),
            stage: step.stage.to_string(),
            inputs: step.inputs.clone(),
            idempotency_key: step.idempotency_key.to_string(),
        });
        Self {
            checkpoint_id: format!("{}/{}", checkpoint.deployment, checkpoint.run_id),
            run_id: checkpoint.run_id,
            flow: checkpoint.flow.to_string(),
            deployment_id: checkpoint.deployment.to_string(),
            from: checkpoint.from.to_string(),
            steps: steps.collect(),
            state_keys: checkpoint.state_keys.iter().map(ToString::to_string).collect(),
            state: checkpoint.state.as_str().to_owned(),
            created_at: checkpoint.created_at.to_string(),
            expires_at: checkpoint.expires_at.to_string(),
            settled_at: checkpoint.settled_at.map(|at| at.to_string()),
        }
    }
}
