//! Which tests there are, so that documents can only name those that exist.

use std::collections::BTreeSet;

use super::tree::{TextFile, Tree};

/// What may stand before `fn`.
const QUALIFIERS: &[&str] = &["pub", "pub(crate)", "pub(super)", "async", "const"];

/// The names of every test in the Rust files of the tree.
#[derive(Debug)]
pub(crate) struct TestNames(BTreeSet<String>);

impl TestNames {
    pub(crate) fn read(tree: &Tree) -> Self {
        let ours =
            |file: &&TextFile| file.path.starts_with("crates/") || file.path.starts_with("xtask/");
        Self(tree.with_extension(&["rs"]).filter(ours).flat_map(names_in).collect())
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

/// Functions under a test attribute; and, in a suite, every function and every listed case,
/// because there a macro turns the cases into tests.
fn names_in(file: &TextFile) -> Vec<String> {
    let is_conformance = file.path.contains("conformance");
    let is_suite = is_conformance || file.path.contains("/tests/");
    let mut names = Vec::new();
    let mut is_test = false;
    for (_, line) in file.lines() {
        let line = line.trim();
        if line.starts_with("#[") {
            is_test |= is_test_attribute(line);
        } else if let Some(name) = function_name(line) {
            if std::mem::take(&mut is_test) || is_conformance {
                names.push(name.to_owned());
            }
        } else if is_suite && is_case(line) {
            names.push(line.trim_end_matches(',').to_owned());
        }
    }
    names
}

/// `#[test]`, `#[tokio::test(…)]` and their like.
fn is_test_attribute(line: &str) -> bool {
    let path = line.trim_start_matches("#[").split(['(', ']']).next().unwrap_or_default();
    path.rsplit("::").next() == Some("test")
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_declared = before.split_whitespace().all(|word| QUALIFIERS.contains(&word));
    let name = after.split(['(', '<']).next()?;
    (is_declared && is_name(name)).then_some(name)
}

/// A line of a list: a name of several words and nothing else but a comma.
fn is_case(line: &str) -> bool {
    let name = line.trim_end_matches(',');
    name.contains('_') && is_name(name)
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::super::tree::Planted;
    use super::*;

    fn check(path: &str, text: &str, expected: &[&str]) {
        let planted = Planted::new(&[(path, text)]);
        let TestNames(names) = TestNames::read(&planted.tree);
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_function_is_a_test_by_its_attribute() {
        check(
            "crates/a/src/a.rs",
            "fn plain() {}\n#[test]\n#[cfg(unix)]\nfn it_holds() {}\nfn other() {}\n",
            &["it_holds"],
        );
        check(
            "crates/a/src/a.rs",
            "#[tokio::test(start_paused = true)]\nasync fn it_waits() {}\n#[cfg(test)]\nfn no() {}\n",
            &["it_waits"],
        );
    }

    #[test]
    fn the_functions_and_cases_of_a_suite_are_tests() {
        check(
            "crates/a/src/conformance.rs",
            "pub async fn it_holds(harness: impl Harness) {\n",
            &["it_holds"],
        );
        check(
            "crates/a/tests/it/suite.rs",
            "suite! {\n    it_holds,\n    so_do_i\n}\n",
            &["it_holds", "so_do_i"],
        );
    }

    #[test]
    fn a_name_elsewhere_is_no_test() {
        check("docs/a.rs", "#[test]\nfn it_holds() {}\n", &[]);
        check("crates/a/src/a.rs", "it_holds,\n// fn it_holds(\n", &[]);
    }
}
