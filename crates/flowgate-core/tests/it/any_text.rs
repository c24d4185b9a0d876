//! No text makes the reader panic, and every error has a place within the text.

use flowgate_core::flow::Flow;
use proptest::prelude::*;

use crate::flow_files::files;

fn check(text: &str) {
    let Err(errors) = Flow::parse(text) else { return };
    // A file that ends too early is wrong on the line behind its last.
    let lines = u64::try_from(text.lines().count()).expect("a count fits") + 1;
    assert!(!errors.as_slice().is_empty());
    for error in errors.as_slice() {
        assert!((1..=lines.max(1)).contains(&error.line), "{error} in {text:?}");
        assert!(error.column >= 1);
        assert!(!error.problem.message.is_empty() && !error.problem.remedy.is_empty());
    }
}

/// Pieces that mean something in YAML or in a flow.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "flow: a\n",
        "steps:\n",
        "  s:\n",
        "    run: ",
        "{worker: w}\n",
        "emits: [e]\n",
        "- ",
        ": ",
        "&a ",
        "*a",
        "<<: *a\n",
        "\"",
        "'",
        "|\n",
        ">\n",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\n",
        "  ",
        "\t",
        "#",
        "!!binary ",
        "!x ",
        "?",
        "%YAML 1.2\n",
        "---\n",
        "...\n",
        "~",
        "null",
        "1e999",
        ".nan",
        "0x1F",
        "99999999999999999999999999",
        "\u{feff}",
        "\0",
        "é",
        "\u{2028}",
        "wait: {delay: 1s}\n",
        "subscribes: [\"step:s\"]\n",
        "input: {$ref: \"#\"}\n",
        "step.failed:",
        "10s",
        "{}",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// A valid file with a few characters put in, taken out or replaced.
fn mutated() -> impl Strategy<Value = String> {
    let texts: Vec<String> = files("valid").into_iter().map(|(_, text)| text).collect();
    let edit = (
        any::<prop::sample::Index>(),
        0..3_u8,
        prop::sample::select(" \n\t:-[]{},\"'&*!|>#%@`~a0\0é".chars().collect::<Vec<_>>()),
    );
    (prop::sample::select(texts), prop::collection::vec(edit, 1..6)).prop_map(|(text, edits)| {
        let mut letters: Vec<char> = text.chars().collect();
        for (place, kind, letter) in edits {
            let at = place.index(letters.len().max(1)).min(letters.len().saturating_sub(1));
            match kind {
                0 => letters.insert(at, letter),
                1 if !letters.is_empty() => drop(letters.remove(at)),
                _ if !letters.is_empty() => letters[at] = letter,
                _ => {}
            }
        }
        letters.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        check(&text);
    }

    #[test]
    fn any_mix_of_pieces_is_read_or_refused(text in pieces()) {
        check(&text);
    }

    #[test]
    fn any_slip_in_a_valid_file_is_read_or_refused(text in mutated()) {
        check(&text);
    }
}
