//! A gentle load.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::RunId;
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_engine::{Engine, EngineError, StartRequest};
use flowgate_store::RunQuery;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::child::Line;
use crate::failure::Failure;
use crate::instance::failure;
use crate::output::Output;

/// How often it looks what is to be done.
const TICK: Duration = Duration::from_millis(300);
/// Runs that are left waiting for the user.
const WAITING_KEPT: usize = 3;
/// How long a run waits before somebody approves it who is not the user.
const APPROVE_AFTER: Duration = Duration::from_secs(6);

/// How often an order comes in under a steady load, and how many may wait to be acknowledged.
const ORDER_EVERY: Duration = Duration::from_millis(16);
const UNDER_WAY_MAX: usize = 128;

pub(super) struct Load<'a> {
    engine: &'a Engine,
    output: Output,
    /// Whether it starts more, and leaves none waiting.
    is_busy: bool,
}

impl<'a> Load<'a> {
    pub(super) fn new(engine: &'a Engine, output: Output, is_busy: bool) -> Self {
        Self { engine, output, is_busy }
    }

    /// Starts runs until something fails.
    pub(super) async fn run(&self) -> Failure {
        match self.start_all().await {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    /// Starts orders at a steady rate until it is told to rest, or something fails.
    pub(super) async fn run_steadily(&self, rest: &Notify) -> Failure {
        let mut ticks = tokio::time::interval(ORDER_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut under_way = FuturesUnordered::new();
        let (mut number, mut is_resting) = (0_u64, false);
        loop {
            tokio::select! {
                () = rest.notified() => is_resting = true,
                _ = ticks.tick(), if !is_resting && under_way.len() < UNDER_WAY_MAX => {
                    number += 1;
                    under_way.push(self.start("order", json!({ "orderId": number })));
                }
                Some(Err(failure)) = under_way.next() => return failure,
            }
        }
    }

    async fn start_all(&self) -> Result<std::convert::Infallible, Failure> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let order_every = if self.is_busy { 1 } else { 3 };
        for tick in 0_u64.. {
            ticks.tick().await;
            if tick.is_multiple_of(order_every) {
                self.start("order", json!({ "orderId": tick + 1 })).await?;
            }
            if tick % 8 == 1 {
                self.start("import", json!({})).await?;
            }
            if tick % 12 == 2 {
                let cents = 100 * fastrand::u32(10..500);
                self.start("expense", json!({ "cents": cents, "by": "Ada" })).await?;
            }
            if tick % 6 == 5 {
                self.approve().await?;
            }
        }
        unreachable!("a demo does not last that long");
    }

    async fn start(&self, flow: &str, input: Value) -> Result<(), Failure> {
        let input = Payload::of(&input).expect("the inputs of the demo are small");
        let started = match self.engine.start_run(flow, StartRequest::new(input)).await {
            Ok(started) => started,
            // The next tick is another try.
            Err(EngineError::Overloaded { .. }) => return Ok(()),
            Err(error) => return Err(failure(error)),
        };
        self.output.json_line(&Line::Started(started.run_id))
    }

    /// Approves what has waited for a while, but for the latest, which are the user's.
    async fn approve(&self) -> Result<(), Failure> {
        let store = self.engine.store();
        let query = RunQuery {
            flow: Some(Arc::from("expense")),
            statuses: vec![RunStatus::Waiting],
            until: Some(store.now().await?.minus(APPROVE_AFTER)),
            limit: 50,
            ..RunQuery::default()
        };
        let kept = if self.is_busy { 0 } else { WAITING_KEPT };
        let rows = store.list_runs(&query).await?;
        for row in rows.iter().skip(kept) {
            self.approve_one(row.run.run_id).await?;
        }
        Ok(())
    }

    async fn approve_one(&self, run_id: RunId) -> Result<(), Failure> {
        let by = Payload::of(&json!({ "by": "Grace" })).expect("the data is small");
        match self.engine.signal(run_id, "approval", by).await {
            // The user may have been quicker.
            Ok(_) | Err(EngineError::Rejected(_)) => Ok(()),
            Err(error) => Err(failure(error)),
        }
    }
}
