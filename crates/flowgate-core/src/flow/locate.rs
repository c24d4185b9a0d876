//! Where the parts of a flow file stand in its text.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{NonFiniteFloatPolicy, Options, Spanned};

use super::{Path, PathPart};

/// The places of all parts of a text.
pub(super) struct Places(Option<Spanned<Node>>);

/// Reads `text` once more, for the places alone.
pub(super) fn places(text: &str, mut options: Options) -> Places {
    options.non_finite_float_policy = NonFiniteFloatPolicy::PassThrough;
    Places(serde_saphyr::from_str_with_options(text, options).ok())
}

impl Places {
    /// The line and column of `path`: of the key where it ends with a key, of the item where it
    /// ends with an index, and of the nearest part around it where it is not written down.
    pub(super) fn find(&self, path: &Path) -> (u64, u64) {
        let Some(top) = &self.0 else { return (1, 1) };
        let mut node = top;
        let mut place = top.defined;
        for part in &path.0 {
            let Some((found, at)) = step_into(node, part) else { break };
            if let Some(at) = at {
                place = at;
            }
            node = found;
        }
        (place.line().max(1), place.column().max(1))
    }
}

impl Places {
    /// The path of the value that begins at this line and column.
    pub(super) fn path_at(&self, line: u64, column: u64) -> Option<Path> {
        let mut open = vec![(self.0.as_ref()?, Path::default())];
        while let Some((node, path)) = open.pop() {
            if (node.defined.line(), node.defined.column()) == (line, column) {
                return Some(path);
            }
            match &node.value {
                Node::Map(entries) => {
                    open.extend(entries.iter().map(|(key, node)| (node, path.key(&key.value))));
                }
                Node::List(items) => {
                    open.extend(items.iter().enumerate().map(|(at, node)| (node, path.index(at))));
                }
                Node::Leaf => {}
            }
        }
        None
    }
}

/// The part below `node`, and its place if it has one of its own.
fn step_into<'a>(
    node: &'a Spanned<Node>,
    part: &PathPart,
) -> Option<(&'a Spanned<Node>, Option<serde_saphyr::Location>)> {
    match (&node.value, part) {
        (Node::Map(entries), PathPart::Key(name)) => {
            let (key, value) = entries.iter().find(|(key, _)| key.value == *name)?;
            Some((value, Some(key.defined)))
        }
        (Node::Map(entries), PathPart::Index(index)) => {
            // `{all: […]}` where the path has the short form.
            let [(_, Spanned { value: Node::List(items), .. })] = entries.as_slice() else {
                return None;
            };
            items.get(*index).map(|item| (item, Some(item.defined)))
        }
        (Node::List(items), PathPart::Index(index)) => {
            items.get(*index).map(|item| (item, Some(item.defined)))
        }
        // A list where the path has the long form, `{command: […]}`.
        (Node::List(_), PathPart::Key(_)) => Some((node, None)),
        (Node::Leaf, PathPart::Key(_) | PathPart::Index(_)) => None,
    }
}

/// A part of any YAML text, without its values.
enum Node {
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
    List(Vec<Spanned<Node>>),
    Leaf,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_bytes<E: Error>(self, _: &[u8]) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_none<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}
