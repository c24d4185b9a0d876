//! What goes over the wire, both ways. The command line reads the same types.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub mod audit;
pub mod bulk;
pub mod dead;
pub mod deployments;
pub mod doctor;
pub mod events;
pub mod flows;
pub mod gates;
pub mod instances;
pub mod jobs;
pub mod live;
pub mod moves;
pub mod overview;
pub mod queues;
pub mod runs;
pub mod schedules;
pub mod subscribers;
pub mod why;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What was refused, and why.
    pub error: ErrorDetail,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// A stable code.
    pub code: String,
    /// The cause.
    pub message: String,
    /// The field, parameter or name that it is about.
    pub path: Option<String>,
    /// The way out.
    #[serde(default)]
    pub help: Option<String>,
}

/// All of something that is never many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Items<T> {
    /// Them.
    pub items: Vec<T>,
}

/// A page of something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// The cursor of the next page; null on the last one.
    pub next: Option<String>,
}

/// A page of something that is counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CountedPage<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// How many there are on all pages.
    pub total: u64,
    /// The cursor of the next page; null on the last one.
    pub next: Option<String>,
}
