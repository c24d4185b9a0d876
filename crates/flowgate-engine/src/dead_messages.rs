//! Dead messages: what came from outside and could not become a run.
//!
//! Each is a record of kind `dead_message`, with the subscription that it came by and an id that
//! grows with time as its key. It says why, and holds the first bytes of what came: enough to see
//! who sends such things, not enough to fill a store.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flowgate_core::limits::{ERROR_BYTES_MAX, KEY_BYTES_MAX, PAGE_MAX};
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use flowgate_store::control::{Expect, RecordQuery, RecordWrite, RecordsOutcome};
use flowgate_store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::text::fit;

/// The kind of the records.
const KIND: &str = "dead_message";
/// How long a dead message is kept.
pub const DEAD_MESSAGE_KEPT: Duration = Duration::from_hours(7 * 24);
/// The most bytes of a dead message that are kept.
pub const DEAD_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes of the topic that are kept.
const TOPIC_BYTES_MAX: usize = 4 << 10;

/// A message that could not become a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadMessage {
    /// The subscription that it came by.
    pub subscription: Arc<str>,
    /// The flow that it was for.
    pub flow: Arc<str>,
    /// Its topic; the end of a very long one is cut off.
    pub topic: String,
    /// Its message id, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Why it could not become a run, in one word.
    pub reason: String,
    /// The same, for people.
    pub message: String,
    /// How large its payload was.
    pub bytes: u64,
    /// How the payload begins, up to [`DEAD_MESSAGE_BYTES_MAX`].
    pub first: FirstBytes,
}

/// How a payload begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstBytes {
    /// As text.
    Text(String),
    /// In Base64, since it is no text.
    Base64(String),
}

impl FirstBytes {
    /// The beginning of `payload`.
    pub fn of(payload: &[u8]) -> Self {
        let first = &payload[..payload.len().min(DEAD_MESSAGE_BYTES_MAX)];
        let text = match std::str::from_utf8(first) {
            Ok(text) => Some(text),
            // A character that was cut in two does not make it less of a text.
            Err(error) if error.error_len().is_none() => {
                std::str::from_utf8(&first[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        match text.filter(|text| !text.contains('\0')) {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Base64(BASE64_STANDARD.encode(first)),
        }
    }
}

/// A dead message as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptMessage {
    /// Its key, which comes after those of all that were kept before by its subscription.
    pub key: Arc<str>,
    /// What it was.
    pub dead: DeadMessage,
    /// When it was kept.
    pub kept_at: Timestamp,
}

/// A new key for a dead message of a subscription.
pub fn dead_message_key(subscription: &str) -> Arc<str> {
    format!("{subscription}/{}", Uuid::now_v7()).into()
}

/// Keeps a dead message; whoever does so again with the same key keeps it once. The answer means
/// that it is stored.
pub async fn keep_dead_message(
    store: &dyn Store,
    key: Arc<str>,
    dead: &DeadMessage,
) -> Result<(), StoreError> {
    let fitted = DeadMessage {
        topic: fit(&dead.topic, TOPIC_BYTES_MAX).into_owned(),
        message_id: dead.message_id.as_ref().map(|id| fit(id, KEY_BYTES_MAX).into_owned()),
        message: fit(&dead.message, ERROR_BYTES_MAX).into_owned(),
        ..dead.clone()
    };
    let value = Some(Payload::of(&fitted).expect("its parts are cut, and together they are small"));
    let keep = Some(DEAD_MESSAGE_KEPT);
    let write = RecordWrite { kind: KIND, key, expect: Expect::Anything, value, keep };
    match store.write_records(vec![write], None).await? {
        RecordsOutcome::Written(_) => Ok(()),
        RecordsOutcome::Changed(_) | RecordsOutcome::TermLost | RecordsOutcome::TooLarge(_) => {
            unreachable!("a dead message is small, expects nothing and is under no term")
        }
    }
}

/// A page of dead messages, of one subscription or of all, the last of each subscription first;
/// those after the key `after`, at most `limit`.
pub async fn dead_messages(
    store: &dyn Store,
    subscription: Option<&str>,
    after: Option<Arc<str>>,
    limit: usize,
) -> Result<Vec<KeptMessage>, StoreError> {
    let prefix = subscription.map_or(String::new(), |name| format!("{name}/")).into();
    let query =
        RecordQuery { kind: KIND, prefix, after, is_descending: true, limit: limit.min(PAGE_MAX) };
    let records = store.list_records(&query).await?;
    let read = records.into_iter().map(|record| {
        let dead = record.value.read().map_err(|error| StoreError::Corrupt {
            message: format!("the dead message `{}` cannot be read", record.key),
            source: Some(error.into()),
        })?;
        Ok(KeptMessage { key: record.key, dead, kept_at: record.written_at })
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_kept_in_base64_and_all_of_it_within_the_limit() {
        let text = |text: &str| FirstBytes::Text(text.to_owned());
        assert_eq!(FirstBytes::of(b"{oops"), text("{oops"));
        assert_eq!(FirstBytes::of(b""), text(""));
        assert_eq!(FirstBytes::of(&[0xff, 1]), FirstBytes::Base64("/wE=".to_owned()));
        assert_eq!(FirstBytes::of(b"a\0"), FirstBytes::Base64("YQA=".to_owned()));
        let long = format!("x{}", "é".repeat(DEAD_MESSAGE_BYTES_MAX));
        let FirstBytes::Text(first) = FirstBytes::of(long.as_bytes()) else { panic!("a text") };
        assert_eq!(first.len(), DEAD_MESSAGE_BYTES_MAX - 1);
    }
}
