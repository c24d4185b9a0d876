//! Where the parts of a flow file stand in its text.
//!
//! The text is read as a stream of events and without recursion, so that neither its depth nor its
//! aliases cost anything.

use std::collections::HashMap;

use serde_saphyr::granit_parser::{Event, Parser};

use super::{Path, PathPart};

/// Aliases that are followed to find one part.
const ALIASES_MAX: usize = 64;

/// A line and a column, both from 1.
pub(super) type Place = (u64, u64);

/// The places of all parts of a text, as far as it can be read.
#[derive(Default)]
pub(super) struct Places {
    nodes: Vec<Node>,
    anchors: HashMap<usize, usize>,
}

/// A part of any YAML text, with its place; others are named by their number.
struct Node {
    place: Place,
    kind: Kind,
}

enum Kind {
    Text(String),
    List(Vec<usize>),
    /// Keys and values in turn.
    Map(Vec<usize>),
    Alias(usize),
}

/// Reads `text` for the places alone.
#[expect(clippy::wildcard_enum_match_arm, reason = "the parser may grow other events")]
pub(super) fn places(text: &str) -> Places {
    let mut places = Places::default();
    let mut open: Vec<usize> = Vec::new();
    for (event, span) in Parser::new_from_str(text).map_while(Result::ok) {
        let place = (count(span.start.line()), count(span.start.col()) + 1);
        let (kind, anchor) = match event {
            Event::Scalar(text, _, anchor, _) => (Kind::Text(text.into_owned()), anchor),
            Event::SequenceStart(_, anchor, _) => (Kind::List(Vec::new()), anchor),
            Event::MappingStart(_, anchor, _) => (Kind::Map(Vec::new()), anchor),
            Event::Alias(anchor) => (Kind::Alias(anchor), 0),
            Event::SequenceEnd | Event::MappingEnd => {
                open.pop();
                continue;
            }
            Event::DocumentEnd => break,
            // What is no part of the data, and what the reader has refused.
            _ => continue,
        };
        let number = places.nodes.len();
        if let Some(Kind::List(parts) | Kind::Map(parts)) =
            open.last().map(|parent| &mut places.nodes[*parent].kind)
        {
            parts.push(number);
        }
        if matches!(kind, Kind::List(_) | Kind::Map(_)) {
            open.push(number);
        }
        if anchor != 0 {
            places.anchors.insert(anchor, number);
        }
        places.nodes.push(Node { place, kind });
    }
    places
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

impl Places {
    /// The place of `path`: of the key where it ends with a key, of the item where it ends with an
    /// index, and of the nearest part around it where it is not written down.
    pub(super) fn find(&self, path: &Path) -> Place {
        let Some(top) = self.nodes.first() else { return (1, 1) };
        let (mut number, mut place) = (0, top.place);
        for part in &path.0 {
            let Some((below, at)) = self.below(number, part) else { break };
            number = below;
            place = at.map_or(place, |at| self.nodes[at].place);
        }
        place
    }

    /// The path of the value that begins at `place`.
    pub(super) fn path_at(&self, place: Place) -> Option<Path> {
        let mut parents: HashMap<usize, (usize, PathPart)> = HashMap::new();
        for (number, node) in self.nodes.iter().enumerate() {
            match &node.kind {
                Kind::List(items) => {
                    for (at, item) in items.iter().enumerate() {
                        parents.insert(*item, (number, PathPart::Index(at)));
                    }
                }
                Kind::Map(parts) => {
                    for pair in parts.chunks_exact(2) {
                        if let Kind::Text(key) = &self.nodes[pair[0]].kind {
                            parents.insert(pair[1], (number, PathPart::Key(key.clone())));
                        }
                    }
                }
                Kind::Text(_) | Kind::Alias(_) => {}
            }
        }
        // A mapping begins where its first key does; the outermost is meant.
        let mut number = self.nodes.iter().position(|node| node.place == place)?;
        let mut parts = Vec::new();
        while let Some((parent, part)) = parents.get(&number) {
            parts.push(part.clone());
            number = *parent;
        }
        parts.reverse();
        (number == 0).then_some(Path(parts))
    }

    /// The node that `number` stands for, behind its aliases.
    fn behind(&self, mut number: usize) -> Option<usize> {
        for _ in 0..ALIASES_MAX {
            match self.nodes[number].kind {
                Kind::Alias(anchor) => number = *self.anchors.get(&anchor)?,
                Kind::Text(_) | Kind::List(_) | Kind::Map(_) => return Some(number),
            }
        }
        None
    }

    /// The part below a node, and the node whose place it has, if it has one of its own.
    fn below(&self, number: usize, part: &PathPart) -> Option<(usize, Option<usize>)> {
        let number = self.behind(number)?;
        match (&self.nodes[number].kind, part) {
            (Kind::Map(_), PathPart::Key(key)) => {
                let (key, value) = self.entry(number, key, ALIASES_MAX)?;
                Some((value, Some(key)))
            }
            (Kind::List(items), PathPart::Index(index)) => {
                items.get(*index).map(|item| (*item, Some(*item)))
            }
            // `{all: […]}` where the path has the short form.
            (Kind::Map(parts), PathPart::Index(index)) => {
                let [_, value] = parts.as_slice() else { return None };
                let Kind::List(items) = &self.nodes[self.behind(*value)?].kind else { return None };
                items.get(*index).map(|item| (*item, Some(*item)))
            }
            // A list where the path has the long form, `{command: […]}`.
            (Kind::List(_), PathPart::Key(_)) => Some((number, None)),
            (Kind::Text(_) | Kind::Alias(_), PathPart::Key(_) | PathPart::Index(_)) => None,
        }
    }

    /// The key and the value of an entry, its own or one that `<<` brings in.
    fn entry(&self, number: usize, name: &str, merges_left: usize) -> Option<(usize, usize)> {
        let Kind::Map(parts) = &self.nodes[number].kind else { return None };
        let find = |name: &str| {
            parts
                .chunks_exact(2)
                .find(|pair| matches!(&self.nodes[pair[0]].kind, Kind::Text(key) if key == name))
        };
        if let Some(pair) = find(name) {
            return Some((pair[0], pair[1]));
        }
        let merged = self.behind(find("<<")?[1])?;
        let merges_left = merges_left.checked_sub(1)?;
        match &self.nodes[merged].kind {
            Kind::Map(_) => self.entry(merged, name, merges_left),
            Kind::List(items) => items
                .iter()
                .filter_map(|item| self.behind(*item))
                .find_map(|item| self.entry(item, name, merges_left.min(1))),
            Kind::Text(_) | Kind::Alias(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
a: &a
  b: [x, {c: y}]
d:
  <<: *a
  e: *a
f: {all: [p, q]}
";

    fn path(text: &str) -> Path {
        text.split('.').fold(Path::default(), |path, part| match part.parse() {
            Ok(index) => path.index(index),
            Err(_) => path.key(part),
        })
    }

    #[test]
    fn a_path_is_found_through_aliases_and_merges() {
        let places = places(TEXT);
        let rows = [
            ("a", (2, 1)),
            ("a.b", (3, 3)),
            ("a.b.1", (3, 10)),
            ("a.b.1.c", (3, 11)),
            ("d.b.0", (3, 7)),
            ("d.e.b", (3, 3)),
            ("d.e", (6, 3)),
            ("d.nothing", (4, 1)),
            ("f.1", (7, 14)),
            ("a.b.command.0", (3, 7)),
            ("nothing.at.all", (2, 1)),
        ];
        for (text, place) in rows {
            assert_eq!(places.find(&path(text)), place, "{text}");
        }
        assert_eq!(places.path_at((3, 14)), Some(path("a.b.1.c")));
        assert_eq!(places.path_at((9, 9)), None);
    }
}
