//! Steps that send an HTTP POST.
//!
//! A 2xx answer is empty or `{"emits": [{"event", "data"}], "state": {…}, "result": …}`. 408, 425,
//! 429 and 5xx are tried again, after `Retry-After` if the answer has it; so are requests that got
//! no answer. Any other status is final. No redirect is followed, and no proxy is taken from the
//! environment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::decide::Outcome;
use flowgate_core::event::ErrorKind;
use flowgate_core::flow::{Action, HttpFile};
use flowgate_core::payload::Payload;
use futures_util::StreamExt;
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::worker::{HandlerError, with_causes};
use crate::attempt::{Attempt, Ending, failure};
use crate::config::HttpConfig;
use crate::{clock, context};

/// Bytes of an answer's body that a failure quotes.
const BODY_BYTES_QUOTED: usize = 1 << 10;

/// The client of an instance; made once, for reading the system's certificates takes a while.
pub(crate) fn client(config: HttpConfig) -> Result<Client, reqwest::Error> {
    // Another part of this process may have installed a provider: then that one is used.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(config.connect_timeout)
        .user_agent(concat!("flowgate/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Executes an `http` step.
pub(crate) async fn execute(attempt: &Arc<Attempt>) -> Ending {
    let Action::Http(target) = &attempt.step().action else {
        unreachable!("only a step with a request gets here");
    };
    tokio::select! {
        biased;
        outcome = send(attempt, target) => Ending::Outcome(outcome),
        interrupt = attempt.interrupted(attempt.began) => attempt.ending_of(interrupt),
    }
}

#[derive(Serialize)]
struct Body<'a> {
    run_id: String,
    flow: &'a str,
    revision: &'a str,
    step: &'a str,
    attempt: u32,
    key: &'a str,
    input: &'a RawValue,
}

async fn send(attempt: &Arc<Attempt>, target: &HttpFile) -> Outcome {
    let config = attempt.instance.config.http;
    let client = match attempt.instance.http() {
        Ok(client) => client,
        Err(error) => return failure(ErrorKind::Failed, &with_causes(error), None),
    };
    let headers = match headers(target) {
        Ok(headers) => headers,
        Err(message) => return failure(ErrorKind::Invalid, &message, None),
    };
    let key = attempt.key();
    let input = attempt.input();
    let body = Body {
        run_id: attempt.claimed.run.run_id.to_string(),
        flow: &attempt.flow.flow.name,
        revision: &attempt.flow.flow.revision.0,
        step: &attempt.step().name,
        attempt: attempt.claimed.job.attempt,
        key: &key,
        input: serde_json::from_str(&input).expect("an input is made of well-formed payloads"),
    };
    let body = serde_json::to_vec(&body).expect("the body has a JSON form");
    let mut request = client
        .post(&target.url)
        .header(CONTENT_TYPE, "application/json")
        .header("Idempotency-Key", &key)
        .headers(headers)
        .body(body);
    // A step with a timeout of its own is ended by that one.
    if attempt.step().timeout.is_none() {
        request = request.timeout(config.timeout);
    }
    match request.send().await {
        Ok(response) => read(attempt, response).await,
        Err(error) if error.is_builder() => failure(ErrorKind::Invalid, &with_causes(&error), None),
        Err(error) => failure(ErrorKind::Failed, &with_causes(&error), None),
    }
}

fn headers(target: &HttpFile) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &target.headers {
        let parsed = name.parse::<HeaderName>().ok().zip(value.parse::<HeaderValue>().ok());
        let (name, value) = parsed.ok_or_else(|| format!("the header `{name}` is not valid"))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

async fn read(attempt: &Attempt, response: Response) -> Outcome {
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let bytes_max = attempt.instance.config.http.body_bytes_max;
    if !status.is_success() {
        return failure(kind_of(status), &quoted(response).await, retry_after);
    }
    match body(response, bytes_max).await {
        Ok(body) => match answer(attempt, &body) {
            Ok(result) => Outcome::Succeeded(attempt.take_output(result)),
            Err(message) => failure(ErrorKind::Invalid, &message, None),
        },
        Err(BodyError::TooLarge(_)) => {
            let message = format!("the answer has more than {bytes_max} bytes");
            failure(ErrorKind::Invalid, &message, None)
        }
        Err(BodyError::Broken(error)) => failure(ErrorKind::Failed, &with_causes(&error), None),
    }
}

/// What an answer that is no success said.
async fn quoted(response: Response) -> String {
    let status = response.status();
    let body = body(response, BODY_BYTES_QUOTED).await;
    let quoted = match &body {
        Ok(body) => String::from_utf8_lossy(body),
        Err(BodyError::TooLarge(start)) => String::from_utf8_lossy(start),
        Err(BodyError::Broken(_)) => "".into(),
    };
    let colon = if quoted.is_empty() { "" } else { ": " };
    format!("the answer was {status}{colon}{quoted}")
}

/// Whether an answer takes what was sent, where its body does not matter.
pub(crate) async fn taken(response: Response) -> Result<(), HandlerError> {
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let retry_after = retry_after(response.headers());
    let message = quoted(response).await;
    Err(match (kind_of(status).is_retryable(), retry_after) {
        (true, Some(delay)) => HandlerError::retry_after(message, delay),
        (true, None) => HandlerError::retryable(message),
        (false, _) => HandlerError::fatal(message),
    })
}

fn kind_of(status: StatusCode) -> ErrorKind {
    let is_retryable = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
    if is_retryable { ErrorKind::Failed } else { ErrorKind::Final }
}

enum BodyError {
    /// With its beginning.
    TooLarge(Vec<u8>),
    Broken(reqwest::Error),
}

/// The body after decompression, which ends at the limit too.
async fn body(response: Response, bytes_max: usize) -> Result<Vec<u8>, BodyError> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(BodyError::Broken)?;
        let room = bytes_max - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return Err(BodyError::TooLarge(body));
        }
    }
    Ok(body)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer<'a> {
    #[serde(borrow, default)]
    emits: Vec<Emit<'a>>,
    #[serde(borrow, default)]
    state: BTreeMap<String, &'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Emit<'a> {
    event: String,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

/// Takes over what the answer says; its result, or what is wrong with it.
fn answer(attempt: &Attempt, body: &[u8]) -> Result<Option<Payload>, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the answer is not UTF-8".to_owned())?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    let wrong = |why: &str| {
        format!("the answer is not `{{\"emits\": […], \"state\": {{…}}, \"result\": …}}`: {why}")
    };
    // A list would be read as the fields in their order.
    if !text.trim_start().starts_with('{') {
        return Err(wrong("it is no JSON object"));
    }
    let answer: Answer<'_> =
        serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
    for emit in answer.emits {
        let data = emit.data.map_or_else(|| Ok(Payload::null()), payload)?;
        context::emit(attempt, &emit.event, data).map_err(|error| with_causes(&error))?;
    }
    for (key, value) in answer.state {
        context::state_set(attempt, &key, payload(value)?).map_err(|error| with_causes(&error))?;
    }
    answer.result.map(payload).transpose()
}

fn payload(raw: &RawValue) -> Result<Payload, String> {
    Payload::parse(raw.get()).map_err(|error| format!("the answer cannot be kept: {error}"))
}

/// `Retry-After`, in seconds or as a date. A date is compared with the answer's own, so that the
/// two clocks need not agree.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = date(text)?;
    let sent = headers.get(DATE).and_then(|date| date.to_str().ok()).and_then(date);
    let now = sent.unwrap_or_else(clock::wall);
    Some(Duration::try_from(until.duration_since(now)).unwrap_or(Duration::ZERO))
}

fn date(text: &str) -> Option<jiff::Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let rows = [
            ("3", Some(3)),
            ("Wed, 21 Oct 2015 07:28:10 GMT", Some(10)),
            ("Wed, 21 Oct 2015 07:27:00 GMT", Some(0)),
            ("soon", None),
        ];
        for (value, seconds) in rows {
            let mut headers = HeaderMap::new();
            headers.insert(DATE, HeaderValue::from_static("Wed, 21 Oct 2015 07:28:00 GMT"));
            headers.insert(RETRY_AFTER, HeaderValue::from_static(value));
            assert_eq!(retry_after(&headers), seconds.map(Duration::from_secs), "{value}");
        }
    }
}
