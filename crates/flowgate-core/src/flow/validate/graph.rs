//! Rules about how steps hang together: one entry, known names, no cycle, and no step that can
//! never start.
//!
//! The graph has two kinds of nodes, steps and the names they subscribe to, so its size is that of
//! the file even where many steps emit the same event to many others.

use std::collections::HashMap;

use super::{Problems, did_you_mean};
use crate::flow::{FlowFile, OnTimeout, Path, StepFile, Subscribes};
use crate::ids::is_identifier;
use crate::limits::STEPS_MAX;

/// After so many problems no more names are compared: the time to do so must not grow without end.
const SUGGESTIONS_MAX: usize = 50;

/// Checks the graph of `file`.
pub(super) fn validate(file: &FlowFile, problems: &mut Problems) {
    if file.steps.is_empty() || file.steps.len() > STEPS_MAX {
        return;
    }
    let graph = Graph::of(file);
    let before = problems.count();
    graph.validate_entry(problems);
    graph.validate_names(problems);
    if problems.count() > before {
        return;
    }
    match graph.order() {
        Ok(order) => graph.validate_starts(&order, problems),
        Err(cycle) => graph.report_cycle(&cycle, problems),
    }
}

/// What a subscriber's text stands for.
enum Name<'a> {
    Event,
    Succeeded(&'a str),
    Failed(&'a str),
    Unknown,
}

fn parse_name(text: &str) -> Name<'_> {
    match text.split_once(':') {
        None => Name::Event,
        Some(("step", step)) => Name::Succeeded(step),
        Some(("step.failed", step)) => Name::Failed(step),
        Some(_) => Name::Unknown,
    }
}

struct Graph<'a> {
    steps: Vec<(&'a str, &'a StepFile)>,
    step_by_name: HashMap<&'a str, usize>,
    /// The steps that emit an event, by its name.
    emitters: HashMap<&'a str, Vec<usize>>,
}

/// How an attempt of a step or its wait can end, as a set of bits.
type Ends = u8;
const ENDED_WELL: Ends = 1;
const ENDED_OTHERWISE: Ends = 2;

impl<'a> Graph<'a> {
    fn of(file: &'a FlowFile) -> Self {
        let steps: Vec<_> = file.steps.iter().map(|(name, step)| (name.as_str(), step)).collect();
        let step_by_name = steps.iter().enumerate().map(|(at, (name, _))| (*name, at)).collect();
        let mut emitters: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, (_, step)) in steps.iter().enumerate() {
            for event in &step.emits {
                let list = emitters.entry(event).or_default();
                if list.last() != Some(&at) {
                    list.push(at);
                }
            }
        }
        Self { steps, step_by_name, emitters }
    }

    fn path(&self, step: usize) -> Path {
        Path::default().key("steps").key(self.steps[step].0)
    }

    fn needs(&self, step: usize) -> &'a [String] {
        self.steps[step].1.subscribes.as_ref().map_or(&[], Subscribes::names)
    }

    /// The steps that can make `name` happen.
    fn sources(&self, name: &str) -> &[usize] {
        match parse_name(name) {
            Name::Event | Name::Unknown => self.emitters.get(name).map_or(&[], Vec::as_slice),
            Name::Succeeded(step) | Name::Failed(step) => {
                self.step_by_name.get(step).map_or(&[], std::slice::from_ref)
            }
        }
    }

    fn validate_entry(&self, problems: &mut Problems) {
        let entries: Vec<usize> =
            (0..self.steps.len()).filter(|at| self.steps[*at].1.subscribes.is_none()).collect();
        match entries.as_slice() {
            [_] => {}
            [] => {
                let names = self.steps.iter().map(|(name, _)| *name);
                problems.add(
                    &Path::default().key("steps"),
                    format!("no step is the entry: all of {} have `subscribes`", some_of(names)),
                    "remove `subscribes` from the one that a start begins with",
                );
            }
            [first, others @ ..] => {
                for other in others {
                    let (first, other_name) = (self.steps[*first].0, self.steps[*other].0);
                    problems.add(
                        &self.path(*other),
                        format!("`{first}` and `{other_name}` both have no `subscribes`, and a flow has one entry"),
                        format!("give one of them `subscribes`, such as `subscribes: [\"step:{first}\"]`"),
                    );
                }
            }
        }
    }

    fn validate_names(&self, problems: &mut Problems) {
        for at in 0..self.steps.len() {
            let Some(subscribes) = &self.steps[at].1.subscribes else { continue };
            for (index, name) in subscribes.names().iter().enumerate() {
                let path = subscribes.path(&self.path(at).key("subscribes"), index);
                self.validate_name(&path, at, name, problems);
            }
        }
    }

    fn validate_name(&self, path: &Path, at: usize, name: &str, problems: &mut Problems) {
        let step_name = self.steps[at].0;
        if self.sources(name).contains(&at) {
            let cause = match parse_name(name) {
                Name::Event | Name::Unknown => format!("emits `{name}` and subscribes to it"),
                Name::Succeeded(_) | Name::Failed(_) => "subscribes to its own end".to_owned(),
            };
            problems.add(
                path,
                format!("`{step_name}` {cause}, and a step runs once"),
                "subscribe to what another step emits",
            );
            return;
        }
        match parse_name(name) {
            Name::Event if self.emitters.contains_key(name) => {}
            Name::Event => self.report_unknown_event(path, name, problems),
            Name::Succeeded(step) | Name::Failed(step) if self.step_by_name.contains_key(step) => {}
            Name::Succeeded(step) | Name::Failed(step) => {
                let known = self.steps.iter().map(|(name, _)| *name);
                let remedy = if problems.count() > SUGGESTIONS_MAX {
                    "name a step of this flow".to_owned()
                } else {
                    did_you_mean(step, known.clone(), || {
                        format!("the steps are {}", some_of(known))
                    })
                };
                problems.add(path, format!("there is no step `{}`", step.escape_debug()), remedy);
            }
            Name::Unknown => problems.add(
                path,
                format!("`{}` is neither an event nor the end of a step", name.escape_debug()),
                "write an event's name, `step:NAME` or `step.failed:NAME`",
            ),
        }
    }

    fn report_unknown_event(&self, path: &Path, name: &str, problems: &mut Problems) {
        if !is_identifier(name) {
            problems.name(path, "event", name);
            return;
        }
        let events = self.steps.iter().flat_map(|(_, step)| &step.emits).map(String::as_str);
        let remedy = if self.step_by_name.contains_key(name) {
            format!("write `step:{name}` to start when the step `{name}` has completed")
        } else if problems.count() > SUGGESTIONS_MAX {
            "declare it in the `emits` of a step".to_owned()
        } else {
            did_you_mean(name, events.clone(), || match some_of(events) {
                none if none.is_empty() => "declare it in the `emits` of a step".to_owned(),
                known => format!("declare it in the `emits` of a step (declared are {known})"),
            })
        };
        problems.add(path, format!("no step emits `{name}`"), remedy);
    }

    /// The steps, each behind all that can start it; or a cycle, as steps and the names between.
    fn order(&self) -> Result<Vec<usize>, Vec<(usize, &'a str)>> {
        // A name is settled when all its sources are, a step when all its needs are.
        let mut sources_open: HashMap<&str, usize> = HashMap::new();
        let mut subscribers: HashMap<&str, Vec<usize>> = HashMap::new();
        let mut needs_open = vec![0; self.steps.len()];
        for (at, open) in needs_open.iter_mut().enumerate() {
            for name in self.needs(at) {
                sources_open.insert(name, self.sources(name).len());
                subscribers.entry(name).or_default().push(at);
                *open += 1;
            }
        }
        let mut order: Vec<usize> =
            (0..self.steps.len()).filter(|at| needs_open[*at] == 0).collect();
        let mut next = 0;
        while let Some(&at) = order.get(next) {
            next += 1;
            for name in self.makes(at) {
                let Some(open) = sources_open.get_mut(name.as_str()) else { continue };
                *open -= 1;
                if *open > 0 {
                    continue;
                }
                for subscriber in subscribers.get(name.as_str()).into_iter().flatten() {
                    needs_open[*subscriber] -= 1;
                    if needs_open[*subscriber] == 0 {
                        order.push(*subscriber);
                    }
                }
            }
        }
        if order.len() == self.steps.len() { Ok(order) } else { Err(self.cycle(&order)) }
    }

    /// The names that a step can make happen.
    fn makes(&self, at: usize) -> Vec<String> {
        let (name, step) = self.steps[at];
        let mut names = step.emits.clone();
        names.sort_unstable();
        names.dedup();
        names.push(format!("step:{name}"));
        names.push(format!("step.failed:{name}"));
        names
    }

    /// A cycle among the steps that are not in `order`: each step with what it waits for from the
    /// one behind it, beginning with the first of the file.
    fn cycle(&self, order: &[usize]) -> Vec<(usize, &'a str)> {
        let mut settled = vec![false; self.steps.len()];
        for at in order {
            settled[*at] = true;
        }
        let open = |at: &usize| !settled[*at];
        let mut walk: Vec<(usize, &str)> = Vec::new();
        let mut seen_at: HashMap<usize, usize> = HashMap::new();
        let mut at = (0..self.steps.len()).find(open).expect("a step is not in the order");
        // Every open step waits for an open one, so the way back meets itself.
        while !seen_at.contains_key(&at) {
            let (name, source) = self
                .needs(at)
                .iter()
                .find_map(|name| Some((name, *self.sources(name).iter().find(|at| open(at))?)))
                .expect("a step outside the order waits for another");
            seen_at.insert(at, walk.len());
            walk.push((at, name));
            at = source;
        }
        let mut cycle = walk.split_off(seen_at[&at]);
        // The walk went against the arrows.
        cycle.reverse();
        let first = (0..cycle.len()).min_by_key(|place| cycle[*place].0).unwrap_or(0);
        cycle.rotate_left(first);
        cycle
    }

    fn report_cycle(&self, cycle: &[(usize, &str)], problems: &mut Problems) {
        let mut text = format!("`{}`", self.steps[cycle[0].0].0);
        for (step, name) in cycle[1..].iter().chain(&cycle[..1]) {
            text = format!("{text} -> {name} -> `{}`", self.steps[*step].0);
        }
        let (first, name) = cycle[0];
        let subscribes = self.steps[first].1.subscribes.as_ref();
        let path = self.path(first).key("subscribes");
        let path = match subscribes.map(|s| (s, s.names().iter().position(|n| n == name))) {
            Some((subscribes, Some(index))) => subscribes.path(&path, index),
            Some((_, None)) | None => path,
        };
        problems.add(
            &path,
            format!("the steps wait for each other in a cycle: {}", text.replace('`', "")),
            "break it: each step runs once, so repeat work with `retry` or by starting another run",
        );
    }

    /// Finds steps that no run could ever start; `order` puts sources first.
    fn validate_starts(&self, order: &[usize], problems: &mut Problems) {
        let mut can_start = vec![false; self.steps.len()];
        let mut blocked = Vec::new();
        for &at in order {
            match self.blocked_by(at, &can_start) {
                None => can_start[at] = true,
                Some(reason) => blocked.push((at, reason)),
            }
        }
        blocked.sort_by_key(|(at, _)| *at);
        for (at, (index, cause, remedy)) in blocked {
            let path = self.path(at).key("subscribes");
            let path = match (&self.steps[at].1.subscribes, index) {
                (Some(subscribes), Some(index)) => subscribes.path(&path, index),
                (Some(_) | None, _) => path,
            };
            problems.add(&path, format!("`{}` can never start: {cause}", self.steps[at].0), remedy);
        }
    }

    /// Why the step can never start, with the place among its needs, the cause and the way out.
    fn blocked_by(&self, at: usize, can_start: &[bool]) -> Option<(Option<usize>, String, String)> {
        let subscribes = self.steps[at].1.subscribes.as_ref()?;
        let names = subscribes.names();
        let mut dead = names
            .iter()
            .enumerate()
            .filter_map(|(index, name)| Some((index, self.dead(name, can_start)?)));
        match subscribes {
            Subscribes::Any(_) => {
                let dead: Vec<_> = dead.collect();
                let all = dead.len() == names.len();
                dead.into_iter().next().filter(|_| all)
            }
            Subscribes::All(_) => dead.next().or_else(|| {
                let (index, cause, remedy) = self.contradiction(names)?;
                Some((index, (cause, remedy)))
            }),
        }
        .map(|(index, (cause, remedy))| (Some(index), cause, remedy))
    }

    /// Why `name` can never happen.
    fn dead(&self, name: &str, can_start: &[bool]) -> Option<(String, String)> {
        let sources = self.sources(name);
        if !sources.iter().any(|source| can_start[*source]) {
            let (source, _) = self.steps[sources[0]];
            return Some((
                format!("it needs `{name}`, and `{source}` can never start"),
                format!("see what keeps `{source}` from starting"),
            ));
        }
        let Name::Failed(source) = parse_name(name) else { return None };
        let (_, step) = self.steps[sources[0]];
        if self.ends_of(sources[0], name) != 0 {
            return None;
        }
        let cause = match &step.wait {
            None => "a step without `run` cannot fail",
            Some(wait) if wait.signal.is_none() => "a wait for a time cannot fail",
            Some(wait) if wait.timeout.is_none() => "a wait without `timeout` cannot fail",
            Some(_) => "its `on_timeout` is not `fail`",
        };
        Some((
            format!("it needs the failure of `{source}`, and {cause}"),
            format!("subscribe to `step:{source}`, or to an event"),
        ))
    }

    /// Two needs that the same step cannot both meet, as it ends in one way only.
    fn contradiction(&self, names: &[String]) -> Option<(usize, String, String)> {
        let mut ends_left: HashMap<usize, (Ends, &str)> = HashMap::new();
        for (index, name) in names.iter().enumerate() {
            let [source] = self.sources(name) else { continue };
            let ends = self.ends_of(*source, name);
            let entry = ends_left.entry(*source).or_insert((ends, name));
            if entry.0 & ends == 0 {
                let (other, source) = (entry.1, self.steps[*source].0);
                return Some((
                    index,
                    format!("`{source}` cannot end so that both `{other}` and `{name}` happen"),
                    format!("write `{{any: [\"{other}\", \"{name}\"]}}`, or drop one of them"),
                ));
            }
            *entry = (entry.0 & ends, name);
        }
        None
    }

    /// The ends of `source` after which `name` can have happened.
    fn ends_of(&self, source: usize, name: &str) -> Ends {
        let (_, step) = self.steps[source];
        let on_timeout = step.wait.as_ref().and_then(|wait| {
            wait.timeout.map(|_| wait.on_timeout.clone().unwrap_or(OnTimeout::Fail))
        });
        let fails = step.run.is_some() || on_timeout == Some(OnTimeout::Fail);
        match parse_name(name) {
            Name::Failed(_) if fails => ENDED_OTHERWISE,
            Name::Failed(_) => 0,
            Name::Succeeded(_) if fails => ENDED_WELL,
            Name::Succeeded(_) => ENDED_WELL | ENDED_OTHERWISE,
            // An attempt may emit before it fails.
            Name::Event | Name::Unknown if step.run.is_some() => ENDED_WELL | ENDED_OTHERWISE,
            Name::Event | Name::Unknown => match on_timeout {
                Some(OnTimeout::Emit(event)) if event == name => ENDED_OTHERWISE,
                Some(OnTimeout::Continue) => ENDED_WELL | ENDED_OTHERWISE,
                None | Some(OnTimeout::Fail | OnTimeout::Emit(_)) => ENDED_WELL,
            },
        }
    }
}

/// The first few names, for a message.
fn some_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    /// More than this do not help a reader.
    const SHOWN_MAX: usize = 8;
    let mut shown: Vec<&str> = Vec::new();
    let mut left_out = 0;
    for name in names {
        if shown.contains(&name) {
            continue;
        }
        if shown.len() < SHOWN_MAX { shown.push(name) } else { left_out += 1 }
    }
    let list = shown.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if left_out == 0 { list } else { format!("{list} and {left_out} more") }
}
