//! Where the parts of a picture go: rows from top to bottom, no part over another.
//!
//! Steps stand in the even rows and the labels of edges in the odd ones, so that a label has room
//! of its own. An edge over several rows passes each of them at a bend. The order within a row
//! follows the neighbours above and below, and so does the place.

use crate::flow::Flow;

use super::{Edge, detail};

/// Space between two parts of a row.
const GAP: f64 = 28.0;
/// Height of a row of steps, and of a row of labels.
const ROW: f64 = 56.0;
/// How often the rows are put in order, down and up.
const SWEEPS: usize = 8;
/// Bends in a picture; with more, long edges go straight.
const BENDS_MAX: usize = 20_000;
/// Letters of a label.
const LABEL_MAX: usize = 36;

/// One part of a picture.
pub(super) struct Part {
    pub(super) kind: Kind,
    row: usize,
    /// Its width; it stands in the middle of it.
    pub(super) width: f64,
    pub(super) x: f64,
}

/// What a part shows.
pub(super) enum Kind {
    /// A step, by its place in the flow.
    Step(usize),
    /// The label of an edge.
    Label(String),
    /// Nothing: an edge passes here.
    Bend,
}

/// All parts and how they are connected.
pub(super) struct Layout {
    pub(super) parts: Vec<Part>,
    /// For every edge the parts on its way, from step to step.
    pub(super) ways: Vec<Vec<usize>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Layout {
    /// Places the steps and edges of `flow`; `layers` are the rows of its steps.
    pub(super) fn of(flow: &Flow, edges: &[Edge], layers: &[usize]) -> Self {
        let mut layout = Self { parts: Vec::new(), ways: Vec::new(), width: 0.0, height: 0.0 };
        for (at, step) in flow.steps.iter().enumerate() {
            let letters = length(&step.name) * 8.4;
            let width = letters.max(length(&detail(step)) * 6.4) + 28.0;
            layout.add(Kind::Step(at), layers[at] * 2, width);
        }
        let bends: usize =
            edges.iter().map(|e| 2 * (layers[e.to.at()] - layers[e.from.at()]) - 2).sum();
        for edge in edges {
            let (top, bottom) = (layers[edge.from.at()] * 2, layers[edge.to.at()] * 2);
            let label = super::cut(&edge.label(flow), LABEL_MAX);
            let width = length(&label) * 6.6 + 8.0;
            let mut way = vec![edge.from.at(), layout.add(Kind::Label(label), top + 1, width)];
            if bends <= BENDS_MAX {
                way.extend((top + 2..bottom).map(|row| layout.add(Kind::Bend, row, 4.0)));
            }
            way.push(edge.to.at());
            layout.ways.push(way);
        }
        layout.place();
        layout
    }

    /// The height of a part's middle.
    pub(super) fn y(&self, part: usize) -> f64 {
        float(self.parts[part].row) * ROW + ROW / 2.0 + GAP / 2.0
    }

    fn add(&mut self, kind: Kind, row: usize, width: f64) -> usize {
        self.parts.push(Part { kind, row, width, x: 0.0 });
        self.parts.len() - 1
    }

    fn place(&mut self) {
        let mut above: Vec<Vec<usize>> = vec![Vec::new(); self.parts.len()];
        let mut below = above.clone();
        for way in &self.ways {
            for pair in way.windows(2) {
                below[pair[0]].push(pair[1]);
                above[pair[1]].push(pair[0]);
            }
        }
        let rows_count = self.parts.iter().map(|part| part.row + 1).max().unwrap_or(0);
        let mut rows: Vec<Vec<usize>> = vec![Vec::new(); rows_count];
        for (at, part) in self.parts.iter().enumerate() {
            rows[part.row].push(at);
        }
        for row in &rows {
            let wanted: Vec<f64> = vec![0.0; row.len()];
            self.spread(row, &wanted);
        }
        for sweep in 0..SWEEPS {
            let down = sweep % 2 == 0;
            let neighbours = if down { &above } else { &below };
            for at in 0..rows_count {
                let row = &mut rows[if down { at } else { rows_count - 1 - at }];
                self.settle(row, neighbours);
            }
        }
        let left = self.edge(|part| part.x - part.width / 2.0, f64::min);
        for part in &mut self.parts {
            part.x += GAP - left;
        }
        self.width = self.edge(|part| part.x + part.width / 2.0, f64::max) + GAP;
        self.height = float(rows_count) * ROW + GAP;
    }

    fn edge(&self, side: impl Fn(&Part) -> f64, better: impl Fn(f64, f64) -> f64) -> f64 {
        self.parts.iter().map(side).reduce(better).unwrap_or(0.0)
    }

    /// Puts a row in the order of its neighbours' places, as near to them as it has room.
    fn settle(&mut self, row: &mut [usize], neighbours: &[Vec<usize>]) {
        let wanted = |part: usize| -> f64 {
            let near = &neighbours[part];
            if near.is_empty() {
                return self.parts[part].x;
            }
            near.iter().map(|other| self.parts[*other].x).sum::<f64>() / float(near.len())
        };
        let mut places: Vec<(f64, usize)> = row.iter().map(|part| (wanted(*part), *part)).collect();
        places.sort_by(|one, other| one.0.total_cmp(&other.0));
        for (slot, (_, part)) in row.iter_mut().zip(&places) {
            *slot = *part;
        }
        let wanted: Vec<f64> = places.iter().map(|(x, _)| *x).collect();
        self.spread(row, &wanted);
    }

    /// Places the parts of a row at `wanted`, moved apart where they would touch.
    fn spread(&mut self, row: &[usize], wanted: &[f64]) {
        let mut end = f64::NEG_INFINITY;
        let mut moved = 0.0;
        for (part, x) in row.iter().zip(wanted) {
            let part = &mut self.parts[*part];
            part.x = x.max(end + GAP + part.width / 2.0);
            moved += part.x - x;
            end = part.x + part.width / 2.0;
        }
        // All were moved to the right only; the row goes back by what that is on average.
        let back = moved / float(row.len().max(1));
        for part in row {
            self.parts[*part].x -= back;
        }
    }
}

fn length(text: &str) -> f64 {
    float(text.chars().count())
}

/// A count as a coordinate.
fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
