//! Instances, and who of them leads.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InstanceItem {
    /// Its name.
    pub instance: String,
    /// Its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// The version of flowgate that it runs.
    pub version: String,
    /// What it is for.
    pub role: Option<String>,
    /// A label that those who run it gave it.
    pub pool: Option<String>,
    /// `ready`, `degraded`, `critical`, `stopping` or `silent`.
    #[schema(example = "ready")]
    pub state: String,
    /// How strained it is: `normal`, `degraded` or `critical`.
    #[schema(example = "normal")]
    pub degradation: String,
    /// What strains it.
    pub strained_by: Option<String>,
    /// Attempts that it executes now.
    pub running: u32,
    /// Attempts that it can execute at a time.
    pub slots: u32,
    /// The queues that it serves; null if it serves all.
    pub queues: Option<Vec<String>>,
    /// When it was first heard of.
    #[schema(format = DateTime)]
    pub started_at: String,
    /// When it was last heard of.
    #[schema(format = DateTime)]
    pub seen_at: String,
    /// Whether it leads.
    pub leads: bool,
}

/// A worker in another process, which asks instances for jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerItem {
    /// Its id.
    pub worker_id: String,
    /// The workers whose steps it executes.
    pub workers: Vec<String>,
    /// The queues that it takes them from.
    pub queues: Vec<String>,
    /// The instance that it last asked.
    pub instance: String,
    /// When it last asked, give or take fifteen seconds.
    #[schema(format = DateTime)]
    pub seen_at: String,
}

/// Instances, and the workers that ask them for jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InstanceList {
    /// The instances that were heard of within a day, by name.
    pub items: Vec<InstanceItem>,
    /// The remote workers that have asked for jobs within an hour, by id; each is of the pool
    /// of the instance that it asks.
    pub workers: Vec<WorkerItem>,
}

/// One time that an instance led.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TermItem {
    /// Its number.
    pub term: u64,
    /// The instance.
    pub instance: String,
    /// When it began.
    #[schema(format = DateTime)]
    pub began_at: String,
    /// When it ends unless it is renewed, or when it ended.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// When it ended.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    /// How it stands.
    pub end: TermEnd,
}

/// How a term stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TermEnd {
    /// It goes on.
    Leads,
    /// Its holder gave it up.
    Released,
    /// Its holder was not heard of.
    Expired,
}

impl TermEnd {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leads => "leads",
            Self::Released => "released",
            Self::Expired => "expired",
        }
    }
}

/// Who leads, and who did before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaderReport {
    /// The term that goes on.
    pub leader: Option<TermItem>,
    /// The last terms, the latest first.
    pub terms: Vec<TermItem>,
    /// Whether the leader changes too often.
    pub flapping: bool,
}
