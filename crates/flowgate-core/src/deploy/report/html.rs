//! A report as a page that needs nothing but itself: no script, no font, no picture from elsewhere.

use std::fmt::{self, Write};

use super::{Report, Row, RunList, counted, rows, shadow_line, unnamed};
use crate::deploy::figures::Figures;
use crate::deploy::record::Verdict;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:56rem;padding:0 1rem;\
color:#1c2024;background:#fff}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}\
table{border-collapse:collapse}th,td{padding:.25rem .75rem;text-align:right;\
border-bottom:1px solid #d9dde1}th:first-child,td:first-child{text-align:left}\
.status{padding:.5rem .75rem;border-radius:.3rem;color:#fff}\
.good{background:#1a7f4b}.bad{background:#b3261e}.open{background:#52606d}\
.before{fill:#9aa5b1}.after{fill:#2b6cb0}code{font-size:.9em}\
@media(prefers-color-scheme:dark){body{color:#e4e7eb;background:#16191d}\
th,td{border-color:#3a4149}}";
/// The width of the longest bar.
const BAR_WIDTH: f64 = 160.0;

pub(super) fn render(report: &Report) -> String {
    let mut page = String::new();
    write_page(&mut page, report).expect("a string takes what is written to it");
    page
}

fn write_page(page: &mut String, report: &Report) -> fmt::Result {
    let (flow, id) = (escaped(&report.flow), escaped(&report.deployment_id.0));
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Deployment {id} of {flow}</title><style>{STYLE}</style></head><body>\n\
         <h1>Deployment of {flow}</h1>\n"
    )?;
    let class = match report.verdict {
        Some(Verdict::Good | Verdict::Tried) if report.is_good() => "good",
        Some(_) => "bad",
        None => "open",
    };
    writeln!(page, "<p class=\"status {class}\">{}</p>", escaped(&report.status_line()))?;
    write_facts(page, report)?;
    let pair = [report.before.as_ref(), report.after.as_ref()];
    write_figures(page, "Before and after", ["before", "after"], pair)?;
    if let Some(canary) = &report.canary {
        let pair = [Some(&canary.old), Some(&canary.new)];
        write_figures(page, "Canary", ["old", "canary"], pair)?;
    }
    writeln!(page, "<h2>Starts and runs</h2>\n<table>")?;
    for (what, count) in counted(&report.counts) {
        writeln!(page, "<tr><td>{what}</td><td>{count}</td></tr>")?;
    }
    writeln!(page, "</table>")?;
    write_conservation(page, report)?;
    write_smoke(page, report)?;
    write_shadow(page, report)?;
    writeln!(page, "</body></html>")
}

fn write_facts(page: &mut String, report: &Report) -> fmt::Result {
    let phases: Vec<&str> = report.phases.iter().map(|entered| entered.phase.as_str()).collect();
    let mut facts = vec![
        ("deployment", report.deployment_id.to_string()),
        ("revision", format!("{} → {}", report.from, report.to)),
        ("strategy", report.strategy.to_string()),
        ("began", report.began_at.to_string()),
        ("took", format!("{} ms", report.took_ms())),
        ("phases", phases.join(" → ")),
    ];
    facts.extend(report.author.clone().map(|author| ("author", author)));
    facts.extend(report.note.clone().map(|note| ("note", note)));
    facts.extend(report.alerts.iter().map(|alert| ("alert", alert.clone())));
    writeln!(page, "<table>")?;
    for (what, value) in facts {
        writeln!(page, "<tr><td>{what}</td><td>{}</td></tr>", escaped(&value))?;
    }
    writeln!(page, "</table>")
}

/// The figures of two, side by side, with bars; nothing if there are none.
fn write_figures(
    page: &mut String,
    title: &str,
    names: [&str; 2],
    [one, other]: [Option<&Figures>; 2],
) -> fmt::Result {
    let nothing = Figures::default();
    if one.is_none() && other.is_none() {
        return Ok(());
    }
    writeln!(
        page,
        "<h2>{title}</h2>\n<table>\
         <tr><th></th><th>{}</th><th>{}</th><th>delta</th><th></th></tr>",
        names[0], names[1]
    )?;
    for row in rows(one.unwrap_or(&nothing), other.unwrap_or(&nothing)) {
        let digits = row.digits;
        let cell = |number: f64, is_known: bool| {
            if is_known { format!("{number:.digits$}") } else { "–".to_owned() }
        };
        let delta = match one.and(other) {
            Some(_) => format!("{:+.digits$}", row.after - row.before),
            None => "–".to_owned(),
        };
        writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{delta}</td><td>{}</td></tr>",
            row.what,
            cell(row.before, one.is_some()),
            cell(row.after, other.is_some()),
            bars(&row, names)
        )?;
    }
    writeln!(page, "</table>")
}

/// Two bars, the longer as long as there is room.
fn bars(row: &Row, [one, other]: [&str; 2]) -> String {
    let max = row.before.max(row.after);
    let width = |number: f64| if max > 0.0 { number / max * BAR_WIDTH } else { 0.0 };
    format!(
        "<svg width=\"{BAR_WIDTH}\" height=\"18\" role=\"img\" \
         aria-label=\"{what}: {one} {before:.digits$}, {other} {after:.digits$}\">\
         <rect class=\"before\" width=\"{:.1}\" height=\"8\"/>\
         <rect class=\"after\" y=\"9\" width=\"{:.1}\" height=\"8\"/></svg>",
        width(row.before),
        width(row.after),
        what = row.what,
        before = row.before,
        after = row.after,
        digits = row.digits,
    )
}

fn write_conservation(page: &mut String, report: &Report) -> fmt::Result {
    let Some(sum) = &report.conservation else { return Ok(()) };
    let sign = if sum.holds() { "=" } else { "≠" };
    writeln!(
        page,
        "<h2>Conservation</h2>\n<p>received {} {sign} finished {} + running {} + held {} + refused \
         {}</p>",
        sum.received, sum.finished, sum.running, sum.held, sum.refused
    )?;
    if let Some(at) = report.counted_at {
        writeln!(page, "<p>As counted at {at}; not all of these runs are kept any more.</p>")?;
    }
    for (what, list) in [("lost", &sum.lost), ("doubled", &sum.doubled), ("unknown", &sum.unknown)]
    {
        write_runs(page, what, list)?;
    }
    Ok(())
}

fn write_runs(page: &mut String, what: &str, list: &RunList) -> fmt::Result {
    if list.count == 0 {
        return Ok(());
    }
    writeln!(page, "<p>{} {what}:</p>\n<ul>", list.count)?;
    for run_id in &list.runs {
        writeln!(page, "<li><code>{run_id}</code></li>")?;
    }
    writeln!(page, "</ul>")
}

fn write_smoke(page: &mut String, report: &Report) -> fmt::Result {
    if report.smoke.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>Smoke tests</h2>\n<ul>")?;
    for result in &report.smoke {
        let verdict = if result.has_passed() { "passed" } else { "failed" };
        write!(page, "<li>{} {verdict}", escaped(&result.name))?;
        for mismatch in &result.mismatches {
            write!(page, "<br><code>{}</code>", escaped(&mismatch.to_string()))?;
        }
        writeln!(page, "</li>")?;
    }
    writeln!(page, "</ul>")
}

fn write_shadow(page: &mut String, report: &Report) -> fmt::Result {
    let Some(shadow) = &report.shadow else { return Ok(()) };
    writeln!(page, "<h2>Shadow</h2>\n<p>{}</p>\n<ul>", shadow_line(shadow))?;
    for result in &shadow.differences {
        write!(page, "<li><code>{}</code> as <code>{}</code>", result.original, result.run_id)?;
        for mismatch in &result.mismatches {
            write!(page, "<br><code>{}</code>", escaped(&mismatch.to_string()))?;
        }
        writeln!(page, "</li>")?;
    }
    if unnamed(shadow) > 0 {
        writeln!(page, "<li>and {} more</li>", unnamed(shadow))?;
    }
    writeln!(page, "</ul>")
}

/// A text as it must stand in a page, between tags or in an attribute.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // A page cannot hold these at all.
            _ if letter.is_control() && !matches!(letter, '\n' | '\t') => escaped.push(' '),
            _ => escaped.push(letter),
        }
    }
    escaped
}
