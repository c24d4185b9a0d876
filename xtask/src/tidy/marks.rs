//! What is not finished does not land: it becomes an issue.

use super::Finding;
use super::tree::{Tree, has_word};

const EXTENSIONS: &[&str] = &["rs", "sql", "lua", "ts", "py", "md"];

/// In parts, so that this file does not find itself.
const MARKS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!"),
    concat!("unimpl", "emented!"),
];

pub(crate) fn unfinished_marks(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(EXTENSIONS) {
        for (number, line) in file.lines() {
            for mark in MARKS.iter().filter(|mark| has_word(line, mark)) {
                let message = format!("{mark} is not finished: finish it or file an issue");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::*;

    #[test]
    fn every_mark_is_found_in_every_language() {
        for mark in MARKS {
            for extension in EXTENSIONS {
                let path = format!("a.{extension}");
                let text = format!("first\n  {mark}(later)\n");
                let expected =
                    format!("{path}:2: {mark} is not finished: finish it or file an issue");
                assert_findings(unfinished_marks, &[(&path, &text)], &[&expected]);
            }
        }
    }

    #[test]
    fn a_mark_inside_a_longer_name_is_none() {
        let text = format!("{}S = 1; a{}\n", MARKS[0], MARKS[3]);
        assert_findings(unfinished_marks, &[("a.rs", &text)], &[]);
    }
}
