//! When a schedule is due.
//!
//! Cron expressions are read and searched by croner, with these rules where a clock is changed. An
//! expression is *fixed* if its second, minute and hour are one number each.
//!
//! - A time that does not exist: a fixed expression is due at the first moment after the gap; any
//!   other leaves those times out.
//! - A time that exists twice: a fixed expression is due at the first; any other at both.

use std::sync::LazyLock;
use std::time::Duration;

use croner::parser::{CronParser, Seconds, Year};
use croner::{Cron, JobType, errors::CronError};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Zoned};
use sha2::{Digest, Sha256};

use super::{CatchUp, Overlap, Schedule, ScheduleFile};
use crate::flow::{Path, Problem};
use crate::payload::Payload;
use crate::time::Timestamp;

/// The zones that this program was built with: every instance of a version has the same.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
/// More than any clock was ever changed by at once.
const CLOCK_CHANGE_MAX: SignedDuration = SignedDuration::from_hours(48);
/// The years that are searched.
const YEAR_MIN: i16 = 1_960;
const YEAR_MAX: i16 = 5_000;

/// When a valid schedule is due.
#[derive(Clone, Debug)]
pub(super) enum When {
    /// Whenever the clock in a zone meets an expression.
    Cron { cron: Box<Cron>, zone: TimeZone },
    /// At each multiple of a span since an anchor.
    Every { span_ms: i64, anchor: Timestamp },
    /// Once.
    At(Timestamp),
}

/// Reads a cron expression.
pub(super) fn parse_cron(text: &str) -> Result<Cron, CronError> {
    CronParser::builder()
        .seconds(Seconds::Optional)
        .year(Year::Disallowed)
        .sloppy_ranges(true)
        .build()
        .parse(text)
}

/// The zone called `name`, in whichever case.
pub(super) fn zone(name: &str) -> Option<TimeZone> {
    ZONES.get(name).ok()
}

/// The names of all zones.
pub(super) fn zone_names() -> Vec<String> {
    ZONES.available().map(|name| name.to_string()).collect()
}

/// Reads a point in time.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse::<jiff::Timestamp>().ok().map(|time| Timestamp(time.as_millisecond()))
}

/// The first time after `after` at which the clock in `zone` meets `cron`.
pub(super) fn cron_after(cron: &Cron, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    let from = zoned(zone, after)?;
    if is_fixed(cron) {
        let mut clock = from.datetime().checked_sub(CLOCK_CHANGE_MAX).ok()?;
        loop {
            clock = on_calendar(clock, |clock| cron.find_next_occurrence(clock, false))?;
            let due = resolve(zone, clock).filter(|due| *due > after);
            if due.is_some() || clock.year() > YEAR_MAX {
                return due;
            }
        }
    }
    let found = cron.find_next_occurrence(&from, false).ok()?;
    Some(Timestamp(found.timestamp().as_millisecond()))
}

/// The last time that is not after `until` at which the clock in `zone` meets `cron`.
fn cron_until(cron: &Cron, zone: &TimeZone, until: Timestamp) -> Option<Timestamp> {
    let from = zoned(zone, until)?;
    if is_fixed(cron) {
        let mut clock = from.datetime().checked_add(CLOCK_CHANGE_MAX).ok()?;
        loop {
            clock = on_calendar(clock, |clock| cron.find_previous_occurrence(clock, false))?;
            let due = resolve(zone, clock).filter(|due| *due <= until);
            if due.is_some() || clock.year() < YEAR_MIN {
                return due;
            }
        }
    }
    let found = cron.find_previous_occurrence(&from, true).ok()?;
    Some(Timestamp(found.timestamp().as_millisecond()))
}

/// Whether an expression names one time of the day.
///
/// croner would also have such a one due after every gap that its search passes, on top of its own
/// time; so it is asked about the calendar alone.
fn is_fixed(cron: &Cron) -> bool {
    cron.determine_job_type() == JobType::FixedTime
}

/// Searches a calendar on which no clock is ever changed.
fn on_calendar(
    clock: DateTime,
    find: impl Fn(&Zoned) -> Result<Zoned, CronError>,
) -> Option<DateTime> {
    let found = find(&clock.to_zoned(TimeZone::UTC).ok()?).ok()?;
    Some(found.datetime())
}

/// When the clock in a zone shows this: the first time if it does so twice, and the first moment
/// after the gap if it never does.
fn resolve(zone: &TimeZone, clock: DateTime) -> Option<Timestamp> {
    let ambiguous = zone.to_ambiguous_zoned(clock);
    let is_gap = matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. });
    let first = ambiguous.earlier().ok()?.timestamp();
    let due = if is_gap { zone.following(first).next()?.timestamp() } else { first };
    Some(Timestamp(due.as_millisecond()))
}

/// A point in time on the clock of a zone, without the part of a second.
fn zoned(zone: &TimeZone, at: Timestamp) -> Option<Zoned> {
    let second = jiff::Timestamp::from_second(at.0.div_euclid(1_000)).ok()?;
    Some(second.to_zoned(zone.clone()))
}

impl When {
    fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron { cron, zone } => cron_after(cron, zone, after),
            Self::Every { span_ms, anchor } if after < *anchor => {
                Some(*anchor).filter(|_| *span_ms > 0)
            }
            Self::Every { span_ms, anchor } => {
                let passed = after.0.checked_sub(anchor.0)?.div_euclid(*span_ms);
                let ms = passed.checked_add(1)?.checked_mul(*span_ms)?.checked_add(anchor.0)?;
                Some(Timestamp(ms))
            }
            Self::At(at) => Some(*at).filter(|at| *at > after),
        }
    }

    fn last_until(&self, until: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron { cron, zone } => cron_until(cron, zone, until),
            Self::Every { span_ms, anchor } => {
                let passed = until.0.checked_sub(anchor.0)?.div_euclid(*span_ms);
                Some(Timestamp(passed.checked_mul(*span_ms)?.checked_add(anchor.0)?))
                    .filter(|at| at >= anchor)
            }
            Self::At(at) => Some(*at).filter(|at| *at <= until),
        }
    }
}

impl Schedule {
    /// Checks `file` and makes it ready to be asked.
    pub fn new(file: &ScheduleFile) -> Result<Self, Vec<Problem>> {
        let problems = file.validate();
        if !problems.is_empty() {
            return Err(problems);
        }
        let time = |text: &Option<String>| {
            text.as_deref().map(|text| parse_time(text).expect("validation parsed this time"))
        };
        let (start, end) = (time(&file.start), time(&file.end));
        let when = if let Some(text) = &file.cron {
            let cron = Box::new(parse_cron(text).expect("validation parsed this expression"));
            let name = file.zone.as_deref().unwrap_or("UTC");
            When::Cron { cron, zone: zone(name).expect("validation found this zone") }
        } else if let Some(span) = file.every {
            let span_ms = i64::try_from(span.0.as_millis()).expect("validation bounds this span");
            When::Every { span_ms, anchor: start.unwrap_or_default() }
        } else {
            When::At(time(&file.at).expect("validation wants one of three"))
        };
        let input = match &file.input {
            None => Payload::null(),
            Some(value) => Payload::of(value).map_err(|error| {
                let message = format!("the input cannot be kept: {error}");
                let path = Path::default().key("input");
                vec![Problem { path, message, remedy: "make it smaller or flatter".to_owned() }]
            })?,
        };
        let tags = file.tags.iter().map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect();
        Ok(Self {
            when,
            start,
            end,
            jitter: file.jitter.map_or(Duration::ZERO, |span| span.0),
            overlap: file.overlap.unwrap_or(Overlap::Allow),
            catch_up: file.catch_up.unwrap_or(CatchUp::Latest),
            input,
            tags,
        })
    }

    /// The first due time after `after`.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let after = match self.start {
            Some(start) => after.max(Timestamp(start.0.saturating_sub(1))),
            None => after,
        };
        self.when.next_after(after).filter(|due| self.end.is_none_or(|end| *due <= end))
    }

    /// The last due time that is not after `until`.
    pub fn last_until(&self, until: Timestamp) -> Option<Timestamp> {
        let until = self.end.map_or(until, |end| until.min(end));
        self.when.last_until(until).filter(|due| self.start.is_none_or(|start| *due >= start))
    }

    /// The due times after `from` and not after `to`, the first `limit` of them.
    pub fn between(&self, from: Timestamp, to: Timestamp, limit: usize) -> Vec<Timestamp> {
        let next = |after: &Timestamp| self.next_after(*after).filter(|due| *due <= to);
        std::iter::successors(next(&from), next).take(limit).collect()
    }

    /// How long the start of an occurrence is put off: always the same for the same occurrence.
    pub fn delay(&self, name: &str, due_at: Timestamp) -> Duration {
        let jitter_ms = u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX);
        if jitter_ms == 0 {
            return Duration::ZERO;
        }
        let digest = Sha256::digest(super::ledger_key(name, due_at));
        let chance = u64::from_be_bytes(std::array::from_fn(|at| digest[at]));
        Duration::from_millis(chance % (jitter_ms + 1))
    }

    /// Whether an occurrence comes due only once.
    pub fn is_one_time(&self) -> bool {
        matches!(self.when, When::At(_))
    }
}
