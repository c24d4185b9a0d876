//! Why a run is where it is.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use flowgate_core::ids::{InstanceId, RunId};
use flowgate_core::run::RunStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::runs::FateItem;

/// Why a run is not finished, or ended as it did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its flow.
    #[schema(value_type = String)]
    pub flow: Arc<str>,
    /// Its status.
    #[schema(value_type = String, example = "waiting")]
    pub status: RunStatus,
    /// The reasons, what matters most first.
    pub reasons: Vec<ReasonItem>,
    /// Instances that are strained, so that it may take longer.
    pub strained: Vec<StrainedItem>,
    /// What became of it as a dead letter.
    pub fate: Option<FateItem>,
}

/// A reason. What else it has depends on its cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReasonItem {
    /// The step; null for the run as a whole.
    #[schema(value_type = Option<String>)]
    pub step: Option<Arc<str>>,
    /// The cause, such as `queued`, `retrying` or `signal`.
    pub cause: String,
    /// The cause in words.
    pub message: String,
    /// A command that helps.
    pub help: Option<String>,
    /// What belongs to the cause.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub rest: Map<String, Value>,
}

/// An instance that is strained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StrainedItem {
    /// The instance.
    #[schema(value_type = String)]
    pub instance: InstanceId,
    /// How strained it is.
    #[schema(value_type = String, example = "degraded")]
    pub degradation: Cow<'static, str>,
    /// What strains it.
    #[schema(value_type = Option<String>)]
    pub strained_by: Option<Arc<str>>,
}

impl fmt::Display for StrainedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (instance, level) = (&self.instance, &self.degradation);
        let cause = self.strained_by.as_deref().unwrap_or("it recovers");
        write!(f, "the instance {instance} is {level}, so it may take longer: {cause}")
    }
}
