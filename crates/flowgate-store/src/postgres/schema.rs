//! The schema that everything lives in: made, and brought to the form that this version knows.

use std::time::Duration;

use refinery::Migration;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, IsolationLevel};

use super::endpoint::Endpoint;
use super::fault::Fault;
use super::pool::ask;
use crate::StoreError;

/// The oldest server that has what the log needs: transaction ids of 64 bits.
pub(super) const SERVER_MIN: i32 = 130_000;
/// How long it may take until every table is as this version knows it, also behind other instances
/// that start. What takes time is a migration that goes through many millions of rows.
const MIGRATION_TIMEOUT: Duration = Duration::from_mins(30);
/// What an instance that starts does before it looks at the schema; one at a time.
const LOCK: i64 = 0x666c_6f77_6761_7465;

mod migrations {
    refinery::embed_migrations!("src/postgres/migrations");
}

/// A name for a schema that needs no thought when it is quoted, and leaves room for a prefix.
pub(super) fn check_name(schema: &str) -> Result<(), StoreError> {
    let is_name = schema.len() <= 40
        && schema.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && schema.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !schema.starts_with("pg_");
    if is_name {
        return Ok(());
    }
    let message = format!(
        "`{schema}` cannot name a schema: lower-case letters, digits and `_`, at most 40, \
         not a digit first and not `pg_`"
    );
    Err(StoreError::Incompatible { message })
}

/// Makes the schema, or brings it to the form that this version knows.
///
/// Any number of instances may do so at the same time, also through a pooler: all of it is one
/// transaction that holds a lock.
pub(super) async fn migrate(
    endpoint: &Endpoint,
    schema: &str,
    connect_timeout: Duration,
) -> Result<(), StoreError> {
    let doing = "opening the store";
    let connected = endpoint.connect(connect_timeout).await;
    let (mut client, _driver) = connected.map_err(|fault| fault.into_error(doing))?;
    check_server(&client, connect_timeout).await?;
    let format = read_format(&client, schema, connect_timeout).await;
    if check_format(schema, format.map_err(|fault| fault.into_error(doing))?)? {
        return Ok(());
    }
    let migrated = tokio::time::timeout(MIGRATION_TIMEOUT, apply(&mut client, schema)).await;
    let migrated = migrated.unwrap_or(Err(Fault::Silence(MIGRATION_TIMEOUT)));
    check_format(schema, migrated.map_err(|fault| fault.into_error("making the schema"))?)?;
    Ok(())
}

/// The latest form that this version knows.
pub(super) fn format_known() -> i32 {
    in_order().last().map_or(0, Migration::version)
}

/// The migrations by their numbers: they are found by their names, and V10 comes before V2 there.
fn in_order() -> Vec<Migration> {
    let mut migrations = migrations::migrations::runner().get_migrations().clone();
    migrations.sort_by_key(Migration::version);
    migrations
}

async fn check_server(client: &Client, within: Duration) -> Result<(), StoreError> {
    let sql = "SELECT current_setting('server_version_num')::integer, \
               current_setting('server_version')";
    let rows = ask(client, within, sql, &[]).await;
    let rows = rows.map_err(|fault| fault.into_error("opening the store"))?;
    let version: i32 = rows.first().map_or(0, |row| row.get(0));
    if version < SERVER_MIN {
        let shown: String = rows.first().map_or_else(String::new, |row| row.get(1));
        let message = format!("the server is PostgreSQL {shown}; use PostgreSQL 13 or later");
        return Err(StoreError::Incompatible { message });
    }
    Ok(())
}

/// The form of the schema; 0 if there is none.
pub(super) async fn read_format(
    client: &Client,
    schema: &str,
    within: Duration,
) -> Result<i32, Fault> {
    let table = format!("\"{schema}\".schema_versions");
    let exists = "SELECT to_regclass($1) IS NOT NULL";
    let rows = ask(client, within, exists, &[(&table, Type::TEXT)]).await?;
    if !rows.first().is_some_and(|row| row.get(0)) {
        return Ok(0);
    }
    let sql = format!("SELECT coalesce(max(version), 0) FROM {table}");
    let rows = ask(client, within, &sql, &[]).await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// Whether the schema is as this version knows it; refuses that of a later one.
fn check_format(schema: &str, format: i32) -> Result<bool, StoreError> {
    let known = format_known();
    if format > known {
        let message = format!(
            "the schema {schema} has format {format}, and this flowgate knows formats up to \
             {known}; use the flowgate that wrote it, or a later one"
        );
        return Err(StoreError::Incompatible { message });
    }
    Ok(format == known)
}

async fn apply(client: &mut Client, schema: &str) -> Result<i32, Fault> {
    let transaction =
        client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    // Whoever may not make a schema can use one that is there.
    let prepare = format!(
        "SET LOCAL client_min_messages = warning; \
         SELECT pg_advisory_xact_lock({LOCK}); \
         DO $$ BEGIN IF to_regnamespace('{schema}') IS NULL THEN \
             CREATE SCHEMA \"{schema}\"; END IF; END $$; \
         SET LOCAL search_path TO \"{schema}\", pg_temp; \
         CREATE TABLE IF NOT EXISTS schema_versions (\
             version integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, \
             applied_at timestamptz NOT NULL DEFAULT now())"
    );
    transaction.batch_execute(&prepare).await?;
    let sql = "SELECT coalesce(max(version), 0) FROM schema_versions";
    let rows = transaction.query_typed(sql, &[]).await?;
    let mut format: i32 = rows.first().map_or(0, |row| row.get(0));
    let before = format;
    let known = format_known();
    if (1..known).contains(&before) {
        tracing::warn!(
            schema,
            from = before,
            to = known,
            "the schema is brought to a later version, which instances of an older build cannot \
             use; this takes some seconds for each million runs"
        );
    }
    for migration in in_order().iter().filter(|m| m.version() > before) {
        transaction.batch_execute(migration.sql().expect("an embedded migration has SQL")).await?;
        format = migration.version();
        let name = migration.name();
        let checksum = migration.checksum().to_string();
        transaction
            .query_typed(
                "INSERT INTO schema_versions (version, name, checksum) VALUES ($1, $2, $3)",
                &[(&format, Type::INT4), (&name, Type::TEXT), (&checksum, Type::TEXT)],
            )
            .await?;
    }
    transaction.commit().await?;
    Ok(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_has_a_plain_name() {
        for good in ["flowgate", "_f", "a1_b", "pgx"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        let long = "a".repeat(41);
        for bad in ["", "1a", "A", "a-b", "a\"b", "a b", "pg_catalog", "é", &long] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn migrations_are_applied_in_the_order_of_their_numbers() {
        let versions: Vec<i32> = in_order().iter().map(Migration::version).collect();
        assert_eq!(versions, (1..=format_known()).collect::<Vec<_>>());
    }

    #[test]
    fn a_later_format_is_refused_with_the_way_out() {
        let known = format_known();
        assert!(check_format("flowgate", known).unwrap());
        assert!(!check_format("flowgate", 0).unwrap());
        let error = check_format("flowgate", known + 1).unwrap_err().to_string();
        assert!(error.contains("use the flowgate that wrote it, or a later one"), "{error}");
    }
}
