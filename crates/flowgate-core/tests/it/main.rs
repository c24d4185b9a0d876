//! The stored forms and the flow files, as users have them.

mod formats;
