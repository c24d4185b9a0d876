//! Attributes that hide something.

use super::Finding;
use super::tree::Tree;

/// An attribute without its brackets, in parts so that this file does not find itself.
const REFUSED: &[(&str, &str)] = &[
    (concat!("ign", "ore"), "a test is not skipped: mend it or remove it"),
    (concat!("should_", "panic"), "a test asserts what it means, not that something panics"),
    (concat!("all", "ow("), "expect the lint and give the reason"),
];

pub(crate) fn refused_attributes(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        for (number, line) in file.lines() {
            for (attribute, advice) in REFUSED {
                if has_attribute(line, attribute) {
                    findings.push(Finding::new(&file.path, number, *advice));
                }
            }
        }
    }
    findings
}

/// Whether the line opens the attribute, by itself or behind a condition.
fn has_attribute(line: &str, attribute: &str) -> bool {
    let opens = |start: &str| line.contains(&format!("{start}{attribute}"));
    opens("#[") || opens("#![") || (line.contains("cfg_attr(") && opens(", "))
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::*;

    #[test]
    fn every_refused_attribute_is_found() {
        for (attribute, advice) in REFUSED {
            for (open, close) in [("#[", "]"), ("#![", "]"), ("#[cfg_attr(unix, ", ")]")] {
                let text = format!("//! A file.\n    {open}{attribute}x){close}\n");
                let expected = format!("a.rs:2: {advice}");
                assert_findings(refused_attributes, &[("a.rs", &text)], &[&expected]);
            }
        }
    }

    #[test]
    fn expecting_a_lint_is_no_finding() {
        let text = "#[expect(dead_code, reason = \"the first user comes next\")]\n";
        assert_findings(refused_attributes, &[("a.rs", text)], &[]);
    }
}
