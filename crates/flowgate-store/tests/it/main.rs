//! The suite on every store, what only the embedded store promises, and both against each other.

mod beside;
mod breaker;
mod copy;
mod harness;
mod model;
mod postgres;
mod postgres_control;
mod postgres_harness;
mod postgres_jobs;
mod postgres_load;
mod postgres_runs;
mod postgres_server;
mod postgres_session;
mod redis;
mod sqlite;
mod wrappers;

use harness::{MemoryHarness, SqliteHarness};
use postgres_harness::PostgresHarness;

flowgate_store::conformance!(on_memory, MemoryHarness::plain());
flowgate_store::conformance!(on_memory_through_faulty, MemoryHarness::faulty());
flowgate_store::conformance!(on_memory_through_breaker, MemoryHarness::behind_a_breaker());
flowgate_store::conformance!(on_sqlite, SqliteHarness::plain().await);
flowgate_store::conformance!(on_sqlite_through_instrumented, SqliteHarness::instrumented().await);
flowgate_store::conformance!(on_postgres, PostgresHarness::direct().await);
flowgate_store::conformance!(
    on_postgres_through_pgbouncer,
    PostgresHarness::through_pgbouncer().await
);
