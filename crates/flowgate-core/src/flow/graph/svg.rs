//! The flow as an SVG that needs nothing else: it brings its colours, for light and for dark.

use std::fmt;

use super::layout::{Kind, Layout};
use super::{edges, layers, mark, push};
use crate::flow::{Action, Flow};

/// Half the height of a step.
const HALF: f64 = 22.0;

/// Every rule names the class, so that a page which holds the picture keeps its own looks.
const STYLE: &str = "
  .flowgate { color-scheme: light dark; }
  .flowgate .page { fill: #ffffff; }
  .flowgate .step { fill: #f4f6fa; stroke: #51607a; stroke-width: 1.4; }
  .flowgate .wait { fill: #fff6e0; stroke: #a87614; }
  .flowgate .join { fill: #ffffff; stroke-dasharray: 4 3; }
  .flowgate .entry { stroke: #1565c0; stroke-width: 2.4; }
  .flowgate .arrow { fill: none; stroke: #7a879d; stroke-width: 1.4; }
  .flowgate .failure { stroke: #c62828; stroke-dasharray: 5 3; }
  .flowgate .head { fill: #7a879d; }
  .flowgate text { font-family: system-ui, sans-serif; text-anchor: middle; fill: #1c2430; }
  .flowgate .name { font-size: 14px; font-weight: 600; }
  .flowgate .detail, .flowgate .mark { font-size: 11px; fill: #56637a; }
  .flowgate .label { font-size: 11px; paint-order: stroke; stroke: #ffffff; stroke-width: 4px; }
  @media (prefers-color-scheme: dark) {
    .flowgate .page { fill: #14181f; }
    .flowgate .step { fill: #222a36; stroke: #8fa1bd; }
    .flowgate .wait { fill: #3a2f14; stroke: #d8a63c; }
    .flowgate .join { fill: #14181f; }
    .flowgate .entry { stroke: #64b5f6; }
    .flowgate .failure { stroke: #ef7a7a; }
    .flowgate text { fill: #e8edf5; }
    .flowgate .detail, .flowgate .mark { fill: #a7b4c8; }
    .flowgate .label { stroke: #14181f; }
  }
";

/// The flow as an SVG.
pub fn svg(flow: &Flow) -> String {
    let edges = edges(flow);
    let layout = Layout::of(flow, &edges, &layers(flow, &edges));
    let (width, height) = (layout.width, layout.height);
    let mut text = String::new();
    push(
        &mut text,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"flowgate\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n<title>Flow {}</title>\n\
             <style>{STYLE}</style>\n<defs><marker id=\"flowgate-head\" viewBox=\"0 0 8 8\" refX=\"7\" \
             refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\"><path class=\"head\" \
             d=\"M0 0 L8 4 L0 8 z\"/></marker></defs>\n\
             <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n",
            Escaped(&flow.name)
        ),
    );
    for (edge, way) in edges.iter().zip(&layout.ways) {
        let class = if edge.is_failure(flow) { "arrow failure" } else { "arrow" };
        let curve = curve(&layout, way);
        push(
            &mut text,
            format_args!(
                "<path class=\"{class}\" marker-end=\"url(#flowgate-head)\" d=\"{curve}\"/>\n"
            ),
        );
    }
    for at in 0..layout.parts.len() {
        draw(flow, &layout, at, &mut text);
    }
    text.push_str("</svg>\n");
    text
}

/// A curve through the parts of an edge, from the foot of a step to the head of another.
fn curve(layout: &Layout, way: &[usize]) -> String {
    let mut points: Vec<(f64, f64)> =
        way.iter().map(|part| (layout.parts[*part].x, layout.y(*part))).collect();
    if let Some(first) = points.first_mut() {
        first.1 += HALF;
    }
    if let Some(last) = points.last_mut() {
        last.1 -= HALF + 1.0;
    }
    let mut path = format!("M{:.1} {:.1}", points[0].0, points[0].1);
    for pair in points.windows(2) {
        let [(x1, y1), (x2, y2)] = [pair[0], pair[1]];
        let middle = f64::midpoint(y1, y2);
        push(&mut path, format_args!(" C{x1:.1} {middle:.1} {x2:.1} {middle:.1} {x2:.1} {y2:.1}"));
    }
    path
}

fn draw(flow: &Flow, layout: &Layout, at: usize, text: &mut String) {
    let part = &layout.parts[at];
    let (x, y) = (part.x, layout.y(at));
    match &part.kind {
        Kind::Bend => {}
        Kind::Label(label) => push(
            text,
            format_args!(
                "<text class=\"label\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
                y + 4.0,
                Escaped(label)
            ),
        ),
        Kind::Step(index) => {
            let step = &flow.steps[*index];
            let kind = match step.action {
                Action::Nothing => " join",
                Action::Wait(_) => " wait",
                Action::Process(_)
                | Action::Shell(_)
                | Action::Http(_)
                | Action::Mqtt(_)
                | Action::Worker(_) => "",
            };
            let entry = if *index == flow.entry.at() { " entry" } else { "" };
            let (left, top) = (x - part.width / 2.0, y - HALF);
            let (width, height) = (part.width, 2.0 * HALF);
            let (name, detail) = (Escaped(&step.name), super::detail(step));
            push(
                text,
                format_args!(
                    "<rect class=\"step{kind}{entry}\" x=\"{left:.1}\" y=\"{top:.1}\" \
                     width=\"{width:.1}\" height=\"{height:.1}\" rx=\"8\"/>\n\
                     <text class=\"name\" x=\"{x:.1}\" y=\"{:.1}\">{name}</text>\n\
                     <text class=\"detail\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
                    y - 3.0,
                    y + 13.0,
                    Escaped(&detail)
                ),
            );
            if let Some(mark) = mark(&step.needs) {
                let (x, y) = (left - 2.0, top - 3.0);
                push(
                    text,
                    format_args!("<text class=\"mark\" x=\"{x:.1}\" y=\"{y:.1}\">{mark}</text>\n"),
                );
            }
        }
    }
}

/// Text as XML takes it.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\u{fffe}' | '\u{ffff}' => {}
                other => fmt::Write::write_char(f, other)?,
            }
        }
        Ok(())
    }
}
