//! A JSON value that is passed on as it was written.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::limits::{PAYLOAD_BYTES_MAX, PAYLOAD_DEPTH_MAX};

/// JSON text that is known to be well-formed, kept byte for byte and cheap to clone.
#[derive(Clone)]
pub struct Payload(Arc<RawValue>);

/// Why a text cannot be a payload.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    /// It is not JSON.
    #[error("not valid JSON")]
    Syntax(#[source] serde_json::Error),
    /// It is larger than [`PAYLOAD_BYTES_MAX`].
    #[error("{bytes} bytes of JSON are over the limit of {PAYLOAD_BYTES_MAX}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It nests deeper than [`PAYLOAD_DEPTH_MAX`].
    #[error("JSON nested more than {PAYLOAD_DEPTH_MAX} levels deep")]
    TooDeep,
    /// It holds a NUL character, which not every store can keep.
    #[error("a string in the JSON holds the character \\u0000, which not every store can keep")]
    Nul,
}

impl Payload {
    /// The value `null`.
    pub fn null() -> Self {
        Self(RawValue::from_string("null".to_owned()).expect("null is JSON").into())
    }

    /// Checks `text` and keeps it.
    pub fn parse(text: &str) -> Result<Self, PayloadError> {
        let text = text.trim();
        if text.len() > PAYLOAD_BYTES_MAX {
            return Err(PayloadError::TooLarge { bytes: text.len() });
        }
        check_shape(text)?;
        let raw = RawValue::from_string(text.to_owned()).map_err(PayloadError::Syntax)?;
        Ok(Self(raw.into()))
    }

    /// The JSON form of `value`, within the limits of [`Payload::parse`].
    pub fn of(value: &impl Serialize) -> Result<Self, PayloadError> {
        let raw = serde_json::value::to_raw_value(value).map_err(PayloadError::Syntax)?;
        if raw.get().len() > PAYLOAD_BYTES_MAX {
            return Err(PayloadError::TooLarge { bytes: raw.get().len() });
        }
        check_shape(raw.get())?;
        Ok(Self(raw.into()))
    }

    /// The text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.get().len()
    }

    /// Reads it as a `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.get())
    }

    /// Reads it as a value of any shape.
    pub fn value(&self) -> serde_json::Value {
        self.read().unwrap_or(serde_json::Value::Null)
    }
}

/// Refuses what some store could not keep, before the parser recurses into it.
fn check_shape(text: &str) -> Result<(), PayloadError> {
    let mut depth = 0_usize;
    let mut in_string = false;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match (in_string, bytes[at]) {
            (true, b'\\') => {
                if bytes[at..].starts_with(b"\\u0000") {
                    return Err(PayloadError::Nul);
                }
                at += 1;
            }
            (_, b'"') => in_string = !in_string,
            (false, b'{' | b'[') => {
                depth += 1;
                if depth > PAYLOAD_DEPTH_MAX {
                    return Err(PayloadError::TooDeep);
                }
            }
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Payload {}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(raw.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_keeps_its_bytes() {
        for text in ["[1, 2]", "18446744073709551616", r#"{"b":1,"a":1.0}"#, "\"x\"", "null"] {
            assert_eq!(Payload::parse(text).unwrap().get(), text);
        }
    }

    #[test]
    fn a_payload_that_no_store_could_keep_is_refused() {
        assert!(matches!(Payload::parse("{} x"), Err(PayloadError::Syntax(_))));
        assert!(matches!(Payload::parse(r#""\u0000""#), Err(PayloadError::Nul)));
        assert!(Payload::parse(r#""\\u0000""#).is_ok());
        assert!(Payload::parse(&("[".repeat(64) + &"]".repeat(64))).is_ok());
        assert!(matches!(Payload::parse(&"[".repeat(100_000)), Err(PayloadError::TooDeep)));
        let large = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES_MAX));
        assert!(matches!(Payload::parse(&large), Err(PayloadError::TooLarge { .. })));
    }
}
