//! The engine on a store in memory and on shared ones: flows, time, faults, and the world outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod debounce;
mod degradation;
#[macro_use]
mod deploys;
mod faults;
mod flows;
mod follow;
mod gates;
mod health;
mod http;
mod leases;
mod limits;
mod limits_shared;
mod moves;
mod process;
mod reconciler;
mod recorder;
mod remote;
mod remote_limits;
mod remote_shared;
mod rolling;
mod schedules;
mod secrets;
mod shared;
mod sinks;
mod ssrf;
mod subscribers;
mod subscribers_shared;
mod telling;
mod traced;
mod waits;
mod world;
