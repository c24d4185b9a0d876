//! The whole program: real processes on real files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![expect(clippy::disallowed_methods, reason = "these tests watch processes in real time")]

mod access;
mod audit;
mod bad_requests;
mod canary;
mod config;
mod copy;
mod crash;
mod dead;
mod demo;
mod deploy;
mod dev;
mod doctor;
mod examples;
mod flows;
mod help;
mod hold;
mod metrics;
mod moves;
mod mqtt;
mod polyglot;
mod queues;
mod run;
mod runs;
mod sandbox;
mod schedules;
mod server;
mod shared;
mod subscribers;
mod worker;
