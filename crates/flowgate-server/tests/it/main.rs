//! The API without a network, on a store in memory and, for bad input, on the others.

mod bad_input;
mod bad_steps;
mod bulk;
mod dead;
mod deployments;
mod document;
mod flows;
mod gates;
mod jobs;
mod live;
mod matrix;
mod moves;
mod overview;
mod queues;
mod run;
mod runs;
mod schedules;
mod standing;
mod stores;
mod webhooks;
mod world;
