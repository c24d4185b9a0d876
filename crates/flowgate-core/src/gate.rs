//! The gate of a flow: whether a start begins a run, or is held until somebody lets it go on.
//!
//! The gate is part of the commit that starts a run: a start names the generation that it knows,
//! and a store refuses it when the gate is at another one. So a start is accepted by the gate as it
//! is or not at all, and from the moment a new generation is set no start of an older one comes in.
//!
//! So a gate also says where starts go: which share of them to a canary, and whose pool executes a
//! revision. Whoever knows its generation knows that too.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::deploy::Share;
use crate::ids::{Revision, RunId};
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
    /// By how many runs a second what it holds grows less: as many as come in are released besides.
    /// As many as can be if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_rate: Option<u32>,
    /// Whether the last few that are held go on now: what starts waits a moment for the gate to
    /// open, and is held only if that takes long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_opening: bool,
    /// The deployment that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<Arc<str>>,
    /// The revision that a share of the starts goes to, beside the active one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryShare>,
    /// The pools that execute revisions of the flow; any instance does where there is none. Those of
    /// the last two revisions that were deployed are kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<Revision, Arc<str>>,
}

/// A revision that a share of the starts goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanaryShare {
    /// The revision.
    pub revision: Revision,
    /// The share.
    pub share: Share,
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
            canary: None,
            pools: BTreeMap::new(),
        }
    }
}

impl Gate {
    /// What a start has to know of it.
    pub fn stamp(&self) -> GateStamp {
        GateStamp { generation: self.generation, is_closed: self.state.is_closed() }
    }

    /// The revision that the run starts on instead of the active one, if the canary's share has it.
    pub fn canary_of(&self, run_id: RunId) -> Option<&Revision> {
        let canary = self.canary.as_ref().filter(|canary| canary.share.takes(run_id))?;
        Some(&canary.revision)
    }

    /// The pool that executes runs of a revision; any instance does if there is none.
    pub fn pool_of(&self, revision: &Revision) -> Option<&Arc<str>> {
        self.pools.get(revision)
    }

    /// The pools when `to` is deployed in place of `from`, for instances of `pool` or for any.
    #[must_use]
    pub fn pools_with(
        &self,
        (from, to): (&Revision, &Revision),
        pool: Option<&str>,
    ) -> BTreeMap<Revision, Arc<str>> {
        let kept = self.pools.get_key_value(from).filter(|_| from != to);
        let kept = kept.map(|(revision, pool)| (revision.clone(), Arc::clone(pool)));
        kept.into_iter().chain(pool.map(|pool| (to.clone(), pool.into()))).collect()
    }

    /// The gate after this one, which sends starts elsewhere and is otherwise the same.
    #[must_use]
    pub fn sending(
        &self,
        canary: Option<CanaryShare>,
        pools: BTreeMap<Revision, Arc<str>>,
    ) -> Self {
        Self { generation: self.generation + 1, canary, pools, ..self.clone() }
    }

    /// The gate after this one, in another state and otherwise the same.
    #[must_use]
    pub fn then(&self, state: GateState) -> Self {
        Self { generation: self.generation + 1, state, is_opening: false, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(name: &str) -> Revision {
        Revision(name.into())
    }

    #[test]
    fn the_pools_of_the_last_two_revisions_are_kept() {
        let mut gate = Gate::default();
        let rows = [
            (("a", "b"), Some("green"), "b green"),
            (("b", "c"), Some("blue"), "b green, c blue"),
            (("c", "d"), None, "c blue"),
            (("d", "c"), Some("green"), "c green"),
            (("c", "e"), None, "c green"),
            (("e", "f"), None, ""),
        ];
        for ((from, to), pool, wanted) in rows {
            gate.pools = gate.pools_with((&revision(from), &revision(to)), pool);
            let shown = gate.pools.iter().map(|(revision, pool)| format!("{revision} {pool}"));
            assert_eq!(shown.collect::<Vec<_>>().join(", "), wanted, "{from} to {to}");
        }
    }

    #[test]
    fn a_start_goes_to_the_canary_if_its_share_has_it() {
        let run_id = RunId::derived("order", "7");
        let canary = |share: &str| {
            Some(CanaryShare { revision: revision("new"), share: share.parse().unwrap() })
        };
        assert_eq!(Gate::default().canary_of(run_id), None);
        let all = Gate { canary: canary("100%"), ..Gate::default() };
        assert_eq!(all.canary_of(run_id), Some(&revision("new")));
        let few = Gate { canary: canary("0.01%"), ..Gate::default() };
        assert_eq!(few.canary_of(run_id), None);
    }

    #[test]
    fn a_gate_of_an_older_form_sends_nothing_anywhere() {
        let old = r#"{"generation":3,"state":"holding","hold_max":7}"#;
        let gate: Gate = serde_json::from_str(old).unwrap();
        assert_eq!((&gate.canary, gate.pools.len()), (&None, 0));
        assert_eq!(serde_json::to_string(&gate).unwrap(), old);
    }
}
