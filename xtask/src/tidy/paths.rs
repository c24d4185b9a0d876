//! A tracked file names no folder of the machine that it was written on.

use super::Finding;
use super::tree::Tree;

/// In parts, so that this file does not find itself.
const FOLDERS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];

pub(crate) fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.lines() {
            for folder in FOLDERS.iter().filter(|folder| begins_a_path(line, folder)) {
                let message = format!("{folder} is a folder of one machine");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// Whether the folder stands at the start of a path, and not inside a longer one.
fn begins_a_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || "_-.~}/".contains(letter))
    })
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::*;

    #[test]
    fn every_folder_is_found_in_any_file() {
        for folder in FOLDERS {
            let text = format!("first\npath = \"{folder}x\"\n");
            let expected = format!("a.toml:2: {folder} is a folder of one machine");
            assert_findings(machine_paths, &[("a.toml", &text)], &[&expected]);
        }
    }

    #[test]
    fn a_folder_inside_a_path_is_none() {
        for folder in FOLDERS {
            let text = format!("docs{folder}x https://example.org{folder}x\n");
            assert_findings(machine_paths, &[("a.md", &text)], &[]);
        }
    }
}
