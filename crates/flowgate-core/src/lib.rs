//! The rules of flowgate, as values and pure functions.
//!
//! Nothing here waits, reads a clock, draws a random number or touches a file: time, ids and
//! jitter come in as arguments.
//! What they decide is a value, which a store applies or refuses, whole.
#![warn(missing_docs)]

pub mod flow;
pub mod ids;
pub mod limits;
pub mod payload;
pub mod retry;
pub mod time;
