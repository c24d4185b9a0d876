//! How a deployment is done: the settings of a `deploy.yaml` with every default filled in.
//!
//! They are part of the stored record, so their form is read for ever: a field is only added, and
//! only with a default.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::flow::Span;
use crate::ids::RunId;

mod shadow;

pub use shadow::{Ignored, IgnoredError, ShadowRules};

/// How a deployment is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The way from the old revision to the new one.
    pub strategy: Strategy,
    /// The pool whose instances execute the new revision; any if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// How long open runs of the old revision may take before they are checkpointed.
    pub drain_timeout: Span,
    /// How long the smoke tests may take together.
    pub verify_timeout: Span,
    /// How long a checkpoint is kept.
    pub checkpoint_expiry: Span,
    /// How long the record of an ended deployment is kept, with its report and checkpoints.
    pub audit_retention: Span,
    /// How many ended deployments of the flow are kept, each with its report and checkpoints.
    pub audit_max_per_flow: u32,
    /// How fast checkpoints and held starts are let go.
    pub replay_rate: ReplayRate,
    /// How many ended runs the figures before and after are taken from.
    pub before_window: u32,
    /// How many starts the hold takes before callers are refused.
    pub hold_max: u32,
    /// Which open runs go over to the new revision.
    pub migration: Migration,
    /// Steps of the old revision that have another name in the new one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, String>,
    /// Runs that the new revision must pass before it becomes active.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub smoke_tests: Vec<SmokeTest>,
    /// The new revision on the inputs of earlier runs, before it becomes active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowRules>,
    /// When a canary is promoted.
    pub canary: Canary,
    /// What somebody is told of.
    #[serde(skip_serializing_if = "Alerts::is_empty")]
    pub alerts: Alerts,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            strategy: Strategy::Rolling,
            pool: None,
            drain_timeout: Span(Duration::from_secs(30)),
            verify_timeout: Span(Duration::from_secs(15)),
            checkpoint_expiry: Span(Duration::from_hours(24)),
            audit_retention: Span(Duration::from_hours(7 * 24)),
            audit_max_per_flow: 1_000,
            replay_rate: ReplayRate::PerSecond(NonZeroU32::MIN.saturating_add(9)),
            before_window: 50,
            hold_max: 100_000,
            migration: Migration::Mappable,
            steps: BTreeMap::new(),
            smoke_tests: Vec::new(),
            shadow: None,
            canary: Canary::default(),
            alerts: Alerts::default(),
        }
    }
}

/// The way from the old revision to the new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The new revision becomes active at once; open runs finish on the old one.
    #[default]
    Rolling,
    /// Starts are held while open runs finish, the new revision is verified, and then takes over.
    BlueGreen,
    /// A share of the starts goes to the new revision until enough of them decide.
    Canary,
    /// The new revision is tried on the inputs of earlier runs, and does not become active.
    Shadow,
}

impl Strategy {
    /// Every strategy.
    pub const ALL: [Self; 4] = [Self::Rolling, Self::BlueGreen, Self::Canary, Self::Shadow];

    /// As it is written and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rolling => "rolling",
            Self::BlueGreen => "blue-green",
            Self::Canary => "canary",
            Self::Shadow => "shadow",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which open runs go over to the new revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Migration {
    /// None: all finish on the revision that they are pinned to.
    Never,
    /// Those that are open at the drain timeout and have a place in the new revision.
    #[default]
    Mappable,
    /// The same, and a deployment is refused if one of them has none.
    All,
}

/// How fast checkpoints and held starts are let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayRate {
    /// So many in a second.
    PerSecond(NonZeroU32),
    /// As fast as the store takes them.
    Unlimited,
}

impl fmt::Display for ReplayRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerSecond(rate) => rate.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

impl Serialize for ReplayRate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::PerSecond(rate) => rate.serialize(serializer),
            Self::Unlimited => serializer.serialize_str("unlimited"),
        }
    }
}

impl<'de> Deserialize<'de> for ReplayRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReplayRateVisitor)
    }
}

struct ReplayRateVisitor;

impl Visitor<'_> for ReplayRateVisitor {
    type Value = ReplayRate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("how many in a second, such as `10`, or `unlimited`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        match text {
            "unlimited" => Ok(ReplayRate::Unlimited),
            other => Err(E::custom(format_args!(
                "`{}` is not a rate; write how many in a second, such as `10`, or `unlimited`",
                other.escape_debug()
            ))),
        }
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        let rate = u32::try_from(number).ok().and_then(NonZeroU32::new);
        rate.map(ReplayRate::PerSecond).ok_or_else(|| {
            E::custom(format_args!(
                "`{number}` in a second is not a rate; write a number from 1 to {}, or `unlimited`",
                u32::MAX
            ))
        })
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => self.visit_str(&number.to_string()),
        }
    }
}

/// A share of the starts of a flow, in hundredths of a percent: more than none, at most all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u16);

/// A text that is not a share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a share; write a percentage over 0 and up to 100, such as `5%` or `0.5%`")]
pub struct ShareError(String);

impl Share {
    /// All starts.
    const WHOLE: u16 = 10_000;

    /// Whether the share takes this run. A run that a share takes is in every larger one too.
    pub fn takes(self, run_id: RunId) -> bool {
        let digest = Sha256::digest(run_id.0.as_bytes());
        let number = u64::from_be_bytes(std::array::from_fn(|at| digest[at]));
        number % u64::from(Self::WHOLE) < u64::from(self.0)
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ShareError(text.escape_debug().to_string());
        let number = text.strip_suffix('%').ok_or_else(error)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "00"));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(part) || !matches!(part.len(), 1 | 2) {
            return Err(error());
        }
        let whole: u16 = whole.parse().map_err(|_| error())?;
        let part: u16 = format!("{part:0<2}").parse().map_err(|_| error())?;
        match whole.checked_mul(100).and_then(|whole| whole.checked_add(part)) {
            Some(share @ 1..=Self::WHOLE) => Ok(Self(share)),
            Some(_) | None => Err(error()),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}%", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}%"),
        }
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// When a canary is promoted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Canary {
    /// The share of starts that goes to the new revision.
    pub share: Share,
    /// How many runs of it must have ended before they decide.
    pub samples_min: u32,
    /// By how much its error rate may be over that of the old revision.
    pub error_rate_max: f64,
    /// How many times the old revision's 99th percentile of latency its own may be.
    pub latency_ratio_max: f64,
    /// How long there may be too few runs to decide before it is rolled back.
    pub timeout: Span,
}

impl Default for Canary {
    fn default() -> Self {
        Self {
            share: Share(500),
            samples_min: 50,
            error_rate_max: 0.01,
            latency_ratio_max: 2.0,
            timeout: Span(Duration::from_hours(1)),
        }
    }
}

/// What somebody is told of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Alerts {
    /// An error rate over this after the deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_rate_max: Option<f64>,
    /// A 99th percentile of latency over this after the deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_p99_max: Option<Span>,
    /// Where alerts are sent, and that a deployment was rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
}

impl Alerts {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A run that the new revision must pass before it becomes active.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SmokeTest {
    /// Its name, unlike that of any other of the deployment.
    pub name: String,
    /// The input of the run.
    #[serde(default)]
    pub input: Value,
    /// What must come of it.
    #[serde(default)]
    pub expect: Expectation,
}

/// What must come of a smoke test's run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Expectation {
    /// How it ends.
    pub status: ExpectedStatus,
    /// Events that it emits, and their data.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub emits: BTreeMap<String, Wanted>,
    /// Steps that succeed, and their results.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub result: BTreeMap<String, Wanted>,
}

/// How a smoke test's run must end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedStatus {
    /// Well.
    #[default]
    Completed,
    /// Because a step fails.
    Failed,
}

impl ExpectedStatus {
    /// As it is written and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

/// What a value must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// This one.
    Equals(Value),
    /// One that meets this JSON Schema.
    Schema(Value),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_reads_as_it_is_written() {
        let rows =
            [("5%", "5%"), ("0.5%", "0.5%"), ("0.25%", "0.25%"), ("100%", "100%"), ("5.00%", "5%")];
        for (text, written) in rows {
            assert_eq!(text.parse::<Share>().unwrap().to_string(), written, "{text}");
        }
        for bad in ["", "%", "5", "0%", "100.01%", "-1%", "+5%", "5.%", "0.001%", "99999%", "5 %"] {
            assert!(bad.parse::<Share>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_share_takes_about_its_part_and_a_larger_one_takes_the_same_runs() {
        let run = |number: u32| RunId::derived("order", &number.to_string());
        let (small, large): (Share, Share) = ("5%".parse().unwrap(), "20%".parse().unwrap());
        let taken = (0..10_000).filter(|number| small.takes(run(*number))).count();
        assert!((350..650).contains(&taken), "{taken}");
        assert!((0..10_000).all(|number| !small.takes(run(number)) || large.takes(run(number))));
        let all: Share = "100%".parse().unwrap();
        assert!((0..1_000).all(|number| all.takes(run(number))));
    }

    #[test]
    fn a_rate_is_a_number_or_unlimited() {
        for text in ["10", "\"unlimited\""] {
            let rate: ReplayRate = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&rate).unwrap(), text);
        }
        for bad in ["0", "-1", "\"fast\"", "1.5", "null", "4294967296"] {
            assert!(serde_json::from_str::<ReplayRate>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn settings_of_an_older_form_are_read_with_defaults() {
        assert_eq!(serde_json::from_str::<Settings>("{}").unwrap(), Settings::default());
        let later = r#"{"strategy":"blue-green","replay_rate":"unlimited","soon":1}"#;
        let settings: Settings = serde_json::from_str(later).unwrap();
        assert_eq!(settings.strategy, Strategy::BlueGreen);
        assert_eq!(settings.replay_rate, ReplayRate::Unlimited);
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
    }
}
