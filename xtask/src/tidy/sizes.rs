//! A file over the limit is more than one thing, or has a reason.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Finding;
use super::tree::Tree;

const LINES_MAX: usize = 800;
const CONFIG: &str = "xtask/tidy.toml";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Path and reason.
    #[serde(default)]
    large_files: BTreeMap<String, String>,
}

pub(crate) fn file_sizes(tree: &Tree) -> Vec<Finding> {
    let config =
        tree.file(CONFIG).map_or_else(|| Ok(Config::default()), |f| toml::from_str(&f.text));
    let config: Config = match config {
        Ok(config) => config,
        Err(error) => return vec![Finding::new(CONFIG, 0, error.message())],
    };
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        let lines = file.lines().count();
        if lines > LINES_MAX && !config.large_files.contains_key(&file.path) {
            let message = format!("{lines} lines: split it, or give the reason in {CONFIG}");
            findings.push(Finding::new(&file.path, lines, message));
        }
    }
    for (path, reason) in &config.large_files {
        let is_large = tree.file(path).is_some_and(|file| file.lines().count() > LINES_MAX);
        if !is_large {
            findings.push(Finding::new(CONFIG, 0, format!("{path} needs no exception")));
        } else if reason.trim().is_empty() {
            findings.push(Finding::new(CONFIG, 0, format!("{path} has no reason")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::*;

    #[test]
    fn a_large_file_needs_a_reason() {
        let large = "\n".repeat(LINES_MAX + 1);
        let fits = "\n".repeat(LINES_MAX);
        let expected = "a.rs:801: 801 lines: split it, or give the reason in xtask/tidy.toml";
        assert_findings(file_sizes, &[("a.rs", &large), ("b.rs", &fits)], &[expected]);
        let config = "[large_files]\n\"a.rs\" = \"a table\"\n";
        assert_findings(file_sizes, &[("a.rs", &large), (CONFIG, config)], &[]);
    }

    #[test]
    fn an_exception_without_need_or_reason_is_found() {
        let large = "\n".repeat(LINES_MAX + 1);
        let config = "[large_files]\n\"a.rs\" = \" \"\n\"b.rs\" = \"it was large\"\n";
        assert_findings(
            file_sizes,
            &[("a.rs", &large), (CONFIG, config)],
            &[
                "xtask/tidy.toml:0: a.rs has no reason",
                "xtask/tidy.toml:0: b.rs needs no exception",
            ],
        );
    }
}
