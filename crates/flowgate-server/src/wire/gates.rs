//! Gates of flows.

use flowgate_core::gate::GateState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::identifier;

/// The gate of a flow: whether a start begins a run, and what it holds if not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GateItem {
    /// The flow.
    pub flow: String,
    /// What it does with a start: `open`, `draining`, `holding` or `replaying`.
    #[schema(value_type = String, example = "holding")]
    pub state: GateState,
    /// Grows by one with every change; 0 if it was never set.
    pub generation: u64,
    /// How many runs it holds.
    pub held: u64,
    /// How many it holds at most; a start after them is refused.
    pub hold_max: u64,
    /// When the first of those that it holds was accepted.
    #[schema(format = DateTime)]
    pub oldest_at: Option<String>,
    /// How long ago that was.
    pub age_ms: Option<u64>,
    /// Why it was closed, in the words of whoever did.
    pub reason: Option<String>,
    /// When it lets go by itself.
    #[schema(format = DateTime)]
    pub deadline: Option<String>,
    /// How many runs a second it lets go, besides as many as come in; null for as many as can be.
    pub replay_rate: Option<u32>,
    /// The deployment that it belongs to.
    pub deployment: Option<String>,
    /// Where a share of the starts goes instead of to the active revision; null for nowhere.
    pub canary: Option<ShareItem>,
    /// The pools that execute revisions of the flow; any instance does where there is none.
    pub pools: Vec<PoolItem>,
    /// When it was set; null if it never was.
    #[schema(format = DateTime)]
    pub set_at: Option<String>,
}

/// A revision that a share of the starts goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareItem {
    /// The revision.
    pub revision: String,
    /// The share.
    #[schema(example = "5%")]
    pub share: String,
}

/// The pool that executes a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolItem {
    /// The revision.
    pub revision: String,
    /// The pool.
    pub pool: String,
}

/// What is to become of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GateChange {
    /// Whether it holds what starts from now on, or lets go what it holds and opens.
    pub state: GateWish,
    /// Why, with `holding`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many starts are held at most, with `holding`; 100000 without.
    #[serde(
        default,
        deserialize_with = "identifier::exact_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub hold_max: Option<u64>,
    /// How long until it lets go by itself, with `holding`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "10m")]
    pub deadline: Option<String>,
    /// How many runs a second are let go, besides as many as come in, with `open`; as many as can be
    /// without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub rate: Option<u32>,
}

/// What a caller wants of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateWish {
    /// That it holds what starts.
    Holding,
    /// That it opens, once it has let go what it holds.
    Open,
}

impl GateChange {
    /// A change to this, with nothing else said.
    pub fn to(state: GateWish) -> Self {
        Self { state, reason: None, hold_max: None, deadline: None, rate: None }
    }
}
