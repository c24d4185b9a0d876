//! Everything that was ever stored is still read, and written as it was.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use flowgate_core::commit::Job;
use flowgate_core::event::{Event, FORMAT};
use flowgate_core::run::Run;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/formats/v1");
    let mut files: Vec<(String, String)> = fs::read_dir(folder)
        .expect("the folder of version 1 is there")
        .map(|entry| entry.expect("the folder can be listed").path())
        .map(|path| {
            let name =
                path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(path).expect("the file can be read"))
        })
        .collect();
    files.sort();
    files
}

fn check_round_trip<T: Serialize + DeserializeOwned>(name: &str, text: &str) -> T {
    let value: T = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(
        serde_json::to_string(&value).expect("it has a JSON form"),
        text.trim_end(),
        "{name}"
    );
    value
}

#[test]
fn every_stored_form_of_version_1_is_read_and_written_back_unchanged() {
    assert_eq!(FORMAT, 1, "a new version needs a folder of its own here");
    let mut kinds = BTreeSet::new();
    for (name, text) in files() {
        match name.as_str() {
            "record.json" => drop(check_round_trip::<Run>(&name, &text)),
            "job.json" => drop(check_round_trip::<Job>(&name, &text)),
            _ => {
                let event: Event = check_round_trip(&name, &text);
                assert!(name.starts_with(event.kind()), "{name} holds {}", event.kind());
                kinds.insert(event.kind());
            }
        }
    }
    assert_eq!(kinds.len(), 25, "each kind of event has a file: {kinds:?}");
}

#[test]
fn a_field_that_a_newer_version_added_does_not_stop_an_older_reader() {
    for (name, text) in files() {
        let newer = text.trim_end().replacen("\"data\":{", "\"data\":{\"added_later\":1,", 1);
        let newer = newer.replace("1,}", "1}");
        if newer.contains("added_later") {
            let read: Result<Event, _> = serde_json::from_str(&newer);
            assert!(read.is_ok(), "{name}: {newer}");
        }
    }
}
