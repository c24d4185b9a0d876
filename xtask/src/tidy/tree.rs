//! The files that git knows, or would know after `git add`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// The text files under a root, sorted by path.
#[derive(Debug)]
pub(crate) struct Tree {
    pub root: PathBuf,
    pub files: Vec<TextFile>,
}

/// A file in UTF-8, with its path from the root.
#[derive(Debug)]
pub(crate) struct TextFile {
    pub path: String,
    pub text: String,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for path in listed(root)? {
            // A file may be deleted and not yet committed, or not be text: both are of no interest.
            if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
                files.push(TextFile { path, text });
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { root: root.to_path_buf(), files })
    }

    pub(crate) fn file(&self, path: &str) -> Option<&TextFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The files whose name ends in one of these, given without the dot.
    pub(crate) fn with_extension(&self, extensions: &[&str]) -> impl Iterator<Item = &TextFile> {
        self.files.iter().filter(move |file| extensions.contains(&file.extension()))
    }
}

impl TextFile {
    pub(crate) fn extension(&self) -> &str {
        Path::new(&self.path).extension().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// The name of the file without its folder.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// Whether `text` has `word`, and not only as part of a longer name.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        let joins_after = word.ends_with(is_name) && after.is_some_and(is_name);
        !before.is_some_and(is_name) && !joins_after
    })
}

fn listed(root: &Path) -> anyhow::Result<Vec<String>> {
    let output = git(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("starting git")?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("git cannot list the files of {}: {}", root.display(), reason.trim());
    }
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

/// Git at this root, also when a hook of another repository runs us.
fn git(root: &Path) -> Command {
    let mut command = Command::new("git");
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(variable);
    }
    command.arg("-C").arg(root);
    command
}

/// A tree in a temporary folder, for the test of a check.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Planted {
    pub tree: Tree,
    pub folder: tempfile::TempDir,
}

#[cfg(test)]
impl Planted {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        assert!(git(folder.path()).args(["init", "--quiet"]).status().unwrap().success());
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Self { tree: Tree::read(folder.path()).unwrap(), folder }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_files_and_binary_files_are_no_part_of_the_tree() {
        let planted =
            Planted::new(&[(".gitignore", "/target\n"), ("target/a.rs", ""), ("b.rs", "")]);
        std::fs::write(planted.folder.path().join("c.png"), [0xff, 0xfe]).unwrap();
        let tree = Tree::read(planted.folder.path()).unwrap();
        let paths: Vec<_> = tree.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, [".gitignore", "b.rs"]);
    }

    #[test]
    fn a_word_is_not_found_inside_a_longer_name() {
        assert!(has_word("let a = b;", "b"));
        assert!(has_word("b", "b"));
        assert!(!has_word("abc a_b b_a", "b"));
        assert!(has_word("x.nap(1)", "nap("));
        assert!(!has_word("catnap(1)", "nap("));
    }
}
