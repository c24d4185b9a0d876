//! Where this process reads its own clock; everything that is stored goes by the store's.
#![expect(clippy::disallowed_methods, reason = "this is the place that reads the clock")]

use std::time::Instant;

/// A point on the monotonic clock, for lengths of time that are only shown.
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// The time of day here, for lines that are only shown.
pub(crate) fn time_of_day() -> String {
    jiff::Zoned::now().strftime("%H:%M:%S").to_string()
}
