//! JSON from the command line: as it stands, from `@FILE`, or from stdin with `-`.

use std::collections::BTreeMap;
use std::io::Read;

use flowgate_core::limits::PAYLOAD_BYTES_MAX;
use flowgate_core::payload::Payload;

use crate::failure::{Exit, Failure};

/// Reads the value of the flag `flag`.
pub(crate) fn read(flag: &str, text: &str) -> Result<Payload, Failure> {
    let (from, json) = match text.strip_prefix('@') {
        Some(path) => (path.to_owned(), read_file(flag, path)?),
        None if text == "-" => ("stdin".to_owned(), read_bounded(flag, "stdin", std::io::stdin())?),
        None => (flag.to_owned(), text.to_owned()),
    };
    Payload::parse(&json).map_err(|error| {
        Failure::usage("input_invalid", format!("{from} is no input"))
            .source(error)
            .help(format!(
                "write {flag} '{{\"name\": \"value\"}}', {flag} @FILE, or {flag} - to read stdin"
            ))
            .path(from)
    })
}

fn read_file(flag: &str, path: &str) -> Result<String, Failure> {
    let file = std::fs::File::open(path).map_err(|error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        let exit = if is_missing { Exit::NotFound } else { Exit::Usage };
        Failure::new(exit, "input_invalid", format!("cannot read {path} for {flag}"))
            .source(error)
            .path(path)
    })?;
    read_bounded(flag, path, file)
}

/// Reads one byte more than a payload may have, so that a larger one is refused as too large.
fn read_bounded(flag: &str, from: &str, reader: impl Read) -> Result<String, Failure> {
    let bytes_max = u64::try_from(PAYLOAD_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let mut text = String::new();
    reader.take(bytes_max).read_to_string(&mut text).map_err(|error| {
        Failure::usage("input_invalid", format!("cannot read {from} for {flag}"))
            .source(error)
            .path(from)
    })?;
    Ok(text)
}

/// Reads `name=value`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("write NAME=VALUE, such as customer=42".to_owned()),
    }
}

/// The tags of a command line, in which a name has one value.
pub(crate) fn tags(pairs: &[(String, String)]) -> Result<BTreeMap<String, String>, Failure> {
    let mut tags = BTreeMap::new();
    for (name, value) in pairs {
        if tags.insert(name.clone(), value.clone()).is_some_and(|before| before != *value) {
            let message = format!("the tag `{name}` has two values");
            let help = format!("write --tag {name}=VALUE once");
            return Err(Failure::usage("tag_repeated", message).help(help).path("--tag"));
        }
    }
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_not_json_is_refused_with_its_place() {
        assert_eq!(read("--input", "{\"a\": 1}").unwrap().get(), "{\"a\": 1}");
        let failure = read("--input", "{a: 1}").unwrap_err();
        let cause = "--input is no input: not valid JSON: key must be a string at line 1 column 2";
        assert_eq!(failure.cause(), cause);
        assert_eq!(read("--input", "@no/such/file").unwrap_err().exit, Exit::NotFound);
    }

    #[test]
    fn a_pair_has_a_name() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(pair("a").is_err());
        assert!(pair("=b").is_err());
    }

    #[test]
    fn a_tag_has_one_value() {
        let pairs =
            |texts: &[&str]| texts.iter().map(|text| pair(text).unwrap()).collect::<Vec<_>>();
        assert_eq!(tags(&pairs(&["a=1", "b=2", "a=1"])).unwrap().len(), 2);
        assert_eq!(tags(&pairs(&["a=1", "a=2"])).unwrap_err().exit, Exit::Usage);
    }
}
