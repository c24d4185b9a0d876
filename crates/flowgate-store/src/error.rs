//! What can fail in a store, sorted by what the caller does about it.

/// A store could not do what it was asked. Nothing of the call is known to be written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached or did not answer; trying again may help.
    #[error("the store is not available: {message}")]
    Unavailable {
        /// What was tried.
        message: String,
        /// What the driver said.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// It has no room; trying again helps once somebody has made some.
    #[error("the store has no room: {message}; free some space, nothing written so far is lost")]
    Full {
        /// What was tried.
        message: String,
        /// What the driver said.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// Another process owns it.
    #[error("{path} is in use by {owner}; stop that process, or name another file with --store")]
    Owned {
        /// The file.
        path: String,
        /// Who owns it, in words.
        owner: String,
    },
    /// It was opened for reading only.
    #[error("the store was opened for reading only")]
    ReadOnly,
    /// It holds what no flowgate can have written.
    #[error("the store is damaged: {message}; restore a backup, nothing was overwritten")]
    Corrupt {
        /// What is wrong, and where.
        message: String,
        /// What the driver said.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// Its settings may lose what was acknowledged.
    #[error("the store is not safe to use: {message}")]
    Unsafe {
        /// Every setting that is not safe, and the remedy.
        message: String,
    },
    /// It was written by a newer flowgate, or is not one of ours.
    #[error("the store cannot be used by this version: {message}")]
    Incompatible {
        /// What does not fit, and the way out.
        message: String,
    },
}

impl StoreError {
    /// Whether the same call may work later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Full { .. } => true,
            Self::Owned { .. }
            | Self::ReadOnly
            | Self::Corrupt { .. }
            | Self::Unsafe { .. }
            | Self::Incompatible { .. } => false,
        }
    }
}
