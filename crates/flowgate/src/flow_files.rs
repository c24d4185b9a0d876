//! Flow files on disk.

use std::path::{Path, PathBuf};

use flowgate_core::flow::{Flow, FlowErrors, nearest};
use flowgate_core::limits::FLOW_FILE_BYTES_MAX;

use crate::failure::{Exit, Failure};

/// A flow and where it was read.
#[derive(Debug)]
pub(crate) struct LoadedFlow {
    pub(crate) flow: Flow,
    /// The folder that its programs start in.
    pub(crate) folder: String,
}

/// What is wrong with a flow file.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// It cannot be read.
    Unreadable(std::io::Error),
    /// It breaks a rule.
    Invalid(FlowErrors),
}

/// Reads the flow in the file at `path`.
pub(crate) fn load(path: &Path) -> Result<LoadedFlow, LoadError> {
    let text = read(path).map_err(LoadError::Unreadable)?;
    let flow = Flow::parse(&text).map_err(LoadError::Invalid)?;
    Ok(LoadedFlow { flow, folder: folder_of(path) })
}

fn read(path: &Path) -> std::io::Result<String> {
    let bytes = std::fs::metadata(path)?.len();
    // The reader refuses it by its size and need not have it all for that.
    let keep = u64::try_from(FLOW_FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    if bytes <= keep {
        return std::fs::read_to_string(path);
    }
    let message = format!("{bytes} bytes are over the limit of {FLOW_FILE_BYTES_MAX}");
    Err(std::io::Error::other(message))
}

fn folder_of(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.parent().unwrap_or(Path::new("/")).display().to_string()
}

impl LoadError {
    /// As the end of a verb that needs the flow.
    pub(crate) fn into_failure(self, path: &Path) -> Failure {
        let name = path.display().to_string();
        match self {
            Self::Unreadable(error) => {
                let is_missing = error.kind() == std::io::ErrorKind::NotFound;
                let exit = if is_missing { Exit::NotFound } else { Exit::Usage };
                Failure::new(exit, "flow_unreadable", format!("cannot read {name}"))
                    .source(error)
                    .path(name)
            }
            Self::Invalid(errors) => {
                let message = errors.in_file(&name).to_string();
                Failure::usage("flow_invalid", message)
                    .help(format!("check it again with `flowgate flows validate {name}`"))
                    .path(name)
            }
        }
    }
}

/// Whether `text` can only be meant as a file, not as the name of a flow.
pub(crate) fn is_path(text: &str) -> bool {
    text.contains('/') || may_be_flow(Path::new(text))
}

/// What to say about a flow file that is not there.
pub(crate) fn missing(path: &Path) -> Failure {
    let name = path.display().to_string();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let beside = in_folder(folder.unwrap_or(Path::new("."))).unwrap_or_default();
    let names: Vec<String> = (beside.iter())
        .map(|path| path.strip_prefix("./").unwrap_or(path).display().to_string())
        .collect();
    let help = match nearest(&name, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {near}?"),
        None => "name a flow file, or a flow of `flowgate flows list`".to_owned(),
    };
    Failure::not_found("flow_not_found", format!("there is no file {name}")).help(help).path(name)
}

/// The files in `folder` that may hold a flow, in order of their names.
pub(crate) fn in_folder(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if may_be_flow(&path) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Whether a file's name says that it may hold a flow.
pub(crate) fn may_be_flow(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_data = ["yaml", "yml", "json"]
        .iter()
        .any(|end| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(end)));
    is_data && !name.starts_with('.')
}

/// Whether a text says that it is a flow: it has the keys `flow` and `steps` at its top.
///
/// Other files may lie in the same folder, so what is no flow is not an error; but a flow with a
/// slip in it must not be overlooked, so this does not need the text to be well-formed.
pub(crate) fn claims_to_be_flow(path: &Path) -> bool {
    let Ok(text) = read(path) else { return false };
    let has_both = |has: &dyn Fn(&str) -> bool| has("flow") && has("steps");
    if !text.trim_start().starts_with('{') {
        let starts_line = |line: &str, key: &str| {
            let line = line.trim_start_matches('"');
            let rest = line.strip_prefix(key).map(|rest| rest.trim_start_matches('"').trim_start());
            rest.is_some_and(|rest| rest.starts_with(':'))
        };
        return has_both(&|key| text.lines().any(|line| starts_line(line, key)));
    }
    match serde_json::from_str::<serde_json::Value>(&text) {
        Ok(value) => has_both(&|key| value.get(key).is_some()),
        Err(_) => has_both(&|key| text.contains(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_told_from_other_files_even_when_it_is_broken() {
        let folder = tempfile::tempdir().unwrap();
        let check = |text: &str, expected: bool| {
            let path = folder.path().join("a.yaml");
            std::fs::write(&path, text).unwrap();
            assert_eq!(claims_to_be_flow(&path), expected, "{text}");
        };
        check("flow: a\nsteps:\n  b: {}\n", true);
        check("flow: a\nsteps: [", true);
        check("{\"flow\": \"a\", \"steps\": {", true);
        check("services:\n  flow: a\n  steps: b\n", false);
        check("name: ci\nsteps:\n  - run: x\n", false);
        check("{\"jobs\": {\"flow\": 1, \"steps\": 2}}", false);
        check("", false);
    }

    #[test]
    fn only_visible_data_files_may_be_flows() {
        let rows = [("a.yaml", true), ("a.flow.yml", true), ("a.JSON", true), (".a.yaml", false)];
        for (name, expected) in rows {
            assert_eq!(may_be_flow(Path::new(name)), expected, "{name}");
        }
        assert!(!may_be_flow(Path::new("a.toml")));
    }
}
