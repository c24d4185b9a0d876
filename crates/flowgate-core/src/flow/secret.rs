//! Secrets by reference: `${secret:NAME}` in the variables of a program and in the headers of a
//! request.
//!
//! A flow holds the name of a secret, never its value: whoever may read a flow, a store or a log
//! sees the name. The instance that executes the step puts the value in its place.

use crate::limits::NAME_BYTES_MAX;

const OPEN: &str = "${secret:";

/// A piece of a text that may name secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretPart<'a> {
    /// As it is.
    Text(&'a str),
    /// The value of the secret of this name.
    Secret(&'a str),
}

/// A reference to a secret that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It does not end.
    #[error("`${{secret:` has no `}}` after it")]
    Open,
    /// It names nothing that could be a secret.
    #[error("`{0}` cannot be the name of a secret")]
    Name(String),
}

/// The pieces of `text`, in order.
pub fn secret_parts(text: &str) -> Result<Vec<SecretPart<'_>>, SecretError> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPEN) {
        let (name, after) = after.split_once('}').ok_or(SecretError::Open)?;
        if !is_secret_name(name) {
            return Err(SecretError::Name(name.escape_debug().to_string()));
        }
        if !before.is_empty() {
            parts.push(SecretPart::Text(before));
        }
        parts.push(SecretPart::Secret(name));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(SecretPart::Text(rest));
    }
    Ok(parts)
}

/// Whether a secret can be called `name`: such a name is part of the name of a variable and the
/// name of a file.
pub fn is_secret_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= NAME_BYTES_MAX
        && bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Whether `text` names a secret.
pub(super) fn names_a_secret(text: &str) -> bool {
    text.split(OPEN)
        .skip(1)
        .any(|after| after.split_once('}').is_some_and(|(name, _)| is_secret_name(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_its_secrets() {
        use SecretPart::{Secret, Text};
        let rows: [(&str, &[SecretPart<'_>]); 5] = [
            ("", &[]),
            ("plain ${HOME} $5", &[Text("plain ${HOME} $5")]),
            ("${secret:A}", &[Secret("A")]),
            ("Bearer ${secret:API_KEY}", &[Text("Bearer "), Secret("API_KEY")]),
            ("${secret:a}:${secret:b}!", &[Secret("a"), Text(":"), Secret("b"), Text("!")]),
        ];
        for (text, expected) in rows {
            assert_eq!(secret_parts(text).unwrap(), expected, "{text}");
            let names = expected.iter().any(|part| matches!(part, Secret(_)));
            assert_eq!(names_a_secret(text), names, "{text}");
        }
    }

    #[test]
    fn a_reference_that_names_nothing_is_refused() {
        assert_eq!(secret_parts("a ${secret:A"), Err(SecretError::Open));
        for name in ["", "../x", "a b", "1st", "a-b", "ä", &"x".repeat(NAME_BYTES_MAX + 1)] {
            let text = format!("${{secret:{name}}}");
            assert!(matches!(secret_parts(&text), Err(SecretError::Name(_))), "{text}");
            assert!(!names_a_secret(&text), "{text}");
        }
    }
}
