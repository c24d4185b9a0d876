//! Writing the checkpoint of a partition.

use std::sync::Arc;

use flowgate_core::event::StoredEvent;
use flowgate_core::payload::Payload;
use flowgate_store::control::{Expect, RecordWrite, RecordsOutcome};

use super::{Break, Ended, Partition, Work, guarded};
use crate::executor::worker::with_causes;
use crate::subscriber::options::InstanceMode;
use crate::subscriber::stored::{self, CHECKPOINT, CheckpointRecord, FailedRecord};

impl Partition {
    pub(super) async fn flush(&self, work: &mut Work) -> Result<(), Break> {
        if work.dirty_since.is_none() {
            return Ok(());
        }
        self.write(work, Vec::new()).await
    }

    /// Writes the checkpoint, with whatever must be written together with it.
    pub(super) async fn write(
        &self,
        work: &mut Work,
        extra: Vec<RecordWrite>,
    ) -> Result<(), Break> {
        let forward = work.written.iter().zip(&work.at.positions).all(|(old, new)| old <= new);
        assert!(forward, "a checkpoint never goes back");
        // One that could not begin has no state to ask for; the one it could not use is kept.
        if work.at.failed.is_none() || work.dirty_since.is_some() {
            work.at.state = self.state(work).await?;
        }
        let writes = self.writes(work, extra)?;
        let call = || self.instance.store.write_records(writes.clone(), self.term());
        let outcome = self.patiently(call).await?;
        self.settled(work, outcome, writes[0].value.as_ref()).await
    }

    /// What is written for the checkpoint, first itself.
    pub(super) fn writes(
        &self,
        work: &mut Work,
        extra: Vec<RecordWrite>,
    ) -> Result<Vec<RecordWrite>, Break> {
        work.at.writer = Arc::clone(&self.writer);
        let expect = work.version.map_or(Expect::Absent, Expect::Version);
        let write = stored::write(CHECKPOINT, self.key(), expect, &work.at).map_err(|error| {
            let reason = stored::fit(&format!(
                "its state cannot be kept with the checkpoint: {}",
                with_causes(&error)
            ));
            Ended::Refused { reason, resets: work.at.resets }
        })?;
        Ok(std::iter::once(write).chain(extra).collect())
    }

    pub(super) async fn settled(
        &self,
        work: &mut Work,
        outcome: RecordsOutcome,
        value: Option<&Payload>,
    ) -> Result<(), Break> {
        match outcome {
            RecordsOutcome::Written(versions) => {
                work.version = versions.first().copied();
                work.settle();
                self.shared.progress.send_modify(|count| *count = count.wrapping_add(1));
                Ok(())
            }
            RecordsOutcome::TermLost => {
                self.refused();
                Err(Ended::Lost.into())
            }
            RecordsOutcome::Changed(_) => self.changed(work, value).await,
            RecordsOutcome::TooLarge(_) => {
                let reason = "its state is too large to be kept with the checkpoint".into();
                Err(Ended::Refused { reason, resets: work.at.resets }.into())
            }
        }
    }

    /// Looks who changed the checkpoint.
    pub(super) async fn changed(
        &self,
        work: &mut Work,
        ours: Option<&Payload>,
    ) -> Result<(), Break> {
        let found = self.record().await?;
        let Some(record) = found else { return Err(Break::Reload) };
        // The reply to an earlier try was lost. A store may write JSON in its own way.
        let same = |ours: &Payload| ours == &record.value || ours.value() == record.value.value();
        if ours.is_some_and(same) {
            work.version = Some(record.version);
            work.settle();
            return Ok(());
        }
        let now: CheckpointRecord =
            stored::read(CHECKPOINT, &record).map_err(|error| self.broken(&error))?;
        if now.resets != work.at.resets {
            return Err(Break::Reload);
        }
        self.refused();
        match self.shared.options.mode {
            InstanceMode::Coordinated => Err(Ended::Lost.into()),
            InstanceMode::SingleInstance => {
                let reason = "another subscriber with its id writes the checkpoint: give them \
                              different ids, or use the mode `coordinated`";
                let resets = now.resets;
                Err(Ended::Refused { reason: reason.into(), resets }.into())
            }
        }
    }

    pub(super) fn refused(&self) {
        let subscriber = self.shared.id.to_string();
        tracing::warn!(%subscriber, partition = self.number, "a late checkpoint was refused");
        metrics::counter!(
            "flowgate_subscriber_checkpoints_refused_total", "subscriber" => subscriber
        )
        .increment(1);
    }

    /// The state of the subscriber, with what it did made durable.
    pub(super) async fn state(&self, work: &mut Work) -> Result<Option<Payload>, Break> {
        let mut attempts = 0;
        loop {
            self.check_trust()?;
            attempts += 1;
            let error = match guarded(work.subscriber.checkpoint()).await {
                Ok(state) => return Ok(state),
                Err(error) => error,
            };
            if !self.another(attempts, &error).await? {
                let reason = format!("its state cannot be kept: {}", error.message());
                let (reason, resets) = (stored::fit(&reason), work.at.resets);
                return Err(Ended::Refused { reason, resets }.into());
            }
        }
    }

    /// Stands still, for all to see.
    pub(super) async fn fail(
        &self,
        work: &mut Work,
        event: Option<&StoredEvent>,
        error: &str,
        attempts: u32,
    ) -> Break {
        let failed = FailedRecord {
            run: event.map(|event| event.run_id),
            seq: event.map(|event| event.seq),
            error: stored::fit(error),
            attempts,
            instance: self.instance.config.instance.clone(),
        };
        let reason = Arc::clone(&failed.error);
        work.at.failed = Some(failed);
        match self.write(work, Vec::new()).await {
            Ok(()) => Ended::Failed(reason).into(),
            Err(cause) => cause,
        }
    }
}
