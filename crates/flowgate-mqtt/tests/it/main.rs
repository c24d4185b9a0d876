//! What becomes of the messages of a real broker, whatever fails.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod bridge;
mod kills;
mod outlet;
mod world;
