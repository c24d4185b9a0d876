//! A migration that has landed has run somewhere: it never changes, and never goes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::Finding;
use super::tree::{TextFile, Tree};

/// Checksum and path, in the format of `sha256sum`.
const RECORD: &str = "xtask/migrations.sha256";

pub(crate) fn migrations(tree: &Tree) -> Vec<Finding> {
    let recorded = recorded(tree);
    let mut findings = Vec::new();
    for file in migration_files(tree) {
        if !is_well_named(file.name()) {
            findings.push(Finding::new(&file.path, 0, "a migration is named V1__noun.sql"));
        }
        match recorded.get(file.path.as_str()) {
            Some((_, sum)) if *sum == checksum(file) => {}
            Some(_) => {
                let message = "this migration has landed and must not change: add another one";
                findings.push(Finding::new(&file.path, 0, message));
            }
            None => {
                let message = "not on record: run cargo xtask tidy --bless";
                findings.push(Finding::new(&file.path, 0, message));
            }
        }
    }
    for (path, (line, _)) in recorded {
        if tree.file(path).is_none() {
            findings.push(Finding::new(RECORD, line, format!("the migration {path} is gone")));
        }
    }
    findings
}

/// Records the migrations that are not on record, and returns their paths.
/// A line that is there stays as it is, so that a changed migration stays a finding.
pub(crate) fn bless(tree: &Tree) -> anyhow::Result<Vec<String>> {
    let mut record = tree.file(RECORD).map(|file| file.text.clone()).unwrap_or_default();
    let known = recorded(tree);
    let mut added = Vec::new();
    for file in migration_files(tree).filter(|file| !known.contains_key(file.path.as_str())) {
        writeln!(record, "{}  {}", checksum(file), file.path).context("adding a line")?;
        added.push(file.path.clone());
    }
    if !added.is_empty() {
        std::fs::write(tree.root.join(RECORD), record)
            .with_context(|| format!("writing {RECORD}"))?;
    }
    Ok(added)
}

fn migration_files(tree: &Tree) -> impl Iterator<Item = &TextFile> {
    tree.with_extension(&["sql"]).filter(|file| file.path.contains("/migrations/"))
}

/// Path to line number and checksum.
fn recorded(tree: &Tree) -> BTreeMap<&str, (usize, &str)> {
    let lines = tree.file(RECORD).into_iter().flat_map(TextFile::lines);
    lines
        .filter_map(|(number, line)| {
            let (sum, path) = line.split_once("  ")?;
            Some((path, (number, sum)))
        })
        .collect()
}

fn is_well_named(name: &str) -> bool {
    let parts = name.strip_prefix('V').and_then(|name| name.strip_suffix(".sql"));
    parts.and_then(|name| name.split_once("__")).is_some_and(|(number, noun)| {
        number.parse::<u32>().is_ok()
            && !noun.is_empty()
            && noun.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    })
}

fn checksum(file: &TextFile) -> String {
    let digest = Sha256::digest(file.text.as_bytes());
    digest.iter().fold(String::new(), |sum, byte| format!("{sum}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::super::tree::Planted;
    use super::*;

    const FIRST: &str = "crates/a/src/sqlite/migrations/V1__runs.sql";
    const SECOND: &str = "crates/a/src/sqlite/migrations/V2__jobs.sql";
    /// What `sha256sum` says of the three bytes "abc".
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_migration_on_record_must_not_change() {
        let record = format!("{ABC}  {FIRST}\n");
        assert_findings(migrations, &[(FIRST, "abc"), (RECORD, &record)], &[]);
        let expected =
            format!("{FIRST}:0: this migration has landed and must not change: add another one");
        assert_findings(migrations, &[(FIRST, "abcd"), (RECORD, &record)], &[&expected]);
    }

    #[test]
    fn a_migration_on_record_must_not_go() {
        let record = format!("{ABC}  {FIRST}\n");
        let expected = format!("{RECORD}:1: the migration {FIRST} is gone");
        assert_findings(migrations, &[(RECORD, &record)], &[&expected]);
    }

    #[test]
    fn a_migration_is_put_on_record_and_well_named() {
        let path = "crates/a/migrations/0001_runs.sql";
        let named = format!("{path}:0: a migration is named V1__noun.sql");
        let unrecorded = format!("{path}:0: not on record: run cargo xtask tidy --bless");
        assert_findings(migrations, &[(path, "")], &[&named, &unrecorded]);
    }

    #[test]
    fn blessing_adds_lines_and_changes_none() {
        let old = format!("{ABC}  {FIRST}\n");
        let planted = Planted::new(&[(FIRST, "changed"), (SECOND, "abc"), (RECORD, &old)]);
        assert_eq!(bless(&planted.tree).unwrap(), [SECOND]);
        let record = std::fs::read_to_string(planted.folder.path().join(RECORD)).unwrap();
        assert_eq!(record, format!("{old}{ABC}  {SECOND}\n"));
        let again = Tree::read(planted.folder.path()).unwrap();
        assert_eq!(bless(&again).unwrap(), Vec::<String>::new());
        assert_eq!(migrations(&again).len(), 1, "the changed one is still found");
    }
}
