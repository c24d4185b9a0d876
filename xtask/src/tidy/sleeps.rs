//! A test that sleeps is slow when it passes and wrong when the machine is slow.
//!
//! Only the tests of whole processes may: nothing else can make time pass for them. Under paused
//! time nothing sleeps, whatever the code says.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::{TextFile, Tree, has_word};

/// In parts, so that this file does not find itself.
const SLEEP: &str = concat!("sle", "ep(");

const MAY_SLEEP: &str = "crates/flowgate/tests/";

pub(crate) fn sleeping_tests(tree: &Tree) -> Vec<Finding> {
    let outside: BTreeSet<_> = tree.with_extension(&["rs"]).flat_map(test_files_of).collect();
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        if file.path.starts_with(MAY_SLEEP) {
            continue;
        }
        let is_test = is_in_tests(&file.path) || outside.contains(&file.path);
        let tests_start = if is_test { Some(1) } else { inline_tests(file) };
        let mut is_paused = false;
        for (number, line) in file.lines() {
            if line.trim_start().starts_with("#[") && line.contains("test") {
                is_paused = line.contains("start_paused = true");
            }
            if is_paused {
                continue;
            }
            if tests_start.is_some_and(|start| number >= start) && has_word(line, SLEEP) {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    "a test waits for a fact, not for time",
                ));
            }
        }
    }
    findings
}

fn is_in_tests(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/")
}

/// Where the test module of a file starts. It goes to the end of the file: clippy sees to it
/// that nothing follows (`items_after_test_module`).
fn inline_tests(file: &TextFile) -> Option<usize> {
    test_modules(file).find(|(_, module)| module.ends_with('{')).map(|(number, _)| number)
}

/// The files that a file names as its test modules.
fn test_files_of(file: &TextFile) -> Vec<String> {
    let folder = match file.path.strip_suffix(file.name()) {
        Some(folder) if ["lib.rs", "main.rs", "mod.rs"].contains(&file.name()) => folder.to_owned(),
        _ => format!("{}/", file.path.trim_end_matches(".rs")),
    };
    test_modules(file)
        .filter_map(|(_, module)| module.strip_suffix(';')?.rsplit(' ').next())
        .map(|name| format!("{folder}{name}.rs"))
        .collect()
}

/// The lines that open a module which exists in tests only.
fn test_modules(file: &TextFile) -> impl Iterator<Item = (usize, &str)> {
    let mut is_test = false;
    file.lines().filter_map(move |(number, line)| {
        let line = line.trim();
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,");
            return None;
        }
        let opens = std::mem::take(&mut is_test) && has_word(line, "mod");
        opens.then_some((number, line))
    })
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::*;

    const MESSAGE: &str = "a test waits for a fact, not for time";

    fn check(path: &str, text: &str, expected: &[usize]) {
        let text = text.replace("NAP", &format!("std::thread::{SLEEP}A_WHILE)"));
        let lines: Vec<_> = expected.iter().map(|n| format!("{path}:{n}: {MESSAGE}")).collect();
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        assert_findings(sleeping_tests, &[(path, &text)], &lines);
    }

    #[test]
    fn only_the_tests_of_a_file_are_checked() {
        check("crates/a/src/a.rs", "NAP\n#[cfg(test)]\nmod tests {\n    NAP\n}\n", &[4]);
        check("crates/a/src/a.rs", "NAP\n#[cfg(test)]\nfn helper() {}\nNAP\n", &[]);
    }

    #[test]
    fn a_folder_of_tests_is_checked_whole() {
        check("crates/a/tests/it/main.rs", "NAP\n", &[1]);
        check("crates/flowgate/tests/it/main.rs", "NAP\n", &[]);
    }

    #[test]
    fn under_paused_time_nothing_sleeps() {
        let paused = "#[tokio::test(start_paused = true)]\nNAP\n#[tokio::test]\nNAP\n";
        check("crates/a/tests/it/main.rs", paused, &[4]);
    }

    #[test]
    fn a_test_module_in_a_file_of_its_own_is_checked() {
        let nap = format!("{SLEEP}1)\n");
        let declares = "#[cfg(test)]\nmod tests;\n";
        let expected = format!("crates/a/src/b/tests.rs:1: {MESSAGE}");
        assert_findings(
            sleeping_tests,
            &[("crates/a/src/b.rs", declares), ("crates/a/src/b/tests.rs", &nap)],
            &[&expected],
        );
        let expected = format!("crates/a/src/tests.rs:1: {MESSAGE}");
        assert_findings(
            sleeping_tests,
            &[("crates/a/src/lib.rs", declares), ("crates/a/src/tests.rs", &nap)],
            &[&expected],
        );
    }
}
