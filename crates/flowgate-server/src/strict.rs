//! JSON that means the same to everybody: checked once, before anything reads it.
//!
//! The stores differ in what they keep, and parsers in what they overlook. So what one of them
//! would refuse, round or drop is refused here, with the same code whatever the store is.

use std::collections::HashSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};

use crate::error::ApiError;

/// How deep values may nest.
const DEPTH_MAX: usize = flowgate_core::limits::PAYLOAD_DEPTH_MAX;
/// Keys of one object.
const KEYS_MAX: usize = 10_000;
/// Bytes of a key.
const KEY_BYTES_MAX: usize = 64 << 10;
/// Marks the errors of this module within those of the parser.
const MARK: &str = "\u{1}";

/// Checks `text`.
pub(crate) fn check(text: &str) -> Result<(), ApiError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    // Depth is counted here; the parser's own bound is left as a second one.
    let checked = Check { depth: 0 }.deserialize(&mut deserializer);
    checked.and_then(|()| deserializer.end()).map_err(|error| refusal(&error))
}

fn refusal(error: &serde_json::Error) -> ApiError {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    let place = format!("line {line}, column {column}");
    if let Some((_, marked)) = text.split_once(MARK) {
        let (code, message) = marked.split_once(' ').unwrap_or((marked, ""));
        let message = format!("{message} ({place})");
        return match code {
            "json_duplicate_key" => ApiError::bad_request("json_duplicate_key", message),
            "json_too_deep" => ApiError::bad_request("json_too_deep", message),
            "nul_not_allowed" => ApiError::invalid("nul_not_allowed", message),
            "too_many_keys" => ApiError::invalid("too_many_keys", message),
            _ => ApiError::invalid("too_long", message),
        };
    }
    let message = format!("the body is not valid JSON: {text} ({place})");
    if text.starts_with("recursion limit") {
        ApiError::bad_request("json_too_deep", message)
    } else if text.starts_with("number out of range") {
        ApiError::bad_request("number_out_of_range", message)
    } else if text.contains("surrogate") || text.contains("escape") || text.contains("code point") {
        ApiError::bad_request("json_string", message)
    } else {
        ApiError::bad_request("json_syntax", message)
    }
}

/// Reads a value and keeps nothing of it.
#[derive(Clone, Copy)]
struct Check {
    depth: usize,
}

impl Check {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth == DEPTH_MAX {
            return Err(E::custom(format!(
                "{MARK}json_too_deep values nest more than {DEPTH_MAX} levels deep"
            )));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Check {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

fn no_nul<E: serde::de::Error>(text: &str) -> Result<(), E> {
    if text.contains('\0') {
        return Err(E::custom(format!(
            "{MARK}nul_not_allowed a string holds the character \\u0000, which not every store can keep"
        )));
    }
    Ok(())
}

impl<'de> Visitor<'de> for Check {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        no_nul(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while seq.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            no_nul(&key)?;
            if key.len() > KEY_BYTES_MAX {
                let message = format!("{MARK}too_long a key has more than {KEY_BYTES_MAX} bytes");
                return Err(A::Error::custom(message));
            }
            if keys.len() == KEYS_MAX {
                let message =
                    format!("{MARK}too_many_keys an object has more than {KEYS_MAX} keys");
                return Err(A::Error::custom(message));
            }
            if keys.contains(&key) {
                let key: String = key.chars().take(64).collect();
                let message = format!("{MARK}json_duplicate_key the key `{key}` is there twice");
                return Err(A::Error::custom(message));
            }
            keys.insert(key);
            map.next_value_seed(inner)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        check(text).map_or_else(|error| error.code.into_owned(), |()| "fine".to_owned())
    }

    #[test]
    fn what_means_the_same_to_everybody_is_fine() {
        for text in ["null", r#"{"a":[1,2,{"b":"\\u0000"}]}"#, "18446744073709551616", "\"é\""] {
            assert_eq!(code(text), "fine", "{text}");
        }
        assert_eq!(code(&("[".repeat(64) + &"]".repeat(64))), "fine");
    }

    #[test]
    fn what_does_not_is_refused_with_its_own_code() {
        assert_eq!(code("not json"), "json_syntax");
        assert_eq!(code("{} trailing"), "json_syntax");
        assert_eq!(code("\u{feff}{}"), "json_syntax");
        assert_eq!(code(&"[".repeat(65)), "json_too_deep");
        assert_eq!(code(&"[".repeat(100_000)), "json_too_deep");
        assert_eq!(code(r#""\ud800""#), "json_string");
        assert_eq!(code(r#"{"\u0000":1}"#), "nul_not_allowed");
        assert_eq!(code(r#"["a\u0000"]"#), "nul_not_allowed");
        assert_eq!(code(r#"{"a":1,"a":2}"#), "json_duplicate_key");
        assert_eq!(code("1e400"), "number_out_of_range");
        assert_eq!(code("NaN"), "json_syntax");
        let keys: Vec<String> = (0..20_000).map(|n| format!("\"k{n}\":1")).collect();
        assert_eq!(code(&format!("{{{}}}", keys.join(","))), "too_many_keys");
    }

    #[test]
    fn a_refusal_names_the_place() {
        let message = check("{\n  \"a\": nope }").unwrap_err().message;
        assert!(message.contains("line 2, column"), "{message}");
    }
}
