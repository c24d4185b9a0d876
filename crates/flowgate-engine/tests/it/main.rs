//! The engine on a store in memory: flows, time, faults, and the world outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod faults;
mod flows;
mod http;
mod leases;
mod process;
mod reconciler;
mod waits;
mod world;
