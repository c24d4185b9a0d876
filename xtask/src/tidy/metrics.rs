//! The metrics that the code records and those that the guide lists are the same.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::{TextFile, Tree};

const GUIDE: &str = "docs/guide/operating.md";
const PREFIX: &str = "flowgate_";
/// How a row of the guide's list begins.
const ROW: &str = "| `flowgate_";

pub(crate) fn metric_names(tree: &Tree) -> Vec<Finding> {
    let recorded = recorded(tree);
    let listed = tree.file(GUIDE).map(listed).unwrap_or_default();
    let unlisted = recorded.iter().filter(|(name, _)| !listed.contains_key(*name));
    let unlisted = unlisted.map(|(name, (path, line))| {
        Finding::new(path, *line, format!("the metric {name} is not in {GUIDE}"))
    });
    let unknown = listed.iter().filter(|(name, _)| !recorded.contains_key(*name));
    let unknown =
        unknown.map(|(name, line)| Finding::new(GUIDE, *line, format!("nothing records {name}")));
    unlisted.chain(unknown).collect()
}

/// Names in the sources of the crates, as whole string literals, with a place of each.
fn recorded(tree: &Tree) -> BTreeMap<&str, (&str, usize)> {
    let is_source = |file: &&TextFile| {
        file.path.starts_with("crates/") && file.path.split('/').nth(2) == Some("src")
    };
    let mut names = BTreeMap::new();
    for file in tree.with_extension(&["rs"]).filter(is_source) {
        for (number, line) in file.lines() {
            for (_, literal) in line.split('"').enumerate().filter(|(part, _)| part % 2 == 1) {
                if is_metric(literal) {
                    names.entry(literal).or_insert((file.path.as_str(), number));
                }
            }
        }
    }
    names
}

/// Names that have a row of their own, with its line.
fn listed(guide: &TextFile) -> BTreeMap<&str, usize> {
    let rows = guide.lines().filter(|(_, line)| line.starts_with(ROW));
    rows.filter_map(|(number, line)| Some((line.split('`').nth(1)?, number))).collect()
}

fn is_metric(literal: &str) -> bool {
    let is_letter = |letter: u8| letter.is_ascii_lowercase() || letter == b'_';
    literal.len() > PREFIX.len() && literal.starts_with(PREFIX) && literal.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::*;

    #[test]
    fn names_on_one_side_only_are_found() {
        let source = "counter!(\"flowgate_a_total\");\n\
                      gauge!(\"flowgate_b\", \"flow\" => flow);\n\
                      filter(\"flowgate_core=debug\");\n";
        let guide = "| `flowgate_a_total` | counter | a |\n| `flowgate_c` | gauge | c |\n";
        assert_findings(
            metric_names,
            &[
                ("crates/one/src/lib.rs", source),
                ("crates/one/tests/it/main.rs", "sum(\"flowgate_d\")"),
                (GUIDE, guide),
            ],
            &[
                "crates/one/src/lib.rs:2: the metric flowgate_b is not in docs/guide/operating.md",
                "docs/guide/operating.md:2: nothing records flowgate_c",
            ],
        );
    }
}
