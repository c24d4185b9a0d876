//! JSON that is stored often, with one byte in place of each phrase that nearly all of it has.
//!
//! A record or an event is mostly names of fields. A server pays for each of these bytes again and
//! again: it reads, hashes, copies, logs and keeps them. So they are left to whoever reads a value.
//!
//! JSON has no control characters but the white space between its tokens, so the others can stand
//! for phrases: whatever the text is, it comes back to the byte, and a text that was stored before
//! there was shorthand has nothing to spell out.

use std::borrow::{Borrow, Cow};
use std::sync::LazyLock;

use flowgate_core::event::Event;
use flowgate_core::run::Run;
use serde::Serialize;

/// The bytes that stand for phrases, in the order of these.
const CODES: [u8; 28] = [
    0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x0b, 0x0c, 0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13,
    0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f,
];

/// A longer text is stored as it is: it is mostly the payload of a user.
const LENGTH_MAX: usize = 16 << 10;

/// Of events. What was ever written keeps its place; a new phrase goes to the end.
const EVENT_PHRASES: [&str; 24] = [
    r#"{"type":"step.started","data":{"step":""#,
    r#"{"type":"step.succeeded","data":{"step":""#,
    r#"{"type":"step.queued","data":{"step":""#,
    r#"{"type":"event.emitted","data":{"step":""#,
    r#"","lease":{"attempt":1,"token":"#,
    r#"","lease":{"attempt":"#,
    r#","token":"#,
    r#","instance":""#,
    r#""},"elapsed_us":"#,
    r#""}}},"#,
    r#"","event":""#,
    r#"","data":"#,
    r#"","inputs":["#,
    "]}}",
    "}},",
    "}}]",
    r#"{"type":"run.started","data":{"flow":""#,
    r#"","revision":""#,
    r#"","input":"#,
    r#"{"type":"run.completed","data":{}}]"#,
    r#","result":"#,
    r#"{"type":"attempt.failed","data":{"step":""#,
    r#"{"type":""#,
    r#"","error":{"#,
];

/// Of records, likewise.
const RECORD_PHRASES: [&str; 20] = [
    r#"{"run_id":""#,
    r#"","flow":""#,
    r#"","revision":""#,
    r#"","version":"#,
    r#","status":"running","steps":["#,
    r#","status":""#,
    r#"","steps":["#,
    r#"{"state":"succeeded","attempt":1},"#,
    r#"{"state":"succeeded","attempt":1}"#,
    r#"{"state":"pending"},"#,
    r#"{"state":"pending"}"#,
    r#"{"state":"queued"},"#,
    r#"{"state":"queued"}"#,
    r#"{"state":"skipped"},"#,
    r#"{"state":""#,
    r#"","attempt":"#,
    r#"],"slots":["#,
    r#"],"open":1,"waiting":0}"#,
    r#"],"open":"#,
    r#","waiting":"#,
];

/// The shorthand of an array of events.
pub(crate) static EVENTS: LazyLock<Shorthand> = LazyLock::new(|| Shorthand::new(&EVENT_PHRASES));

/// The shorthand of a record.
pub(crate) static RECORD: LazyLock<Shorthand> = LazyLock::new(|| Shorthand::new(&RECORD_PHRASES));

/// A record as it is stored.
pub(crate) fn encode_record(run: &Run) -> String {
    RECORD.encode(run)
}

/// The other way round.
pub(crate) fn decode_record(stored: &str) -> serde_json::Result<Run> {
    serde_json::from_str(&RECORD.read(stored))
}

/// Events of a commit as they are stored.
pub(crate) fn encode_events<E: Borrow<Event> + Serialize>(events: &[E]) -> String {
    EVENTS.encode(events)
}

/// The other way round.
pub(crate) fn decode_events(stored: &str) -> serde_json::Result<Vec<Event>> {
    serde_json::from_str(&EVENTS.read(stored))
}

/// A phrase, the byte that stands for it, and what tells most other texts from it at one glance.
#[derive(Debug)]
struct Phrase {
    text: &'static str,
    code: u8,
    head: u128,
    /// Which bits of a head count: a phrase may be shorter than that.
    mask: u128,
}

impl Phrase {
    fn new(text: &'static str, code: u8) -> Self {
        let unused = HEAD_BYTES.saturating_sub(text.len());
        Self { text, code, head: head(text.as_bytes()), mask: u128::MAX >> (8 * unused) }
    }

    /// Whether `text`, which has this head, begins with the phrase.
    fn begins(&self, text: &[u8], head: u128) -> bool {
        head & self.mask == self.head
            && (self.text.len() <= HEAD_BYTES || text.starts_with(self.text.as_bytes()))
    }
}

/// So many bytes of a text are compared at once.
const HEAD_BYTES: usize = size_of::<u128>();

/// The first bytes of a text, and none beyond its end.
fn head(text: &[u8]) -> u128 {
    let mut bytes = [0; HEAD_BYTES];
    match text.first_chunk() {
        Some(first) => bytes = *first,
        None => bytes[..text.len()].copy_from_slice(text),
    }
    u128::from_le_bytes(bytes)
}

/// The phrases of one kind of text.
#[derive(Debug)]
pub(crate) struct Shorthand {
    /// By their first byte, the longer ones first.
    by_first: [Vec<Phrase>; 128],
    /// By the byte that stands for them; empty where none does.
    by_code: [&'static str; 32],
}

impl Shorthand {
    fn new(phrases: &[&'static str]) -> Self {
        let mut by_first = [const { Vec::new() }; 128];
        let mut by_code = [""; 32];
        for (phrase, code) in phrases.iter().zip(CODES) {
            by_first[usize::from(phrase.as_bytes()[0])].push(Phrase::new(phrase, code));
            by_code[usize::from(code)] = phrase;
        }
        for phrases in &mut by_first {
            phrases.sort_by_key(|phrase| std::cmp::Reverse(phrase.text.len()));
        }
        Self { by_first, by_code }
    }

    fn encode<T: Serialize + ?Sized>(&self, value: &T) -> String {
        let json = serde_json::to_string(value).expect("what is stored has a JSON form");
        let mut text = String::with_capacity(json.len());
        self.write(&json, &mut text);
        text
    }

    /// Adds a text in shorthand to `to`.
    pub(crate) fn write(&self, text: &str, to: &mut String) {
        if text.len() > LENGTH_MAX {
            to.push_str(text);
            return;
        }
        let bytes = text.as_bytes();
        let (mut written, mut at) = (0, 0);
        while at < bytes.len() {
            let phrases = self.by_first.get(usize::from(bytes[at])).map_or(&[][..], Vec::as_slice);
            if phrases.is_empty() {
                at += 1;
                continue;
            }
            let (rest, head) = (&bytes[at..], head(&bytes[at..]));
            let Some(phrase) = phrases.iter().find(|phrase| phrase.begins(rest, head)) else {
                at += 1;
                continue;
            };
            to.push_str(&text[written..at]);
            to.push(char::from(phrase.code));
            at += phrase.text.len();
            written = at;
        }
        to.push_str(&text[written..]);
    }

    /// The text that was written.
    pub(crate) fn read<'a>(&self, stored: &'a str) -> Cow<'a, str> {
        let is_code = |byte: &u8| !self.phrase(*byte).is_empty();
        if !stored.bytes().any(|byte| is_code(&byte)) {
            return Cow::Borrowed(stored);
        }
        let mut text = String::with_capacity(stored.len() * 4);
        let mut rest = stored;
        while let Some(at) = rest.bytes().position(|byte| is_code(&byte)) {
            text.push_str(&rest[..at]);
            text.push_str(self.phrase(rest.as_bytes()[at]));
            rest = &rest[at + 1..];
        }
        text.push_str(rest);
        Cow::Owned(text)
    }

    fn phrase(&self, code: u8) -> &'static str {
        self.by_code.get(usize::from(code)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(shorthand: &Shorthand, text: &str) -> String {
        let mut to = String::new();
        shorthand.write(text, &mut to);
        to
    }

    /// What is in a store must be read for as long as it may be there.
    #[test]
    fn a_byte_stands_for_its_phrase_for_ever() {
        let events = concat!(
            r#"[{"type":"step.started","data":{"step":"b","lease":{"attempt":1,"token":2,"instance":"vm-1"}}},"#,
            r#"{"type":"event.emitted","data":{"step":"b","event":"b.done","data":1}},"#,
            r#"{"type":"step.succeeded","data":{"step":"b","lease":{"attempt":1,"token":2,"instance":"vm-1"},"elapsed_us":12}},"#,
            r#"{"type":"step.queued","data":{"step":"c","inputs":[8]}}]"#,
        );
        let stored = concat!(
            "[\u{1}b\u{5}2\u{8}vm-1\u{c}\u{4}b\u{e}b.done\u{f}1\u{12}",
            "\u{2}b\u{5}2\u{8}vm-1\u{b}12\u{12}\u{3}c\u{10}8\u{11}]",
        );
        assert_eq!(written(&EVENTS, events), stored);
        assert_eq!(EVENTS.read(stored), events);
        let record = concat!(
            r#"{"run_id":"7","flow":"f","revision":"r","version":3,"status":"running","steps":["#,
            r#"{"state":"succeeded","attempt":1},{"state":"queued"},{"state":"pending"}],"#,
            r#""slots":[4,0],"open":1,"waiting":0}"#,
        );
        let stored = "\u{1}7\u{2}f\u{3}r\u{4}3\u{5}\u{8}\u{f}\u{e}\u{14}4,0\u{15}";
        assert_eq!(written(&RECORD, record), stored);
        assert_eq!(RECORD.read(stored), record);
    }

    #[test]
    fn people_with_other_tools_are_told_all_phrases() {
        let sql = include_str!("postgres/migrations/V10__shorthand.sql");
        for (kind, phrases) in [("events", &EVENT_PHRASES[..]), ("record", &RECORD_PHRASES)] {
            for (phrase, code) in phrases.iter().zip(CODES) {
                let row = format!("('{kind}', {code}, '{phrase}')");
                assert!(sql.contains(&row), "{row}");
            }
        }
    }

    #[test]
    fn no_phrase_has_a_byte_that_may_be_in_json_and_each_has_one() {
        for phrases in [&EVENT_PHRASES[..], &RECORD_PHRASES] {
            assert!(phrases.len() <= CODES.len());
            assert!(phrases.iter().all(|phrase| phrase.bytes().all(|byte| byte >= b' ')));
        }
        assert!(CODES.iter().all(|code| *code < b' ' && !b"\0\t\n\r".contains(code)));
    }

    #[test]
    fn a_text_from_before_there_was_shorthand_is_read_as_it_is() {
        let text = r#"[{"type":"step.queued","data":{"step":"c","inputs":[8]}}]"#;
        assert_eq!(EVENTS.read(text), text);
        let long = format!("[\"{}\"]", "x".repeat(LENGTH_MAX));
        assert_eq!(EVENTS.read(&written(&EVENTS, &long)), long);
    }

    proptest! {
        #[test]
        fn whatever_the_text_it_comes_back_to_the_byte(
            parts in prop::collection::vec(
                prop_oneof![
                    prop::sample::select(EVENT_PHRASES.to_vec()).prop_map(str::to_owned),
                    prop::sample::select(RECORD_PHRASES.to_vec()).prop_map(str::to_owned),
                    "[ -~äß→\n\t\r]{0,12}",
                    Just("{\"type\":\"step.st".to_owned()),
                ],
                0..12,
            )
        ) {
            let text = parts.concat();
            for shorthand in [&EVENTS, &RECORD] {
                let stored = written(shorthand, &text);
                prop_assert!(stored.len() <= text.len());
                prop_assert_eq!(shorthand.read(&stored), text.as_str());
            }
        }
    }
}
