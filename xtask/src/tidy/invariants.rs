//! An invariant that nothing checks is a hope.

use std::collections::BTreeSet;

use super::test_names::TestNames;
use super::tree::Tree;
use super::{CHECKS, Finding};

const DOCUMENT: &str = "ARCHITECTURE.md";
const OPENING: &str = "**Invariant";
const CHECK_OPENING: &str = "(check: ";

pub(crate) fn invariants(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.file(DOCUMENT) else { return Vec::new() };
    let tests = TestNames::read(tree);
    let lints = lints(tree);
    let mut findings = Vec::new();
    for (number, line) in document.lines() {
        let item = line.trim_start();
        if !item.strip_prefix("- ").unwrap_or(item).starts_with(OPENING) {
            continue;
        }
        let Some(names) = checks_of(line) else {
            let message = "an invariant ends with the check that guards it: (check: NAME)";
            findings.push(Finding::new(DOCUMENT, number, message));
            continue;
        };
        for name in names {
            let is_ours = CHECKS.iter().any(|check| check.name == name);
            if !is_ours && !tests.contains(name) && !lints.contains(name) {
                let message = format!("{name} is no test, no lint of ours and no check of tidy");
                findings.push(Finding::new(DOCUMENT, number, message));
            }
        }
    }
    findings
}

/// The names between the parentheses that end the line.
fn checks_of(line: &str) -> Option<Vec<&str>> {
    let line = line.trim_end().trim_end_matches('.');
    let start = line.rfind(CHECK_OPENING)?;
    let names = line[start + CHECK_OPENING.len()..].strip_suffix(')')?;
    Some(names.split(',').map(|name| bare(name.trim())).collect())
}

/// A name without its quotes and the tool that it belongs to.
fn bare(name: &str) -> &str {
    let name = name.trim_matches('`');
    name.strip_prefix("clippy::").or_else(|| name.strip_prefix("tidy::")).unwrap_or(name)
}

/// The lints that the workspace turns on, or sets a limit for.
fn lints(tree: &Tree) -> BTreeSet<String> {
    let parse = |path| tree.file(path).and_then(|file| file.text.parse::<toml::Table>().ok());
    let manifest = parse("Cargo.toml").unwrap_or_default();
    let groups = manifest.get("workspace").and_then(|workspace| workspace.get("lints"));
    let groups = groups.and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values);
    let turned_on = groups
        .filter_map(toml::Value::as_table)
        .flatten()
        .filter(|(_, level)| level.as_str() != Some(concat!("all", "ow")))
        .map(|(lint, _)| lint.clone());
    let limits = parse("clippy.toml").unwrap_or_default();
    let limited = limits.keys().map(|key| key.trim_end_matches("-threshold").replace('-', "_"));
    turned_on.chain(limited).collect()
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::*;

    fn check(line: &str, expected: &[&str]) {
        let files = [
            (DOCUMENT, line),
            ("Cargo.toml", "[workspace.lints.clippy]\nunwrap_used = \"warn\"\n"),
            ("clippy.toml", "too-many-lines-threshold = 70\ndisallowed-methods = []\n"),
            ("crates/a/src/a.rs", "#[test]\nfn it_holds() {}\n"),
        ];
        assert_findings(invariants, &files, expected);
    }

    #[test]
    fn an_invariant_names_a_test_or_a_lint_or_a_check_of_ours() {
        check("**Invariant:** a is b. (check: it_holds)\n", &[]);
        check("- **Invariant:** a is b (check: `it_holds`, `clippy::unwrap_used`).\n", &[]);
        check("**Invariant:** a is b. (check: disallowed_methods, too_many_lines)\n", &[]);
        check("**Invariant:** a is b. (check: crate_direction)\n", &[]);
        check("Every **Invariant** line is checked.\n", &[]);
    }

    #[test]
    fn an_invariant_without_a_true_check_is_found() {
        check(
            "**Invariant:** a is b.\n",
            &["ARCHITECTURE.md:1: an invariant ends with the check that guards it: (check: NAME)"],
        );
        check(
            "\n**Invariant:** a is b. (check: it_holds, it_never_was)\n",
            &["ARCHITECTURE.md:2: it_never_was is no test, no lint of ours and no check of tidy"],
        );
    }
}
