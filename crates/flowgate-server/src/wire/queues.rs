//! Queues.

use std::time::Duration;

use flowgate_core::flow::Span;
use flowgate_core::ids::RunId;
use flowgate_core::limits::LIMIT_MAX;
use flowgate_engine::{QueueRate, QueueSettings};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// A queue: what waits in it and what is set for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueItem {
    /// Its name.
    pub queue: String,
    /// Whether nobody takes its jobs.
    pub paused: bool,
    /// How many of its jobs may run at the same time.
    pub concurrency: Option<u32>,
    /// How many of its jobs may begin in a span, such as `10/s`.
    #[schema(example = "10/s")]
    pub rate: Option<String>,
    /// Jobs that are due and that nobody has.
    pub due: u64,
    /// Jobs that are due later.
    pub later: u64,
    /// When the one that has been due longest became due.
    #[schema(format = DateTime)]
    pub oldest_due_at: Option<String>,
    /// How long ago that was.
    pub oldest_age_ms: Option<u64>,
    /// The instances that take its jobs.
    pub served_by: Vec<String>,
}

/// A queue and who holds its permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueDetail {
    /// The queue.
    #[serde(flatten)]
    pub item: QueueItem,
    /// Jobs that hold a permit, if it has a limit; the first 100 of them.
    pub holders: Vec<PermitHolder>,
    /// Jobs that stand in line for one.
    pub in_line: u64,
}

/// A job that holds a permit of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PermitHolder {
    /// Its run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its step; null if the run is gone.
    pub step: Option<String>,
}

/// What is set for a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueLimits {
    /// Whether nobody takes its jobs.
    pub paused: bool,
    /// How many of its jobs may run at the same time.
    pub concurrency: Option<u32>,
    /// How many of its jobs may begin in a span.
    #[schema(example = "10/s")]
    pub rate: Option<String>,
}

impl From<QueueSettings> for QueueLimits {
    fn from(settings: QueueSettings) -> Self {
        let QueueSettings { paused, concurrency, rate } = settings;
        Self { paused, concurrency, rate: rate.map(say_rate) }
    }
}

/// What is to be set for a queue. What is absent stays, null takes it away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueChange {
    /// Whether nobody is to take its jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// How many of its jobs may run at the same time.
    #[serde(default, skip_serializing_if = "Change::is_keep")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000_000)]
    pub concurrency: Change<u32>,
    /// How many of its jobs may begin in a span.
    #[serde(default, skip_serializing_if = "Change::is_keep")]
    #[schema(value_type = Option<String>, example = "10/s")]
    pub rate: Change<String>,
}

/// What is to become of a setting. On the wire: absent, a value, or null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change<T> {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is this.
    Set(T),
    /// It is gone.
    Unset,
}

impl<T> Change<T> {
    /// The setting after it.
    pub fn of(self, before: Option<T>) -> Option<T> {
        match self {
            Self::Keep => before,
            Self::Set(value) => Some(value),
            Self::Unset => None,
        }
    }

    fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }
}

impl<T: Serialize> Serialize for Change<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Set(value) => value.serialize(serializer),
            Self::Keep | Self::Unset => serializer.serialize_none(),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Change<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = Option::<T>::deserialize(deserializer)?;
        Ok(given.map_or(Self::Unset, Self::Set))
    }
}

/// What became of the settings of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueChanged {
    /// The queue.
    pub queue: String,
    /// What was set.
    pub was: QueueLimits,
    /// What is set.
    pub now: QueueLimits,
}

/// Reads `10/s`, `100/m`, `5/10s`.
pub fn parse_rate(text: &str) -> Result<QueueRate, String> {
    let wrong = || "write a number and a span, such as 10/s, 100/m or 5/10s".to_owned();
    let (count, span) = text.split_once('/').ok_or_else(wrong)?;
    let count: u32 = count.parse().map_err(|_| wrong())?;
    let span = if span.starts_with(|c: char| c.is_ascii_digit()) {
        span.to_owned()
    } else {
        format!("1{span}")
    };
    let Span(per) = span.parse().map_err(|_| wrong())?;
    if count == 0 || count > LIMIT_MAX || per.is_zero() {
        return Err(format!("a rate is from 1 to {LIMIT_MAX} in a span that is more than none"));
    }
    Ok(QueueRate { count, per_ms: u64::try_from(per.as_millis()).unwrap_or(u64::MAX) })
}

/// A rate as [`parse_rate`] reads it.
pub fn say_rate(rate: QueueRate) -> String {
    let per = Span(Duration::from_millis(rate.per_ms)).to_string();
    let unit = per.strip_prefix('1').filter(|unit| !unit.starts_with(|c: char| c.is_ascii_digit()));
    format!("{}/{}", rate.count, unit.unwrap_or(&per))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_and_said_in_the_same_words() {
        for (text, count, per_ms) in [
            ("10/s", 10, 1_000),
            ("100/m", 100, 60_000),
            ("5/10s", 5, 10_000),
            ("1/h", 1, 3_600_000),
        ] {
            let read = parse_rate(text).unwrap();
            assert_eq!((read.count, read.per_ms), (count, per_ms));
            assert_eq!(say_rate(read), text);
        }
        for text in ["", "10", "/s", "0/s", "10/", "x/s", "10/0s", "10/fortnight"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_absent_stays_and_null_takes_it_away() {
        let read = |text| serde_json::from_str::<QueueChange>(text).unwrap();
        assert_eq!(read("{}"), QueueChange::default());
        let change = read(r#"{"concurrency":null,"rate":"1/s"}"#);
        assert_eq!((change.concurrency, change.paused), (Change::Unset, None));
        assert_eq!(change.rate, Change::Set("1/s".to_owned()));
        assert_eq!(change.rate.clone().of(None).as_deref(), Some("1/s"));
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(text, r#"{"concurrency":null,"rate":"1/s"}"#);
    }
}
