//! What can be asked about subscribers, for whoever has a store at hand.

use flowgate_core::ids::{Position, PositionError};
use flowgate_engine::subscriber::{
    DeadLetter, InstanceMode, OnFailure, PartitionInfo, ResetTo, SubscriberAdmin, SubscriberInfo,
};
use flowgate_store::Store;

use crate::error::ApiError;
use crate::lookup;
use crate::wire::Items;
use crate::wire::subscribers::{
    DeadEvent, MemberItem, PartitionFailure, PartitionItem, ResetDone, ResetName, ResetRequest,
    ResetTarget, RetryDead, RetryDeadDone, SubscriberDetail, SubscriberItem,
};

/// Bytes of the id of a subscriber; stores can be asked for no longer one.
const ID_BYTES_MAX: usize = 512;
/// Dead letters that are told.
const DEAD_MAX: usize = 1_000;

/// All subscribers, by id.
pub async fn list(store: &dyn Store) -> Result<Items<SubscriberItem>, ApiError> {
    let infos = SubscriberAdmin::new(store).list().await?;
    Ok(Items { items: infos.iter().map(item).collect() })
}

/// A subscriber and what it has put aside.
pub async fn show(store: &dyn Store, id: &str) -> Result<SubscriberDetail, ApiError> {
    check_id(id)?;
    let admin = SubscriberAdmin::new(store);
    let info = admin.show(id).await?.ok_or_else(|| unknown(id))?;
    let dead = admin.dead(id).await?;
    let dead_letters = dead.iter().take(DEAD_MAX).map(dead_event).collect();
    Ok(SubscriberDetail { item: item(&info), dead_letters })
}

fn check_id(id: &str) -> Result<(), ApiError> {
    let can_be = (1..=ID_BYTES_MAX).contains(&id.len()) && !id.contains('\0');
    if can_be { Ok(()) } else { Err(unknown(id)) }
}

fn unknown(id: &str) -> ApiError {
    let id: String = id.chars().take(ID_BYTES_MAX).collect();
    ApiError::not_found("subscriber_not_found", format!("there is no subscriber `{id}`"))
        .help("see `flowgate subscribers list`")
        .path(id)
}

/// Lets a subscriber go on elsewhere.
pub async fn reset(
    store: &dyn Store,
    id: &str,
    request: ResetRequest,
) -> Result<ResetDone, ApiError> {
    check_id(id)?;
    let to = match request.to {
        ResetTarget::Named(ResetName::Start) => ResetTo::Start,
        ResetTarget::Named(ResetName::End) => ResetTo::End,
        ResetTarget::Positions(texts) => {
            let parsed: Result<Vec<Position>, _> = texts.iter().map(|text| text.parse()).collect();
            ResetTo::Positions(parsed.map_err(|error: PositionError| {
                ApiError::invalid("field_invalid", error.to_string())
                    .help("write start, end, or a position of `flowgate subscribers show`")
                    .path("to")
            })?)
        }
    };
    SubscriberAdmin::new(store).reset(id, &to).await?;
    Ok(ResetDone { subscriber: id.to_owned(), reset: true })
}

/// Lets a subscriber try again what it has put aside.
pub async fn retry_dead(
    store: &dyn Store,
    id: &str,
    request: &RetryDead,
) -> Result<RetryDeadDone, ApiError> {
    check_id(id)?;
    let run_id = match &request.run_id {
        None => None,
        Some(text) => Some(lookup::run_id(store, text).await?),
    };
    let retried = SubscriberAdmin::new(store).retry_dead(id, run_id).await?;
    Ok(RetryDeadDone { subscriber: id.to_owned(), retried })
}

fn item(info: &SubscriberInfo) -> SubscriberItem {
    let members = info.members.iter().map(|member| MemberItem {
        instance: member.instance.to_string(),
        partitions: member.partitions,
    });
    SubscriberItem {
        subscriber: info.id.to_string(),
        kind: info.kind.to_string(),
        mode: info.mode.as_str().to_owned(),
        on_failure: match info.on_failure {
            OnFailure::DeadLetter => "dead_letter".to_owned(),
            OnFailure::FailClosed => "fail_closed".to_owned(),
        },
        state: state(info).to_owned(),
        caught_up: info.lag.is_caught_up,
        behind_ms: u64::try_from(info.lag.behind.as_millis()).unwrap_or(u64::MAX),
        dead: info.dead,
        partitions: info.partitions.iter().map(partition).collect(),
        members: members.collect(),
    }
}

/// Without a term nobody can say whether a single instance is there.
fn state(info: &SubscriberInfo) -> &'static str {
    if info.partitions.iter().any(|partition| partition.failed.is_some()) {
        return "failed";
    }
    if info.mode != InstanceMode::Coordinated {
        "unwatched"
    } else if info.partitions.iter().any(|partition| partition.term.is_some()) {
        "active"
    } else {
        "inactive"
    }
}

fn partition(partition: &PartitionInfo) -> PartitionItem {
    let term = partition.term.as_ref();
    PartitionItem {
        partition: partition.number,
        active_on: term.map(|term| {
            term.holder.split_once('/').map_or(&*term.holder, |(instance, _)| instance).to_owned()
        }),
        term: term.map(|term| term.term.number),
        positions: partition.positions.clone(),
        handled: partition.handled,
        written_at: partition.written_at.map(|at| at.to_string()),
        failed: partition.failed.as_ref().map(|failed| PartitionFailure {
            run: failed.event.map(|(run_id, _)| run_id),
            seq: failed.event.map(|(_, seq)| seq),
            error: failed.error.to_string(),
            attempts: failed.attempts,
            instance: failed.instance.to_string(),
        }),
    }
}

fn dead_event(letter: &DeadLetter) -> DeadEvent {
    DeadEvent {
        run: letter.run_id,
        seq: letter.seq,
        r#type: letter.r#type.to_string(),
        error: letter.error.to_string(),
        attempts: letter.attempts,
        put_aside_at: letter.died_at.to_string(),
        to_be_retried: letter.is_asked,
    }
}
