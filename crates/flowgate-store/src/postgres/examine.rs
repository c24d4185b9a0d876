//! A look at the server through the eyes of somebody who has to operate it.

use std::time::Duration;

use flowgate_core::time::Timestamp;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::PostgresOptions;
use super::endpoint::Endpoint;
use super::fault::Fault;
use super::pool::{Param, ask};
use super::rows::{column, to_number};
use super::schema::{check_name, format_known, read_format};
use crate::clock::{Clock, Stopwatch};
use crate::{Finding, StoreError};

/// A round trip that takes longer than this costs throughput.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(20);
/// How far the clocks of server and host may differ before a reader of logs is misled.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(2);
/// A transaction that is open for longer holds up the feed and what vacuum can remove.
const TRANSACTION_AGE_MAX: Duration = Duration::from_mins(1);
/// Remains of jobs that vacuum should have removed.
const DEAD_ROWS_MAX: i64 = 100_000;
/// Connections of one instance beside its pool.
const CONNECTIONS_BESIDE: i64 = 2;

/// Looks at the server, its settings and the schema. What cannot be looked at is a finding too.
pub async fn examine(options: &PostgresOptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    let server = match Server::connect(options).await {
        Ok(server) => server,
        Err(error) => {
            let remedy = "check that the server runs, and host, port and user in the store's URL";
            return vec![Finding::bad("reachable", error.to_string(), remedy)];
        }
    };
    let checks = [
        ("reachable", server.round_trip().await),
        ("server version", server.version().await),
        ("fsync", server.setting("fsync", &["on"]).await),
        (
            "synchronous_commit",
            server.setting("synchronous_commit", &["on", "remote_apply", "remote_write"]).await,
        ),
        ("full_page_writes", server.setting("full_page_writes", &["on"]).await),
        ("connections", server.connections().await),
        ("pooler", server.pooler().await),
        ("open transactions", server.transactions().await),
        ("clock", server.clock().await),
        ("schema", server.schema().await),
        ("remains of jobs", server.remains().await),
    ];
    for (check, found) in checks {
        findings.push(found.unwrap_or_else(|fault| {
            let error = fault.into_error("looking").to_string();
            Finding::warning(check, error, "grant the user what the look needs, or look again")
        }));
    }
    findings
}

/// A connection for the look.
struct Server<'a> {
    options: &'a PostgresOptions,
    client: Client,
    _driver: tokio::task::JoinSet<()>,
}

impl<'a> Server<'a> {
    async fn connect(options: &'a PostgresOptions) -> Result<Self, StoreError> {
        check_name(&options.schema)?;
        let endpoint = Endpoint::parse(&options.url, options.call_timeout)?;
        let connected = endpoint.connect(options.call_timeout).await;
        let (client, driver) = connected.map_err(|fault| fault.into_error("connecting"))?;
        Ok(Self { options, client, _driver: driver })
    }

    async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        ask(&self.client, self.options.call_timeout, sql, params).await
    }

    async fn row(&self, sql: &str, params: &[Param<'_>]) -> Result<Row, Fault> {
        let rows = self.rows(sql, params).await?;
        let missing = || Fault::unreadable(std::io::Error::other("the server answered no row"));
        rows.into_iter().next().ok_or_else(missing)
    }

    async fn round_trip(&self) -> Result<Finding, Fault> {
        let mut shortest = Duration::MAX;
        for _ in 0..5 {
            let watch = Stopwatch::start();
            self.row("SELECT 1", &[]).await?;
            shortest = shortest.min(watch.elapsed());
        }
        let found = format!("a round trip takes {shortest:.1?}");
        Ok(if shortest > ROUND_TRIP_MAX {
            let remedy = "move the instances nearer to the server";
            Finding::warning("reachable", found, remedy)
        } else {
            Finding::good("reachable", found)
        })
    }

    async fn version(&self) -> Result<Finding, Fault> {
        let sql = "SELECT current_setting('server_version'), \
                   current_setting('server_version_num')::integer";
        let row = self.row(sql, &[]).await?;
        let found = format!("PostgreSQL {}", column::<&str>(&row, 0)?);
        let is_known = column::<i32>(&row, 1)? >= super::schema::SERVER_MIN;
        Ok(if is_known {
            Finding::good("server version", found)
        } else {
            Finding::bad("server version", found, "use PostgreSQL 13 or later")
        })
    }

    /// A setting without which what was acknowledged may be lost.
    async fn setting(&self, name: &'static str, safe: &[&str]) -> Result<Finding, Fault> {
        let row = self.row("SELECT current_setting($1)", &[(&name, Type::TEXT)]).await?;
        let value: &str = column(&row, 0)?;
        Ok(if safe.contains(&value) {
            Finding::good(name, value)
        } else {
            let found = format!("{name} is {value}: what was acknowledged can be lost in a crash");
            let sql = format!("ALTER SYSTEM SET {name} = '{}'; SELECT pg_reload_conf();", safe[0]);
            Finding::bad(name, found, sql)
        })
    }

    async fn connections(&self) -> Result<Finding, Fault> {
        let sql = "SELECT current_setting('max_connections')::bigint \
                   - current_setting('superuser_reserved_connections')::bigint, \
                   (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')";
        let row = self.row(sql, &[]).await?;
        let (room, used): (i64, i64) = (column(&row, 0)?, column(&row, 1)?);
        let pool = i64::try_from(self.options.pool_size).unwrap_or(i64::MAX);
        let needed = pool.saturating_add(CONNECTIONS_BESIDE);
        let found = format!("{used} of {room} in use; an instance needs up to {needed}");
        Ok(if room - used < needed {
            let remedy = "raise max_connections, lower pool_size in the store's URL, or put \
                          PgBouncer in transaction mode before the server";
            Finding::warning("connections", found, remedy)
        } else {
            Finding::good("connections", found)
        })
    }

    /// Whether a pooler is between, told by what it does.
    async fn pooler(&self) -> Result<Finding, Fault> {
        let is_kept = async {
            self.client.batch_execute("BEGIN").await?;
            self.client.batch_execute("SET LOCAL application_name = 'flowgate doctor'").await?;
            let row = self.row("SELECT current_setting('application_name')", &[]).await?;
            self.client.batch_execute("ROLLBACK").await?;
            Ok::<_, Fault>(column::<&str>(&row, 0)? == "flowgate doctor")
        };
        if !matches!(is_kept.await, Ok(true)) {
            let remedy = "set pool_mode = transaction in PgBouncer";
            let found = "a pooler takes transactions apart, as in statement mode";
            return Ok(Finding::bad("pooler", found, remedy));
        }
        // Behind a pooler a new connection is served by an old one of the server.
        let second = Endpoint::parse(&self.options.url, self.options.call_timeout);
        let second = second.map_err(Fault::unreadable)?;
        let watch = Stopwatch::start();
        let (client, _driver) = second.connect(self.options.call_timeout).await?;
        let sql = "SELECT (extract(epoch FROM clock_timestamp() - backend_start) * 1000)::bigint \
                   FROM pg_stat_activity WHERE pid = pg_backend_pid()";
        let rows = ask(&client, self.options.call_timeout, sql, &[]).await?;
        let served_ms: i64 = rows.first().map_or(Ok(0), |row| column(row, 0))?;
        if to_number(served_ms) <= u64::try_from(watch.elapsed().as_millis()).unwrap_or(u64::MAX) {
            return Ok(Finding::good("pooler", "none"));
        }
        let found = "a pooler in transaction mode is before the server";
        Ok(if self.options.listen_url.is_some() {
            Finding::good("pooler", found)
        } else {
            let found = format!("{found}, and hints of other instances do not come through it");
            let remedy = "name the server itself as listen_url; without, instances poll";
            Finding::warning("pooler", found, remedy)
        })
    }

    async fn transactions(&self) -> Result<Finding, Fault> {
        let sql = "SELECT pid, coalesce(nullif(application_name, ''), usename, '?'), \
                   extract(epoch FROM clock_timestamp() - xact_start)::bigint, state \
                   FROM pg_stat_activity \
                   WHERE xact_start < clock_timestamp() - make_interval(secs => $1) \
                   AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) \
                   AND backend_type = 'client backend' ORDER BY xact_start LIMIT 3";
        let age = TRANSACTION_AGE_MAX.as_secs_f64();
        let rows = self.rows(sql, &[(&age, Type::FLOAT8)]).await?;
        let mut shown = Vec::new();
        for row in &rows {
            let (pid, application): (i32, &str) = (column(row, 0)?, column(row, 1)?);
            let (seconds, state): (i64, Option<&str>) = (column(row, 2)?, column(row, 3)?);
            let state = state.unwrap_or("?");
            shown.push(format!("process {pid} of {application}, {state}, for {seconds} s"));
        }
        Ok(if shown.is_empty() {
            Finding::good("open transactions", "none is older than a minute")
        } else {
            let remedy = "end them with SELECT pg_terminate_backend(PID), and set \
                          idle_in_transaction_session_timeout: they hold up the feed and vacuum";
            Finding::warning("open transactions", shown.join("; "), remedy)
        })
    }

    async fn clock(&self) -> Result<Finding, Fault> {
        let sql = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let here = Clock::wall();
        let before = here.now();
        let there = Timestamp(column(&self.row(sql, &[]).await?, 0)?);
        let after = here.now();
        // The server read its clock at some time between the two.
        let difference = before.since(there).max(there.since(after));
        let found = format!("the server and this host differ by {difference:?}");
        Ok(if difference > CLOCK_DIFFERENCE_MAX {
            let remedy = "run NTP on both; flowgate itself goes by the server's clock alone";
            Finding::warning("clock", found, remedy)
        } else {
            Finding::good("clock", found)
        })
    }

    async fn schema(&self) -> Result<Finding, Fault> {
        let schema = &self.options.schema;
        let format = read_format(&self.client, schema, self.options.call_timeout).await?;
        let known = format_known();
        let found = format!("{schema} has format {format}, this flowgate knows {known}");
        Ok(match format {
            0 => Finding::good("schema", format!("{schema} is not there yet; it will be made")),
            format if format > known => {
                Finding::bad("schema", found, "use the flowgate that wrote it, or a later one")
            }
            _ => Finding::good("schema", found),
        })
    }

    async fn remains(&self) -> Result<Finding, Fault> {
        let sql = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables \
                   WHERE schemaname = $1 AND relname = 'jobs'";
        let row = self.row(sql, &[(&self.options.schema, Type::TEXT)]).await?;
        let dead: i64 = column(&row, 0)?;
        let found = format!("{dead} dead rows in jobs");
        Ok(if dead > DEAD_ROWS_MAX {
            let remedy = "look for old transactions, and that autovacuum is on";
            Finding::warning("remains of jobs", found, remedy)
        } else {
            Finding::good("remains of jobs", found)
        })
    }
}
