//! Events that were put aside.

use std::sync::Arc;

use flowgate_core::event::StoredEvent;
use flowgate_store::control::{Expect, Record, RecordQuery};

use super::{Break, Delivered, Ended, Partition, Work};
use crate::clock;
use crate::subscriber::handle::Shared;
use crate::subscriber::stored::{self, DEAD, DeadRecord, RETRY};

/// Dead letters that are tried again in one go.
const RETRIES_MAX: usize = 100;

impl Partition {
    /// Puts an event aside, in the write that moves the checkpoint past it.
    pub(super) async fn bury(
        &self,
        work: &mut Work,
        event: &StoredEvent,
        error: &str,
        attempts: u32,
    ) -> Result<(), Break> {
        let Shared { id, .. } = &*self.shared;
        let dead = DeadRecord::of(event, error, attempts);
        let key = stored::dead_key(id, event.run_id, event.seq);
        let write = stored::write(DEAD, key, Expect::Anything, &dead)
            .expect("a dead letter is within the limits of a record");
        work.at.handled += 1;
        self.write(work, vec![write]).await?;
        let (run_id, seq, subscriber) = (event.run_id, event.seq, id.to_string());
        tracing::warn!(subscriber = %id, %run_id, seq, error, "put aside; see `flowgate subscribers`");
        metrics::counter!("flowgate_subscriber_dead_total", "subscriber" => subscriber)
            .increment(1);
        Ok(())
    }

    pub(super) async fn retry_dead(&self, work: &mut Work) -> Result<(), Break> {
        let query = RecordQuery {
            kind: RETRY,
            prefix: format!("{}/{}/", self.shared.id, self.number).into(),
            after: None,
            is_descending: false,
            limit: RETRIES_MAX,
        };
        let asked = self.patiently(|| self.instance.store.list_records(&query)).await?;
        for record in asked {
            self.retry(work, &record).await?;
        }
        Ok(())
    }

    /// Tries a dead letter again. It is behind the checkpoint, so it comes out of its order.
    pub(super) async fn retry(&self, work: &mut Work, record: &Record) -> Result<(), Break> {
        let mut dead: DeadRecord =
            stored::read(RETRY, record).map_err(|error| self.broken(&error))?;
        let mut event = dead.stored();
        if event.is_none() {
            let call = || self.instance.store.read_events(dead.run, dead.seq - 1, 1);
            let found = self.patiently(call).await?.into_iter().next();
            event = found.filter(|event| event.seq == dead.seq);
        }
        let expect = Expect::Version(record.version);
        let mut writes = vec![stored::removal(RETRY, Arc::clone(&record.key), expect)];
        let delivered = match event {
            None => Delivered::Failed {
                error: "its event is no longer kept (retention)".to_owned(),
                attempts: 0,
            },
            Some(event) => {
                // What was handled before must not be in the transaction of this one.
                self.flush(work).await?;
                let next = (work.at.clone(), writes.clone());
                self.deliver(work, self.delivery(event), next).await?
            }
        };
        match delivered {
            Delivered::Stopped => {
                self.flush(work).await?;
                return Err(Ended::Stopped.into());
            }
            Delivered::Committed => return Ok(()),
            Delivered::Handled => {}
            Delivered::Failed { error, attempts } => {
                dead.error = stored::fit(&error);
                dead.attempts += attempts;
                let key = stored::dead_key(&self.shared.id, dead.run, dead.seq);
                let write = stored::write(DEAD, key, Expect::Anything, &dead);
                writes.push(write.expect("a dead letter is within the limits of a record"));
            }
        }
        work.dirty_since.get_or_insert_with(clock::now);
        self.write(work, writes).await
    }
}
