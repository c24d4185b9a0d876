//! Events as lines of a file.

use std::io::SeekFrom;
use std::path::PathBuf;

use async_trait::async_trait;
use flowgate_core::payload::Payload;
use serde::{Deserialize, Serialize};
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

use super::partition::SubscriberContext;
use super::{Delivery, EventLine, Subscriber};
use crate::executor::worker::HandlerError;

/// Appends each event to a file, as one line of JSON.
///
/// The length of the file is kept with the checkpoint, after the file was synced. Whoever goes on
/// cuts off what is behind it, so after a crash no line is lost and none is there twice. The file
/// belongs to the subscriber: with several instances it must be on a file system that they share,
/// and it has one partition.
#[derive(Debug)]
pub struct FileSink {
    path: PathBuf,
    file: Option<File>,
    length: u64,
    buffer: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct State {
    length: u64,
}

/// Bytes of lines that are written in one go.
const BUFFER_MAX: usize = 64 << 10;

impl FileSink {
    /// Appends to the file at `path`, which is made if it is not there.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), file: None, length: 0, buffer: Vec::new() }
    }

    fn wrong(&self, error: &std::io::Error) -> HandlerError {
        HandlerError::retryable(format!("{}: {error}", self.path.display()))
    }

    /// Writes what is in the buffer. After a failure the file may have a part of it: that is cut
    /// off, so that the same lines can be written again.
    async fn write_out(&mut self) -> Result<(), HandlerError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let file = self.file.as_mut().expect("it is open since it was restored");
        let length = self.length;
        let written = async {
            file.seek(SeekFrom::Start(length)).await?;
            file.write_all(&self.buffer).await?;
            file.flush().await
        };
        if let Err(error) = written.await {
            let cut = file.set_len(length).await;
            drop(cut);
            return Err(self.wrong(&error));
        }
        self.length += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl Clone for FileSink {
    /// A copy opens the file anew.
    fn clone(&self) -> Self {
        Self::new(self.path.clone())
    }
}

#[async_trait]
impl Subscriber for FileSink {
    fn kind(&self) -> &'static str {
        "file"
    }

    async fn restore(&mut self, state: Option<&Payload>) -> Result<(), HandlerError> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let opened = options.open(&self.path).await;
        let file = opened.map_err(|error| self.wrong(&error))?;
        let there = file.metadata().await.map_err(|error| self.wrong(&error))?.len();
        self.length = match state {
            None => there,
            Some(state) => state.read::<State>()?.length,
        };
        if there < self.length {
            return Err(HandlerError::fatal(format!(
                "{} has {there} bytes, and {} were synced: it was replaced or cut; \
                 `flowgate subscribers reset` begins anew",
                self.path.display(),
                self.length
            )));
        }
        file.set_len(self.length).await.map_err(|error| self.wrong(&error))?;
        self.file = Some(file);
        Ok(())
    }

    async fn handle(
        &mut self,
        delivery: &Delivery,
        _context: &SubscriberContext,
    ) -> Result<(), HandlerError> {
        if self.buffer.len() >= BUFFER_MAX {
            self.write_out().await?;
        }
        let line = EventLine::of(&delivery.event);
        serde_json::to_writer(&mut self.buffer, &line).expect("an event has a JSON form");
        self.buffer.push(b'\n');
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<Option<Payload>, HandlerError> {
        self.write_out().await?;
        let file = self.file.as_mut().expect("it is open since it was restored");
        let synced = file.sync_data().await;
        synced.map_err(|error| self.wrong(&error))?;
        Ok(Some(Payload::of(&State { length: self.length })?))
    }
}
