//! The HTTP API of an instance, and its dashboard.
//!
//! ```text
//!   TCP ─ TLS? ─┐
//!               ├─ listener ── shield ── routes ── api/RESOURCE ── Engine, Store
//!   Unix ───────┘  (times,     (Host,    (scope     (one file a
//!                   sizes)      CSRF,     of each    resource)
//!                               token)    route)
//! ```
//!
//! - A route cannot be added without the scope that it needs: `Routes::add` takes both,
//!   and the matrix of all routes is what tests walk through.
//! - What is sent and answered is a type in [`wire`]; the command line reads the same types.
//! - A request that is refused has changed nothing.
#![warn(missing_docs)]

mod api;
mod assets;
pub mod auth;
mod body;
mod error;
mod host;
mod identifier;
mod listener;
mod live;
pub mod lookup;
mod path;
mod problem;
mod query;
mod routes;
mod shield;
mod standing;
mod strict;
pub mod tls;
pub mod webhooks;
pub mod wire;

pub use api::{document, router, router_within};
pub use error::ApiError;
pub use host::{Host, HostOptions, Process};
pub use listener::{Limits, Listener, serve};
pub use routes::{Needs, RouteEntry, matrix};

/// Operations on a store or an engine, as the routes carry them out: for whoever has one at hand.
pub mod ops {
    pub use crate::api::dead::ops as dead;
    pub use crate::api::doctor::ops as doctor;
    pub use crate::api::flows::ops as flows;
    pub use crate::api::gates::ops as gates;
    pub use crate::api::instances::ops as instances;
    pub use crate::api::queues::ops as queues;
    pub use crate::api::runs::ops as runs;
    pub use crate::api::schedules::ops as schedules;
    pub use crate::api::subscribers::ops as subscribers;
}
