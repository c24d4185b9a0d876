//! The rules of flowgate, as values and pure functions.
//!
//! Nothing here waits, reads a clock, draws a random number or touches a file: time, ids and
//! jitter come in as arguments. [`decide`] turns what happened into a [`commit::Commit`]; a store
//! applies it or refuses it, whole.
#![warn(missing_docs)]

pub mod audit;
pub mod check;
pub mod commit;
pub mod debounce;
pub mod decide;
pub mod deploy;
pub mod event;
pub mod flow;
pub mod gate;
pub mod ids;
pub mod limits;
pub mod payload;
pub mod pool;
pub mod retry;
pub mod run;
pub mod schedule;
pub mod time;
pub mod trace;
pub mod view;
