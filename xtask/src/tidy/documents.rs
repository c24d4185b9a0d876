//! Which documents there are, and what a decision record looks like.

use super::Finding;
use super::tree::{TextFile, Tree};

const ROOT_DOCUMENTS: &[&str] =
    &["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"];

const RECORDS: &str = "docs/adr/";
const RECORD_HEADINGS: &[&str] = &["## Context", "## Decision", "## Consequences"];
const RECORD_LINES_MAX: usize = 60;
const RECORD_NUMBER_DIGITS: usize = 4;

pub(crate) fn root_documents(tree: &Tree) -> Vec<Finding> {
    let is_in_root = |file: &&TextFile| !file.path.contains('/');
    tree.with_extension(&["md"])
        .filter(is_in_root)
        .filter(|file| !ROOT_DOCUMENTS.contains(&file.path.as_str()))
        .map(|file| Finding::new(&file.path, 0, "this document belongs into docs/"))
        .collect()
}

pub(crate) fn decision_records(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut number_next = 1;
    for file in tree.files.iter().filter(|file| file.path.starts_with(RECORDS)) {
        let Some(number) = record_number(file.name()) else {
            findings.push(Finding::new(&file.path, 0, "a record is named NNNN-title.md"));
            continue;
        };
        if number != number_next {
            let message = format!("the number should be {number_next:04}");
            findings.push(Finding::new(&file.path, 0, message));
        }
        number_next = number + 1;
        findings.extend(check_record(file));
    }
    findings
}

fn check_record(file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for heading in RECORD_HEADINGS {
        if !file.lines().any(|(_, line)| line.trim_end() == *heading) {
            findings.push(Finding::new(&file.path, 0, format!("the heading {heading} is missing")));
        }
    }
    let lines = file.lines().count();
    if lines > RECORD_LINES_MAX {
        let message = format!("a record has at most {RECORD_LINES_MAX} lines");
        findings.push(Finding::new(&file.path, lines, message));
    }
    findings
}

/// The number of a record whose file is named as it should be.
fn record_number(name: &str) -> Option<u32> {
    let (number, title) = name.strip_suffix(".md")?.split_once('-')?;
    let is_title = !title.is_empty()
        && title.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let is_number =
        number.len() == RECORD_NUMBER_DIGITS && number.bytes().all(|b| b.is_ascii_digit());
    if is_title && is_number { number.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::*;

    const RECORD: &str = "# 1. A title\n\n## Context\n\n## Decision\n\n## Consequences\n";

    #[test]
    fn an_unknown_document_in_the_root_is_found() {
        assert_findings(
            root_documents,
            &[("README.md", ""), ("NOTES.md", ""), ("docs/guide.md", "")],
            &["NOTES.md:0: this document belongs into docs/"],
        );
    }

    #[test]
    fn records_are_numbered_without_gap_and_double() {
        assert_findings(
            decision_records,
            &[("docs/adr/0001-a.md", RECORD), ("docs/adr/0002-b-2.md", RECORD)],
            &[],
        );
        assert_findings(
            decision_records,
            &[
                ("docs/adr/0002-a.md", RECORD),
                ("docs/adr/0002-b.md", RECORD),
                ("docs/adr/0003-c.md", RECORD),
            ],
            &[
                "docs/adr/0002-a.md:0: the number should be 0001",
                "docs/adr/0002-b.md:0: the number should be 0003",
            ],
        );
    }

    #[test]
    fn a_record_is_named_by_number_and_title() {
        for name in ["1-a.md", "0001-A.md", "0001.md", "0001-.md", "0001-a.txt"] {
            let path = format!("docs/adr/{name}");
            let expected = format!("{path}:0: a record is named NNNN-title.md");
            assert_findings(decision_records, &[(&path, RECORD)], &[&expected]);
        }
    }

    #[test]
    fn a_record_is_complete_and_short() {
        let text = format!("# 1. A title\n\n## Context\n\n## Decision\n{}", "\n".repeat(60));
        assert_findings(
            decision_records,
            &[("docs/adr/0001-a.md", &text)],
            &[
                "docs/adr/0001-a.md:0: the heading ## Consequences is missing",
                "docs/adr/0001-a.md:65: a record has at most 60 lines",
            ],
        );
    }
}
