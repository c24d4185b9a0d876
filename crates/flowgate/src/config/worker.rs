//! What a worker is told.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use flowgate_core::ids::is_identifier;
use flowgate_traces::{Endpoint, EndpointError};

use super::Wrong;

/// What a worker is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Jobs and schedules.
    All,
    /// Jobs.
    JobWorker,
    /// Jobs and schedules, among others that do only jobs.
    CronWorker,
    /// `all` where it has its store to itself, else `cron-worker`.
    Auto,
}

impl Role {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::JobWorker => "job-worker",
            Self::CronWorker => "cron-worker",
            Self::Auto => "auto",
        }
    }

    /// The role that it has on a store that is shared, or not.
    pub(crate) fn on_store(self, is_shared: bool) -> Self {
        match self {
            Self::Auto if is_shared => Self::CronWorker,
            Self::Auto => Self::All,
            Self::All | Self::JobWorker | Self::CronWorker => self,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where health and metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    Off,
    At(SocketAddr),
}

pub(super) fn parse_role(text: &str) -> Result<Role, Wrong> {
    let roles = [Role::All, Role::JobWorker, Role::CronWorker, Role::Auto];
    roles.into_iter().find(|role| role.as_str() == text).ok_or_else(|| {
        let help = "write all, job-worker, cron-worker or auto".to_owned();
        (format!("`{text}` is not a role"), help)
    })
}

pub(super) fn parse_pool(text: &str) -> Result<Option<Arc<str>>, Wrong> {
    match text {
        "" => Ok(None),
        text if is_identifier(text) => Ok(Some(text.into())),
        text => {
            let help = "write letters, digits, `-`, `_` and `.`".to_owned();
            Err((format!("`{text}` is not a label"), help))
        }
    }
}

pub(super) fn parse_listen(text: &str) -> Result<Listen, Wrong> {
    if text == "off" {
        return Ok(Listen::Off);
    }
    text.parse().map(Listen::At).map_err(|_| {
        let help = "write an IP address and a port, such as 127.0.0.1:7420 or 0.0.0.0:7420, or off";
        (format!("`{text}` is not an address"), help.to_owned())
    })
}

pub(super) fn parse_endpoint(text: &str) -> Result<Option<Endpoint>, Wrong> {
    // An empty variable counts as none, by the rules of OpenTelemetry.
    if matches!(text, "off" | "") {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error: EndpointError| {
        let help = "write the base URL of OTLP over HTTP, such as http://127.0.0.1:4318, or off";
        (error.to_string(), help.to_owned())
    })
}
