//! Ranges of names and keys in their order.

/// A part of a sorted set of texts that all have the score 0, as Redis takes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) begin: Vec<u8>,
    pub(super) end: Vec<u8>,
}

impl Range {
    /// The texts that begin with `prefix` and come after `after`, the first of them first.
    pub(super) fn ascending(prefix: &str, after: Option<&str>) -> Self {
        let begin = match after {
            Some(after) if after >= prefix => [b"(", after.as_bytes()].concat(),
            Some(_) | None => [b"[", prefix.as_bytes()].concat(),
        };
        Self { begin, end: behind(prefix) }
    }

    /// The same from the last on, and those before `after`.
    pub(super) fn descending(prefix: &str, after: Option<&str>) -> Self {
        let begin = match after {
            Some(after) if after < prefix || after.starts_with(prefix) => {
                [b"(", after.as_bytes()].concat()
            }
            Some(_) | None => behind(prefix),
        };
        Self { begin, end: [b"[", prefix.as_bytes()].concat() }
    }
}

/// Just behind all texts with this prefix: none of them has the byte 255.
fn behind(prefix: &str) -> Vec<u8> {
    [b"(", prefix.as_bytes(), b"\xff"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_begins_at_the_prefix_or_behind_the_last_text() {
        for (prefix, after, begin) in
            [("", None, "["), ("b", None, "[b"), ("b", Some("a"), "[b"), ("b", Some("ba"), "(ba")]
        {
            let range = Range::ascending(prefix, after);
            assert_eq!(range.begin, begin.as_bytes(), "{prefix} after {after:?}");
        }
        for (prefix, after, begin) in [
            ("", None, &b"(\xff"[..]),
            ("b", None, b"(b\xff"),
            ("b", Some("c"), b"(b\xff"),
            ("b", Some("ba"), b"(ba"),
            ("b", Some("a"), b"(a"),
        ] {
            let range = Range::descending(prefix, after);
            assert_eq!(range.begin, begin, "{prefix} before {after:?}");
        }
    }
}
