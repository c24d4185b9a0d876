//! Flow files as users write them, and what they are told.

mod any_text;
mod flow_files;
mod schema;
