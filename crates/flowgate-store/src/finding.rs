//! What an examination of a store found, for a person who has to act on it.

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, in a few words.
    pub check: &'static str,
    /// How it stands.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do about it, where something is to be done.
    pub remedy: Option<String>,
}

/// How a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Good,
    /// It works, and may cost something.
    Warning,
    /// It does not work, or may lose what was written.
    Bad,
}

impl Finding {
    /// All is well.
    pub fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Good, found: found.into(), remedy: None }
    }

    /// Something to look at, and what to do about it.
    pub fn warning(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, remedy: Some(remedy.into()), ..Self::good(check, found) }
    }

    /// Something that must change, and how.
    pub fn bad(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Bad, remedy: Some(remedy.into()), ..Self::good(check, found) }
    }
}
