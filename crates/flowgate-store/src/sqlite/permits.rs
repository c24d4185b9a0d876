//! Permits: in memory, with the file behind them.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::{JobId, StepIndex};
use flowgate_core::time::Timestamp;
use rusqlite::{Connection, Row, params};

use super::fault::Fault;
use super::rows::{run_id, to_integer, to_number};
use super::writer::Writer;
use crate::control::{PermitAsk, PermitGrant, PermitOutcome, PermitRelease, PermitState};
use crate::permits::{Entry, Permits, Rate, Standing};

/// Takes the permits of whoever owned the file before: nobody works under them any more.
pub(super) fn end_all(connection: &Connection) -> Result<(), Fault> {
    connection.execute("DELETE FROM permits WHERE ticket IS NULL AND place_us IS NULL", [])?;
    Ok(())
}

/// All permits as they are in the file.
pub(super) fn load(connection: &Connection) -> Result<Permits, Fault> {
    let mut permits = Permits::default();
    let mut statement = connection
        .prepare_cached("SELECT key, run_id, step, ends_at, ticket, place_us FROM permits")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (job_id, entry) = read_row(row)?;
        permits.load(row.get(0)?, job_id, entry);
    }
    let mut statement = connection.prepare_cached("SELECT key, granted_us, free_us FROM rates")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let rate = Rate { granted_us: row.get(1)?, free_us: row.get(2)? };
        permits.load_rate(row.get(0)?, rate);
    }
    Ok(permits)
}

fn read_row(row: &Row<'_>) -> Result<(JobId, Entry), Fault> {
    let job_id = JobId { run_id: run_id(row.get(1)?), step: StepIndex(row.get(2)?) };
    let ticket: Option<i64> = row.get(4)?;
    let place_us: Option<i64> = row.get(5)?;
    let standing = match (ticket, place_us) {
        (Some(ticket), _) => Standing::InLine(to_number(ticket)),
        (None, Some(place_us)) => Standing::Reserved(place_us),
        (None, None) => Standing::Holds,
    };
    Ok((job_id, Entry { ends_at: Timestamp(row.get(3)?), standing }))
}

/// Who holds a permit of `key` and how many wait.
pub(super) fn state(
    connection: &Connection,
    key: &str,
    now: Timestamp,
) -> Result<PermitState, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT key, run_id, step, ends_at, ticket, place_us FROM permits \
         WHERE key = ?1 AND ends_at > ?2 ORDER BY ends_at, run_id, step",
    )?;
    let mut rows = statement.query(params![key, now.0])?;
    let mut state = PermitState::default();
    while let Some(row) = rows.next()? {
        let (job_id, entry) = read_row(row)?;
        match entry.standing {
            Standing::Holds => state.holders.push((job_id, entry.ends_at)),
            Standing::InLine(_) | Standing::Reserved(_) => state.in_line += 1,
        }
    }
    Ok(state)
}

impl Writer {
    /// Gives each asker a permit or a place.
    pub(super) fn take_permits(
        &mut self,
        asks: &[PermitAsk],
        lease: Duration,
    ) -> Result<Vec<PermitOutcome>, Fault> {
        let outcomes = self.permits.take(asks, lease, self.clock.now());
        self.write_permits()?;
        Ok(outcomes)
    }

    /// Takes permits back, and serves those in line.
    pub(super) fn release_permits(
        &mut self,
        releases: &[PermitRelease],
        lease: Duration,
    ) -> Result<Vec<PermitGrant>, Fault> {
        let grants = self.permits.release(releases, lease, self.clock.now());
        self.write_permits()?;
        Ok(grants)
    }

    /// Forgets permits that are over.
    pub(super) fn sweep_permits(&mut self) -> Result<(), Fault> {
        self.permits.sweep(self.clock.now());
        self.write_permits()
    }

    fn write_permits(&mut self) -> Result<(), Fault> {
        let changes = self.permits.take_changes();
        for (key, job_id, entry) in changes.jobs {
            let connection = self.transaction()?;
            if let Some(entry) = entry {
                write_entry(connection, &key, job_id, entry)?;
            } else {
                let sql = "DELETE FROM permits WHERE key = ?1 AND run_id = ?2 AND step = ?3";
                let mut statement = connection.prepare_cached(sql)?;
                let run_id = job_id.run_id.0;
                statement.execute(params![&*key, run_id.as_bytes(), job_id.step.0])?;
            }
        }
        for (key, rate) in changes.rates {
            let connection = self.transaction()?;
            if let Some(Rate { granted_us, free_us }) = rate {
                let sql =
                    "INSERT OR REPLACE INTO rates (key, granted_us, free_us) VALUES (?1, ?2, ?3)";
                connection.prepare_cached(sql)?.execute(params![&*key, granted_us, free_us])?;
            } else {
                let sql = "DELETE FROM rates WHERE key = ?1";
                connection.prepare_cached(sql)?.execute([&*key])?;
            }
        }
        Ok(())
    }
}

fn write_entry(
    connection: &Connection,
    key: &Arc<str>,
    job_id: JobId,
    entry: Entry,
) -> Result<(), Fault> {
    let (ticket, place_us) = match entry.standing {
        Standing::Holds => (None, None),
        Standing::InLine(ticket) => (Some(to_integer(ticket)), None),
        Standing::Reserved(place_us) => (None, Some(place_us)),
    };
    let mut statement = connection.prepare_cached(
        "INSERT OR REPLACE INTO permits (key, run_id, step, ends_at, ticket, place_us) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    let (run_id, step) = (job_id.run_id.0, job_id.step.0);
    let ends_at = entry.ends_at.0;
    statement.execute(params![&**key, run_id.as_bytes(), step, ends_at, ticket, place_us])?;
    Ok(())
}
