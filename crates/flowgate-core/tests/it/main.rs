//! Flow files as users write them, what they are told, and the stored forms.

mod any_text;
mod flow_files;
mod formats;
mod schema;
