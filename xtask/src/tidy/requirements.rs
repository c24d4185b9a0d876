//! docs/requirements.md names every requirement once, in order, and says what meets it.

use std::collections::BTreeSet;

use super::Finding;
use super::test_names::TestNames;
use super::tree::{TextFile, Tree};

const DOCUMENT: &str = "docs/requirements.md";

/// The seeds, and how many requirements each of them has.
const SEEDS: &[(&str, usize)] = &[("C0", 134), ("C1", 70), ("C2", 23), ("C3", 142), ("C4", 95)];

const NOT_YET: &str = "not yet";

/// One row of a table.
#[derive(Debug)]
struct Row<'a> {
    line: usize,
    id: &'a str,
    met_by: &'a str,
}

pub(crate) fn requirements(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.file(DOCUMENT) else {
        return vec![Finding::new(DOCUMENT, 0, "this document is missing")];
    };
    let (rows, mut findings) = rows(document);
    findings.extend(check_ids(&rows));
    let tests = TestNames::read(tree);
    for row in &rows {
        for fault in faults(row.met_by, tree, &tests) {
            findings.push(Finding::new(DOCUMENT, row.line, format!("{}: {fault}", row.id)));
        }
    }
    findings
}

fn rows(document: &TextFile) -> (Vec<Row<'_>>, Vec<Finding>) {
    let mut rows = Vec::new();
    let mut findings = Vec::new();
    for (line, text) in document.lines().filter(|(_, text)| text.starts_with("| C")) {
        let cells = text.trim().trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
        match cells[..] {
            [id, _, met_by] => rows.push(Row { line, id, met_by }),
            _ => findings.push(Finding::new(DOCUMENT, line, "a row has three cells")),
        }
    }
    (rows, findings)
}

fn check_ids(rows: &[Row<'_>]) -> Vec<Finding> {
    let expected: Vec<String> = SEEDS
        .iter()
        .flat_map(|(seed, count)| (1..=*count).map(move |number| format!("{seed}-{number:03}")))
        .collect();
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    let mut place_min = 0;
    for row in rows {
        let Some(place) = expected.iter().position(|id| id == row.id) else {
            let message = format!("{} is no requirement", row.id);
            findings.push(Finding::new(DOCUMENT, row.line, message));
            continue;
        };
        if !seen.insert(row.id) {
            let message = format!("{} is there twice", row.id);
            findings.push(Finding::new(DOCUMENT, row.line, message));
        } else if place < place_min {
            let message = format!("{} is out of order", row.id);
            findings.push(Finding::new(DOCUMENT, row.line, message));
        }
        place_min = place_min.max(place);
    }
    let missing = expected.iter().filter(|id| !seen.contains(id.as_str()));
    findings.extend(missing.map(|id| Finding::new(DOCUMENT, 0, format!("{id} is missing"))));
    findings
}

/// What is wrong with a cell that says by what a requirement is met.
fn faults(met_by: &str, tree: &Tree, tests: &TestNames) -> Vec<String> {
    if met_by == NOT_YET {
        return Vec::new();
    }
    met_by.split(',').filter_map(|proof| fault(proof.trim(), tree, tests)).collect()
}

fn fault(proof: &str, tree: &Tree, tests: &TestNames) -> Option<String> {
    let quoted = proof.strip_prefix('`').and_then(|proof| proof.strip_suffix('`'));
    match quoted.and_then(|proof| proof.split_once(' ')) {
        Some(("test", name)) => (!tests.contains(name)).then(|| format!("there is no test {name}")),
        Some(("doc", place)) => missing_place(place, tree),
        _ => Some(format!("write {NOT_YET}, `test NAME` or `doc PATH`, not {proof:?}")),
    }
}

fn missing_place(place: &str, tree: &Tree) -> Option<String> {
    let (path, heading) = place.split_once('#').map_or((place, None), |(p, h)| (p, Some(h)));
    if !tree.root.join(path).is_file() {
        return Some(format!("there is no file {path}"));
    }
    let heading = heading?;
    let is_there = tree.file(path).is_some_and(|file| slugs(file).contains(heading));
    (!is_there).then(|| format!("{path} has no heading #{heading}"))
}

/// The headings of a document, as links to them are written.
fn slugs(document: &TextFile) -> BTreeSet<String> {
    let mut is_code = false;
    let mut slugs = BTreeSet::new();
    for (_, line) in document.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && line.starts_with('#') {
            slugs.insert(slug(line.trim_start_matches('#').trim()));
        }
    }
    slugs
}

fn slug(heading: &str) -> String {
    let letters = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    letters.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::*;

    /// Every requirement, as a row that says `not yet`.
    fn table() -> Vec<String> {
        let ids = SEEDS.iter().flat_map(|(seed, count)| (1..=*count).map(move |n| (seed, n)));
        ids.map(|(seed, n)| format!("| {seed}-{n:03} | words | {NOT_YET} |")).collect()
    }

    fn check(change: impl FnOnce(&mut Vec<String>), expected: &[&str]) {
        let mut rows = table();
        change(&mut rows);
        let files = [
            (DOCUMENT, rows.join("\n").as_str()),
            ("crates/a/src/a.rs", "#[test]\nfn it_holds() {}\n"),
            ("docs/guide.md", "# Guide\n```\n# not this\n```\n## The `run` verb: how?\n"),
        ]
        .map(|(path, text)| (path, text.to_owned()));
        let files: Vec<_> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        assert_findings(requirements, &files, expected);
    }

    fn check_proof(proof: &str, expected: &[&str]) {
        check(|rows| rows[0] = format!("| C0-001 | words | {proof} |"), expected);
    }

    #[test]
    fn every_requirement_is_there_once_and_in_order() {
        assert_eq!(table().len(), 464);
        check(|_| {}, &[]);
        check(|rows| drop(rows.remove(463)), &["docs/requirements.md:0: C4-095 is missing"]);
        check(
            |rows| rows.insert(1, rows[0].clone()),
            &["docs/requirements.md:2: C0-001 is there twice"],
        );
        check(|rows| rows.swap(0, 1), &["docs/requirements.md:2: C0-001 is out of order"]);
        check(
            |rows| rows.push("| C5-001 | words | not yet |".into()),
            &["docs/requirements.md:465: C5-001 is no requirement"],
        );
        check(
            |rows| rows.push("| C4-095 | wo | rds | not yet |".into()),
            &["docs/requirements.md:465: a row has three cells"],
        );
    }

    #[test]
    fn a_document_must_exist() {
        assert_findings(requirements, &[], &["docs/requirements.md:0: this document is missing"]);
    }

    #[test]
    fn what_meets_a_requirement_exists() {
        check_proof("`test it_holds`", &[]);
        check_proof("`test it_holds`, `doc docs/guide.md`", &[]);
        check_proof("`doc docs/guide.md#the-run-verb-how`", &[]);
        check_proof(
            "`test it_holds`, `test it_never_was`",
            &["docs/requirements.md:1: C0-001: there is no test it_never_was"],
        );
        check_proof(
            "`doc docs/none.md`",
            &["docs/requirements.md:1: C0-001: there is no file docs/none.md"],
        );
        check_proof(
            "`doc docs/guide.md#not-this`",
            &["docs/requirements.md:1: C0-001: docs/guide.md has no heading #not-this"],
        );
    }

    #[test]
    fn a_cell_says_nothing_else() {
        for cell in ["", "done", "`test`", "test it_holds"] {
            let advice = "write not yet, `test NAME` or `doc PATH`, not";
            let expected = format!("docs/requirements.md:1: C0-001: {advice} {cell:?}");
            check_proof(cell, &[&expected]);
        }
    }
}
