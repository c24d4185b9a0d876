//! What messages have in common that differ in numbers and ids alone.

/// The message without what differs from case to case: numbers are `N`, ids are `ID`.
pub fn gist(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let mut text = String::with_capacity(line.len());
    let is_word = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let end = match rest.find(|c: char| is_word(c) != is_word(first)) {
            Some(end) => end,
            None => rest.len(),
        };
        let (part, after) = rest.split_at(end);
        if is_word(first) {
            push_word(&mut text, part);
        } else {
            text.push_str(part);
        }
        rest = after;
    }
    text
}

/// An id has letters and digits in one, or is a long hexadecimal number.
fn push_word(text: &mut String, word: &str) {
    const ID_LETTERS_MIN: usize = 8;
    let has_digit = word.contains(|c: char| c.is_ascii_digit());
    if !has_digit {
        text.push_str(word);
    } else if word.len() >= ID_LETTERS_MIN
        && word.contains(|c: char| c.is_alphabetic())
        && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
    {
        text.push_str("ID");
    } else {
        let mut was_digit = false;
        for c in word.chars() {
            match (c.is_ascii_digit(), was_digit) {
                (true, true) => {}
                (true, false) => text.push('N'),
                (false, _) => text.push(c),
            }
            was_digit = c.is_ascii_digit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_differ_in_numbers_and_ids_alone_have_one_gist() {
        let rows = [
            ("order 17 has 3 lines", "order N has N lines"),
            ("no run 01890a5d-ac96-774b-bcce-b302099a8057", "no run ID"),
            ("commit deadbeef01 is gone", "commit ID is gone"),
            ("connect to 10.0.0.7:5432 failed", "connect to N.N.N.N:N failed"),
            ("took 12ms at v2", "took Nms at vN"),
            ("no such card\nat line 7", "no such card"),
            ("defaced facade", "defaced facade"),
            ("", ""),
        ];
        for (message, expected) in rows {
            assert_eq!(gist(message), expected, "{message}");
        }
    }
}
