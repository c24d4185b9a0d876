//! Where this process reads its own clock; everything that is stored goes by the store's.
#![expect(clippy::disallowed_methods, reason = "this is the place that reads the clock")]

use std::time::Instant;

use flowgate_core::time::Timestamp;

/// A point on the monotonic clock, for lengths of time that are only shown.
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// The time of day here, for lines that are only shown.
pub(crate) fn time_of_day() -> String {
    jiff::Zoned::now().strftime("%H:%M:%S").to_string()
}

/// The time now, by the clock of this machine.
pub(crate) fn now() -> Timestamp {
    Timestamp(jiff::Timestamp::now().as_millisecond())
}

/// A time as the API writes it.
pub(crate) fn read(text: &str) -> Timestamp {
    let read = text.parse::<jiff::Timestamp>();
    read.map_or_else(|_| now(), |time| Timestamp(time.as_millisecond()))
}
