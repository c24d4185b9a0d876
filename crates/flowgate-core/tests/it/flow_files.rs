//! Every file under `broken/` is refused with the text in the snapshot; every file under `valid/`
//! is accepted.

use std::fs;
use std::path::{Path, PathBuf};

use flowgate_core::flow::{Flow, FlowFile};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(name)
}

/// The names and texts of the files in a folder, by name.
pub(crate) fn files(name: &str) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = fs::read_dir(folder(name))
        .expect("the folder is here")
        .map(|entry| {
            let entry = entry.expect("the folder can be listed");
            let name = entry.file_name().into_string().expect("our names are UTF-8");
            (name, fs::read_to_string(entry.path()).expect("our files are UTF-8"))
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_broken_file_names_the_cause_and_the_way_out() {
    let told: Vec<String> = files("broken")
        .iter()
        .map(|(name, text)| match Flow::parse(text) {
            Ok(_) => panic!("{name} is accepted"),
            Err(errors) => errors.in_file(name).to_string(),
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn a_valid_file_is_accepted_and_survives_being_written_as_json() {
    for (name, text) in files("valid") {
        let flow = match Flow::parse(&text) {
            Ok(flow) => flow,
            Err(errors) => panic!("{}", errors.in_file(&name)),
        };
        let json = serde_json::to_string(&flow.file).unwrap();
        let again = Flow::parse(&json).unwrap();
        assert_eq!(again.file, flow.file, "{name}");
        assert_eq!(again.revision, flow.revision, "{name}");
        let by_json: FlowFile = serde_json::from_str(&json).unwrap();
        assert_eq!(by_json, flow.file, "{name}");
    }
}
