//! No text makes the reader panic, and every error has a place within the text.

use std::collections::BTreeSet;

use flowgate_core::flow::{Flow, FlowFile, OnTimeout, PathPart, StepFile, Subscribes, graph};
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

/// A flow whose names all come from a small pool, so that many are valid and many nearly so.
fn flow() -> impl Strategy<Value = String> {
    let names = prop::sample::subsequence(
        vec!["a", "b", "c", "\"step:s0\"", "\"step:s1\"", "\"step.failed:s1\"", "\"step:s2\""],
        1..4,
    );
    let subscribes = (any::<bool>(), names).prop_map(|(all, names)| {
        format!("{{{}: [{}]}}", if all { "all" } else { "any" }, names.join(", "))
    });
    let action = prop::sample::select(vec![
        "",
        "run: {worker: w}",
        "run: {worker: w}, emits: [a]",
        "run: {worker: w}, emits: [b, c]",
        "wait: {delay: 1s}, emits: [a, b]",
        "wait: {signal: s, timeout: 1s, on_timeout: {emit: b}}, emits: [b, c]",
    ]);
    (action.clone(), prop::collection::vec((subscribes, action), 0..5)).prop_map(
        |(entry, steps)| {
            let steps: Vec<String> = steps
                .iter()
                .enumerate()
                .map(|(at, (subscribes, action))| {
                    format!("  s{}: {{subscribes: {subscribes}, {action}}}\n", at + 1)
                })
                .collect();
            format!("flow: f\nsteps:\n  s0: {{{entry}}}\n{}", steps.concat())
        },
    )
}

/// What a step makes happen at most when it ends well, or otherwise.
fn made(name: &str, step: &StepFile, ends_well: bool) -> Vec<String> {
    let (done, failed) = (format!("step:{name}"), format!("step.failed:{name}"));
    let timeout = step.wait.as_ref().and_then(|wait| wait.on_timeout.clone());
    match (timeout, ends_well) {
        (Some(OnTimeout::Emit(event)), false) => vec![event, done],
        (Some(OnTimeout::Emit(event)), true) => {
            step.emits.iter().filter(|name| **name != event).cloned().chain([done]).collect()
        }
        (_, false) if step.run.is_some() => step.emits.iter().cloned().chain([failed]).collect(),
        _ => step.emits.iter().cloned().chain([done]).collect(),
    }
}

/// The steps that start in some run, by trying every way in which steps can end.
fn startable(file: &FlowFile) -> BTreeSet<&str> {
    let mut startable = BTreeSet::new();
    for ends in 0..1_u32 << file.steps.len() {
        let mut happened: BTreeSet<String> = BTreeSet::new();
        let mut started: BTreeSet<&str> = BTreeSet::new();
        loop {
            let before = started.len();
            for (at, (name, step)) in file.steps.iter().enumerate() {
                let starts = match &step.subscribes {
                    None => true,
                    Some(Subscribes::All(names)) => names.iter().all(|n| happened.contains(n)),
                    Some(Subscribes::Any(names)) => names.iter().any(|n| happened.contains(n)),
                };
                if starts && started.insert(name) {
                    happened.extend(made(name, step, ends >> at & 1 == 0));
                }
            }
            if started.len() == before {
                break;
            }
        }
        startable.extend(started);
    }
    startable
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        check(&text);
    }

    #[test]
    fn any_flow_is_refused_or_can_be_drawn(text in flow()) {
        check(&text);
        let file = FlowFile::parse(&text).expect("its form is right");
        let startable = startable(&file);
        for problem in file.validate() {
            if let (true, Some(PathPart::Key(step))) =
                (problem.message.contains("can never start"), problem.path.0.get(1))
            {
                prop_assert!(!startable.contains(step.as_str()), "{problem}");
            }
        }
        if let Ok(flow) = Flow::parse(&text) {
            assert!(graph::text(&flow).lines().all(|line| line.chars().count() <= 80));
            assert!(graph::mermaid(&flow).starts_with("flowchart"));
            assert!(graph::dot(&flow).ends_with("}\n"));
            let svg = graph::svg(&flow);
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf\""));
        }
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
