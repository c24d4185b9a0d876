//! Webhooks: messages of other services, which start a run or send a signal.
//!
//! Whoever sends one shows no token but signs what it sends, see [`signature`]. A message counts
//! once, however often it comes.

use std::collections::BTreeMap;
use std::time::Duration;

use flowgate_engine::{SecretFault, Secrets};

pub mod signature;

use signature::{Key, KeyError};

/// How far the clock of a sender may be off, unless the settings say otherwise.
pub const TOLERANCE_DEFAULT: Duration = Duration::from_mins(5);
/// The most secrets of a webhook: each costs a computation for each message.
pub const SECRETS_MAX: usize = 10;

/// The webhooks of an instance, by name.
pub type Webhooks = BTreeMap<String, Webhook>;

/// A webhook.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// What a message does.
    pub effect: Effect,
    /// Whose signatures count.
    pub secrets: Vec<WebhookSecret>,
    /// How far the time of a message may be from now.
    pub tolerance: Duration,
}

/// What a message does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Starts a run of this flow.
    Start(String),
    /// Sends this signal to the run that the address names.
    Signal(String),
}

/// A secret of a webhook.
#[derive(Clone, Debug)]
pub enum WebhookSecret {
    /// The secret of this name, looked up for each message: a new value counts at once.
    Named(String),
    /// This one.
    Key(Key),
}

/// A secret of a webhook cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookFault {
    /// It is not there.
    #[error(transparent)]
    Secret(SecretFault),
    /// It is no secret of a webhook.
    #[error("the secret `{name}` is none of a webhook: {source}")]
    Key {
        /// Its name.
        name: String,
        /// Why.
        source: KeyError,
    },
}

impl Webhook {
    /// The keys of all secrets that can be used. One that cannot does not keep the others from
    /// counting: a secret is taken away by taking away its file.
    pub(crate) async fn keys(&self, secrets: &Secrets) -> (Vec<Key>, Option<WebhookFault>) {
        let mut keys = Vec::with_capacity(self.secrets.len());
        let mut fault = None;
        for secret in &self.secrets {
            match secret {
                WebhookSecret::Key(key) => keys.push(key.clone()),
                WebhookSecret::Named(name) => match named(name, secrets).await {
                    Ok(key) => keys.push(key),
                    Err(error) => fault = Some(error),
                },
            }
        }
        (keys, fault)
    }
}

async fn named(name: &str, secrets: &Secrets) -> Result<Key, WebhookFault> {
    let secret = secrets.get(name).await.map_err(WebhookFault::Secret)?;
    Key::parse(secret.reveal())
        .map_err(|source| WebhookFault::Key { name: name.to_owned(), source })
}
