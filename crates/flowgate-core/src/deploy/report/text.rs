//! A report as a plain text of aligned columns.

use std::fmt::{self, Write};

use super::{Report, RunList, counted, rows, shadow_line, unnamed};
use crate::deploy::figures::Figures;

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    write_report(&mut text, report).expect("a string takes what is written to it");
    text
}

fn write_report(text: &mut String, report: &Report) -> fmt::Result {
    writeln!(text, "deployment  {}", line(&report.deployment_id.0))?;
    writeln!(text, "flow        {}", line(&report.flow))?;
    writeln!(text, "revision    {} -> {} ({})", report.from, report.to, report.strategy)?;
    if let Some(author) = &report.author {
        writeln!(text, "author      {}", line(author))?;
    }
    if let Some(note) = &report.note {
        writeln!(text, "note        {}", line(note))?;
    }
    writeln!(text, "began       {}", report.began_at)?;
    writeln!(text, "took        {} ms", report.took_ms())?;
    let phases: Vec<&str> = report.phases.iter().map(|entered| entered.phase.as_str()).collect();
    writeln!(text, "phases      {}", phases.join(" > "))?;
    write_figures(text, ["before", "after"], [report.before.as_ref(), report.after.as_ref()])?;
    if let Some(canary) = &report.canary {
        write_figures(text, ["old", "canary"], [Some(&canary.old), Some(&canary.new)])?;
    }
    writeln!(text)?;
    for (what, count) in counted(&report.counts) {
        writeln!(text, "{what:<20}{count:>12}")?;
    }
    write_conservation(text, report)?;
    write_smoke(text, report)?;
    write_shadow(text, report)?;
    for alert in &report.alerts {
        writeln!(text, "\nalert: {}", line(alert))?;
    }
    writeln!(text, "\n{}", line(&report.status_line()))
}

/// The figures of two, side by side, and how far they are apart; nothing if there are none.
fn write_figures(
    text: &mut String,
    names: [&str; 2],
    [one, other]: [Option<&Figures>; 2],
) -> fmt::Result {
    let nothing = Figures::default();
    if one.is_none() && other.is_none() {
        return Ok(());
    }
    writeln!(text, "\n{:<20}{:>12}{:>12}{:>12}", "", names[0], names[1], "delta")?;
    for row in rows(one.unwrap_or(&nothing), other.unwrap_or(&nothing)) {
        let digits = row.digits;
        let cell = |number: f64, is_known: bool| {
            if is_known { format!("{number:.digits$}") } else { "-".to_owned() }
        };
        let was = cell(row.before, one.is_some());
        let is = cell(row.after, other.is_some());
        let delta = match one.and(other) {
            Some(_) => format!("{:+.digits$}", row.after - row.before),
            None => "-".to_owned(),
        };
        writeln!(text, "{:<20}{was:>12}{is:>12}{delta:>12}", row.what)?;
    }
    Ok(())
}

fn write_conservation(text: &mut String, report: &Report) -> fmt::Result {
    let Some(sum) = &report.conservation else { return Ok(()) };
    let sign = if sum.holds() { "=" } else { "!=" };
    writeln!(
        text,
        "\nreceived {} {sign} finished {} + running {} + held {} + refused {}",
        sum.received, sum.finished, sum.running, sum.held, sum.refused
    )?;
    if let Some(at) = report.counted_at {
        writeln!(text, "  as counted at {at}; not all of these runs are kept any more")?;
    }
    for (what, list) in [("lost", &sum.lost), ("doubled", &sum.doubled), ("unknown", &sum.unknown)]
    {
        write_runs(text, what, list)?;
    }
    Ok(())
}

fn write_runs(text: &mut String, what: &str, list: &RunList) -> fmt::Result {
    for run_id in &list.runs {
        writeln!(text, "  {what} {run_id}")?;
    }
    let named = u64::try_from(list.runs.len()).unwrap_or(u64::MAX);
    match list.count.saturating_sub(named) {
        0 => Ok(()),
        more => writeln!(text, "  {what} and {more} more"),
    }
}

fn write_smoke(text: &mut String, report: &Report) -> fmt::Result {
    if !report.smoke.is_empty() {
        writeln!(text)?;
    }
    for result in &report.smoke {
        let verdict = if result.has_passed() { "passed" } else { "failed" };
        writeln!(text, "smoke test {} {verdict}", line(&result.name))?;
        for mismatch in &result.mismatches {
            writeln!(text, "  {}", line(&mismatch.to_string()))?;
        }
    }
    Ok(())
}

fn write_shadow(text: &mut String, report: &Report) -> fmt::Result {
    let Some(shadow) = &report.shadow else { return Ok(()) };
    writeln!(text, "\n{}", shadow_line(shadow))?;
    for result in &shadow.differences {
        writeln!(text, "  {} as {}", result.original, result.run_id)?;
        for mismatch in &result.mismatches {
            writeln!(text, "    {}", line(&mismatch.to_string()))?;
        }
    }
    match unnamed(shadow) {
        0 => Ok(()),
        more => writeln!(text, "  and {more} more"),
    }
}

/// A text that somebody else wrote, on one line and without what a terminal would obey.
fn line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
