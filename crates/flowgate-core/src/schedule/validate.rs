//! The rules that a schedule must meet.

use croner::errors::CronError;

use super::times::{cron_after, parse_cron, parse_time, zone, zone_names};
use super::{CatchUp, ScheduleFile};
use crate::flow::{Path, Problem, Span, nearest};
use crate::limits::{
    CATCH_UP_WINDOW_MAX, CRON_BYTES_MAX, DESCRIPTION_BYTES_MAX, DURATION_MAX, INTERVAL_MIN,
    NAME_BYTES_MAX, TAGS_MAX,
};
use crate::payload::Payload;
use crate::run::OWN_TAGS;
use crate::time::Timestamp;

const NICKNAMES: [&str; 6] = ["@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@annually"];
/// The fields of an expression with seconds, and what may be in them.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of the month", "1 to 31, or `L` for the last"),
    ("month", "1 to 12, or JAN to DEC"),
    ("day of the week", "0 to 7, where 0 and 7 are Sunday, or SUN to SAT"),
];

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, path: &Path, message: impl Into<String>, remedy: impl Into<String>) {
        let (message, remedy) = (message.into(), remedy.into());
        self.0.push(Problem { path: path.clone(), message, remedy });
    }
}

pub(super) fn validate(path: &Path, file: &ScheduleFile) -> Vec<Problem> {
    let mut problems = Problems::default();
    if let Some(text) = &file.description
        && (text.len() > DESCRIPTION_BYTES_MAX || text.contains('\0'))
    {
        problems.add(
            &path.key("description"),
            format!("a description has at most {DESCRIPTION_BYTES_MAX} bytes and no NUL"),
            "shorten it, and link to the rest",
        );
    }
    validate_kind(path, file, &mut problems);
    validate_cron(path, file, &mut problems);
    validate_spans(path, file, &mut problems);
    validate_times(path, file, &mut problems);
    if let Some(input) = &file.input
        && let Err(error) = Payload::of(input)
    {
        problems.add(
            &path.key("input"),
            format!("the input cannot be kept: {error}"),
            "make it smaller or flatter, and let steps fetch what is large",
        );
    }
    validate_tags(&path.key("tags"), file, &mut problems);
    problems.0
}

fn validate_kind(path: &Path, file: &ScheduleFile, problems: &mut Problems) {
    let kinds =
        [("cron", file.cron.is_some()), ("every", file.every.is_some()), ("at", file.at.is_some())];
    let given: Vec<&str> =
        kinds.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
    match given.as_slice() {
        [_] => {}
        [] => problems.add(
            path,
            "the schedule does not say when",
            "write one of `cron: \"0 2 * * *\"`, `every: 10m` and `at: \"2030-01-01T00:00:00Z\"`",
        ),
        [first, .., last] => problems.add(
            &path.key(last),
            format!("the schedule has both `{first}` and `{last}`"),
            "keep one, and make the other a schedule of its own",
        ),
    }
    if file.zone.is_some() && file.cron.is_none() {
        problems.add(
            &path.key("zone"),
            "`zone` does nothing without `cron`",
            "remove it: `every` counts time that passes, and `at` has its offset",
        );
    }
    if file.at.is_some() {
        for (key, is_given) in [("start", file.start.is_some()), ("end", file.end.is_some())] {
            if is_given {
                problems.add(
                    &path.key(key),
                    format!("`{key}` does nothing with `at`"),
                    "remove it: the schedule is due once",
                );
            }
        }
    }
}

fn validate_cron(path: &Path, file: &ScheduleFile, problems: &mut Problems) {
    let found = match &file.zone {
        None => zone("UTC"),
        Some(name) => zone(name),
    };
    if let (Some(name), None) = (&file.zone, &found) {
        let names = zone_names();
        let remedy = match nearest(name, names.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "write a name of the IANA database, such as `Europe/Berlin` or `UTC`".into(),
        };
        problems.add(
            &path.key("zone"),
            format!("there is no time zone `{}`", name.escape_debug()),
            remedy,
        );
    }
    let Some(text) = &file.cron else { return };
    let path = path.key("cron");
    if text.len() > CRON_BYTES_MAX {
        let bytes = text.len();
        problems.add(
            &path,
            format!("an expression of {bytes} bytes is over the limit of {CRON_BYTES_MAX}"),
            "write ranges and steps, or several schedules",
        );
        return;
    }
    match parse_cron(text).map_err(|error| (explain(text), error)) {
        Err((Some((message, remedy)), _)) => problems.add(&path, message, remedy),
        Err((None, error)) => problems.add(
            &path,
            format!("`{}` is not a cron expression: {}", text.escape_debug(), bare(&error)),
            "write five fields, such as `0 2 * * *`, or six with seconds in front",
        ),
        Ok(_) if text.split_whitespace().any(|field| field.starts_with('/')) => problems.add(
            &path,
            format!("`{}` has a step without what it steps through", text.escape_debug()),
            "write `*/10`",
        ),
        Ok(_) if text.split_whitespace().flat_map(|field| field.split(',')).any(str::is_empty) => {
            problems.add(
                &path,
                format!("a list in `{}` has nothing between its commas", text.escape_debug()),
                "write `1,2`, without spaces",
            );
        }
        Ok(cron) => {
            // Any reference does: what never comes in 400 years never comes.
            let reference = Timestamp(946_684_800_000);
            if found.is_some_and(|zone| cron_after(&cron, &zone, reference).is_none()) {
                problems.add(
                    &path,
                    format!("`{}` is never due: there is no such day", text.escape_debug()),
                    "write a day that its months have, or `L` for the last",
                );
            }
        }
    }
}

/// What is wrong with an expression that cannot be read, and the way out, if that can be told.
fn explain(text: &str) -> Option<(String, String)> {
    let shown = text.escape_debug();
    if text.trim().starts_with('@') {
        let remedy = match nearest(text.trim(), NICKNAMES) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("the nicknames are {}", NICKNAMES.join(", ")),
        };
        return Some((format!("`{shown}` is not known"), remedy));
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let named = match fields.len() {
        5 => &FIELDS[1..],
        6 => &FIELDS[..],
        count => {
            return Some((
                format!("`{shown}` has {count} fields"),
                "write five (minute, hour, day of the month, month, day of the week), or six with \
                 seconds in front"
                    .to_owned(),
            ));
        }
    };
    let at = (0..fields.len()).find(|at| {
        let alone: Vec<&str> =
            (0..fields.len()).map(|other| if other == *at { fields[*at] } else { "*" }).collect();
        parse_cron(&alone.join(" ")).is_err()
    })?;
    let (name, range) = named[at];
    let message = format!("`{}` does not fit the {name}", fields[at].escape_debug());
    let remedy = if fields[at].ends_with("/0") {
        "write a step of 1 or more, such as `*/5`".to_owned()
    } else {
        format!("write {range}, or a `*`, a list `1,2`, a range `1-5` or a step `*/5` of them")
    };
    Some((message, remedy))
}

fn bare(error: &CronError) -> String {
    error.to_string().trim_end_matches('.').to_lowercase()
}

fn validate_spans(path: &Path, file: &ScheduleFile, problems: &mut Problems) {
    let window = match file.catch_up {
        Some(CatchUp::All(window)) => Some(window),
        Some(CatchUp::Skip | CatchUp::Latest) | None => None,
    };
    let one_ms = std::time::Duration::from_millis(1);
    let rows = [
        ("every", file.every, INTERVAL_MIN, DURATION_MAX),
        ("catch_up", window, one_ms, CATCH_UP_WINDOW_MAX),
        ("jitter", file.jitter, one_ms, DURATION_MAX),
    ];
    for (key, span, min, max) in rows {
        let Some(span) = span.filter(|span| span.0 < min || span.0 > max) else { continue };
        let (min, max) = (Span(min), Span(max));
        problems.add(
            &path.key(key),
            format!("`{span}` is out of bounds"),
            format!("write a length of time from `{min}` to `{max}`"),
        );
    }
    if let (Some(every), Some(jitter)) = (file.every, file.jitter)
        && jitter >= every
    {
        problems.add(
            &path.key("jitter"),
            format!("a jitter of `{jitter}` is not shorter than the interval, `{every}`"),
            "write a shorter one: an occurrence waits for those before it",
        );
    }
}

fn validate_times(path: &Path, file: &ScheduleFile, problems: &mut Problems) {
    for (key, text) in [("at", &file.at), ("start", &file.start), ("end", &file.end)] {
        let Some(text) = text else { continue };
        if parse_time(text).is_none_or(|time| time.0 < 0) {
            problems.add(
                &path.key(key),
                format!("`{}` is not a point in time", text.escape_debug()),
                "write a date, a time and an offset from 1970 on, such as `2030-01-01T00:00:00Z`",
            );
        }
    }
    let time = |text: &Option<String>| text.as_deref().and_then(parse_time);
    if let (Some(start), Some(end)) = (time(&file.start), time(&file.end))
        && start >= end
    {
        problems.add(&path.key("end"), "`end` is not after `start`", "write a later one");
    }
}

fn validate_tags(path: &Path, file: &ScheduleFile, problems: &mut Problems) {
    // One more is added to each run: the schedule's name.
    if file.tags.len() >= TAGS_MAX {
        let count = file.tags.len();
        problems.add(
            path,
            format!("{count} tags are over the limit of {}", TAGS_MAX - 1),
            "keep those that runs are looked up by",
        );
    }
    for (name, value) in &file.tags {
        let path = path.key(name);
        let is_kept = |text: &str| text.len() <= NAME_BYTES_MAX && !text.contains('\0');
        if name.is_empty() || !is_kept(name) || !is_kept(value) {
            problems.add(
                &path,
                format!("a tag and its value have at most {NAME_BYTES_MAX} bytes and no NUL"),
                "shorten it",
            );
        } else if name == "schedule" {
            problems.add(
                &path,
                "the tag `schedule` is the schedule's name",
                "call it something else",
            );
        } else if name.starts_with(OWN_TAGS) {
            problems.add(
                &path,
                format!("tags that begin with `{OWN_TAGS}` are flowgate's own"),
                "call it something else",
            );
        }
    }
}
