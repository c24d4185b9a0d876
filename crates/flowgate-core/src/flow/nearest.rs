//! What somebody may have meant by a name that does not exist.

/// Names longer than this are not compared.
const COMPARED_BYTES_MAX: usize = 200;

/// The candidate that `name` is most likely a slip of, if one is near enough.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters may be wrong: `emit` is near `emits`, and `a` is near nothing.
    let distance_max = name.chars().count().div_ceil(3).min(4);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len().max(name.len()) <= COMPARED_BYTES_MAX)
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance <= distance_max && *distance < candidate.chars().count()
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters must be put in, taken out, replaced or swapped with their neighbour to turn
/// one name into the other, whatever their case.
fn distance(one: &str, other: &str) -> usize {
    let letters = |text: &str| -> Vec<char> { text.chars().flat_map(char::to_lowercase).collect() };
    let (one, other) = (letters(one), letters(other));
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=other.len()).collect();
    for (row, a) in one.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, b) in other.iter().enumerate() {
            let replaced = above[column] + usize::from(a != b);
            let mut best = replaced.min(above[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && *a == other[column - 1] && one[row - 1] == *b {
                best = best.min(before[column - 1] + 1);
            }
            current.push(best);
        }
        before = std::mem::replace(&mut above, current);
    }
    above[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_name_that_was_meant() {
        let known = ["subscribes", "emits", "run", "retry", "timeout"];
        let rows = [
            ("subscribe", Some("subscribes")),
            ("emit", Some("emits")),
            ("Timeout", Some("timeout")),
            ("rtery", Some("retry")),
            ("rnu", Some("run")),
            ("x", None),
            ("schedule", None),
            ("", None),
        ];
        for (name, meant) in rows {
            assert_eq!(nearest(name, known), meant, "{name}");
        }
    }

    #[test]
    fn distances_count_single_slips() {
        for (one, other, slips) in
            [("", "abc", 3), ("abc", "abc", 0), ("ab", "ba", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(one, other), slips, "{one} {other}");
        }
    }
}
