//! Names and numbers in requests, refused before anybody looks them up.

use flowgate_core::ids::is_identifier;
use serde::de::{Deserialize, Deserializer, Error, Unexpected};

use crate::error::ApiError;

/// Bytes of what may be meant as a name at all.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// The largest whole number that every reader of JSON keeps exactly.
const INTEGER_MAX: u64 = 1 << 53;

/// Refuses what cannot be the name of anything.
pub(crate) fn check(field: &str, name: &str) -> Result<(), ApiError> {
    if is_identifier(name) {
        return Ok(());
    }
    if name.len() > TEXT_BYTES_MAX {
        let message = format!("the name has {} bytes", name.len());
        return Err(ApiError::invalid("too_long", message).path(field));
    }
    let shown: String = name.escape_debug().take(200).collect();
    Err(ApiError::invalid("identifier_invalid", format!("nothing is called `{shown}`"))
        .path(field)
        .help("a name begins with an ASCII letter or digit and goes on with letters, digits, `_`, `-` and single `.`, up to 128"))
}

/// Reads a whole number that no reader of JSON rounds.
pub(crate) fn exact<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(deserializer)?;
    if number > INTEGER_MAX {
        let expected = "a whole number up to 2^53";
        return Err(D::Error::invalid_value(Unexpected::Unsigned(number), &expected));
    }
    Ok(number)
}

/// The same where there may be none.
pub(crate) fn exact_if_any<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    #[derive(serde::Deserialize)]
    struct Exact(#[serde(deserialize_with = "exact")] u64);
    Ok(Option::<Exact>::deserialize(deserializer)?.map(|Exact(number)| number))
}
