//! Folders with flow files, read and watched.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;

use crate::clock;
use crate::cmd::App;
use crate::failure::Failure;
use crate::flow_files::{self, LoadError, LoadedFlow};
use crate::instance::{Instance, warn_of_workers};
use crate::output::shortened;

/// How long a folder must be quiet before it is read again: editors save in several steps.
const QUIET: Duration = Duration::from_millis(60);
const QUIET_MAX: Duration = Duration::from_secs(1);

/// Tells of changes in the folders, as long as the result is kept.
pub(crate) fn watch(
    app: &App,
    folders: &[PathBuf],
    changed: mpsc::Sender<()>,
) -> Option<impl Watcher + use<>> {
    let tell = move |event: notify::Result<notify::Event>| {
        // The database may lie in the same folder and changes all the time.
        let is_change = event.is_ok_and(|event| {
            !event.kind.is_access() && event.paths.iter().any(|path| flow_files::may_be_flow(path))
        });
        // One that waits to be read is as good as two, so a full channel is fine.
        if is_change && changed.try_send(()).is_err() {
            tracing::trace!("a change is waiting to be read");
        }
    };
    let mut watching = notify::recommended_watcher(tell);
    for folder in folders {
        watching = watching.and_then(|mut watcher| {
            watcher.watch(folder, RecursiveMode::NonRecursive).map(|()| watcher)
        });
    }
    match watching {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            let folders = shown(folders);
            app.output.warning(format_args!(
                "cannot watch {folders}: {error}; restart this process after changes"
            ));
            None
        }
    }
}

/// The folders as the user named them.
pub(crate) fn shown(folders: &[PathBuf]) -> String {
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    names.join(", ")
}

/// Waits until nothing has changed for a while, but not for ever.
pub(crate) async fn settle(changes: &mut mpsc::Receiver<()>) {
    let quiet = async { while tokio::time::timeout(QUIET, changes.recv()).await.is_ok() {} };
    if tokio::time::timeout(QUIET_MAX, quiet).await.is_err() {
        tracing::debug!("the folder changes all the time");
    }
}

/// The flow files of some folders, and what became of each when it was last read.
#[derive(Debug)]
pub(crate) struct Folders {
    paths: Vec<PathBuf>,
    /// Whether the user has been told what is served.
    is_greeted: bool,
    known: HashMap<PathBuf, Known>,
    /// Revisions that were read and are not registered yet.
    fresh: Vec<LoadedFlow>,
}

#[derive(Clone, Debug, PartialEq)]
enum Known {
    /// Its flow and revision are served.
    Served { flow: Arc<str>, revision: String, steps: usize },
    /// This is wrong with it.
    Broken(String),
}

impl Known {
    fn served(loaded: &LoadedFlow) -> Self {
        Self::Served {
            flow: Arc::clone(&loaded.flow.name),
            revision: loaded.flow.revision.to_string(),
            steps: loaded.flow.steps.len(),
        }
    }

    fn doubled(path: &Path, loaded: &LoadedFlow, other: &Path) -> Self {
        Self::Broken(format!(
            "{}:1:1: flow `{}` is in {} already; rename one of them",
            path.display(),
            loaded.flow.name,
            other.display()
        ))
    }
}

impl Folders {
    /// Nothing of them is read yet.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Result<Self, Failure> {
        if let Some(path) = paths.iter().find(|path| !path.is_dir()) {
            let folder = path.display().to_string();
            let message = format!("there is no folder {folder}");
            let help = "name a folder that holds flow files";
            return Err(Failure::not_found("folder_not_found", message).help(help).path(folder));
        }
        Ok(Self { paths, is_greeted: false, known: HashMap::new(), fresh: Vec::new() })
    }

    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Reads all files; nothing may be wrong with one that says it is a flow.
    pub(crate) fn read_all(&mut self, app: &App) -> Result<(), Failure> {
        for path in self.files()? {
            let loaded = match flow_files::load(&path) {
                Ok(loaded) => loaded,
                Err(LoadError::Invalid(_)) if !flow_files::claims_to_be_flow(&path) => continue,
                Err(error) => return Err(error.into_failure(&path)),
            };
            let known = self.known_as(&path, &loaded);
            if let Known::Broken(problem) = known {
                let path = path.display().to_string();
                return Err(Failure::usage("flow_invalid", problem).path(path));
            }
            warn_of_workers(app, &loaded.flow);
            self.fresh.push(loaded);
            self.known.insert(path, known);
        }
        Ok(())
    }

    /// Reads what has changed, and reports what is broken, each once.
    pub(crate) fn read(&mut self, app: &App) -> Result<(), Failure> {
        let paths = self.files()?;
        for (path, known) in self.known.extract_if(|path, _| !paths.contains(path)) {
            if let Known::Served { flow, .. } = known {
                let (time, path) = (clock::time_of_day(), path.display());
                app.output.note(format_args!("{time} {path} is gone; `{flow}` stays as it was"));
            }
        }
        for path in paths {
            let found = match flow_files::load(&path) {
                Ok(loaded) => {
                    let known = self.known_as(&path, &loaded);
                    if matches!(known, Known::Served { .. })
                        && self.known.get(&path) != Some(&known)
                    {
                        warn_of_workers(app, &loaded.flow);
                        self.fresh.push(loaded);
                    }
                    known
                }
                Err(LoadError::Invalid(_)) if !flow_files::claims_to_be_flow(&path) => continue,
                Err(LoadError::Invalid(errors)) => {
                    Known::Broken(errors.in_file(&path.display().to_string()).to_string())
                }
                // It was removed, or is being written; there will be another change.
                Err(LoadError::Unreadable(_)) => continue,
            };
            if let Known::Broken(problem) = &found
                && self.known.get(&path) != Some(&found)
            {
                app.output.warning(problem);
            }
            self.known.insert(path, found);
        }
        Ok(())
    }

    /// Registers what was read. After a failure it can be tried again.
    pub(crate) async fn register(&mut self, app: &App, instance: &Instance) -> Result<(), Failure> {
        instance.register_all(&self.fresh).await?;
        for LoadedFlow { flow, .. } in self.fresh.drain(..) {
            if self.is_greeted {
                let (time, revision) = (clock::time_of_day(), &flow.revision);
                app.output.note(format_args!("{time} `{}` is now revision {revision}", flow.name));
            }
        }
        Ok(())
    }

    /// Changes are told from now on.
    pub(crate) fn set_greeted(&mut self) {
        self.is_greeted = true;
    }

    /// What is served, in words, in the order of the names.
    pub(crate) fn served(&self) -> Vec<String> {
        let served = self.known.values().filter_map(|known| match known {
            Known::Served { flow, revision, steps } => {
                let plural = if *steps == 1 { "" } else { "s" };
                let revision = shortened(revision, 9).replace('…', "");
                Some(format!("{flow}@{revision} ({steps} step{plural})"))
            }
            Known::Broken(_) => None,
        });
        let mut served: Vec<String> = served.collect();
        served.sort();
        served
    }

    fn files(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut files = Vec::new();
        for folder in &self.paths {
            let found = flow_files::in_folder(folder).map_err(|error| {
                let message = format!("cannot read {}", folder.display());
                Failure::usage("folder_invalid", message).source(error)
            })?;
            files.extend(found);
        }
        Ok(files)
    }

    fn known_as(&self, path: &Path, loaded: &LoadedFlow) -> Known {
        let mut others = self.known.iter().filter(|(other, _)| *other != path);
        let name = &loaded.flow.name;
        let holder = others
            .find(|(_, known)| matches!(known, Known::Served { flow, .. } if **flow == **name));
        holder.map_or_else(
            || Known::served(loaded),
            |(other, _)| Known::doubled(path, loaded, other.as_path()),
        )
    }
}
