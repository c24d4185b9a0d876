//! `flowgate schedules add`.

use flowgate_core::flow::Span;
use flowgate_core::schedule::{CatchUp, Overlap, ScheduleFile, ScheduleSpec};
use flowgate_server::wire::schedules::AddSchedule;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::super::App;
use super::change;
use crate::failure::{Failure, Outcome};
use crate::input;

/// Adds a schedule.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A time is written as 2026-01-31T12:00:00Z, a length of time as 90s, 15m or 1h30m.

Examples:
  flowgate schedules add nightly --flow report --cron '30 2 * * MON-FRI' --zone Europe/Berlin
  flowgate schedules add often --flow sync --every 15m --overlap skip --catch-up all=6h
  flowgate schedules add once --flow report --at 2030-01-01T00:00:00Z --input '{\"year\": 2029}'")]
pub(crate) struct Args {
    /// Its name
    name: String,
    /// The flow that it starts
    #[arg(long)]
    flow: String,
    /// Due whenever the clock meets this: minute hour day month weekday, or six with seconds first
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Due each time this has passed, counted from --start or 1970-01-01T00:00:00Z
    #[arg(long, value_name = "SPAN")]
    every: Option<String>,
    /// Due once, at this time
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// The time zone of --cron [default: UTC]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// The input of its runs: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// If the run before is open: `allow`, `skip`, `queue_one` or `cancel_running` [default: allow]
    #[arg(long, value_name = "POLICY")]
    overlap: Option<String>,
    /// What nobody started in time: `skip`, `latest`, `all` or `all=SPAN` [default: latest]
    #[arg(long, value_name = "POLICY")]
    catch_up: Option<String>,
    /// Put each start off by up to this long, by chance
    #[arg(long, value_name = "SPAN")]
    jitter: Option<String>,
    /// Not due before this time
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// Not due after this time
    #[arg(long, value_name = "TIME")]
    end: Option<String>,
    /// A label of its runs; may be repeated
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = input::pair)]
    tags: Vec<(String, String)>,
    /// What it is for, for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Take the place of a schedule that was added by this name before
    #[arg(long)]
    replace: bool,
}

pub(crate) async fn run(app: &App, args: Args) -> Outcome {
    let input = args.input.as_deref().map(|text| input::read("--input", text)).transpose()?;
    let file = ScheduleFile {
        description: args.description,
        cron: args.cron,
        every: span("--every", args.every.as_deref())?,
        at: args.at,
        zone: args.zone,
        input: input.map(|input| input.value()),
        overlap: args.overlap.as_deref().map(overlap).transpose()?,
        catch_up: args.catch_up.as_deref().map(catch_up).transpose()?,
        jitter: span("--jitter", args.jitter.as_deref())?,
        start: args.start,
        end: args.end,
        tags: input::tags(&args.tags)?,
    };
    // Refused here with the names of the flags, before anything is asked of anybody.
    if let Some(problem) = file.validate().first() {
        let at = problem.path.to_string();
        let flag = at.split('.').next().filter(|key| !key.is_empty());
        let flag = flag.map(|key| format!("--{}: ", key.replace('_', "-").replace("tags", "tag")));
        let message = format!("{}{}", flag.unwrap_or_default(), problem.message);
        return Err(Failure::usage("schedule_invalid", message).help(problem.remedy.clone()));
    }
    let spec = json!(ScheduleSpec { flow: args.flow, file });
    let spec = serde_json::from_value(spec).expect("both are a schedule as it is written");
    let request = AddSchedule { name: args.name, spec, replace: args.replace };
    change::add(app, &request).await
}

fn span(flag: &str, text: Option<&str>) -> Result<Option<Span>, Failure> {
    let read = |text: &str| {
        text.parse().map_err(|_| {
            Failure::usage("schedule_invalid", format!("{flag}: `{text}` is not a length of time"))
                .help("write whole numbers with units, such as `90s`, `15m` or `1h30m`")
                .path(flag)
        })
    };
    text.map(read).transpose()
}

fn overlap(text: &str) -> Result<Overlap, Failure> {
    policy("--overlap", text, &json!(text), "write allow, skip, queue_one or cancel_running")
}

fn catch_up(text: &str) -> Result<CatchUp, Failure> {
    let value = match text.split_once('=') {
        Some((policy, window)) => json!({ policy: window }),
        None => json!(text),
    };
    policy("--catch-up", text, &value, "write skip, latest, all, or all=6h for those of 6 hours")
}

fn policy<T: DeserializeOwned>(
    flag: &str,
    text: &str,
    value: &serde_json::Value,
    help: &str,
) -> Result<T, Failure> {
    serde_json::from_value(value.clone()).map_err(|_| {
        Failure::usage("schedule_invalid", format!("{flag}: `{text}` is not a policy"))
            .help(help)
            .path(flag)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        assert_eq!(overlap("queue_one").unwrap(), Overlap::QueueOne);
        assert_eq!(catch_up("latest").unwrap(), CatchUp::Latest);
        let window = Span(Duration::from_hours(6));
        assert_eq!(catch_up("all=6h").unwrap(), CatchUp::All(window));
        assert!(catch_up("some").is_err() && catch_up("latest=1h").is_err());
        assert!(catch_up("all=soon").is_err() && overlap("queue").is_err());
    }
}
