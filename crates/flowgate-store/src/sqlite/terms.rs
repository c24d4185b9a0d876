//! Names and who holds them, in the file.

use std::sync::Arc;

use flowgate_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::fault::Fault;
use super::rows::{to_integer, to_number};
use super::writer::Writer;
use crate::control::{TERMS_KEPT_MAX, Term, TermAsk, TermOutcome, TermRef, prefix_end};

const COLUMNS: &str = "name, number, holder, began_at, expires_at, released_at";

/// Ends the terms of whoever owned the file before: nobody else can have held them.
pub(super) fn end_all(connection: &Connection, now: Timestamp) -> Result<(), Fault> {
    let sql = "UPDATE terms SET expires_at = ?1 WHERE released_at IS NULL AND expires_at > ?1";
    connection.execute(sql, [now.0])?;
    Ok(())
}

impl Writer {
    /// Takes a name or extends the term that the asker holds.
    pub(super) fn take_term(&mut self, ask: &TermAsk) -> Result<TermOutcome, Fault> {
        let now = self.now();
        let last = last(&self.connection, &ask.name)?;
        let outcome = Term::judge(last, ask, now);
        if let TermOutcome::Held(held) = &outcome {
            self.write_term(held)?;
        }
        Ok(outcome)
    }

    fn write_term(&mut self, term: &Term) -> Result<(), Fault> {
        let connection = self.transaction()?;
        let sql = format!(
            "INSERT INTO terms ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
             ON CONFLICT (name, number) DO UPDATE \
             SET expires_at = excluded.expires_at, released_at = excluded.released_at"
        );
        connection.prepare_cached(&sql)?.execute(params![
            &*term.term.name,
            to_integer(term.term.number),
            &*term.holder,
            term.began_at.0,
            term.expires_at.0,
            term.released_at.map(|at| at.0),
        ])?;
        let kept = u64::try_from(TERMS_KEPT_MAX).expect("the limit is small");
        let sql = "DELETE FROM terms WHERE name = ?1 AND number < ?2";
        let from = to_integer(term.term.number.saturating_sub(kept));
        connection.prepare_cached(sql)?.execute(params![&*term.term.name, from])?;
        Ok(())
    }

    /// The term, if it is held.
    pub(super) fn held(&self, term: &TermRef) -> Result<Option<Term>, Fault> {
        let now = self.now();
        let last = last(&self.connection, &term.name)?;
        Ok(last.filter(|last| last.term == *term && last.is_held(now)))
    }

    /// Ends a term that is held.
    pub(super) fn release_term(&mut self, term: &TermRef) -> Result<(), Fault> {
        let Some(held) = self.held(term)? else { return Ok(()) };
        let now = self.now();
        self.write_term(&Term { expires_at: now, released_at: Some(now), ..held })
    }
}

fn last(connection: &Connection, name: &str) -> Result<Option<Term>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM terms WHERE name = ?1 ORDER BY number DESC LIMIT 1");
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement.query_row([name], read).optional()?)
}

/// The last term of each name that begins with `prefix`.
pub(super) fn list(connection: &Connection, prefix: &str) -> Result<Vec<Term>, Fault> {
    let sql = format!(
        "SELECT {COLUMNS} FROM terms AS term WHERE name >= ?1 AND (?2 IS NULL OR name < ?2) \
         AND number = (SELECT max(number) FROM terms WHERE name = term.name) ORDER BY name"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let terms = statement.query_map(params![prefix, prefix_end(prefix)], read)?;
    Ok(terms.collect::<Result<_, _>>()?)
}

/// The last terms of a name, the latest first.
pub(super) fn past(connection: &Connection, name: &str, limit: usize) -> Result<Vec<Term>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM terms WHERE name = ?1 ORDER BY number DESC LIMIT ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let terms = statement.query_map(params![name, to_integer(limit as u64)], read)?;
    Ok(terms.collect::<Result<_, _>>()?)
}

fn read(row: &Row<'_>) -> Result<Term, rusqlite::Error> {
    let name: Arc<str> = row.get(0)?;
    Ok(Term {
        term: TermRef { name, number: to_number(row.get(1)?) },
        holder: row.get(2)?,
        began_at: Timestamp(row.get(3)?),
        expires_at: Timestamp(row.get(4)?),
        released_at: row.get::<_, Option<i64>>(5)?.map(Timestamp),
    })
}
