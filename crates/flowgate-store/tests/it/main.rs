//! The suite on every store, what only the embedded store promises, and both against each other.

mod beside;
mod harness;
mod model;
mod sqlite;
mod wrappers;

use harness::{MemoryHarness, SqliteHarness};

flowgate_store::conformance!(on_memory, MemoryHarness::plain());
flowgate_store::conformance!(on_memory_through_faulty, MemoryHarness::faulty());
flowgate_store::conformance!(on_sqlite, SqliteHarness::plain().await);
flowgate_store::conformance!(on_sqlite_through_instrumented, SqliteHarness::instrumented().await);
