//! What an examination of the store found.

use flowgate_store::{Finding, Level};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an examination of the store found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Examination {
    /// The store, without passwords.
    pub store: String,
    /// Whether nothing is bad.
    pub healthy: bool,
    /// All that was looked at.
    pub findings: Vec<FindingItem>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FindingItem {
    /// What.
    pub check: String,
    /// How it stands.
    pub level: FindingLevel,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// How a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingLevel {
    /// As it should be.
    Ok,
    /// It works, and may cost something.
    Warning,
    /// It does not work, or may lose what was written.
    Bad,
}

impl From<Level> for FindingLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Good => Self::Ok,
            Level::Warning => Self::Warning,
            Level::Bad => Self::Bad,
        }
    }
}

impl From<Finding> for FindingItem {
    fn from(finding: Finding) -> Self {
        let Finding { check, level, found, remedy } = finding;
        Self { check: check.to_owned(), level: level.into(), found, remedy }
    }
}
