//! Events as HTTP requests.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;

use super::partition::SubscriberContext;
use super::{Delivery, EventLine, Subscriber};
use crate::error::EngineError;
use crate::executor::http;
use crate::executor::worker::{HandlerError, with_causes};

/// Posts each event as JSON, at least once, with an `Idempotency-Key` that is the same each time.
///
/// A 2xx answer takes it; its body is not read. 408, 425, 429 and 5xx are tried again, after
/// `Retry-After` if the answer has it; so are requests that got no answer. Any other status is
/// final. No redirect is followed, and no proxy is taken from the environment.
#[derive(Clone, Debug)]
pub struct HttpSink {
    url: reqwest::Url,
    headers: HeaderMap,
    timeout: Duration,
}

#[derive(Serialize)]
struct Body<'a> {
    subscriber: &'a str,
    key: &'a str,
    attempt: u32,
    #[serde(flatten)]
    line: EventLine<'a>,
}

impl HttpSink {
    /// Posts to `url`, an `http` or `https` one.
    pub fn new(url: &str) -> Result<Self, EngineError> {
        let wrong =
            |why: &str| EngineError::Invalid(format!("`{url}` is no URL to post to: {why}"));
        let parsed: reqwest::Url = url.parse().map_err(|error| wrong(&format!("{error}")))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(wrong("it begins neither with http:// nor with https://"));
        }
        let timeout = Duration::from_secs(30);
        Ok(Self { url: parsed, headers: HeaderMap::new(), timeout })
    }

    /// Sends these headers too.
    pub fn headers(mut self, headers: &BTreeMap<String, String>) -> Result<Self, EngineError> {
        for (name, value) in headers {
            let parsed = name.parse::<HeaderName>().ok().zip(value.parse::<HeaderValue>().ok());
            let (name, value) = parsed
                .ok_or_else(|| EngineError::Invalid(format!("the header `{name}` is not valid")))?;
            self.headers.insert(name, value);
        }
        Ok(self)
    }

    /// How long a request may take; 30 seconds if nothing is said.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

#[async_trait]
impl Subscriber for HttpSink {
    fn kind(&self) -> &'static str {
        "http"
    }

    async fn handle(
        &mut self,
        delivery: &Delivery,
        context: &SubscriberContext,
    ) -> Result<(), HandlerError> {
        let key = delivery.key();
        let body = Body {
            subscriber: &delivery.subscriber,
            key: &key,
            attempt: delivery.attempt,
            line: EventLine::of(&delivery.event),
        };
        let body = serde_json::to_vec(&body).expect("an event has a JSON form");
        let client = context.instance.http();
        let client = client.map_err(|error| HandlerError::retryable(with_causes(error)))?;
        let sent = client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("Idempotency-Key", &key)
            .headers(self.headers.clone())
            .timeout(self.timeout)
            .body(body)
            .send()
            .await;
        match sent {
            Ok(response) => http::taken(response).await,
            Err(error) => Err(HandlerError::retryable(with_causes(&error))),
        }
    }
}
