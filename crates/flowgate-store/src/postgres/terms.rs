//! Terms: names that one holder has at a time.

use std::sync::Arc;

use flowgate_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::fault::Fault;
use super::rows::{column, to_int4, to_integer, to_ms, to_number};
use crate::StoreError;
use crate::control::{TERMS_KEPT_MAX, Term, TermAsk, TermOutcome, TermRef, check_key, prefix_end};

impl PostgresStore {
    pub(super) async fn take(&self, ask: &TermAsk) -> Result<TermOutcome, StoreError> {
        check_key(&ask.name);
        let doing = "taking a term";
        let (span_ms, renews) = (to_ms(ask.span), ask.renews.map(to_integer));
        let kept_max = to_integer(TERMS_KEPT_MAX as u64);
        let params = [
            (&&*ask.name as _, Type::TEXT),
            (&&*ask.holder as _, Type::TEXT),
            (&span_ms as _, Type::INT8),
            (&renews as _, Type::INT8),
            (&kept_max as _, Type::INT8),
        ];
        let row = self.pool.call_one(doing, &self.sql.take_term, &params).await?;
        let read = || -> Result<TermOutcome, Fault> {
            let last = if column::<Option<i64>>(&row, 1)?.is_some() {
                read_term(&row, Arc::clone(&ask.name))?
            } else {
                Term::never_held(&ask.name)
            };
            let is_held = column(&row, 0)?;
            Ok(if is_held { TermOutcome::Held(last) } else { TermOutcome::NotHeld(last) })
        };
        read().map_err(|fault| fault.into_error(doing))
    }

    pub(super) async fn release(&self, term: &TermRef) -> Result<(), StoreError> {
        let number = to_integer(term.number);
        let params = [(&&*term.name as _, Type::TEXT), (&number as _, Type::INT8)];
        self.pool.call("releasing a term", &self.sql.release_term, &params).await?;
        Ok(())
    }

    pub(super) async fn terms_of(&self, prefix: &str) -> Result<Vec<Term>, StoreError> {
        let doing = "listing terms";
        let sql = format!(
            "SELECT name, number, holder, began_at, expires_at, released_at \
             FROM \"{schema}\".terms WHERE name >= $1 AND ($2::text IS NULL OR name < $2) \
             ORDER BY name",
            schema = self.options.schema
        );
        let end = prefix_end(prefix);
        let params = [(&prefix as _, Type::TEXT), (&end as _, Type::TEXT)];
        let rows = self.pool.call(doing, &sql, &params).await?;
        let read = |row: &Row| read_term(row, column::<&str>(row, 0)?.into());
        let terms: Result<Vec<Term>, Fault> = rows.iter().map(read).collect();
        terms.map_err(|fault| fault.into_error(doing))
    }

    pub(super) async fn terms_before(
        &self,
        name: &str,
        limit: usize,
    ) -> Result<Vec<Term>, StoreError> {
        let doing = "reading the terms of a name";
        let schema = &self.options.schema;
        let columns = "name, number, holder, began_at, expires_at, released_at";
        let sql = format!(
            "SELECT {columns} FROM \"{schema}\".terms WHERE name = $1 \
             UNION ALL \
             (SELECT {columns} FROM \"{schema}\".terms_past WHERE name = $1 \
             ORDER BY number DESC LIMIT $2) \
             ORDER BY number DESC LIMIT $2"
        );
        let limit = i64::from(to_int4(limit));
        let params = [(&name as _, Type::TEXT), (&limit as _, Type::INT8)];
        let rows = self.pool.call(doing, &sql, &params).await?;
        let name: Arc<str> = name.into();
        let terms: Result<Vec<Term>, Fault> =
            rows.iter().map(|row| read_term(row, Arc::clone(&name))).collect();
        terms.map_err(|fault| fault.into_error(doing))
    }
}

/// A term from the columns after the first: number, holder, and the three times.
fn read_term(row: &Row, name: Arc<str>) -> Result<Term, Fault> {
    Ok(Term {
        term: TermRef { name, number: to_number(column(row, 1)?) },
        holder: column::<&str>(row, 2)?.into(),
        began_at: Timestamp(column(row, 3)?),
        expires_at: Timestamp(column(row, 4)?),
        released_at: column::<Option<i64>>(row, 5)?.map(Timestamp),
    })
}
