//! What can be asked about gates, for whoever has an engine or a store at hand.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::Span;
use flowgate_core::gate::{Gate, GateState};
use flowgate_core::limits::{DURATION_MAX, LIMIT_MAX, PAGE_MAX};
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_engine::{Engine, HoldRequest};
use flowgate_store::control::{GATE, Record, RecordQuery, gate_of};
use flowgate_store::{RunQuery, Store, StoreError};

use crate::api::flows::ops as flows;
use crate::api::runs::ops::steer::check_reason;
use crate::error::ApiError;
use crate::wire::Items;
use crate::wire::gates::{GateChange, GateItem, GateWish, PoolItem, ShareItem};

/// Every gate that was ever set, in the order of their flows.
pub async fn list(store: &dyn Store) -> Result<Items<GateItem>, ApiError> {
    let now = store.now().await?;
    let (mut items, mut after) = (Vec::new(), None);
    loop {
        let (prefix, limit) = ("".into(), PAGE_MAX);
        let query = RecordQuery { kind: GATE, prefix, after, is_descending: false, limit };
        let page = store.list_records(&query).await?;
        for record in &page {
            items.push(item(store, &record.key, Some(record), now).await?);
        }
        match page.last() {
            Some(last) if page.len() == PAGE_MAX => after = Some(Arc::clone(&last.key)),
            Some(_) | None => return Ok(Items { items }),
        }
    }
}

/// How the gate of a flow stands.
pub async fn show(store: &dyn Store, flow: &str) -> Result<GateItem, ApiError> {
    let flow: Arc<str> = flows::find(store, flow, None).await?.revision.file.flow.into();
    let found = store.read_records(GATE, std::slice::from_ref(&flow)).await?;
    let now = store.now().await?;
    Ok(item(store, &flow, found.first().and_then(Option::as_ref), now).await?)
}

async fn item(
    store: &dyn Store,
    flow: &Arc<str>,
    record: Option<&Record>,
    now: Timestamp,
) -> Result<GateItem, StoreError> {
    let gate = gate_of(record)?;
    // A gate opens when nothing is held any more.
    let (held, oldest_at) = match gate.state {
        GateState::Open => (0, None),
        GateState::Draining | GateState::Holding | GateState::Replaying => {
            held(store, flow).await?
        }
    };
    let Gate {
        generation,
        state,
        hold_max,
        reason,
        deadline,
        replay_rate,
        is_opening: _,
        deployment,
        canary,
        pools,
    } = gate;
    let canary = canary.map(|canary| ShareItem {
        revision: canary.revision.to_string(),
        share: canary.share.to_string(),
    });
    let pools = pools.into_iter().map(|(revision, pool)| PoolItem {
        revision: revision.to_string(),
        pool: pool.to_string(),
    });
    let age = |at| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
    Ok(GateItem {
        flow: flow.to_string(),
        state,
        generation,
        held,
        hold_max,
        oldest_at: oldest_at.map(|at| at.to_string()),
        age_ms: oldest_at.map(age),
        reason: reason.map(|reason| reason.to_string()),
        deadline: deadline.map(|at| at.to_string()),
        replay_rate,
        deployment: deployment.map(|deployment| deployment.to_string()),
        canary,
        pools: pools.collect(),
        set_at: record.map(|record| record.written_at.to_string()),
    })
}

/// How many runs a flow holds, and when the first of them was accepted.
///
/// A listing begins with the latest, and a flow may hold very many: beyond a page, the time of the
/// first is closed in on by halves.
async fn held(store: &dyn Store, flow: &Arc<str>) -> Result<(u64, Option<Timestamp>), StoreError> {
    let (flow, statuses) = (Some(Arc::clone(flow)), vec![RunStatus::Held]);
    let mut query = RunQuery { flow, statuses, limit: PAGE_MAX, ..RunQuery::default() };
    let held = store.count_runs(&query).await?;
    let page = store.list_runs(&query).await?;
    let Some(last) = page.last() else { return Ok((held, None)) };
    let mut first = last.started_at;
    if page.len() == PAGE_MAX {
        query.limit = 1;
        let mut none_before = Timestamp(0);
        while none_before < first {
            let until = Timestamp(first.0 - (first.0 - none_before.0) / 2);
            query.until = Some(until);
            match store.list_runs(&query).await?.first() {
                Some(row) => first = row.started_at,
                None => none_before = until,
            }
        }
    }
    Ok((held, Some(first)))
}

/// Holds a flow, or lets go what it holds.
pub async fn change(engine: &Engine, flow: &str, change: GateChange) -> Result<GateItem, ApiError> {
    let store = &**engine.store();
    let wish = read(change)?;
    let before = show(store, flow).await?;
    if let (GateState::Draining | GateState::Holding | GateState::Replaying, Some(deployment)) =
        (before.state, &before.deployment)
    {
        let message = format!("the gate of `{flow}` belongs to the deployment {deployment}");
        return Err(ApiError::conflict("gate_closed", message)
            .help("the deployment opens it when it ends; wait for that, or end the deployment")
            .path(flow));
    }
    match wish {
        Wish::Hold(request) => {
            engine.hold(flow, request).await?;
        }
        Wish::LetGo(rate) => {
            engine.let_go(flow, rate).await?;
        }
    }
    show(store, flow).await
}

/// A change that makes sense.
enum Wish {
    Hold(HoldRequest),
    LetGo(Option<u32>),
}

fn read(change: GateChange) -> Result<Wish, ApiError> {
    let GateChange { state, reason, hold_max, deadline, rate } = change;
    let misplaced = |field: &str, state: &str| {
        let message = format!("`{field}` goes with the state `{state}`");
        Err(ApiError::invalid("field_invalid", message).path(field))
    };
    match state {
        GateWish::Holding if rate.is_some() => misplaced("rate", "open"),
        GateWish::Holding => {
            check_reason(reason.as_deref())?;
            in_range("hold_max", hold_max)?;
            let deadline = deadline.as_deref().map(span).transpose()?;
            let reason = reason.map(Into::into);
            Ok(Wish::Hold(HoldRequest { reason, hold_max, deadline }))
        }
        GateWish::Open if reason.is_some() => misplaced("reason", "holding"),
        GateWish::Open if hold_max.is_some() => misplaced("hold_max", "holding"),
        GateWish::Open if deadline.is_some() => misplaced("deadline", "holding"),
        GateWish::Open => {
            in_range("rate", rate.map(u64::from))?;
            Ok(Wish::LetGo(rate))
        }
    }
}

fn in_range(field: &str, number: Option<u64>) -> Result<(), ApiError> {
    match number {
        Some(number) if !(1..=u64::from(LIMIT_MAX)).contains(&number) => {
            let message = format!("a {field} of {number} is not from 1 to {LIMIT_MAX}");
            Err(ApiError::invalid("out_of_range", message).path(field))
        }
        Some(_) | None => Ok(()),
    }
}

fn span(text: &str) -> Result<Duration, ApiError> {
    let Span(span) = text.parse().map_err(|_| {
        let shown: String = text.chars().take(100).collect();
        ApiError::invalid("field_invalid", format!("`{}` is not a span", shown.escape_debug()))
            .help("write a length of time such as 10m or 1h30m")
            .path("deadline")
    })?;
    if span.is_zero() || span > DURATION_MAX {
        let message = format!("a deadline of {text} is not from 1ms to {}", Span(DURATION_MAX));
        return Err(ApiError::invalid("out_of_range", message).path("deadline"));
    }
    Ok(span)
}
