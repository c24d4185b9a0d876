//! Subscribers.

use flowgate_core::ids::{Position, RunId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A subscriber.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubscriberItem {
    /// Its id.
    pub subscriber: String,
    /// What it is.
    #[schema(example = "projection")]
    pub kind: String,
    /// How instances share it: `single_instance` or `coordinated`.
    #[schema(example = "coordinated")]
    pub mode: String,
    /// What becomes of an event that failed for good: `dead_letter` or `fail_closed`.
    #[schema(example = "dead_letter")]
    pub on_failure: String,
    /// `active`, `inactive`, `failed`, or `unwatched` where nobody can say.
    #[schema(example = "active")]
    pub state: String,
    /// Whether it has handled every event.
    pub caught_up: bool,
    /// For how long its oldest unhandled event has waited.
    pub behind_ms: u64,
    /// Events that it has put aside.
    pub dead: u64,
    /// Its partitions, in order.
    pub partitions: Vec<PartitionItem>,
    /// The instances that want it.
    pub members: Vec<MemberItem>,
}

/// A partition of a subscriber.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionItem {
    /// Its number.
    pub partition: u16,
    /// The instance that has it.
    pub active_on: Option<String>,
    /// The number of that instance's term.
    pub term: Option<u64>,
    /// How far it is in each feed; null if it has not begun.
    #[schema(value_type = Option<Vec<String>>)]
    pub positions: Option<Vec<Position>>,
    /// Events that were handled or put aside.
    pub handled: u64,
    /// When its checkpoint was written.
    #[schema(format = DateTime)]
    pub written_at: Option<String>,
    /// Why it stands still.
    pub failed: Option<PartitionFailure>,
}

/// Why a partition stands still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionFailure {
    /// The run of the event; null if it could not begin or read.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub run: Option<RunId>,
    /// The number of the event in the run.
    pub seq: Option<u64>,
    /// What went wrong.
    pub error: String,
    /// How often it was tried.
    pub attempts: u32,
    /// Where.
    pub instance: String,
}

/// An instance that wants a subscriber.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberItem {
    /// The instance.
    pub instance: String,
    /// How many partitions it has.
    pub partitions: usize,
}

/// A subscriber and what it has put aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubscriberDetail {
    /// The subscriber.
    #[serde(flatten)]
    pub item: SubscriberItem,
    /// The first 1000 events that it has put aside.
    pub dead_letters: Vec<DeadEvent>,
}

/// An event that a subscriber has put aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadEvent {
    /// Its run.
    #[schema(value_type = String, format = Uuid)]
    pub run: RunId,
    /// Its number in the run.
    pub seq: u64,
    /// Its type.
    pub r#type: String,
    /// What went wrong last.
    pub error: String,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was put aside.
    #[schema(format = DateTime)]
    pub put_aside_at: String,
    /// Whether it waits to be tried again.
    pub to_be_retried: bool,
}

/// Where a subscriber is to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetRequest {
    /// `start`, `end`, or a position for each feed.
    pub to: ResetTarget,
}

/// `start`, `end`, or a position for each feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "it is \"start\", \"end\" or a list of positions")]
pub enum ResetTarget {
    /// The first event that is kept, or what is committed from now on.
    Named(ResetName),
    /// After these positions, one for each feed.
    Positions(Vec<String>),
}

/// A place in every feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResetName {
    /// The first event that is kept.
    Start,
    /// What is committed from now on.
    End,
}

/// That a subscriber was reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResetDone {
    /// The subscriber.
    pub subscriber: String,
    /// That it was.
    pub reset: bool,
}

/// What a subscriber is to try again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryDead {
    /// Only events of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
}

/// What a subscriber tries again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetryDeadDone {
    /// The subscriber.
    pub subscriber: String,
    /// How many events.
    pub retried: u64,
}
