//! Pictures of a flow: for a terminal, for Mermaid, for Graphviz, and as an SVG.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::{Action, Flow, Needs, Step, Wait};
use crate::ids::{SlotIndex, StepIndex};

mod layout;
mod svg;

pub use svg::svg;

/// Arrows in a picture; nobody could follow more of them.
const ARROWS_MAX: usize = 5_000;
/// Characters in a line of text.
const COLUMNS: usize = 80;
/// Characters of what a step does.
const DETAIL_MAX: usize = 40;

/// What leads from one step to another.
struct Edge {
    from: StepIndex,
    to: StepIndex,
    /// The names that `to` subscribes to and `from` makes happen: at least one.
    slots: Vec<SlotIndex>,
}

impl Edge {
    fn label(&self, flow: &Flow) -> String {
        let names: Vec<&str> = self.slots.iter().map(|slot| &*flow.slot(*slot).name).collect();
        names.join(", ")
    }

    /// Whether all that it stands for is the failure of a step.
    fn is_failure(&self, flow: &Flow) -> bool {
        self.slots.iter().all(|slot| Some(*slot) == flow.step(self.from).failed)
    }
}

fn indexes(flow: &Flow) -> impl Iterator<Item = StepIndex> {
    (0..flow.steps.len())
        .map(|at| StepIndex(u16::try_from(at).expect("validation bounds the steps")))
}

/// The names that a step makes happen: its events, then its ends that others subscribe to.
fn makes(step: &Step) -> impl Iterator<Item = SlotIndex> {
    step.emits.iter().copied().chain(step.succeeded).chain(step.failed)
}

/// All that leads from step to step, at most one edge for two steps.
fn edges(flow: &Flow) -> Vec<Edge> {
    let mut edges: Vec<Edge> = Vec::new();
    let mut by_ends: HashMap<(StepIndex, StepIndex), usize> = HashMap::new();
    let arrows = indexes(flow).flat_map(|from| {
        makes(flow.step(from)).flat_map(move |slot| {
            flow.slot(slot).subscribers.iter().map(move |to| (from, slot, *to))
        })
    });
    for (from, slot, to) in arrows.take(ARROWS_MAX) {
        let at = *by_ends.entry((from, to)).or_insert(edges.len());
        match edges.get_mut(at) {
            Some(edge) => edge.slots.push(slot),
            None => edges.push(Edge { from, to, slots: vec![slot] }),
        }
    }
    edges
}

/// How many steps the longest way from the entry to each step has.
fn layers(flow: &Flow, edges: &[Edge]) -> Vec<usize> {
    let mut layers = vec![0; flow.steps.len()];
    let mut open = vec![0_usize; flow.steps.len()];
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); flow.steps.len()];
    for edge in edges {
        open[edge.to.at()] += 1;
        out[edge.from.at()].push(edge.to.at());
    }
    let mut order: Vec<usize> = (0..open.len()).filter(|at| open[*at] == 0).collect();
    while let Some(at) = order.pop() {
        for &to in &out[at] {
            layers[to] = layers[to].max(layers[at] + 1);
            open[to] -= 1;
            if open[to] == 0 {
                order.push(to);
            }
        }
    }
    layers
}

/// What a step does, in a few words.
fn detail(step: &Step) -> String {
    let text = match &step.action {
        Action::Nothing => "join".to_owned(),
        Action::Process(process) => format!("process {}", process.command.join(" ")),
        Action::Shell(line) => format!("shell {line}"),
        Action::Http(http) => format!("http {}", http.url),
        Action::Mqtt(publication) => format!("mqtt {}", publication.topic),
        Action::Worker(name) => format!("worker {name}"),
        Action::Wait(Wait::Delay(delay)) => format!("wait {}", super::Span(*delay)),
        Action::Wait(Wait::Until(time)) => format!("wait until {time}"),
        Action::Wait(Wait::Signal { signal, timeout: None, .. }) => format!("wait for {signal}"),
        Action::Wait(Wait::Signal { signal, timeout: Some(timeout), .. }) => {
            format!("wait for {signal}, {}", super::Span(*timeout))
        }
    };
    cut(&printable(&text), DETAIL_MAX)
}

/// One line without what a terminal or XML would not take as text.
fn printable(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    one_line.chars().filter(|letter| !letter.is_control()).collect()
}

fn cut(text: &str, letters_max: usize) -> String {
    if text.chars().count() <= letters_max {
        return text.to_owned();
    }
    let kept: String = text.chars().take(letters_max.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// What a step starts on, in words: `all of`, `any of` or the only name.
fn after(flow: &Flow, needs: &Needs) -> String {
    let list = |slots: &[SlotIndex]| -> String {
        let names: Vec<&str> = slots.iter().map(|slot| &*flow.slot(*slot).name).collect();
        names.join(", ")
    };
    match needs {
        Needs::Start => "at the start of a run".to_owned(),
        Needs::All(slots) | Needs::Any(slots) if slots.len() == 1 => {
            format!("after {}", list(slots))
        }
        Needs::All(slots) => format!("after all of {}", list(slots)),
        Needs::Any(slots) => format!("after any of {}", list(slots)),
    }
}

/// The mark of a step that starts on more than one name.
fn mark(needs: &Needs) -> Option<&'static str> {
    match needs {
        Needs::All(slots) if slots.len() > 1 => Some("all"),
        Needs::Any(slots) if slots.len() > 1 => Some("any"),
        Needs::Start | Needs::All(_) | Needs::Any(_) => None,
    }
}

/// The flow as text for a terminal: each step behind those that start it, with what it starts on
/// and what it starts.
pub fn text(flow: &Flow) -> String {
    let layers = layers(flow, &edges(flow));
    let mut order: Vec<StepIndex> = indexes(flow).collect();
    order.sort_by_key(|index| layers[index.at()]);
    let count = flow.steps.len();
    let plural = if count == 1 { "" } else { "s" };
    let mut text = format!("{} ({count} step{plural}, revision {})\n", flow.name, flow.revision);
    for index in order {
        let step = flow.step(index);
        let layer = layers[index.at()] + 1;
        let name = &step.name;
        line(&mut text, "\n", &format!("{layer:>2}  {name}  [{}]", detail(step)));
        line(&mut text, "", &format!("    {}", after(flow, &step.needs)));
        let made: Vec<SlotIndex> = makes(step).collect();
        for (at, slot) in made.iter().enumerate() {
            let corner = if at + 1 == made.len() { "└─" } else { "├─" };
            let slot = flow.slot(*slot);
            let targets = targets(flow, &slot.subscribers);
            line(&mut text, "", &format!("    {corner} {} ─▶ {targets}", slot.name));
        }
    }
    text
}

/// The names of steps that something starts, as far as they help a reader.
fn targets(flow: &Flow, steps: &[StepIndex]) -> String {
    const SHOWN_MAX: usize = 6;
    let mut names: Vec<String> = steps
        .iter()
        .take(SHOWN_MAX)
        .map(|to| match mark(&flow.step(*to).needs) {
            Some(mark) => format!("{} ({mark})", flow.step(*to).name),
            None => flow.step(*to).name.to_string(),
        })
        .collect();
    if steps.is_empty() {
        names.push("nobody".to_owned());
    } else if steps.len() > SHOWN_MAX {
        names.push(format!("and {} more", steps.len() - SHOWN_MAX));
    }
    names.join(", ")
}

fn line(text: &mut String, before: &str, line: &str) {
    text.push_str(before);
    text.push_str(&cut(line, COLUMNS));
    text.push('\n');
}

/// The flow as a Mermaid flowchart.
pub fn mermaid(flow: &Flow) -> String {
    let mut text = "flowchart TD\n".to_owned();
    for index in indexes(flow) {
        let step = flow.step(index);
        let mark = mark(&step.needs).map_or(String::new(), |mark| format!("<br/>{mark}"));
        let label = format!("{}<br/>{}{mark}", step.name, mermaid_escaped(&detail(step)));
        let (open, close) = match step.action {
            Action::Nothing => ("([", "])"),
            Action::Wait(_) => ("{{", "}}"),
            Action::Process(_)
            | Action::Shell(_)
            | Action::Http(_)
            | Action::Mqtt(_)
            | Action::Worker(_) => ("[", "]"),
        };
        push(&mut text, format_args!("  s{}{open}\"{label}\"{close}\n", index.0));
    }
    for edge in edges(flow) {
        let arrow = if edge.is_failure(flow) { "-.->" } else { "-->" };
        let label = mermaid_escaped(&edge.label(flow));
        push(&mut text, format_args!("  s{} {arrow}|\"{label}\"| s{}\n", edge.from.0, edge.to.0));
    }
    text
}

fn mermaid_escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, letter| {
        match letter {
            '"' => escaped.push_str("#quot;"),
            '<' => escaped.push_str("#lt;"),
            '>' => escaped.push_str("#gt;"),
            '#' => escaped.push_str("#35;"),
            '&' => escaped.push_str("#amp;"),
            '`' => escaped.push_str("#96;"),
            other => escaped.push(other),
        }
        escaped
    })
}

/// The flow in the language of Graphviz.
pub fn dot(flow: &Flow) -> String {
    let mut text = format!("digraph \"{}\" {{\n", flow.name);
    text.push_str("  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n");
    text.push_str("  edge [fontname=\"sans-serif\", fontsize=10];\n");
    for index in indexes(flow) {
        let step = flow.step(index);
        let mark = mark(&step.needs).map_or(String::new(), |mark| format!("\\n{mark}"));
        let detail = dot_escaped(&detail(step));
        push(&mut text, format_args!("  \"{0}\" [label=\"{0}\\n{detail}{mark}\"];\n", step.name));
    }
    for edge in edges(flow) {
        let (from, to) = (&flow.step(edge.from).name, &flow.step(edge.to).name);
        let style = if edge.is_failure(flow) { ", style=dashed" } else { "" };
        let label = dot_escaped(&edge.label(flow));
        push(&mut text, format_args!("  \"{from}\" -> \"{to}\" [label=\"{label}\"{style}];\n"));
    }
    text.push_str("}\n");
    text
}

fn dot_escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn push(text: &mut String, part: std::fmt::Arguments<'_>) {
    text.write_fmt(part).expect("a string takes any text");
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &str = include_str!("../../tests/it/valid/order.yaml");
    const APPROVAL: &str = include_str!("../../tests/it/valid/approval.yaml");

    fn order() -> Flow {
        Flow::parse(ORDER).unwrap()
    }

    #[test]
    fn the_order_flow_as_text() {
        insta::assert_snapshot!(text(&order()));
    }

    #[test]
    fn the_order_flow_as_mermaid() {
        insta::assert_snapshot!(mermaid(&order()));
    }

    #[test]
    fn the_order_flow_as_dot() {
        insta::assert_snapshot!(dot(&order()));
    }

    #[test]
    fn the_order_flow_as_svg() {
        insta::assert_snapshot!(svg(&order()));
    }

    #[test]
    fn a_flow_with_a_timeout_as_text() {
        insta::assert_snapshot!(text(&Flow::parse(APPROVAL).unwrap()));
    }

    #[test]
    fn text_fits_a_terminal_and_what_a_step_runs_is_escaped() {
        let events: Vec<String> = (0..30).map(|n| format!("event.number.{n}")).collect();
        let flow = crate::flow::FlowBuilder::new("f")
            .step(
                crate::flow::StepBuilder::new("start")
                    .shell("echo \"<b>&\\ `x`\"\n\u{1b}[31m")
                    .emits(events.clone()),
            )
            .step(crate::flow::StepBuilder::new("next").after_all(events))
            .build()
            .unwrap();
        assert!(text(&flow).lines().all(|line| line.chars().count() <= COLUMNS));
        assert!(mermaid(&flow).contains("echo #quot;#lt;b#gt;#amp;\\ #96;x#96;#quot; [31m"));
        assert!(dot(&flow).contains("echo \\\"<b>&\\\\ `x`\\\" [31m"));
        assert!(svg(&flow).contains("echo &quot;&lt;b&gt;&amp;\\ `x`&quot; [31m"));
    }
}
