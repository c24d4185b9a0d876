//! Due times against croner itself, and against a computation that knows nothing of cron: it looks
//! at every minute, and asks jiff alone what a clock shows then.

use jiff::civil::{Date, date};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{ToSpan, Zoned};

use super::*;

const ZONES: [&str; 7] = [
    "Europe/Berlin",
    "America/New_York",
    // Half an hour.
    "Australia/Lord_Howe",
    // At midnight.
    "Asia/Beirut",
    // An offset of quarter hours.
    "Pacific/Chatham",
    // Twice a year by the moon, and backwards.
    "Africa/Casablanca",
    // Late in the evening, over midnight.
    "America/Nuuk",
];
const YEARS: std::ops::Range<i16> = 2020..2031;

type IsDue = fn(Date) -> bool;

/// What an expression means, without cron.
struct Meaning {
    cron: &'static str,
    minutes: &'static [i8],
    hours: &'static [i8],
    day: IsDue,
}

impl Meaning {
    fn is_fixed(&self) -> bool {
        self.minutes.len() == 1 && self.hours.len() == 1
    }
}

const ALL_HOURS: &[i8] =
    &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23];

fn any(_: Date) -> bool {
    true
}

fn sunday(day: Date) -> bool {
    day.weekday() == jiff::civil::Weekday::Sunday
}

const MEANINGS: [Meaning; 11] = [
    Meaning { cron: "*/15 * * * *", minutes: &[0, 15, 30, 45], hours: ALL_HOURS, day: any },
    Meaning { cron: "30 * * * *", minutes: &[30], hours: ALL_HOURS, day: any },
    Meaning { cron: "10,50 0-4 * * *", minutes: &[10, 50], hours: &[0, 1, 2, 3, 4], day: any },
    Meaning { cron: "30 1,2,3 * * *", minutes: &[30], hours: &[1, 2, 3], day: any },
    Meaning {
        cron: "20 */2 * * SUN",
        minutes: &[20],
        hours: &[0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22],
        day: sunday,
    },
    Meaning { cron: "30 2 * * *", minutes: &[30], hours: &[2], day: any },
    Meaning { cron: "0 2 * * *", minutes: &[0], hours: &[2], day: any },
    Meaning { cron: "15 1 * * 0", minutes: &[15], hours: &[1], day: sunday },
    Meaning { cron: "0 0 * * *", minutes: &[0], hours: &[0], day: any },
    Meaning { cron: "59 23 * * *", minutes: &[59], hours: &[23], day: any },
    Meaning { cron: "50 1 * * *", minutes: &[50], hours: &[1], day: any },
];

/// The due times of some days, found minute by minute.
fn brute_force(meaning: &Meaning, zone: &TimeZone, first: Date, last: Date) -> Vec<Timestamp> {
    let mut due = Vec::new();
    if meaning.is_fixed() {
        let mut day = first;
        while day <= last {
            if (meaning.day)(day) {
                let clock = day.at(meaning.hours[0], meaning.minutes[0], 0, 0);
                due.push(resolve(clock, zone));
            }
            day = day.tomorrow().expect("in range");
        }
        return due;
    }
    let mut now = first.to_zoned(zone.clone()).expect("in range");
    let end = last.tomorrow().expect("in range").to_zoned(zone.clone()).expect("in range");
    while now < end {
        if meaning.minutes.contains(&now.minute())
            && meaning.hours.contains(&now.hour())
            && (meaning.day)(now.date())
        {
            due.push(Timestamp(now.timestamp().as_millisecond()));
        }
        now = now.checked_add(1.minute()).expect("in range");
    }
    due
}

/// When a clock shows this: the first time if it does so twice, and if never the first minute after
/// the gap.
fn resolve(clock: jiff::civil::DateTime, zone: &TimeZone) -> Timestamp {
    let mut clock = clock;
    loop {
        let ambiguous = zone.to_ambiguous_zoned(clock);
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => {
                let at: Zoned = ambiguous.earlier().expect("in range");
                return Timestamp(at.timestamp().as_millisecond());
            }
            AmbiguousOffset::Gap { .. } => clock = clock.checked_add(1.minute()).expect("in range"),
        }
    }
}

fn compare(cron: &str, name: &str, expected: &[Timestamp], (first, last): (Date, Date)) {
    let zone = times::zone(name).expect("a zone");
    let schedule = schedule(&format!("{{cron: {cron:?}, zone: {name}}}"));
    let begin = first.to_zoned(zone.clone()).expect("in range");
    let end = last.tomorrow().expect("in range").to_zoned(zone).expect("in range");
    let from = Timestamp(begin.timestamp().as_millisecond() - 1);
    let to = Timestamp(end.timestamp().as_millisecond() - 1);
    let ours = schedule.between(from, to, usize::MAX);
    assert_eq!(shown(&ours), shown(expected), "{cron} in {name} from {first}");
    let cron_of_library = times::parse_cron(cron).expect("an expression");
    let is_fixed = cron_of_library.determine_job_type() == croner::JobType::FixedTime;
    let library: Vec<Timestamp> = cron_of_library
        .iter_from(begin, croner::Direction::Forward)
        .take_while(|at| *at < end)
        .map(|at| Timestamp(at.timestamp().as_millisecond()))
        .collect();
    // A fixed time is due once more after a gap by the library, which is not what it promises.
    let extra: Vec<&Timestamp> = library.iter().filter(|at| !ours.contains(at)).collect();
    assert!(extra.is_empty() || is_fixed && extra.len() == 1, "{cron} in {name}: {extra:?}");
    let missing: Vec<&Timestamp> = ours.iter().filter(|at| !library.contains(at)).collect();
    assert!(missing.is_empty() || is_fixed && missing.len() == 1, "{cron} in {name}: {missing:?}");
    // Looking back finds the same.
    for (at, due) in ours.iter().enumerate() {
        assert_eq!(schedule.last_until(*due), Some(*due), "{cron} in {name}");
        if let Some(next) = ours.get(at + 1) {
            let before = Timestamp(next.0 - 1);
            assert_eq!(schedule.last_until(before), Some(*due), "{cron} in {name} before {next}");
        }
    }
}

fn shown(times: &[Timestamp]) -> Vec<String> {
    times.iter().map(ToString::to_string).collect()
}

#[test]
fn every_change_of_the_clock_in_ten_years_is_met_as_the_guide_says() {
    let mut changes = 0;
    for name in ZONES {
        let zone = times::zone(name).expect("a zone");
        let begin = date(YEARS.start, 1, 1).to_zoned(zone.clone()).unwrap().timestamp();
        let end = date(YEARS.end, 1, 1).to_zoned(zone.clone()).unwrap().timestamp();
        let transitions: Vec<jiff::Timestamp> = zone
            .following(begin)
            .map(|transition| transition.timestamp())
            .take_while(|at| *at < end)
            .collect();
        for at in transitions {
            changes += 1;
            let day = at.to_zoned(zone.clone()).date();
            let (first, last) = (day.saturating_sub(1.day()), day.saturating_add(1.day()));
            for meaning in &MEANINGS {
                let expected = brute_force(meaning, &zone, first, last);
                compare(meaning.cron, name, &expected, (first, last));
            }
        }
    }
    assert!(changes > 120, "{changes}");
}

#[test]
fn days_of_the_calendar_are_those_of_the_calendar() {
    fn month_end(day: Date) -> bool {
        day.tomorrow().expect("in range").month() != day.month()
    }
    fn second_friday(day: Date) -> bool {
        day.weekday() == jiff::civil::Weekday::Friday && (8..=14).contains(&day.day())
    }
    fn weekday(day: Date) -> bool {
        !matches!(day.weekday(), jiff::civil::Weekday::Saturday | jiff::civil::Weekday::Sunday)
    }
    let rows: [(&str, IsDue); 11] = [
        ("0 12 29 2 *", |day| day.month() == 2 && day.day() == 29),
        ("0 12 31 * *", |day| day.day() == 31),
        ("0 12 30 * *", |day| day.day() == 30),
        ("0 12 L * *", month_end),
        ("0 12 * * FRI#2", second_friday),
        ("0 12 * * 1-5", weekday),
        ("0 12 1 1 *", |day| day.month() == 1 && day.day() == 1),
        // Either the day of the month or that of the week, as in every cron.
        ("0 12 13 * 5", |day| day.day() == 13 || day.weekday() == jiff::civil::Weekday::Friday),
        ("0 12 * * 0", sunday),
        ("0 12 * * 7", sunday),
        ("0 12 1-31/2 2,3 *", |day| matches!(day.month(), 2 | 3) && day.day() % 2 == 1),
    ];
    for (cron, is_due) in rows {
        for name in ["UTC", "Europe/Berlin", "America/New_York"] {
            let zone = times::zone(name).expect("a zone");
            let (first, last) = (date(2020, 1, 1), date(2032, 12, 31));
            let meaning = Meaning { cron, minutes: &[0], hours: &[12], day: is_due };
            let expected = brute_force(&meaning, &zone, first, last);
            assert!(!expected.is_empty());
            compare(cron, name, &expected, (first, last));
        }
    }
    let leap =
        schedule("{cron: \"0 0 29 2 *\"}").between(Timestamp(0), Timestamp(4_200_000_000_000), 99);
    // From 1972 to 2100, which has none.
    assert_eq!(leap.len(), 32);
}

#[test]
fn seconds_come_as_they_are_written() {
    let every = schedule("{cron: \"*/20 * * * * *\"}");
    assert_eq!(seconds(&every.between(Timestamp(500), Timestamp(60_000), 9)), [20, 40, 60]);
    let one = schedule("{cron: \"5 * * * * *\"}");
    assert_eq!(seconds(&one.between(Timestamp(4_999), Timestamp(70_000), 9)), [5, 65]);
}

#[test]
fn a_day_that_a_zone_left_out_is_due_at_its_end() {
    // Samoa went from the 29th to the 31st of December 2011: the 30th is due when it would be over.
    let daily = schedule("{cron: \"0 6 * * *\", zone: Pacific/Apia}");
    let from: jiff::Timestamp = "2011-12-29T00:00:00Z".parse().unwrap();
    let due = daily.between(Timestamp(from.as_millisecond()), Timestamp(i64::MAX / 4), 3);
    assert_eq!(
        shown(&due),
        ["2011-12-29T16:00:00.000Z", "2011-12-30T10:00:00.000Z", "2011-12-30T16:00:00.000Z"]
    );
}
