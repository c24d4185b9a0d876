//! How a verb ends: its exit code, and for people the cause and the way out.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

use flowgate_server::ApiError;
use flowgate_store::{StoreError, StoreUrl};
use serde_json::json;

/// How a verb ends.
pub(crate) type Outcome = Result<Exit, Failure>;

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done = 0,
    /// The run failed or was cancelled.
    RunFailed = 1,
    /// Wrong usage or invalid input.
    Usage = 2,
    /// The store cannot be used.
    Store = 3,
    /// There is no such thing.
    NotFound = 4,
    /// It may not be done now.
    Refused = 5,
    /// The user stopped it.
    Interrupted = 130,
    /// The system stopped it.
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a verb could not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// Stable, for programs: `run_not_found`.
    pub(crate) code: String,
    pub(crate) message: String,
    /// The file, run or setting that it is about.
    pub(crate) path: Option<String>,
    /// The way out.
    pub(crate) help: Option<String>,
    pub(crate) source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, code: &str, message: impl Into<String>) -> Self {
        let (code, message) = (code.to_owned(), message.into());
        Self { exit, code, message, path: None, help: None, source: None }
    }

    pub(crate) fn usage(code: &str, message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, code, message)
    }

    pub(crate) fn not_found(code: &str, message: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, code, message)
    }

    pub(crate) fn refused(code: &str, message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, code, message)
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    pub(crate) fn source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same about the store at `url`, with the way out that fits a server.
    pub(crate) fn at_store(mut self, url: &StoreUrl) -> Self {
        if self.code == "store_unavailable" && url.is_shared() {
            self.help = Some(
                "check that the server runs and can be reached from here, with the user and \
                 password of the URL; `flowgate doctor` looks closer"
                    .to_owned(),
            );
        }
        self.path.get_or_insert(url.to_string());
        self
    }

    /// Whoever read our output has gone; there is nobody left to tell.
    pub(crate) fn reader_gone() -> Self {
        Self::new(Exit::Done, "reader_gone", "")
    }

    /// The cause and what caused it, on one line.
    pub(crate) fn cause(&self) -> String {
        let mut text = self.message.clone();
        let mut source = self.source.as_deref().map(|source| source as &dyn Error);
        while let Some(error) = source {
            let said = error.to_string();
            if !text.ends_with(&said) {
                write!(text, ": {said}").expect("writing to a string cannot fail");
            }
            source = error.source();
        }
        text
    }

    /// As programs read it.
    pub(crate) fn json(&self) -> serde_json::Value {
        json!({ "error": {
            "code": self.code, "message": self.cause(), "path": self.path, "help": self.help,
        }})
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let exit = match error.status.as_u16() {
            404 => Exit::NotFound,
            401 | 403 | 409 | 429 => Exit::Refused,
            400..=499 => Exit::Usage,
            503 if error.code == "overloaded" => Exit::Refused,
            _ => Exit::Store,
        };
        let ApiError { code, message, path, help, .. } = error;
        Self { path, help, ..Self::new(exit, &code, message) }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Owned { path, owner } => {
                Self::refused("store_in_use", format!("{path} is in use by {owner}"))
                    .help("stop that process, or name another file with --store sqlite:PATH")
                    .path(path)
            }
            StoreError::ReadOnly => {
                Self::refused("store_read_only", "the store was opened for reading only")
            }
            StoreError::Unavailable { message, source } => {
                let message = format!("the store is not available: {message}");
                Self { source, ..Self::new(Exit::Store, "store_unavailable", message) }
                    .help("check the path and permissions of the store; see `flowgate config show`")
            }
            StoreError::Full { message, source } => {
                let message = format!("the store has no room: {message}");
                Self { source, ..Self::new(Exit::Store, "store_full", message) }
                    .help("free some space; nothing written so far is lost")
            }
            StoreError::Corrupt { message, source } => {
                let message = format!("the store is damaged: {message}");
                Self { source, ..Self::new(Exit::Store, "store_damaged", message) }
                    .help("restore a backup; nothing was overwritten")
            }
            StoreError::Unsafe { message } => {
                let message = format!("the store is not safe to use: {message}");
                Self::usage("store_unsafe", message)
                    .help("change its settings; `flowgate doctor` checks them and says how")
            }
            StoreError::Incompatible { message } => {
                let message = format!("the store cannot be used by this version: {message}");
                Self::new(Exit::Store, "store_incompatible", message)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_does_not_repeat_its_source() {
        let gone = std::io::Error::other("no such file");
        let failure = Failure::usage("input_invalid", "cannot read a.json").source(gone);
        assert_eq!(failure.cause(), "cannot read a.json: no such file");
        let same = Failure::usage("x", "not JSON").source(std::io::Error::other("not JSON"));
        assert_eq!(same.cause(), "not JSON");
    }

    #[test]
    fn every_fault_of_a_store_has_its_exit_code() {
        let owned = StoreError::Owned { path: "a.db".to_owned(), owner: "process 7".to_owned() };
        let failure = Failure::from(owned);
        assert_eq!(
            (failure.exit, failure.cause().as_str()),
            (Exit::Refused, "a.db is in use by process 7")
        );
        let gone = StoreError::Unavailable { message: "opening a.db".to_owned(), source: None };
        assert_eq!(Failure::from(gone).exit, Exit::Store);
    }
}
