//! The whole program: real processes on real files.

mod config;
mod crash;
mod dev;
mod examples;
mod flows;
mod help;
mod run;
mod runs;
mod sandbox;
