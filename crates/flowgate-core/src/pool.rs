//! Pools: labels of instances, and the queues in which jobs wait that only one pool may execute.
//!
//! A run may belong to a pool. Its jobs wait in the queue of that pool beside the queue that its step
//! names: `mail@green` beside `mail`. Neither a queue nor a pool has an `@` in its name, so the two
//! are never mistaken for each other. What is set for `mail` holds for all of them together.

use std::sync::Arc;

/// Between a queue and its pool.
const AT: char = '@';

/// The queue in which jobs of `queue` wait that are for `pool`.
pub fn queue_of(queue: &str, pool: &str) -> Arc<str> {
    format!("{queue}{AT}{pool}").into()
}

/// The queue that a step names, and the pool that the jobs in `queue` are for, if that is not any.
pub fn split(queue: &str) -> (&str, Option<&str>) {
    match queue.split_once(AT) {
        Some((queue, pool)) => (queue, Some(pool)),
        None => (queue, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::is_identifier;

    #[test]
    fn the_queue_of_a_pool_is_no_queue_that_a_step_can_name() {
        let green = queue_of("mail", "green");
        assert_eq!(&*green, "mail@green");
        assert!(!is_identifier(&green));
        assert_eq!(split(&green), ("mail", Some("green")));
        assert_eq!(split("mail"), ("mail", None));
    }
}
