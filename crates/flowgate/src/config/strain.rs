//! From where on an instance is strained.

use std::time::Duration;

use flowgate_engine::Bounds;

use super::{Wrong, parse_span};

/// Two lengths of time.
pub(super) fn spans(text: &str) -> Result<Option<Bounds<Duration>>, Wrong> {
    let read = |text: &str| parse_span(text).ok().filter(|span| !span.is_zero());
    bounds(text, ("two lengths of time", "5m,1h"), read)
}

/// Two whole numbers.
pub(super) fn numbers(text: &str) -> Result<Option<Bounds<u64>>, Wrong> {
    let read = |text: &str| text.parse().ok().filter(|number| *number > 0);
    bounds(text, ("two whole numbers", "50000,1000000"), read)
}

/// Two shares, each in percent.
pub(super) fn shares(text: &str) -> Result<Option<Bounds<f64>>, Wrong> {
    let read = |text: &str| {
        let percent: u8 = text.strip_suffix('%')?.parse().ok()?;
        (1..=100).contains(&percent).then(|| f64::from(percent) / 100.0)
    };
    bounds(text, ("two shares", "80%,92%"), read)
}

/// A number of bytes; none is `auto`.
pub(super) fn limit(text: &str) -> Result<Option<u64>, Wrong> {
    if text == "auto" {
        return Ok(None);
    }
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let read = units.into_iter().find_map(|(unit, bits)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(1 << bits).filter(|bytes| *bytes > 0)
    });
    read.map(Some).ok_or_else(|| {
        let help = "write a whole number with KiB, MiB or GiB, such as 512MiB, or auto".to_owned();
        (format!("`{text}` is not a number of bytes"), help)
    })
}

/// Whether schedules pause while their leader is critical.
pub(super) fn pauses(text: &str) -> Result<bool, Wrong> {
    match text {
        "pause" => Ok(true),
        "run" => Ok(false),
        other => Err((format!("`{other}` is not a policy"), "write pause or run".to_owned())),
    }
}

/// The bound of degraded and that of critical, or none if it is off.
fn bounds<T: PartialOrd>(
    text: &str,
    (what, example): (&str, &str),
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<Bounds<T>>, Wrong> {
    if text == "off" {
        return Ok(None);
    }
    let wrong = |message: String| {
        let help = "write the bound of degraded and then that of critical, such as";
        Err((message, format!("{help} {example}, or off")))
    };
    let both = text.split_once(',');
    let both = both.and_then(|(one, other)| Some((read(one.trim())?, read(other.trim())?)));
    match both {
        None => wrong(format!("`{text}` is not {what}")),
        Some((degraded, critical)) if degraded > critical => {
            wrong(format!("`{text}` does not grow"))
        }
        Some((degraded, critical)) => Ok(Some(Bounds { degraded, critical })),
    }
}
