//! The gate of a flow: whether a start begins a run, or is held until somebody lets it go on.
//!
//! The gate is part of the commit that starts a run: a start names the generation that it knows,
//! and a store refuses it when the gate is at another one. So a start is accepted by the gate as it
//! is or not at all, and from the moment a new generation is set no start of an older one comes in.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Starts that a flow holds unless its gate says otherwise.
pub const HOLD_MAX: u64 = 100_000;

/// The gate of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// Grows by one with every change; 0 if it was never set.
    pub generation: u64,
    /// What it does with a start.
    pub state: GateState,
    /// How many starts it holds at most; what comes after them is refused.
    pub hold_max: u64,
    /// Why it was set, in the words of whoever did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// By when it should be open again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// How many runs a second are released of what it holds; as many as can be if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_rate: Option<u32>,
    /// Whether the last few that are held go on now: what starts waits a moment for the gate to
    /// open, and is held only if that takes long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_opening: bool,
    /// The deployment that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<Arc<str>>,
}

/// What a gate does with a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateState {
    /// It begins a run.
    Open,
    /// It is held, while the runs before it come to their ends.
    Draining,
    /// It is held.
    Holding,
    /// It is held behind those that are released now, in their order.
    Replaying,
}

/// What a start knows of the gate of its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateStamp {
    /// The generation.
    pub generation: u64,
    /// Whether it holds what comes.
    pub is_closed: bool,
}

impl GateState {
    /// All states, in the order of a deployment.
    pub const ALL: [Self; 4] = [Self::Open, Self::Draining, Self::Holding, Self::Replaying];

    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Draining => "draining",
            Self::Holding => "holding",
            Self::Replaying => "replaying",
        }
    }

    /// Whether a start is held.
    pub fn is_closed(self) -> bool {
        self != Self::Open
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            generation: 0,
            state: GateState::Open,
            hold_max: HOLD_MAX,
            reason: None,
            deadline: None,
            replay_rate: None,
            is_opening: false,
            deployment: None,
        }
    }
}

impl Gate {
    /// What a start has to know of it.
    pub fn stamp(&self) -> GateStamp {
        GateStamp { generation: self.generation, is_closed: self.state.is_closed() }
    }

    /// The gate after this one, in another state and otherwise the same.
    #[must_use]
    pub fn then(&self, state: GateState) -> Self {
        Self { generation: self.generation + 1, state, is_opening: false, ..self.clone() }
    }
}
