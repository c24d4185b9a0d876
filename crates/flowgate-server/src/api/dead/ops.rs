//! What can be asked about dead letters, for whoever has an engine or a store at hand.

use std::collections::BTreeMap;

use flowgate_core::ids::RunId;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    DeadFilter, DeadLetter, DeadReason, Engine, EngineError, FirstBytes, KeptMessage, RetryOn,
    dead_letters, dead_messages, drop_dead_letter, fate_of,
};
use flowgate_store::control::is_key;
use flowgate_store::{RunCursor, RunRow, Store};

use crate::api::runs::ops::{parse_cursor, show_cursor};
use crate::error::ApiError;
use crate::lookup;
use crate::query::invalid;
use crate::wire::dead::{
    DeadExample, DeadGroup, DeadGroups, DeadItem, DeadMessageItem, DeadMessagePage, DeadPage,
    DeadWanted, DealRequest, Dealt, DealtRun, UndealtRun,
};

/// Failed runs that one listing looks through.
pub const SEARCHED_MAX: usize = 20_000;
/// Groups that are told.
const GROUPS_MAX: usize = 200;
/// Dead letters that one request deals with unless it says, and at most.
const DEALT_DEFAULT: u64 = 1_000;
const DEALT_MAX: u64 = 10_000;

/// What is done with dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deal {
    /// Each is tried again as a new run, on this revision.
    Retry(RetryOn),
    /// Nobody needs them any more.
    Drop,
}

/// The engine's form of a filter.
async fn filter(store: &dyn Store, wanted: &DeadWanted) -> Result<DeadFilter, ApiError> {
    let now = store.now().await?;
    let since = wanted.since.as_deref().map(|text| lookup::time("since", text, now)).transpose()?;
    let tags = wanted.tags.iter();
    Ok(DeadFilter {
        flow: lookup::flow_name(wanted.flow.as_deref()),
        step: lookup::flow_name(wanted.step.as_deref()),
        reason: wanted.reason.clone(),
        since,
        tags: tags.map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect(),
    })
}

/// A page of dead messages.
pub async fn messages(
    store: &dyn Store,
    subscription: Option<&str>,
    (limit, after): (usize, Option<String>),
) -> Result<DeadMessagePage, ApiError> {
    for (name, text) in [("subscription", subscription), ("after", after.as_deref())] {
        if text.is_some_and(|text| !is_key(text)) {
            return Err(invalid(name, "it is empty, too long, or holds a NUL character"));
        }
    }
    let page = dead_messages(store, subscription, after.map(Into::into), limit).await?;
    let next = page.last().filter(|_| page.len() == limit).map(|kept| kept.key.to_string());
    Ok(DeadMessagePage { items: page.into_iter().map(message_item).collect(), next })
}

fn message_item(kept: KeptMessage) -> DeadMessageItem {
    let (text, base64) = match kept.dead.first {
        FirstBytes::Text(text) => (Some(text), None),
        FirstBytes::Base64(base64) => (None, Some(base64)),
    };
    DeadMessageItem {
        subscription: kept.dead.subscription.to_string(),
        flow: kept.dead.flow.to_string(),
        topic: kept.dead.topic,
        message_id: kept.dead.message_id,
        reason: kept.dead.reason,
        message: kept.dead.message,
        bytes: kept.dead.bytes,
        text,
        base64,
        kept_at: kept.kept_at.to_string(),
    }
}

/// Dead letters that match, and whether these are all.
struct Found {
    letters: Vec<DeadLetter>,
    is_all: bool,
}

/// The dead letters among the latest failed runs, the latest first.
async fn search(store: &dyn Store, wanted: &DeadWanted) -> Result<Found, ApiError> {
    let filter = filter(store, wanted).await?;
    let (mut letters, mut after, mut searched) = (Vec::new(), None, 0);
    loop {
        let (page, next) = dead_letters(store, &filter, after).await?;
        searched += PAGE_MAX;
        letters.extend(page.into_iter().filter(|letter| is_of_kind(letter, wanted)));
        if next.is_none() || searched >= SEARCHED_MAX {
            return Ok(Found { letters, is_all: next.is_none() });
        }
        after = next;
    }
}

fn is_of_kind(letter: &DeadLetter, wanted: &DeadWanted) -> bool {
    wanted.kind.as_ref().is_none_or(|kind| letter.reason.kind == *kind)
}

/// A page of dead letters, the latest first.
pub async fn list(
    store: &dyn Store,
    wanted: &DeadWanted,
    (limit, after): (usize, Option<&str>),
) -> Result<DeadPage, ApiError> {
    let after = after.map(parse_cursor).transpose()?;
    let all = search(store, wanted).await?;
    let total = all.letters.len() as u64;
    // The first pages are among what was counted; later ones are looked for where they are.
    let (mut letters, more) = match after {
        None => (all.letters, None),
        Some(after) => page(store, wanted, after, limit).await?,
    };
    let next = if letters.len() > limit {
        letters.truncate(limit);
        letters.last().map(|letter| lookup::cursor_of(&letter.row))
    } else {
        more
    };
    Ok(DeadPage {
        items: letters.iter().map(item).collect(),
        total,
        complete: all.is_all,
        next: next.map(show_cursor),
    })
}

/// More than `limit` letters after a cursor, if there are so many; else where to go on.
async fn page(
    store: &dyn Store,
    wanted: &DeadWanted,
    after: RunCursor,
    limit: usize,
) -> Result<(Vec<DeadLetter>, Option<RunCursor>), ApiError> {
    let filter = filter(store, wanted).await?;
    let (mut letters, mut after, mut searched) = (Vec::new(), Some(after), 0);
    loop {
        let (page, next) = dead_letters(store, &filter, after).await?;
        searched += PAGE_MAX;
        letters.extend(page.into_iter().filter(|letter| is_of_kind(letter, wanted)));
        if letters.len() > limit || next.is_none() || searched >= SEARCHED_MAX {
            return Ok((letters, next));
        }
        after = next;
    }
}

fn message(row: &RunRow) -> Option<String> {
    row.run.failure.as_ref().map(|failure| failure.error.message.to_string())
}

fn item(letter: &DeadLetter) -> DeadItem {
    let (row, reason) = (&letter.row, &letter.reason);
    let tags = row.run.tags.iter();
    DeadItem {
        run_id: row.run.run_id,
        flow: row.run.flow.to_string(),
        step: reason.step.to_string(),
        kind: reason.kind.to_owned(),
        message: message(row),
        reason: reason.message.clone(),
        started_at: row.started_at.to_string(),
        ended_at: row.ended_at.map(|at| at.to_string()),
        tags: tags.map(|(name, value)| (name.to_string(), value.to_string())).collect(),
    }
}

/// Dead letters by reason, the most first.
pub async fn groups(store: &dyn Store, wanted: &DeadWanted) -> Result<DeadGroups, ApiError> {
    let found = search(store, wanted).await?;
    let mut groups: BTreeMap<&DeadReason, DeadGroup> = BTreeMap::new();
    for letter in &found.letters {
        let DeadReason { flow, step, kind, message: reason } = &letter.reason;
        // The latest comes first.
        let first = || DeadGroup {
            count: 0,
            flow: flow.to_string(),
            step: step.to_string(),
            kind: (*kind).to_owned(),
            reason: reason.clone(),
            example: DeadExample {
                run_id: letter.row.run.run_id,
                message: message(&letter.row),
                ended_at: letter.row.ended_at.map(|at| at.to_string()),
            },
        };
        groups.entry(&letter.reason).or_insert_with(first).count += 1;
    }
    let mut items: Vec<DeadGroup> = groups.into_values().collect();
    items.sort_by_key(|group| std::cmp::Reverse(group.count));
    items.truncate(GROUPS_MAX);
    Ok(DeadGroups { items, total: found.letters.len() as u64, complete: found.is_all })
}

/// What the revision of a request means: they may be of several flows.
pub fn retry_on(request: &DealRequest) -> Result<RetryOn, ApiError> {
    match request.revision.as_deref() {
        None => Ok(RetryOn::Pinned),
        Some("active") => Ok(RetryOn::Active),
        Some(other) => {
            let message = format!("`{}` is not `active`", other.escape_debug());
            Err(ApiError::invalid("field_invalid", message)
                .path("revision")
                .help("leave it out, or try a run again on a certain revision by itself"))
        }
    }
}

/// Deals with dead letters, the oldest first.
pub async fn deal(engine: &Engine, request: &DealRequest, deal: Deal) -> Result<Dealt, ApiError> {
    let max = request.max.unwrap_or(DEALT_DEFAULT);
    if !(1..=DEALT_MAX).contains(&max) {
        let message = format!("{max} is not from 1 to {DEALT_MAX}");
        return Err(ApiError::invalid("out_of_range", message).path("max"));
    }
    let store = &**engine.store();
    let chosen = chosen(store, request).await?;
    let mut dealt = Dealt { found: chosen.len() as u64, ..Dealt::default() };
    for run_id in chosen.into_iter().take(usize::try_from(max).unwrap_or(usize::MAX)) {
        if request.dry_run {
            if fate_of(store, run_id).await?.is_some() {
                dealt.before += 1;
            } else {
                dealt.done.push(DealtRun { run_id, new_run_id: None });
            }
            continue;
        }
        match one(engine, run_id, &deal).await {
            Ok(Some(done)) => dealt.done.push(done),
            Ok(None) => dealt.before += 1,
            // The rest is left as it was, to be gone on with.
            Err(EngineError::Store(error)) if error.is_transient() && dealt.done.is_empty() => {
                return Err(EngineError::Store(error).into());
            }
            Err(EngineError::Store(_) | EngineError::Closed | EngineError::Overloaded { .. })
                if !dealt.done.is_empty() =>
            {
                break;
            }
            Err(error) => {
                let ApiError { code, message, .. } = error.into();
                dealt.failed.push(UndealtRun { run_id, code: code.into_owned(), message });
            }
        }
    }
    dealt.left = dealt.found - (dealt.done.len() + dealt.failed.len()) as u64 - dealt.before;
    Ok(dealt)
}

/// Deals with one; none if somebody else has.
async fn one(engine: &Engine, run_id: RunId, deal: &Deal) -> Result<Option<DealtRun>, EngineError> {
    match deal {
        Deal::Retry(on) => match engine.retry_dead_letter(run_id, on).await {
            Ok(started) if started.existing => Ok(None),
            Ok(started) => Ok(Some(DealtRun { run_id, new_run_id: Some(started.run_id) })),
            Err(EngineError::NotDead(_)) => Ok(None),
            Err(error) => Err(error),
        },
        Deal::Drop => {
            let kept = engine.config().retention.runs;
            let dropped = drop_dead_letter(&**engine.store(), run_id, kept).await?;
            Ok(dropped.then_some(DealtRun { run_id, new_run_id: None }))
        }
    }
}

/// The failed runs that a request is about, the oldest first.
async fn chosen(store: &dyn Store, request: &DealRequest) -> Result<Vec<RunId>, ApiError> {
    match (&request.run_ids, &request.filter) {
        (None, Some(wanted)) => {
            let found = search(store, wanted).await?;
            Ok(found.letters.iter().rev().map(|letter| letter.row.run.run_id).collect())
        }
        (Some(texts), None) if texts.len() as u64 <= DEALT_MAX => {
            let mut chosen = Vec::new();
            for text in texts {
                let run_id = lookup::run_id(store, text).await?;
                let run = lookup::run(store, run_id).await?.row.run;
                if run.status != RunStatus::Failed {
                    return Err(EngineError::NotDead(run_id).into());
                }
                if !chosen.contains(&run_id) {
                    chosen.push(run_id);
                }
            }
            Ok(chosen)
        }
        (Some(texts), None) => {
            let message = format!("{} runs are over the limit of {DEALT_MAX}", texts.len());
            Err(ApiError::invalid("out_of_range", message).path("run_ids"))
        }
        (None, None) | (Some(_), Some(_)) => {
            let message = "a request has `run_ids` or `filter`";
            Err(ApiError::invalid("field_invalid", message)
                .path("filter")
                .help("write `\"filter\": {}` for all dead letters"))
        }
    }
}
