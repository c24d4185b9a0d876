use super::super::DegradationConfig;
use super::*;
use proptest::prelude::*;

const CALM: Look = Look {
    store_latency: Reading::Value(0.001),
    loop_delay: Reading::Value(0.0),
    memory: Reading::None,
    queue_due: Reading::Value(0.0),
    queue_age: Reading::Value(0.0),
};

fn controller() -> Controller {
    Controller::new(DegradationConfig::DEFAULT.in_numbers())
}

fn store(latency: f64) -> Look {
    Look { store_latency: Reading::Value(latency), ..CALM }
}

/// Looks one after the other, two seconds apart, and the level after each as a letter.
fn levels(looks: &[Look]) -> String {
    let (mut controller, began) = (controller(), crate::clock::now());
    let mut shown = String::new();
    for (at, look) in looks.iter().enumerate() {
        let now = began + Duration::from_secs(2) * u32::try_from(at).unwrap();
        let (before, change) = (controller.level(), controller.observe(now, look));
        let expected = Change { from: before, to: controller.level() };
        assert_eq!(change, (expected.from != expected.to).then_some(expected));
        shown.push(match controller.level() {
            Degradation::Normal => 'n',
            Degradation::Degraded => 'd',
            Degradation::Critical => 'c',
        });
    }
    shown
}

#[test]
fn each_measure_has_its_levels() {
    let rows = [
        (CALM, "nnn"),
        (store(0.249), "nnn"),
        (store(0.250), "nnd"),
        (store(1.0), "nnc"),
        (Look { loop_delay: Reading::Value(0.2), ..CALM }, "nnd"),
        (Look { loop_delay: Reading::Value(1.5), ..CALM }, "nnc"),
        (Look { memory: Reading::Value(0.79), ..CALM }, "nnn"),
        (Look { memory: Reading::Value(0.81), ..CALM }, "nnd"),
        (Look { memory: Reading::Value(0.93), ..CALM }, "nnc"),
        (Look { queue_due: Reading::Value(50_000.0), ..CALM }, "nnd"),
        (Look { queue_due: Reading::Value(1e6), ..CALM }, "nnc"),
        (Look { queue_age: Reading::Value(300.0), ..CALM }, "nnd"),
        (Look { queue_age: Reading::Value(3_600.0), ..CALM }, "nnc"),
    ];
    for (look, expected) in rows {
        assert_eq!(levels(&[look; 3]), expected, "{look:?}");
    }
}

#[test]
fn what_cannot_be_measured_is_bad_and_what_has_no_limit_is_not() {
    for look in [
        Look { store_latency: Reading::Failed, ..CALM },
        Look { loop_delay: Reading::Failed, ..CALM },
        Look { memory: Reading::Failed, ..CALM },
        Look { queue_due: Reading::Failed, ..CALM },
        Look { queue_age: Reading::Failed, ..CALM },
    ] {
        assert_eq!(levels(&[look; 3]), "nnd", "{look:?}");
        assert!(controller().cause(&look).is_some(), "{look:?}");
    }
    assert_eq!(levels(&[Look { memory: Reading::None, ..CALM }; 3]), "nnn");
    let mut off = Controller::new([None; 5]);
    for _ in 0..9 {
        assert_eq!(off.observe(crate::clock::now(), &store(60.0)), None);
    }
}

#[test]
fn a_level_rises_with_three_bad_looks_of_five() {
    let (bad, worse) = (store(0.3), store(3.0));
    assert_eq!(levels(&[bad, CALM, bad, CALM, bad]), "nnnnd");
    assert_eq!(levels(&[bad, bad, CALM, CALM, CALM, bad, bad]), "nnnnnnn");
    assert_eq!(levels(&[worse, bad, bad, worse, worse]), "nnddc");
    assert_eq!(levels(&[worse, worse, CALM, worse]), "nnnc");
}

#[test]
fn a_level_falls_after_half_a_minute_that_is_clearly_calm() {
    let (bad, nearly, worse) = (store(0.3), store(0.21), store(3.0));
    let after = |first: Look, then: &[(Look, usize)]| {
        let mut looks = vec![first; 3];
        looks.extend(then.iter().flat_map(|(look, times)| vec![*look; *times]));
        levels(&looks).chars().last().unwrap()
    };
    assert_eq!(after(bad, &[(CALM, 15)]), 'd');
    assert_eq!(after(bad, &[(CALM, 16)]), 'n');
    // Not over the bound, but not clearly under it either.
    assert_eq!(after(bad, &[(nearly, 100)]), 'd');
    assert_eq!(after(bad, &[(CALM, 15), (nearly, 1), (CALM, 15)]), 'd');
    // A failed measurement is not calm.
    let unknown = Look { store_latency: Reading::Failed, ..CALM };
    assert_eq!(after(bad, &[(CALM, 15), (unknown, 1), (CALM, 15)]), 'd');
    // As far as the worst of that time allows.
    assert_eq!(after(worse, &[(CALM, 10), (nearly, 1), (CALM, 5)]), 'd');
    assert_eq!(after(worse, &[(CALM, 16)]), 'n');
}

#[test]
fn full_queues_do_not_slow_claims_and_anything_else_does() {
    let slows = |look: Look| {
        let mut controller = controller();
        for _ in 0..3 {
            controller.observe(crate::clock::now(), &look);
        }
        assert!(controller.level() > Degradation::Normal, "{look:?}");
        controller.slows_claims()
    };
    assert!(!slows(Look { queue_due: Reading::Value(9e6), ..CALM }));
    assert!(!slows(Look { queue_age: Reading::Value(9e6), ..CALM }));
    assert!(slows(store(0.3)));
    assert!(slows(Look { loop_delay: Reading::Value(9.0), ..CALM }));
    assert!(slows(Look { memory: Reading::Value(0.9), ..CALM }));
}

#[test]
fn the_cause_is_the_worst_in_words() {
    let cause = |look: Look| controller().cause(&look);
    assert_eq!(cause(CALM), None);
    assert_eq!(cause(store(0.3)).as_deref(), Some("the store takes 300ms"));
    let both = Look { memory: Reading::Value(0.95), ..store(0.3) };
    assert_eq!(cause(both).as_deref(), Some("95 % of the memory is in use"));
    let unknown = Look { store_latency: Reading::Failed, ..CALM };
    assert_eq!(cause(unknown).as_deref(), Some("the store does not answer"));
    let full = Look { queue_due: Reading::Value(60_000.0), ..CALM };
    assert_eq!(cause(full).as_deref(), Some("60000 jobs are due"));
}

fn reading() -> impl Strategy<Value = Reading> {
    prop_oneof![
        Just(Reading::Failed),
        Just(Reading::None),
        prop_oneof![0.0..0.2, 0.2..0.25, 0.25..1.0, 1.0..3.0].prop_map(Reading::Value),
    ]
}

proptest! {
    #[test]
    fn whatever_is_measured_a_level_has_a_reason_and_does_not_flap(
        readings in proptest::collection::vec((reading(), 1_u64..3_000), 1..200)
    ) {
        let (mut controller, began) = (controller(), crate::clock::now());
        let mut now = began;
        let mut seen: Vec<(Instant, Degradation)> = Vec::new();
        for (store_latency, pause_ms) in readings {
            now += Duration::from_millis(pause_ms);
            let look = Look { store_latency, ..CALM };
            seen.push((now, controller.level_of(Measure::StoreLatency, &look, 1.0)));
            match controller.observe(now, &look) {
                Some(Change { from, to }) if to > from => {
                    let last = &seen[seen.len().saturating_sub(LOOKS)..];
                    prop_assert!(last.iter().filter(|(_, level)| *level >= to).count() >= BAD_MIN);
                }
                Some(Change { from, .. }) => {
                    let calm = seen.iter().rev().take_while(|(_, level)| *level < from);
                    let first = calm.last().expect("the last look was calm").0;
                    prop_assert!(now - first >= CALM_FOR);
                }
                None => {}
            }
        }
    }
}
