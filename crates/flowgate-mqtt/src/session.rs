//! Our side of a session, which is empty: we only receive, and what we have received and not
//! acknowledged the broker sends again.
//!
//! The client wants to be shown it nevertheless. Without it, the client sends no SUBSCRIBE when the
//! broker goes on with a session, and says so to nobody; and there are brokers that lose the shared
//! subscriptions of a session when they start again.

use rumqttc::{
    PersistedAckMode, PersistedSession, SessionStore, SessionStoreError, SessionStoreKey,
};

/// Knows that there is nothing to know.
#[derive(Debug)]
pub(crate) struct EmptySession {
    /// How long the broker keeps its side, in seconds.
    pub(crate) expiry: u32,
}

type Answer<'a, T> =
    std::pin::Pin<Box<dyn Future<Output = Result<T, SessionStoreError>> + Send + 'a>>;

impl SessionStore for EmptySession {
    fn load<'a>(&'a self, key: &'a SessionStoreKey) -> Answer<'a, Option<PersistedSession>> {
        let session = PersistedSession {
            format_version: 1,
            client_id: key.client_id().to_owned(),
            clean_start: false,
            session_expiry_interval: Some(self.expiry),
            outgoing_inflight_upper_limit: None,
            ack_mode: PersistedAckMode::Manual,
            last_pkid: 0,
            last_puback: 0,
            replay: Vec::new(),
            incoming_qos2: Vec::new(),
        };
        Box::pin(async { Ok(Some(session)) })
    }

    fn save<'a>(&'a self, _: &'a SessionStoreKey, _: &'a PersistedSession) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn clear<'a>(&'a self, _: &'a SessionStoreKey) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}
