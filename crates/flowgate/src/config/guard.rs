//! What steps may reach and start, and the secrets that they may be given.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use flowgate_core::flow::is_secret_name;
use flowgate_engine::{PrivateTarget, PrivateTargetError, PrivateTargets, Secret};

use super::Wrong;

/// How variables begin that hold a secret.
const SECRET_VARIABLE: &str = "FLOWGATE_SECRET_";

/// The name of the secret that the variable `name` holds, if it holds one.
pub(super) fn secret_of_variable(name: &str) -> Option<&str> {
    name.strip_prefix(SECRET_VARIABLE).filter(|name| is_secret_name(name))
}

/// The secrets among the variables of a process.
pub(super) fn secrets(
    variables: impl Iterator<Item = (String, String)>,
) -> BTreeMap<String, Secret> {
    variables
        .filter_map(|(name, value)| {
            secret_of_variable(&name).map(|name| (name.to_owned(), Secret::new(value)))
        })
        .collect()
}

pub(super) fn parse_private(text: &str) -> Result<PrivateTargets, Wrong> {
    match text.trim() {
        "true" => return Ok(PrivateTargets::All),
        "false" | "" => return Ok(PrivateTargets::NONE),
        _ => {}
    }
    let targets: Result<Vec<PrivateTarget>, PrivateTargetError> =
        text.split(',').map(|target| target.trim().parse()).collect();
    targets.map(PrivateTargets::Only).map_err(|error| {
        let help = "write addresses, networks and hosts with commas between, such as \
                    127.0.0.1,10.20.0.0/16,billing.internal, or true for all";
        (error.to_string(), help.to_owned())
    })
}

pub(super) fn parse_programs(text: &str) -> Result<Arc<[String]>, Wrong> {
    if text.trim().is_empty() {
        return Ok(Arc::default());
    }
    let programs: Vec<String> = text.split(',').map(|path| path.trim().to_owned()).collect();
    match programs.iter().find(|path| !path.starts_with('/')) {
        None => Ok(programs.into()),
        Some(path) => {
            let help = "write absolute paths with commas between, such as /usr/bin/python3,/bin/sh";
            Err((format!("`{path}` is not an absolute path"), help.to_owned()))
        }
    }
}

pub(super) fn parse_folder(text: &str) -> Result<Option<PathBuf>, Wrong> {
    match text {
        "" => Ok(None),
        path if PathBuf::from(path).is_dir() => Ok(Some(path.into())),
        path => {
            let help = "name a folder with one file for each secret, or leave it empty".to_owned();
            Err((format!("there is no folder `{path}`"), help))
        }
    }
}
