//! What can be asked of the audit.

use flowgate_core::audit::Direction;
use flowgate_core::time::Timestamp;
use flowgate_engine::{AuditQuery, AuditTrail, audit_entries, audit_summary, audit_trail};
use flowgate_store::Store;

use crate::api::runs::ops::{parse_cursor, show_cursor};
use crate::error::ApiError;
use crate::lookup;
use crate::query::invalid;
use crate::wire::Page;
use crate::wire::audit::{AuditEntry, AuditFigures, AuditLine, RunTrail, TrailItem};

/// What a summary is about if nobody says.
const SINCE: &str = "1h";

/// Which entries to list.
pub(super) struct Wanted {
    pub(super) flow: Option<String>,
    pub(super) direction: Option<String>,
    pub(super) since: Option<String>,
    pub(super) until: Option<String>,
    pub(super) limit: usize,
    pub(super) after: Option<String>,
}

/// A page of entries.
pub(super) async fn list(store: &dyn Store, wanted: &Wanted) -> Result<Page<AuditEntry>, ApiError> {
    let now = store.now().await?;
    let query = AuditQuery {
        flow: lookup::flow_name(wanted.flow.as_deref()),
        direction: wanted.direction.as_deref().map(direction).transpose()?,
        since: time("since", wanted.since.as_deref(), now)?,
        until: time("until", wanted.until.as_deref(), now)?,
        after: wanted.after.as_deref().map(parse_cursor).transpose()?,
        limit: wanted.limit,
    };
    let page = audit_entries(store, &query).await?;
    let items = page.entries.into_iter().map(AuditEntry::from).collect();
    Ok(Page { items, next: page.next.map(show_cursor) })
}

/// How flows did.
pub(super) async fn summary(
    store: &dyn Store,
    flow: Option<&str>,
    since: Option<&str>,
) -> Result<AuditFigures, ApiError> {
    let since = lookup::time("since", since.unwrap_or(SINCE), store.now().await?)?;
    let found = audit_summary(store, lookup::flow_name(flow), since).await?;
    Ok(AuditFigures {
        since: found.since.to_string(),
        until: found.until.to_string(),
        cut: found.is_cut,
        items: found.lines.into_iter().map(AuditLine::from).collect(),
    })
}

/// What was done with a run.
pub(super) async fn trail(store: &dyn Store, name: &str) -> Result<RunTrail, ApiError> {
    let run_id = lookup::run_id(store, name).await?;
    // One that is not there is told of with the way out.
    let run_id = lookup::run(store, run_id).await?.row.run.run_id;
    let found = audit_trail(store, run_id).await?;
    let AuditTrail { entries, marks, is_cut } = found.ok_or_else(|| {
        ApiError::not_found("run_not_found", format!("run {run_id} was just removed")).path(name)
    })?;
    Ok(RunTrail {
        run_id,
        entries: entries.into_iter().map(AuditEntry::from).collect(),
        items: marks.into_iter().map(TrailItem::from).collect(),
        cut: is_cut,
    })
}

fn direction(text: &str) -> Result<Direction, ApiError> {
    let found = Direction::ALL.into_iter().find(|direction| direction.as_str() == text);
    found.ok_or_else(|| invalid("direction", "it is `inbound` or `outbound`"))
}

fn time(name: &str, text: Option<&str>, now: Timestamp) -> Result<Option<Timestamp>, ApiError> {
    text.map(|text| lookup::time(name, text, now)).transpose()
}
