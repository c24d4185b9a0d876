//! Listing and counting runs.
//!
//! Every listing walks one index in its order and stops at its limit: that of all runs, that of
//! each status (also within a flow), or that of the first tag.

use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::fault::Fault;
use super::rows::{RUN_COLUMNS, read_row, to_integer, to_number};
use crate::{RunQuery, RunRow};

/// Runs that match `query`, the latest first.
pub(super) fn list(connection: &Connection, query: &RunQuery) -> Result<Vec<RunRow>, Fault> {
    let selection = Selection::listed(query);
    let mut statement = connection.prepare_cached(&selection.sql)?;
    let mut rows = statement.query(params_from_iter(selection.values))?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        list.push(read_row(row)?);
    }
    Ok(list)
}

/// How many runs match `query`, on all its pages.
pub(super) fn count(connection: &Connection, query: &RunQuery) -> Result<u64, Fault> {
    let selection = Selection::counted(query);
    let mut statement = connection.prepare_cached(&selection.sql)?;
    let values = params_from_iter(selection.values);
    Ok(to_number(statement.query_row(values, |row| row.get(0))?))
}

/// A statement with its values.
struct Selection {
    sql: String,
    values: Vec<Value>,
}

impl Selection {
    fn listed(query: &RunQuery) -> Self {
        let mut parts = Parts::of(query);
        if let Some(after) = query.after {
            let started_at = parts.bind(Value::Integer(after.started_at.0));
            let run_id = parts.bind(Value::Blob(after.run_id.0.as_bytes().to_vec()));
            let (place, key) = (parts.place, format!("({started_at}, {run_id})"));
            parts.filters.push(format!("({place}.started_at, {place}.run_id) < {key}"));
        }
        let limit = parts.bind(Value::Integer(to_integer(query.limit.min(PAGE_MAX) as u64)));
        let order = "ORDER BY started_at DESC, run_id DESC LIMIT";
        let place = parts.place;
        let inner = format!("ORDER BY {place}.started_at DESC, {place}.run_id DESC LIMIT");
        let columns = RUN_COLUMNS.split(", ").map(|column| format!("runs.{column}"));
        let columns = columns.collect::<Vec<_>>().join(", ");
        let arms = parts.arms().map(|arm| {
            format!("SELECT * FROM (SELECT {columns}, runs.run_id {arm} {inner} {limit})")
        });
        let sql = format!("{} {order} {limit}", arms.collect::<Vec<_>>().join(" UNION ALL "));
        Self { sql, values: parts.values }
    }

    fn counted(query: &RunQuery) -> Self {
        let parts = Parts::of(query);
        let arms = parts.arms().map(|arm| format!("(SELECT count(*) {arm})"));
        let sql = format!("SELECT {}", arms.collect::<Vec<_>>().join(" + "));
        Self { sql, values: parts.values }
    }
}

/// What a listing and its count have in common.
struct Parts {
    from: &'static str,
    /// The table that has the order of the listing.
    place: &'static str,
    filters: Vec<String>,
    /// One arm for each of these: then an index gives every arm in order, and none is sorted.
    statuses: Vec<Option<RunStatus>>,
    values: Vec<Value>,
}

impl Parts {
    fn of(query: &RunQuery) -> Self {
        let (from, place) = match query.tags.as_slice() {
            [] => ("runs", "runs"),
            // A cross join keeps this order, whatever the planner thinks of it.
            [..] => ("tags CROSS JOIN runs ON runs.run_id = tags.run_id", "tags"),
        };
        let mut wanted = RunStatus::ALL.to_vec();
        wanted.retain(|status| query.statuses.is_empty() || query.statuses.contains(status));
        let is_free = query.statuses.is_empty() && query.flow.is_none();
        let statuses = if !query.tags.is_empty() || is_free {
            vec![None]
        } else {
            wanted.iter().copied().map(Some).collect()
        };
        let mut parts = Self { from, place, filters: Vec::new(), statuses, values: Vec::new() };
        for (number, (name, value)) in query.tags.iter().enumerate() {
            parts.filter_tag(number == 0, name, value);
        }
        if !query.tags.is_empty() && !query.statuses.is_empty() {
            let names = wanted.iter().map(|status| format!("'{}'", status.as_str()));
            let names = names.collect::<Vec<_>>().join(", ");
            parts.filters.push(format!("runs.status IN ({names})"));
        }
        if let Some(flow) = &query.flow {
            let flow = parts.bind(Value::Text(flow.to_string()));
            parts.filters.push(format!("runs.flow = {flow}"));
        }
        if let Some(since) = query.since {
            let since = parts.bind(Value::Integer(since.0));
            parts.filters.push(format!("{place}.started_at >= {since}"));
        }
        if let Some(until) = query.until {
            let until = parts.bind(Value::Integer(until.0));
            parts.filters.push(format!("{place}.started_at < {until}"));
        }
        parts
    }

    fn filter_tag(&mut self, is_first: bool, name: &str, value: &str) {
        let name = self.bind(Value::Text(name.to_owned()));
        let value = self.bind(Value::Text(value.to_owned()));
        self.filters.push(if is_first {
            format!("tags.name = {name} AND tags.value = {value}")
        } else {
            format!(
                "EXISTS (SELECT 1 FROM tags AS other WHERE other.name = {name} \
                 AND other.value = {value} AND other.started_at = tags.started_at \
                 AND other.run_id = tags.run_id)"
            )
        });
    }

    fn bind(&mut self, value: Value) -> String {
        self.values.push(value);
        format!("?{}", self.values.len())
    }

    fn arms(&self) -> impl Iterator<Item = String> {
        self.statuses.iter().map(|status| {
            let by = status.map(|status| format!("runs.status = '{}'", status.as_str()));
            let filters: Vec<_> = by.iter().chain(&self.filters).map(String::as_str).collect();
            match filters.as_slice() {
                [] => format!("FROM {}", self.from),
                filters => format!("FROM {} WHERE {}", self.from, filters.join(" AND ")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flowgate_core::ids::RunId;
    use flowgate_core::time::Timestamp;

    use super::*;
    use crate::RunCursor;
    use crate::sqlite::file::migrated_in_memory;

    fn queries() -> Vec<RunQuery> {
        let tag = |name: &str| (Arc::<str>::from(name), Arc::<str>::from("a"));
        let after = RunCursor { started_at: Timestamp(7), run_id: RunId::derived("a", "b") };
        let mut queries = vec![RunQuery { limit: 50, ..RunQuery::default() }];
        let mut with = |change: &dyn Fn(&mut RunQuery)| {
            let mut changed = queries.clone();
            changed.iter_mut().for_each(change);
            queries.extend(changed);
        };
        with(&|query| query.flow = Some("order".into()));
        with(&|query| query.statuses = vec![RunStatus::Failed, RunStatus::Running]);
        with(&|query| (query.since, query.until) = (Some(Timestamp(1)), Some(Timestamp(9))));
        with(&|query| query.after = Some(after));
        with(&|query| query.tags = vec![tag("team"), tag("tier")]);
        queries
    }

    fn plan(connection: &Connection, selection: &Selection) -> Vec<String> {
        let sql = format!("EXPLAIN QUERY PLAN {}", selection.sql);
        let mut statement = connection.prepare(&sql).unwrap();
        let values = params_from_iter(selection.values.clone());
        let rows = statement.query_map(values, |row| row.get(3)).unwrap();
        rows.map(Result::unwrap).collect()
    }

    #[test]
    fn no_listing_sorts_and_no_count_reads_a_record() {
        let connection = migrated_in_memory();
        for query in queries() {
            let listed = plan(&connection, &Selection::listed(&query));
            // What an arm has cut to the limit may be sorted.
            let sorts = |pair: &[String]| {
                pair[1].contains("TEMP B-TREE") && !pair[0].starts_with("SCAN (subquery")
            };
            assert!(!listed.windows(2).any(sorts), "{query:?} {listed:#?}");
            let counted = plan(&connection, &Selection::counted(&query));
            let scans = |line: &String| line == "SCAN runs";
            assert!(!listed.iter().any(scans), "{query:?} {listed:#?}");
            assert!(!counted.iter().any(scans), "{query:?} {counted:#?}");
            if query.tags.is_empty() {
                let covers = |line: &&String| line.contains("runs") && !line.contains("COVERING");
                assert_eq!(counted.iter().find(covers), None, "{query:?} {counted:#?}");
            }
        }
    }
}
