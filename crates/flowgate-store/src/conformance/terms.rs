//! K1: names that one asker holds at a time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::task::JoinSet;

use super::Harness;
use super::world::World;
use crate::Store;
use crate::control::{TERMS_KEPT_MAX, Term, TermAsk, TermOutcome, TermRef};

/// How long a term of these cases lasts.
const SPAN: Duration = Duration::from_secs(30);

pub(super) fn ask(name: &str, holder: &str) -> TermAsk {
    TermAsk { name: name.into(), holder: holder.into(), span: SPAN, renews: None }
}

fn renewal(term: &Term) -> TermAsk {
    let number = Some(term.term.number);
    TermAsk { renews: number, ..ask(&term.term.name, &term.holder) }
}

/// A term that is asked for and that the asker gets.
pub(super) async fn held(store: &Arc<dyn Store>, ask: &TermAsk) -> Term {
    match store.take_term(ask).await.expect("asking") {
        TermOutcome::Held(term) => {
            assert_eq!((&term.term.name, &term.holder), (&ask.name, &ask.holder));
            term
        }
        TermOutcome::NotHeld(term) => panic!("somebody else holds it: {term:?}"),
    }
}

/// The last term of a name that the asker does not get.
async fn not_held(store: &Arc<dyn Store>, ask: &TermAsk) -> Term {
    match store.take_term(ask).await.expect("asking") {
        TermOutcome::Held(term) => panic!("the asker holds it: {term:?}"),
        TermOutcome::NotHeld(term) => term,
    }
}

pub async fn a_name_that_nobody_holds_is_held_by_who_asks(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let before = store.now().await.unwrap();
    let first = held(&store, &ask("leader", "a/1")).await;
    let after = store.now().await.unwrap();
    assert_eq!(first.term, TermRef { name: "leader".into(), number: 1 });
    assert!(before <= first.began_at && first.began_at <= after);
    assert_eq!(first.expires_at, first.began_at.plus(SPAN));
    assert_eq!(first.released_at, None);
    assert_eq!(not_held(&store, &ask("leader", "b/2")).await, first);
    let other = held(&store, &ask("other", "b/2")).await;
    assert_eq!(other.term.number, 1, "each name counts for itself");
}

pub async fn of_many_askers_exactly_one_holds_a_name(harness: &mut impl Harness) {
    let world = World::new(harness);
    for round in 1..=3 {
        let mut askers = JoinSet::new();
        for number in 0..20 {
            let store = world.store();
            let ask = ask("leader", &format!("{round}/{number}"));
            askers.spawn(async move { store.take_term(&ask).await.unwrap() });
        }
        let outcomes = askers.join_all().await;
        let holds = |outcome: &TermOutcome| matches!(outcome, TermOutcome::Held(_));
        assert_eq!(outcomes.iter().filter(|outcome| holds(outcome)).count(), 1);
        for outcome in outcomes {
            let (TermOutcome::Held(term) | TermOutcome::NotHeld(term)) = outcome;
            assert_eq!(term.term.number, round, "all are told of the same term");
        }
        world.harness.advance(SPAN).await;
    }
}

pub async fn a_holder_that_asks_again_keeps_its_term(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let first = held(&store, &ask("leader", "a/1")).await;
    world.harness.advance(SPAN / 2).await;
    let again = held(&store, &ask("leader", "a/1")).await;
    assert_eq!((again.term, again.began_at), (first.term, first.began_at));
    assert!(again.expires_at >= first.expires_at.plus(SPAN / 2));
    assert_eq!(store.past_terms("leader", 10).await.unwrap().len(), 1);
}

pub async fn a_renewed_term_outlives_its_first_span_and_still_ends(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let first = held(&store, &ask("leader", "a/1")).await;
    world.harness.advance(SPAN / 2).await;
    let renewed = held(&store, &renewal(&first)).await;
    assert_eq!((&renewed.term, renewed.began_at), (&first.term, first.began_at));
    let short = TermAsk { span: Duration::from_secs(1), ..renewal(&first) };
    assert_eq!(held(&store, &short).await, renewed, "no term becomes shorter");
    world.harness.advance(SPAN * 3 / 4).await;
    assert_eq!(not_held(&store, &ask("leader", "b/2")).await, renewed);
    world.harness.advance(SPAN / 4).await;
    assert_eq!(held(&store, &ask("leader", "b/2")).await.term.number, 2);
}

pub async fn an_expired_term_cannot_be_renewed_even_if_nobody_took_the_name(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let store = world.store();
    let first = held(&store, &ask("leader", "a/1")).await;
    world.harness.advance(SPAN).await;
    assert_eq!(not_held(&store, &renewal(&first)).await, first);
    let second = held(&store, &ask("leader", "a/1")).await;
    assert_eq!(second.term.number, 2, "its holder may begin a new one");
    assert_eq!(not_held(&store, &renewal(&first)).await, second);
}

pub async fn a_renewal_by_somebody_else_or_of_another_number_is_refused(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let store = world.store();
    let first = held(&store, &ask("leader", "a/1")).await;
    let others = TermAsk { holder: "b/2".into(), ..renewal(&first) };
    assert_eq!(not_held(&store, &others).await, first);
    for number in [0, 2] {
        let wrong = TermAsk { renews: Some(number), ..renewal(&first) };
        assert_eq!(not_held(&store, &wrong).await, first);
    }
    let never = TermAsk { renews: Some(1), ..ask("nobody", "a/1") };
    assert_eq!(not_held(&store, &never).await, Term::never_held(&"nobody".into()));
    assert_eq!(store.past_terms("nobody", 10).await.unwrap(), []);
}

pub async fn a_released_name_is_free_at_once_and_its_term_says_so(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let first = held(&store, &ask("leader", "a/1")).await;
    store.release_term(&first.term).await.unwrap();
    let released = store.past_terms("leader", 10).await.unwrap().remove(0);
    let at = released.released_at.expect("it says when");
    assert!(first.began_at <= at && at < first.expires_at);
    let expected = Term { released_at: Some(at), expires_at: at, ..first.clone() };
    assert_eq!(released, expected);
    assert_eq!(not_held(&store, &renewal(&first)).await, expected);
    let second = held(&store, &ask("leader", "a/1")).await;
    assert_eq!(second.term.number, 2);
    // The release comes again, late: its reply was lost.
    store.release_term(&first.term).await.unwrap();
    store.release_term(&TermRef { name: "nobody".into(), number: 1 }).await.unwrap();
    assert_eq!(store.past_terms("leader", 10).await.unwrap(), [second, expected]);
}

pub async fn a_term_that_has_expired_is_not_released(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let first = held(&store, &ask("leader", "a/1")).await;
    world.harness.advance(SPAN).await;
    store.release_term(&first.term).await.unwrap();
    assert_eq!(store.past_terms("leader", 10).await.unwrap(), [first]);
}

pub async fn numbers_grow_over_release_expiry_and_reopen(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    for number in [1, 3, 5] {
        let store = world.store();
        let first = held(&store, &ask("leader", "a/1")).await;
        assert_eq!(first.term.number, number);
        store.release_term(&first.term).await.unwrap();
        assert_eq!(held(&store, &ask("leader", "b/2")).await.term.number, number + 1);
        world.harness.advance(SPAN).await;
        drop(store);
        world.reopen_if_it_can().await;
    }
}

pub async fn a_term_of_an_owner_that_is_gone_is_over(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let first = held(&world.store(), &ask("leader", "a/1")).await;
    if !world.reopen().await {
        return;
    }
    let store = world.store();
    if world.harness.is_shared() {
        assert_eq!(not_held(&store, &ask("leader", "b/2")).await, first);
    } else {
        // Nobody but the owner can have been its holder.
        not_held(&store, &renewal(&first)).await;
        assert_eq!(held(&store, &ask("leader", "b/2")).await.term.number, 2);
    }
}

pub async fn names_are_listed_by_prefix_in_their_order(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let names =
        ["s/é/2", "s/b/1", "s0", "s/b/1%", "leader", "s/_/1", "s/b/10", "s", "s/\u{10ffff}"];
    for name in names {
        held(&store, &ask(name, "a/1")).await;
    }
    let released = store.past_terms("s/b/1", 1).await.unwrap().remove(0);
    store.release_term(&released.term).await.unwrap();
    let second = held(&store, &ask("s/b/1", "b/2")).await;
    let listed = async |prefix: &str| -> Vec<Term> { store.list_terms(prefix).await.unwrap() };
    let named = |terms: &[Term]| -> Vec<String> {
        terms.iter().map(|term| term.term.name.to_string()).collect()
    };
    let under = listed("s/").await;
    assert_eq!(
        named(&under),
        ["s/_/1", "s/b/1", "s/b/1%", "s/b/10", "s/é/2", "s/\u{10ffff}"],
        "byte by byte, and nothing beside the prefix"
    );
    assert_eq!(under[1], second, "the last term of each");
    let mut all: Vec<&str> = names.to_vec();
    all.sort_unstable();
    assert_eq!(named(&listed("").await), all);
    assert_eq!(named(&listed("s/b/1%").await), ["s/b/1%"]);
    assert_eq!(listed("t").await, []);
}

pub async fn past_terms_are_listed_latest_first_and_the_oldest_are_forgotten(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let count = TERMS_KEPT_MAX + 3;
    let takes = stream::iter(0..count).map(|number| {
        let store = world.store();
        // It is over as soon as it begins.
        let ask = TermAsk { span: Duration::ZERO, ..ask("leader", &format!("a/{number}")) };
        async move { held(&store, &ask).await.term.number }
    });
    let mut numbers: Vec<u64> = takes.buffer_unordered(50).collect().await;
    numbers.sort_unstable();
    let last = u64::try_from(count).unwrap();
    assert_eq!(numbers, (1..=last).collect::<Vec<_>>());
    let store = world.store();
    let listed = async |limit: usize| -> Vec<u64> {
        let terms = store.past_terms("leader", limit).await.unwrap();
        terms.iter().map(|term| term.term.number).collect()
    };
    assert_eq!(listed(3).await, [last, last - 1, last - 2]);
    let kept = u64::try_from(TERMS_KEPT_MAX).unwrap();
    assert_eq!(listed(count).await, (last - kept..=last).rev().collect::<Vec<_>>());
    assert!(listed(0).await.is_empty());
}
