//! Faults: what is done to instances and server, when, and whether it had an effect.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use flowgate_core::time::Timestamp;
use serde::Serialize;

/// How far the clock jumps at least: what is less cannot be told from a slow answer.
const JUMP_MIN_MS: i64 = 500;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// An instance is killed, and another one takes its place after a while.
    Kill,
    /// An instance stands still for one to three leases.
    Stop,
    /// The server is killed and started again.
    Restart,
    /// The connections of an instance are cut, and no new ones are made for a while.
    Cut,
    /// The connections of an instance stay open and carry nothing for a while.
    HalfOpen,
    /// Answers of the server to an instance are swallowed: it did the work, nobody knows.
    Swallow,
    /// The store's clock jumps, forward or back.
    Clock,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Kill,
        Self::Stop,
        Self::Restart,
        Self::Cut,
        Self::HalfOpen,
        Self::Swallow,
        Self::Clock,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Cut => "cut",
            Self::HalfOpen => "half_open",
            Self::Swallow => "swallow",
            Self::Clock => "clock",
        }
    }

    /// Whether it needs a proxy before the server.
    fn needs_proxy(self) -> bool {
        match self {
            Self::Cut | Self::HalfOpen | Self::Swallow => true,
            Self::Kill | Self::Stop | Self::Restart | Self::Clock => false,
        }
    }

    /// Its share among a hundred faults.
    fn weight(self) -> u32 {
        match self {
            Self::Kill | Self::Stop => 25,
            Self::Cut | Self::HalfOpen | Self::Swallow => 12,
            Self::Restart | Self::Clock => 7,
        }
    }
}

/// One fault, planned.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// The instance, for faults that hit one.
    pub(crate) instance: usize,
    /// How long it lasts.
    pub(crate) lasts: Duration,
    /// How long it is quiet after it.
    pub(crate) then: Duration,
    /// Milliseconds that the clock jumps, or answers that are swallowed.
    pub(crate) amount: i64,
}

/// Plans `count` faults; every kind that is possible is there if there is room for it.
pub(crate) fn plan(
    random: &mut fastrand::Rng,
    count: usize,
    instances: usize,
    lease: Duration,
    with_proxy: bool,
) -> Vec<Fault> {
    let kinds: Vec<Kind> =
        Kind::ALL.into_iter().filter(|kind| with_proxy || !kind.needs_proxy()).collect();
    let total: u32 = kinds.iter().map(|kind| kind.weight()).sum();
    let mut planned: Vec<Kind> = kinds.iter().copied().take(count).collect();
    while planned.len() < count {
        let mut draw = random.u32(0..total);
        let chosen = kinds.iter().find(|kind| {
            let hit = draw < kind.weight();
            draw = draw.saturating_sub(kind.weight());
            hit
        });
        planned.extend(chosen);
    }
    random.shuffle(&mut planned);
    planned
        .into_iter()
        .map(|kind| {
            let part = random.f64();
            let lasts = match kind {
                Kind::Kill => Duration::from_millis(100).mul_f64(1.0 + part * 14.0),
                Kind::Stop => lease.mul_f64(1.0 + part * 2.0) + Duration::from_millis(200),
                Kind::Restart => Duration::from_millis(300).mul_f64(1.0 + part * 4.0),
                Kind::Cut | Kind::HalfOpen => lease.mul_f64(0.2 + part * 1.8),
                Kind::Swallow => Duration::from_secs(2),
                Kind::Clock => Duration::ZERO,
            };
            let amount = match kind {
                Kind::Swallow => random.i64(1..4),
                Kind::Clock => {
                    let span = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
                    if random.bool() {
                        random.i64(JUMP_MIN_MS..span * 2)
                    } else {
                        -random.i64(JUMP_MIN_MS..span)
                    }
                }
                Kind::Kill | Kind::Stop | Kind::Restart | Kind::Cut | Kind::HalfOpen => 0,
            };
            let then = Duration::from_millis(random.u64(100..1_200));
            Fault { kind, instance: random.usize(0..instances), lasts, then, amount }
        })
        .collect()
}

/// Whether a clock that went on by `moved_ms` while `elapsed` passed has jumped by `amount_ms`.
pub(crate) fn is_jump(amount_ms: i64, moved_ms: i64, elapsed: Duration) -> bool {
    let elapsed_ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
    let jumped_ms = moved_ms.saturating_sub(elapsed_ms);
    jumped_ms.abs_diff(amount_ms) < JUMP_MIN_MS.unsigned_abs()
}

/// A fault that was injected.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Injected {
    pub(crate) kind: Kind,
    /// The place of the instance that it hit, if it was one.
    pub(crate) place: Option<usize>,
    /// On the clock of this machine, as in the logs of the instances.
    #[serde(serialize_with = "shown")]
    pub(crate) began_at: Timestamp,
    #[serde(serialize_with = "shown")]
    pub(crate) ended_at: Timestamp,
    pub(crate) took_effect: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn shown<S: serde::Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(at)
}

/// Writes what was injected, one fault a line.
pub(crate) fn export(path: &Path, injected: &[Injected]) -> anyhow::Result<()> {
    let line =
        |fault: &Injected| serde_json::to_string(fault).expect("a fault has a JSON form") + "\n";
    let lines: String = injected.iter().map(line).collect();
    std::fs::write(path, lines).with_context(|| format!("writing {}", path.display()))
}

/// How often a kind was injected, and how often it was seen to do something.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Tally {
    pub(crate) injected: u64,
    pub(crate) took_effect: u64,
}

/// Tallies of all kinds that were injected.
pub(crate) type Tallies = BTreeMap<&'static str, Tally>;

pub(crate) fn tallies(injected: &[Injected]) -> Tallies {
    let mut tallies = Tallies::new();
    for fault in injected {
        let tally = tallies.entry(fault.kind.name()).or_default();
        tally.injected += 1;
        tally.took_effect += u64::from(fault.took_effect);
    }
    tallies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_follows_from_its_seed_and_holds_every_kind() {
        let lease = Duration::from_secs(2);
        let plan_of = |seed| plan(&mut fastrand::Rng::with_seed(seed), 30, 5, lease, true);
        let shown = |faults: &[Fault]| faults.iter().map(|f| format!("{f:?}")).collect::<Vec<_>>();
        assert_eq!(shown(&plan_of(7)), shown(&plan_of(7)));
        assert_ne!(shown(&plan_of(7)), shown(&plan_of(8)));
        for kind in Kind::ALL {
            assert!(plan_of(7).iter().any(|fault| fault.kind == kind), "{kind:?}");
        }
        let without = plan(&mut fastrand::Rng::with_seed(7), 30, 5, lease, false);
        assert!(without.iter().all(|fault| !fault.kind.needs_proxy()));
    }

    #[test]
    fn what_was_injected_is_written_down_and_counted_by_its_kind() {
        let at = |kind, began_at, took_effect| Injected {
            kind,
            place: Some(2),
            began_at: Timestamp(began_at),
            ended_at: Timestamp(began_at + 5),
            took_effect,
        };
        let injected = [at(Kind::Cut, 1, true), at(Kind::Cut, 7, false), at(Kind::Kill, 9, true)];
        let counted = tallies(&injected);
        assert_eq!((counted["cut"].injected, counted["cut"].took_effect), (2, 1));
        assert_eq!((counted["kill"].injected, counted["kill"].took_effect), (1, 1));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("faults.ndjson");
        export(&file, &injected).unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1]["kind"], "cut");
        assert_eq!((&lines[1]["place"], &lines[1]["took_effect"]), (&2.into(), &false.into()));
        let ended_at = "1970-01-01T00:00:00.012Z";
        assert_eq!(lines[1]["ended_at"], ended_at);
    }

    #[test]
    fn every_planned_jump_of_the_clock_is_told_from_none_however_long_it_takes() {
        let plan = plan(&mut fastrand::Rng::with_seed(7), 500, 5, Duration::from_secs(2), true);
        let jumps: Vec<i64> =
            plan.iter().filter(|f| f.kind == Kind::Clock).map(|f| f.amount).collect();
        assert!(jumps.iter().any(|jump| *jump > 0) && jumps.iter().any(|jump| *jump < 0));
        for jump in jumps {
            for elapsed_ms in [1_i64, 3_000] {
                let elapsed = Duration::from_millis(elapsed_ms.unsigned_abs());
                assert!(is_jump(jump, jump + elapsed_ms, elapsed), "{jump}");
                assert!(!is_jump(jump, elapsed_ms, elapsed), "{jump}");
            }
        }
    }
}
