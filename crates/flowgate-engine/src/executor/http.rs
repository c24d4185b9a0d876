//! Steps that send an HTTP POST.
//!
//! A 2xx answer is empty or `{"emits": [{"event", "data"}], "state": {…}, "result": …}`. 408, 425,
//! 429 and 5xx are tried again, after `Retry-After` if the answer has it; so are requests that got
//! no answer. 301, 302, 307 and 308 are followed, as the same POST and without the step's own
//! headers once they lead to another server. Any other status is final. No proxy is taken from the
//! environment, and [`guard`] says where a request may go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::decide::Outcome;
use flowgate_core::event::ErrorKind;
use flowgate_core::flow::{Action, HttpFile};
use flowgate_core::payload::Payload;
use futures_util::StreamExt;
use reqwest::header::{
    CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
};
use reqwest::{Client, ClientBuilder, Request, Response, StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::worker::{HandlerError, with_causes};
use crate::attempt::{Attempt, Ending, failure};
use crate::config::HttpConfig;
use crate::secrets::SECRET_BYTES_MAX;
use crate::{clock, context};

pub(crate) mod guard;

/// Bytes of an answer's body that a failure quotes.
const BODY_BYTES_QUOTED: usize = 1 << 10;
/// Redirects that one attempt follows.
const REDIRECTS_MAX: usize = 10;

/// A client of an instance; made once, for reading the system's certificates takes a while.
pub(crate) fn client(config: &HttpConfig) -> Result<Client, reqwest::Error> {
    builder(config).build()
}

/// A client that connects to nothing that is not allowed.
pub(crate) fn guarded_client(config: &HttpConfig) -> Result<Client, reqwest::Error> {
    let (resolver, allowed) = (config.resolver.clone(), config.allow_private.clone());
    builder(config).dns_resolver(guard::Guarded { resolver, allowed }).build()
}

fn builder(config: &HttpConfig) -> ClientBuilder {
    // Another part of this process may have installed a provider: then that one is used.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(config.connect_timeout)
        .user_agent(concat!("flowgate/", env!("CARGO_PKG_VERSION")))
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
    let sent = async {
        match request(attempt, target).await {
            Ok((request, own)) => match follow(attempt, request, &own).await {
                Ok(response) => read(attempt, response).await,
                Err(outcome) => outcome,
            },
            Err(outcome) => outcome,
        }
    };
    // A step with a timeout of its own is ended by that one.
    if attempt.step().timeout.is_some() {
        return sent.await;
    }
    let timeout = attempt.instance.config.http.timeout;
    tokio::time::timeout(timeout, sent).await.unwrap_or_else(|_| {
        let message = format!("there was no whole answer within {timeout:?}");
        failure(ErrorKind::TimedOut, &message, None)
    })
}

/// The step's request, and the headers that the flow gave it.
async fn request(
    attempt: &Attempt,
    target: &HttpFile,
) -> Result<(Request, Vec<HeaderName>), Outcome> {
    let client = attempt.instance.http_guarded();
    let client = client.map_err(|error| failure(ErrorKind::Failed, &with_causes(error), None))?;
    let headers = headers(attempt, target).await?;
    let own = headers.keys().cloned().collect();
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
    let request = client
        .post(&target.url)
        .header(CONTENT_TYPE, "application/json")
        .header("Idempotency-Key", &key);
    let request = match attempt.traceparent() {
        Some(place) => request.header("traceparent", place),
        None => request,
    };
    let request = request.headers(headers).body(body).build();
    let request = request.map_err(|error| {
        attempt.failure(ErrorKind::Invalid, &with_causes(&error.without_url()), None)
    })?;
    Ok((request, own))
}

/// The flow's headers, with the secrets that they name.
async fn headers(attempt: &Attempt, target: &HttpFile) -> Result<HeaderMap, Outcome> {
    let mut headers = HeaderMap::new();
    let mut used = Vec::new();
    for (name, text) in &target.headers {
        let given = used.len();
        let filled = attempt.instance.config.secrets.fill(text, &mut used).await;
        let filled =
            filled.map_err(|error| failure(ErrorKind::Failed, &with_causes(&error), None))?;
        let parsed = name.parse::<HeaderName>().ok().zip(filled.parse::<HeaderValue>().ok());
        let (name, mut value) = parsed.ok_or_else(|| {
            let message = format!("header_invalid: HTTP cannot carry the header `{name}`");
            failure(ErrorKind::Invalid, &message, None)
        })?;
        value.set_sensitive(used.len() > given);
        headers.insert(name, value);
    }
    attempt.hide(&used);
    Ok(headers)
}

/// Sends the request, and again where its answer says, as long as that is allowed.
async fn follow(
    attempt: &Attempt,
    mut request: Request,
    own: &[HeaderName],
) -> Result<Response, Outcome> {
    let invalid = |message: &str| attempt.failure(ErrorKind::Invalid, message, None);
    let config = &attempt.instance.config.http;
    let client = attempt.instance.http_guarded();
    let client = client.map_err(|error| failure(ErrorKind::Failed, &with_causes(error), None))?;
    for _ in 0..=REDIRECTS_MAX {
        config.allow_private.check_url(request.url()).map_err(|why| invalid(&why.to_string()))?;
        let hop = request.try_clone().expect("a body of bytes can be sent again");
        let response = client.execute(hop).await.map_err(|error| match guard::blocked(&error) {
            Some(why) => invalid(&why.to_string()),
            None if error.is_builder() => invalid(&with_causes(&error)),
            None => attempt.failure(ErrorKind::Failed, &with_causes(&error), None),
        })?;
        let Some(next) = redirect(&response) else { return Ok(response) };
        let next = next.map_err(|why| invalid(&format!("redirect_invalid: {why}")))?;
        if next.origin() != request.url().origin() {
            for name in own {
                request.headers_mut().remove(name);
            }
        }
        *request.url_mut() = next;
    }
    let message = format!("too_many_redirects: the answers led on more than {REDIRECTS_MAX} times");
    Err(invalid(&message))
}

/// Where an answer leads, or why that is nowhere to go.
fn redirect(response: &Response) -> Option<Result<Url, String>> {
    // 303 asks for a GET of something else, which is no answer to what was sent.
    if !matches!(response.status().as_u16(), 301 | 302 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(LOCATION)?;
    let text = String::from_utf8_lossy(location.as_bytes());
    let Ok(mut next) = response.url().join(&text) else {
        return Some(Err("the answer leads to something that is no URL".to_owned()));
    };
    if !matches!(next.scheme(), "http" | "https") {
        return Some(Err(format!("scheme_forbidden: the answer leads to `{}:`", next.scheme())));
    }
    if response.url().scheme() == "https" && next.scheme() == "http" {
        return Some(Err("the answer leads from https to http".to_owned()));
    }
    // They would be sent as a header that nobody asked for.
    if next.set_username("").is_err() || next.set_password(None).is_err() {
        return Some(Err("the answer leads to a URL without a host".to_owned()));
    }
    Some(Ok(next))
}

async fn read(attempt: &Attempt, response: Response) -> Outcome {
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let bytes_max = attempt.instance.config.http.body_bytes_max;
    if !status.is_success() {
        let message = quoted(response, |text| attempt.masked(text).into_owned()).await;
        return attempt.failure(kind_of(status), &message, retry_after);
    }
    match body(response, bytes_max).await {
        Ok(body) => match answer(attempt, &body) {
            Ok(result) => Outcome::Succeeded(attempt.take_output(result)),
            Err(message) => attempt.failure(ErrorKind::Invalid, &message, None),
        },
        Err(BodyError::TooLarge(_)) => {
            let message = format!("response_too_large: the answer has more than {bytes_max} bytes");
            failure(ErrorKind::Invalid, &message, None)
        }
        Err(BodyError::Broken(error)) => {
            attempt.failure(ErrorKind::Failed, &with_causes(&error), None)
        }
    }
}

/// What an answer that is no success said.
async fn quoted(response: Response, mask: impl Fn(&str) -> String) -> String {
    let status = response.status();
    // More is read than is quoted, so that a secret at the end is seen whole.
    let body = body(response, BODY_BYTES_QUOTED + SECRET_BYTES_MAX).await;
    let read = match &body {
        Ok(body) => String::from_utf8_lossy(body),
        Err(BodyError::TooLarge(start)) => String::from_utf8_lossy(start),
        Err(BodyError::Broken(_)) => "".into(),
    };
    let masked = mask(&read);
    let quoted = &masked[..masked.floor_char_boundary(BODY_BYTES_QUOTED)];
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
    let message = quoted(response, str::to_owned).await;
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
    let text = &*attempt.masked(text);
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
