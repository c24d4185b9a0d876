//! Dependencies between our crates run one way.

use super::Finding;
use super::tree::{TextFile, Tree};

/// Our crates, from the top to the bottom: each may use those after it.
const DIRECTION: &[&str] = &[
    "flowgate",
    "flowgate-server",
    "flowgate-traces",
    "flowgate-mqtt",
    "flowgate-engine",
    "flowgate-store",
    "flowgate-core",
];

/// What only tests and chores use. It uses none of our crates, and no product is built with it.
const TESTBED: &str = "flowgate-testbed";

/// The harness that puts instances under faults: it uses both, and no product is built with it.
const CHAOS: &str = "flowgate-chaos";
const CHAOS_MAY_USE: &[&str] = &["flowgate-engine", "flowgate-store", "flowgate-core", TESTBED];

/// What xtask may use: more would make every chore wait for the engine to compile.
const XTASK_MAY_USE: &[&str] = &["flowgate-store", "flowgate-core", TESTBED];

/// The tables of a manifest that hold what a crate is built with.
const BUILD_TABLES: &[&str] = &["dependencies", "build-dependencies"];

pub(crate) fn crate_direction(tree: &Tree) -> Vec<Finding> {
    let is_ours = |file: &&TextFile| {
        file.path == "xtask/Cargo.toml"
            || (file.path.starts_with("crates/") && file.name() == "Cargo.toml")
    };
    tree.files.iter().filter(is_ours).flat_map(check_manifest).collect()
}

fn check_manifest(file: &TextFile) -> Vec<Finding> {
    let manifest: toml::Table = match file.text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::new(&file.path, 0, format!("not TOML: {error}"))],
    };
    let name = manifest.get("package").and_then(|package| package.get("name"));
    let name = name.and_then(toml::Value::as_str).unwrap_or_default();
    let Some(may_use) = may_use(name) else {
        let message = format!("the crate {name} has no place in the direction of crates");
        return vec![Finding::new(&file.path, 0, message)];
    };
    let ours =
        |crate_name: &&String| DIRECTION.contains(&crate_name.as_str()) || *crate_name == TESTBED;
    dependencies(&manifest)
        .iter()
        .filter(ours)
        .filter(|used| !may_use.contains(&used.as_str()))
        .map(|used| {
            let message = format!("{name} may not depend on {used}");
            Finding::new(&file.path, line_of(file, used), message)
        })
        .collect()
}

fn may_use(name: &str) -> Option<&'static [&'static str]> {
    if name == "xtask" {
        return Some(XTASK_MAY_USE);
    }
    if name == TESTBED {
        return Some(&[]);
    }
    if name == CHAOS {
        return Some(CHAOS_MAY_USE);
    }
    let place = DIRECTION.iter().position(|crate_name| *crate_name == name)?;
    Some(&DIRECTION[place + 1..])
}

/// The crates that a manifest is built with, on any platform, by their true names.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let platforms = manifest.get("target").and_then(toml::Value::as_table);
    let tables = platforms.into_iter().flat_map(toml::Table::values);
    let tables = tables.filter_map(toml::Value::as_table).chain([manifest]);
    tables
        .flat_map(|table| BUILD_TABLES.iter().filter_map(|kind| table.get(*kind)))
        .filter_map(toml::Value::as_table)
        .flat_map(|crates| {
            crates.iter().map(|(name, value)| {
                let renamed = value.get("package").and_then(toml::Value::as_str);
                renamed.unwrap_or(name).to_owned()
            })
        })
        .collect()
}

fn line_of(file: &TextFile, crate_name: &str) -> usize {
    let names_it = |line: &str| {
        let rest = line.trim_start().strip_prefix(crate_name);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    file.lines().find(|(_, line)| names_it(line)).map_or(0, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::super::assert_findings;
    use super::*;

    fn check(path: &str, manifest: &str, expected: &[&str]) {
        assert_findings(crate_direction, &[(path, manifest)], expected);
    }

    #[test]
    fn a_crate_may_use_those_below_it_only() {
        check(
            "crates/flowgate-store/Cargo.toml",
            "[package]\nname = \"flowgate-store\"\n[dependencies]\nflowgate-core.workspace = true\n",
            &[],
        );
        check(
            "crates/flowgate-core/Cargo.toml",
            "[package]\nname = \"flowgate-core\"\n[dependencies]\nflowgate-store.workspace = true\n",
            &["crates/flowgate-core/Cargo.toml:4: flowgate-core may not depend on flowgate-store"],
        );
    }

    #[test]
    fn what_only_tests_use_is_free() {
        check(
            "crates/flowgate-store/Cargo.toml",
            "[package]\nname = \"flowgate-store\"\n[dev-dependencies]\nflowgate-store = {}\n",
            &[],
        );
    }

    #[test]
    fn neither_a_platform_nor_another_name_hides_a_dependency() {
        check(
            "crates/flowgate-core/Cargo.toml",
            "[package]\nname = \"flowgate-core\"\n[target.'cfg(unix)'.build-dependencies]\n\
             x = { package = \"flowgate\" }\n",
            &["crates/flowgate-core/Cargo.toml:0: flowgate-core may not depend on flowgate"],
        );
    }

    #[test]
    fn xtask_may_use_the_store_but_not_the_engine() {
        check(
            "xtask/Cargo.toml",
            "[package]\nname = \"xtask\"\n[dependencies]\nflowgate-store = {}\nflowgate-engine = {}\n",
            &["xtask/Cargo.toml:5: xtask may not depend on flowgate-engine"],
        );
    }

    #[test]
    fn no_product_is_built_with_the_testbed_and_it_uses_no_product() {
        check(
            "crates/flowgate/Cargo.toml",
            "[package]\nname = \"flowgate\"\n[dependencies]\nflowgate-testbed = {}\n",
            &["crates/flowgate/Cargo.toml:4: flowgate may not depend on flowgate-testbed"],
        );
        check(
            "crates/flowgate-testbed/Cargo.toml",
            "[package]\nname = \"flowgate-testbed\"\n[dependencies]\nflowgate-core = {}\n",
            &["crates/flowgate-testbed/Cargo.toml:4: flowgate-testbed may not depend on \
               flowgate-core"],
        );
        check(
            "xtask/Cargo.toml",
            "[package]\nname = \"xtask\"\n[dependencies]\nflowgate-testbed = {}\n",
            &[],
        );
    }

    #[test]
    fn a_new_crate_must_take_its_place() {
        check(
            "crates/flowgate-extra/Cargo.toml",
            "[package]\nname = \"flowgate-extra\"\n",
            &["crates/flowgate-extra/Cargo.toml:0: the crate flowgate-extra has no place in the \
               direction of crates"],
        );
    }
}
