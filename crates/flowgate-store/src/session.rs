//! Locks that end with the session that took them.

use std::fmt;

use async_trait::async_trait;

/// What became of an ask for a lock of a session.
#[derive(Debug)]
#[must_use]
pub enum SessionLock {
    /// The store has no sessions: terms are all there is.
    Unneeded,
    /// Another session has it.
    Elsewhere,
    /// It is held until it is released, dropped or lost.
    Held(Box<dyn HeldSession>),
}

/// A lock that a session of the store's server holds for us.
///
/// Dropping it ends the session, and the server lets the lock go when it notices.
#[async_trait]
pub trait HeldSession: fmt::Debug + Send + Sync {
    /// Returns when the lock is lost: its session has ended, does not answer or has it no more.
    /// It does not come back.
    async fn lost(&self);

    /// Lets the lock go, and ends the session.
    async fn release(self: Box<Self>);
}
