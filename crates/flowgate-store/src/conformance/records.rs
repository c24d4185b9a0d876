//! K2: small guarded documents.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::limits::{PAGE_MAX, PAYLOAD_BYTES_MAX};
use flowgate_core::payload::Payload;
use tokio::task::JoinSet;

use super::Harness;
use super::terms::{ask, held};
use super::world::World;
use crate::control::{
    CONTROL_KEY_BYTES_MAX, Expect, RECORD_WRITES_MAX, Record, RecordQuery, RecordWrite,
    RecordsOutcome, TermAsk, TermRef,
};
use crate::{Retention, Store, Swept};

const HOUR: Duration = Duration::from_hours(1);

/// The kind of most of these records.
const KIND: &str = "queue";

fn put(key: &str, value: &str) -> RecordWrite {
    RecordWrite {
        kind: KIND,
        key: key.into(),
        expect: Expect::Anything,
        value: Some(Payload::parse(value).expect("the case wrote JSON")),
        keep: None,
    }
}

fn removal(key: &str) -> RecordWrite {
    RecordWrite { value: None, ..put(key, "0") }
}

/// The versions of writes that must be written.
async fn written(store: &Arc<dyn Store>, writes: Vec<RecordWrite>) -> Vec<u64> {
    let count = writes.len();
    match store.write_records(writes, None).await.expect("writing") {
        RecordsOutcome::Written(versions) => {
            assert_eq!(versions.len(), count, "each write has a version");
            versions
        }
        refused @ (RecordsOutcome::Changed(_)
        | RecordsOutcome::TermLost
        | RecordsOutcome::TooLarge(_)) => panic!("the writes were refused: {refused:?}"),
    }
}

async fn read(store: &Arc<dyn Store>, key: &str) -> Option<Record> {
    let mut found = store.read_records(KIND, &[key.into()]).await.expect("reading");
    assert_eq!(found.len(), 1, "each key has an answer");
    found.remove(0)
}

fn all(prefix: &str) -> RecordQuery {
    let prefix = prefix.into();
    RecordQuery { kind: KIND, prefix, after: None, is_descending: false, limit: PAGE_MAX }
}

async fn keys(store: &Arc<dyn Store>, query: &RecordQuery) -> Vec<String> {
    let listed = store.list_records(query).await.expect("listing");
    listed.iter().map(|record| record.key.to_string()).collect()
}

pub async fn a_record_is_read_as_it_was_written(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let store = world.store();
    let text = r#"{"b": 1.0,  "a": [18446744073709551616, "é\"\\"]}"#;
    let kept = RecordWrite { keep: Some(HOUR), ..put("kept", "null") };
    let before = store.now().await.unwrap();
    let versions = written(&store, vec![put("one", text), kept]).await;
    let after = store.now().await.unwrap();
    drop(store);
    world.reopen_if_it_can().await;
    let store = world.store();
    let one = read(&store, "one").await.expect("it is there");
    assert_eq!((one.version, one.value.get(), one.expires_at), (versions[0], text, None));
    assert!(before <= one.written_at && one.written_at <= after);
    let kept = read(&store, "kept").await.expect("it is there");
    assert_eq!(kept.expires_at, Some(kept.written_at.plus(HOUR)));
    assert_eq!(store.list_records(&all("")).await.unwrap(), [kept, one]);
}

pub async fn records_are_read_by_kind_in_the_order_asked_for(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let other = RecordWrite { kind: "schedule", ..put("a", "3") };
    written(&store, vec![put("a", "1"), put("b", "2"), other]).await;
    let asked: Vec<Arc<str>> = ["b", "c", "a", "b"].map(Into::into).into();
    let values = async |kind: &str| -> Vec<Option<String>> {
        let found = store.read_records(kind, &asked).await.unwrap();
        found.iter().map(|found| found.as_ref().map(|r| r.value.get().to_owned())).collect()
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(values(KIND).await, [some("2"), None, some("1"), some("2")]);
    assert_eq!(values("schedule").await, [None, None, some("3"), None]);
    assert_eq!(values("dead").await, [None, None, None, None]);
    assert_eq!(store.read_records(KIND, &[]).await.unwrap(), []);
    assert_eq!(keys(&store, &RecordQuery { kind: "schedule", ..all("") }).await, ["a"]);
}

pub async fn a_record_is_written_only_where_its_expectation_holds(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let version = written(&store, vec![put("a", "1")]).await[0];
    let rows = [
        ("a", Expect::Absent, false),
        ("a", Expect::Version(version + 1), false),
        ("a", Expect::Version(version), true),
        ("a", Expect::Version(version), false),
        ("a", Expect::Anything, true),
        ("b", Expect::Version(version), false),
        ("b", Expect::Absent, true),
        ("b", Expect::Absent, false),
    ];
    for (at, (key, expect, holds)) in rows.into_iter().enumerate() {
        let before = read(&store, key).await;
        let write = RecordWrite { expect, ..put(key, &at.to_string()) };
        let outcome = store.write_records(vec![write], None).await.unwrap();
        let found = read(&store, key).await;
        match outcome {
            RecordsOutcome::Written(versions) => {
                assert!(holds, "row {at}");
                let found = found.expect("it is written");
                assert_eq!((found.version, found.value.get()), (versions[0], &*at.to_string()));
            }
            refused @ (RecordsOutcome::Changed(_)
            | RecordsOutcome::TermLost
            | RecordsOutcome::TooLarge(_)) => {
                assert_eq!((holds, refused), (false, RecordsOutcome::Changed(0)), "row {at}");
                assert_eq!(found, before, "row {at}");
            }
        }
    }
}

pub async fn one_broken_expectation_of_many_writes_nothing(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    written(&store, vec![put("a", "1"), put("b", "1")]).await;
    let before = store.list_records(&all("")).await.unwrap();
    let absent = |key| RecordWrite { expect: Expect::Absent, ..put(key, "2") };
    let writes = vec![put("a", "2"), absent("c"), absent("b"), removal("d")];
    let refused = store.write_records(writes, None).await.unwrap();
    assert_eq!(refused, RecordsOutcome::Changed(2), "the first that does not hold");
    let refused = store.write_records(vec![removal("a"), absent("b")], None).await.unwrap();
    assert_eq!(refused, RecordsOutcome::Changed(1));
    assert_eq!(store.list_records(&all("")).await.unwrap(), before);
    assert!(written(&store, Vec::new()).await.is_empty(), "no write is no fault");
}

pub async fn of_many_writes_on_one_version_exactly_one_is_written(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let version = written(&store, vec![put("a", "0")]).await[0];
    for expect in [Expect::Version(version), Expect::Absent] {
        let key = if expect == Expect::Absent { "b" } else { "a" };
        let mut writers = JoinSet::new();
        for number in 1..=20 {
            let store = world.store();
            let write = RecordWrite { expect, ..put(key, &number.to_string()) };
            writers.spawn(async move {
                let own = put(&format!("own/{key}/{number}"), "1");
                let outcome = store.write_records(vec![own, write], None).await.unwrap();
                matches!(outcome, RecordsOutcome::Written(_)).then_some(number)
            });
        }
        let winners: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1);
        let number = winners[0].to_string();
        assert_eq!(read(&store, key).await.unwrap().value.get(), number);
        let own = format!("own/{key}/");
        assert_eq!(keys(&store, &all(&own)).await, [format!("{own}{number}")]);
    }
}

pub async fn versions_only_grow_and_are_never_used_twice(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let mut last = 0;
    for _ in 0..3 {
        let store = world.store();
        let writes = [vec![put("a", "1"), put("b", "1")], vec![put("a", "2")], vec![removal("a")]];
        for writes in writes {
            let versions = written(&store, writes).await;
            assert!(versions.is_sorted_by(|one, other| one < other));
            assert!(last < versions[0], "{last} comes before {versions:?}");
            last = versions[versions.len() - 1];
        }
        let old = RecordWrite { expect: Expect::Version(last), ..put("a", "3") };
        let refused = store.write_records(vec![old], None).await.unwrap();
        assert_eq!(refused, RecordsOutcome::Changed(0), "a record that was removed has no version");
        drop(store);
        world.reopen_if_it_can().await;
    }
}

pub async fn a_removed_record_is_gone(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let version = written(&store, vec![put("a", "1"), put("b", "1")]).await[0];
    let stale = RecordWrite { expect: Expect::Version(version + 7), ..removal("a") };
    let refused = store.write_records(vec![stale], None).await.unwrap();
    assert_eq!(refused, RecordsOutcome::Changed(0));
    written(&store, vec![RecordWrite { expect: Expect::Version(version), ..removal("a") }]).await;
    assert_eq!(read(&store, "a").await, None);
    assert_eq!(keys(&store, &all("")).await, ["b"]);
    written(&store, vec![removal("a"), removal("nothing")]).await;
    written(&store, vec![RecordWrite { expect: Expect::Absent, ..put("a", "2") }]).await;
    assert_eq!(keys(&store, &all("")).await, ["a", "b"]);
}

pub async fn records_are_written_under_a_term_only_while_it_is_held(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let write = async |number: u32, under: &TermRef| -> bool {
        let writes = vec![put("a", &number.to_string()), put(&number.to_string(), "1")];
        match store.write_records(writes, Some(under)).await.unwrap() {
            RecordsOutcome::Written(_) => true,
            refused @ (RecordsOutcome::Changed(_)
            | RecordsOutcome::TermLost
            | RecordsOutcome::TooLarge(_)) => {
                assert_eq!(refused, RecordsOutcome::TermLost);
                false
            }
        }
    };
    let nobody = TermRef { name: "leader".into(), number: 1 };
    assert!(!write(1, &nobody).await, "nobody ever held it");
    let first = held(&store, &ask("leader", "a/1")).await;
    assert!(write(2, &first.term).await);
    for number in [0, 2] {
        assert!(!write(3, &TermRef { number, ..first.term.clone() }).await, "{number}");
    }
    store.release_term(&first.term).await.unwrap();
    assert!(!write(4, &first.term).await, "it was released");
    let second = held(&store, &ask("leader", "b/2")).await;
    assert!(!write(5, &first.term).await, "somebody else holds the name");
    assert!(write(6, &second.term).await);
    world.harness.advance(Duration::from_secs(20)).await;
    held(&store, &TermAsk { renews: Some(2), ..ask("leader", "b/2") }).await;
    world.harness.advance(Duration::from_secs(20)).await;
    assert!(write(7, &second.term).await, "it was renewed");
    world.harness.advance(Duration::from_secs(10)).await;
    assert!(!write(8, &second.term).await, "it has expired, though nobody took the name");
    assert_eq!(keys(&store, &all("")).await, ["2", "6", "7", "a"]);
    assert_eq!(read(&store, "a").await.unwrap().value.get(), "7");
}

pub async fn a_lost_term_is_told_before_a_broken_expectation(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let term = held(&store, &ask("leader", "a/1")).await.term;
    let absent = RecordWrite { expect: Expect::Version(1_000), ..put("a", "1") };
    let outcome = store.write_records(vec![absent.clone()], Some(&term)).await.unwrap();
    assert_eq!(outcome, RecordsOutcome::Changed(0));
    store.release_term(&term).await.unwrap();
    for writes in [vec![absent], Vec::new()] {
        let outcome = store.write_records(writes, Some(&term)).await.unwrap();
        assert_eq!(outcome, RecordsOutcome::TermLost);
    }
}

/// Keys that are hard to order, in their order byte by byte.
const ODD: [&str; 17] = [
    " ",
    "!\"'\\",
    "%",
    "*",
    "A",
    "_",
    "a",
    "a%",
    "a*",
    "a/",
    "a/%",
    "a/b",
    "a/é",
    "a0",
    "é",
    "\u{ffff}",
    "\u{10ffff}",
];

pub async fn keys_are_listed_byte_by_byte_both_ways(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let mut shuffled = ODD.to_vec();
    shuffled.rotate_left(7);
    shuffled.swap(0, 9);
    for key in shuffled {
        written(&store, vec![put(key, "1")]).await;
    }
    assert_eq!(keys(&store, &all("")).await, ODD);
    let mut backwards = ODD.to_vec();
    backwards.reverse();
    assert_eq!(keys(&store, &RecordQuery { is_descending: true, ..all("") }).await, backwards);
    for key in ODD {
        assert_eq!(&*read(&store, key).await.expect("it is there").key, key);
    }
}

pub async fn a_listing_of_a_prefix_holds_nothing_beside_it(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    written(&store, ODD.map(|key| put(key, "1")).into()).await;
    for prefix in ["a", "a/", "a%", "a/%", "%", "*", "_", "é", "\u{10ffff}", "a/b", "x", "é0"] {
        let mut under: Vec<&str> = ODD.into_iter().filter(|key| key.starts_with(prefix)).collect();
        assert_eq!(keys(&store, &all(prefix)).await, under, "{prefix:?}");
        under.reverse();
        let backwards = RecordQuery { is_descending: true, ..all(prefix) };
        assert_eq!(keys(&store, &backwards).await, under, "{prefix:?}");
    }
}

pub async fn pages_of_records_begin_after_any_key(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    written(&store, ODD.map(|key| put(key, "1")).into()).await;
    for is_descending in [false, true] {
        for prefix in ["", "a", "a/"] {
            let afters = ODD.into_iter().chain(["a/a", "a/\u{10ffff}", "B", "b"]);
            for after in afters {
                let mut expected: Vec<&str> =
                    ODD.into_iter().filter(|key| key.starts_with(prefix)).collect();
                if is_descending {
                    expected.reverse();
                }
                expected.retain(|key| if is_descending { *key < after } else { *key > after });
                expected.truncate(2);
                let after = Some(after.into());
                let query = RecordQuery { after, is_descending, limit: 2, ..all(prefix) };
                assert_eq!(keys(&store, &query).await, expected, "{query:?}");
            }
        }
    }
    assert_eq!(keys(&store, &RecordQuery { limit: 0, ..all("") }).await, Vec::<String>::new());
}

pub async fn a_page_of_records_is_bounded(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let name = |number: usize| format!("{number:05}");
    let count = PAGE_MAX + 5;
    for numbers in [0..RECORD_WRITES_MAX, RECORD_WRITES_MAX..count] {
        written(&store, numbers.map(|number| put(&name(number), "1")).collect()).await;
    }
    let first = keys(&store, &RecordQuery { limit: usize::MAX, ..all("") }).await;
    assert_eq!(first, (0..PAGE_MAX).map(name).collect::<Vec<_>>());
    let after = first.last().map(|key| key.as_str().into());
    let rest = keys(&store, &RecordQuery { after, limit: usize::MAX, ..all("") }).await;
    assert_eq!(rest, (PAGE_MAX..count).map(name).collect::<Vec<_>>());
}

/// A sweep that leaves runs alone.
fn sweeping(batch: usize) -> Retention {
    Retention { batch, ..Retention::DEFAULT }
}

pub async fn a_record_is_there_until_a_sweep_after_its_time(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let kept = |key| RecordWrite { keep: Some(HOUR), ..put(key, "1") };
    let versions = written(&store, vec![kept("a"), kept("b"), put("c", "1"), kept("d")]).await;
    assert_eq!(store.sweep(&sweeping(10)).await.unwrap(), Swept::default());
    world.harness.advance(HOUR / 2).await;
    // Written anew, it is kept from then on, or for ever.
    written(&store, vec![kept("b"), put("d", "2")]).await;
    world.harness.advance(HOUR / 2).await;
    assert_eq!(keys(&store, &all("")).await, ["a", "b", "c", "d"]);
    let absent = RecordWrite { expect: Expect::Absent, ..put("a", "2") };
    let refused = store.write_records(vec![absent], None).await.unwrap();
    assert_eq!(refused, RecordsOutcome::Changed(0));
    assert_eq!(read(&store, "a").await.unwrap().version, versions[0]);
    let swept = store.sweep(&sweeping(10)).await.unwrap();
    assert_eq!(swept, Swept { records: 1, ..Swept::default() });
    assert_eq!(keys(&store, &all("")).await, ["b", "c", "d"]);
    assert_eq!(read(&store, "a").await, None);
    world.harness.advance(HOUR * 24 * 365).await;
    let swept = store.sweep(&sweeping(10)).await.unwrap();
    assert_eq!(swept, Swept { records: 1, ..Swept::default() });
    assert_eq!(keys(&store, &all("")).await, ["c", "d"]);
}

pub async fn a_sweep_removes_records_in_small_batches(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let kept =
        (0..5).map(|number| RecordWrite { keep: Some(HOUR), ..put(&number.to_string(), "1") });
    written(&store, kept.collect()).await;
    world.harness.advance(HOUR).await;
    for (records, more) in [(2, true), (2, true), (1, false)] {
        let swept = store.sweep(&sweeping(2)).await.unwrap();
        assert_eq!(swept, Swept { records, more, ..Swept::default() });
    }
    assert_eq!(store.list_records(&all("")).await.unwrap(), []);
}

/// JSON of this size, past the check of whoever makes payloads.
fn unchecked(bytes: usize) -> Payload {
    let text = format!("\"{}\"", "x".repeat(bytes - 2));
    serde_json::from_str(&text).expect("this is JSON")
}

pub async fn writes_over_a_limit_are_refused_before_writing(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let large = |bytes| RecordWrite { value: Some(unchecked(bytes)), ..put("large", "1") };
    let named = |key: &str| put(key, "1");
    let many = (0..=RECORD_WRITES_MAX).map(|number| named(&number.to_string()));
    let heavy =
        (0..17).map(|number| RecordWrite { key: format!("{number}").into(), ..large(1 << 20) });
    let rows: [(Vec<RecordWrite>, usize); 6] = [
        (many.collect(), RECORD_WRITES_MAX),
        (heavy.collect(), 16),
        (vec![named("a"), large(PAYLOAD_BYTES_MAX + 1)], 1),
        (vec![named("a"), named(&"k".repeat(CONTROL_KEY_BYTES_MAX + 1))], 1),
        (vec![named("a"), named("")], 1),
        (vec![named("a"), named("a\0b")], 1),
    ];
    for (writes, index) in rows {
        let refused = store.write_records(writes, None).await.unwrap();
        assert_eq!(refused, RecordsOutcome::TooLarge(index));
        assert_eq!(store.list_records(&all("")).await.unwrap(), []);
    }
    let key = "k".repeat(CONTROL_KEY_BYTES_MAX);
    written(&store, vec![large(PAYLOAD_BYTES_MAX), named(&key)]).await;
    assert_eq!(read(&store, "large").await.unwrap().value, unchecked(PAYLOAD_BYTES_MAX));
    assert_eq!(keys(&store, &all("k")).await, [key]);
}
