//! The engine on a store in memory: flows, time, faults, and the world outside.

mod faults;
mod flows;
mod http;
mod leases;
mod process;
mod waits;
mod world;
