//! The description of the API.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use flowgate_server::{document, matrix};
use serde_json::Value;

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

fn described() -> Value {
    serde_json::to_value(document()).expect("it is JSON")
}

fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let paths = document["paths"].as_object().expect("it has paths");
    let of_path = |(path, item): (&String, &'_ Value)| {
        let path = path.clone();
        let known = METHODS.iter().filter(|method| !item[**method].is_null());
        known.map(|method| (method.to_uppercase(), path.clone(), (*method).to_owned())).collect()
    };
    let all: Vec<(String, String, String)> =
        paths.iter().flat_map(|item| -> Vec<_> { of_path(item) }).collect();
    all.into_iter()
        .map(|(method, path, key)| {
            let operation = &document["paths"][&path][&key];
            (method, path, operation)
        })
        .collect()
}

#[test]
fn every_route_is_in_the_document_and_the_other_way_round() {
    let document = described();
    let told: BTreeSet<_> =
        operations(&document).into_iter().map(|(method, path, _)| (method, path)).collect();
    let routes: BTreeSet<_> =
        matrix().into_iter().map(|entry| (entry.method, entry.path)).collect();
    assert_eq!(told, routes);
    assert!(routes.len() > 30, "{}", routes.len());
}

#[test]
fn every_operation_says_what_it_does_and_answers_and_what_varies_in_its_path() {
    let document = described();
    for (method, path, operation) in operations(&document) {
        let place = format!("{method} {path}");
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{place}");
        assert!(operation["tags"].as_array().is_some_and(|tags| tags.len() == 1), "{place}");
        let responses = operation["responses"].as_object().expect("it answers");
        assert!(responses.keys().any(|status| status.starts_with('2')), "{place}");
        let described = |response: &Value| {
            response["description"].as_str().is_some_and(|text| !text.is_empty())
        };
        assert!(responses.values().all(described), "{place}: {responses:?}");
        let empty = Vec::new();
        let parameters = operation["parameters"].as_array().unwrap_or(&empty);
        let in_path: BTreeSet<_> = (parameters.iter())
            .filter(|parameter| parameter["in"] == "path")
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        let parts = path.split('/').filter_map(|part| part.strip_prefix('{'));
        let varying: BTreeSet<_> = parts.filter_map(|part| part.strip_suffix('}')).collect();
        assert_eq!(in_path, varying, "{place}");
    }
}

#[test]
fn every_schema_that_is_referred_to_is_there_and_operations_have_names_of_their_own() {
    let document = described();
    let text = document.to_string();
    let schemas = document["components"]["schemas"].as_object().expect("it has schemas");
    for part in text.split("\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap_or_default();
        assert!(schemas.contains_key(name), "{name}");
    }
    let names: Vec<String> = (operations(&document).iter())
        .map(|(_, _, operation)| operation["operationId"].to_string())
        .collect();
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
}

#[test]
fn every_code_of_a_refusal_has_a_heading_in_the_guide() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(root.join("../../docs/guide/api.md")).expect("it is there");
    let mut codes = BTreeSet::new();
    for path in sources(&root.join("src")) {
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        codes.extend(codes_in(&text.split_whitespace().collect::<String>()));
    }
    assert!(codes.len() > 50, "{codes:?}");
    let missing: Vec<_> =
        codes.iter().filter(|code| !guide.contains(&format!("\n### `{code}`\n"))).collect();
    assert!(missing.is_empty(), "docs/guide/api.md has no heading for {missing:?}");
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("it can be read");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    let below = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    paths.flat_map(below).collect()
}

/// The codes in a source without its spaces.
fn codes_in(text: &str) -> Vec<String> {
    let before = [
        "ApiError::invalid(\"",
        "Self::invalid(\"",
        "bad_request(\"",
        "not_found(\"",
        "conflict(\"",
        "unavailable(\"",
        "FORBIDDEN,\"",
        "UNAUTHORIZED,\"",
        "URI_TOO_LONG,\"",
        "MISDIRECTED_REQUEST,\"",
        "UNSUPPORTED_MEDIA_TYPE,\"",
        "PAYLOAD_TOO_LARGE,\"",
        "REQUEST_TIMEOUT,\"",
        "TOO_MANY_REQUESTS,\"",
        "METHOD_NOT_ALLOWED,\"",
        "INTERNAL_SERVER_ERROR,\"",
        "unwrap_or(\"",
        "Some(\"",
        "code:\"",
    ];
    let is_code = |word: &str| {
        word.contains('_') && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let all = before.iter().flat_map(|before| text.split(before).skip(1));
    let words = all.filter_map(|rest| rest.split('"').next());
    words.filter(|word| is_code(word)).map(str::to_owned).collect()
}
