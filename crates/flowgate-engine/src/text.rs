//! Text from outside, made fit to be stored.

use std::borrow::Cow;

/// `text` within `bytes_max`, cut at a character and marked, and without the NUL characters that
/// not every store can keep.
pub(crate) fn fit(text: &str, bytes_max: usize) -> Cow<'_, str> {
    let mut fitted = Cow::Borrowed(text);
    if text.len() > bytes_max {
        let note = format!("… ({} bytes in all)", text.len());
        let end = text.floor_char_boundary(bytes_max.saturating_sub(note.len()));
        fitted = Cow::Owned(format!("{}{note}", &text[..end]));
    }
    if fitted.contains('\0') {
        // One byte becomes one byte, so that the text stays within its limit.
        fitted = Cow::Owned(fitted.replace('\0', "?"));
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_a_character_and_says_so() {
        assert_eq!(fit("short", 10), "short");
        let cut = fit(&"é".repeat(100), 61).into_owned();
        assert!(cut.len() <= 61 && cut.starts_with("éé") && cut.ends_with("(200 bytes in all)"));
        assert_eq!(fit("a\0b", 10), "a?b");
    }
}
