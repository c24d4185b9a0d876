//! Steps that send requests to where they should not, and answers that do harm. Requests live in
//! real time, so these tests do too.

use std::io::ErrorKind::WouldBlock;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flowgate_core::run::RunStatus;
use flowgate_engine::{EngineConfig, PrivateTargets, Resolver, Workers};
use flowgate_store::MemoryStore;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::world::{World, config, is};

/// A server on this host that stands for one outside: it is at 127.0.0.2, which is allowed.
const OUTSIDE: &str = "127.0.0.2";

fn outside() -> EngineConfig {
    let mut config = config("a");
    config.http.allow_private = PrivateTargets::Only(vec![OUTSIDE.parse().unwrap()]);
    config
}

async fn world(url: &str, rest: &str, config: EngineConfig) -> World {
    let yaml = format!(
        "{{flow: f, steps: {{a: {{run: {{http: {{url: {}, headers: {{x-key: k-1}}}}}}{rest}}}}}}}",
        json!(url)
    );
    World::with(Arc::new(MemoryStore::new()), &yaml, vec![(Workers::new(), config)]).await
}

async fn outside_server() -> MockServer {
    let listener = TcpListener::bind((OUTSIDE, 0)).unwrap();
    MockServer::builder().listener(listener).start().await
}

/// Somebody inside, who should never hear anything.
struct Inside(TcpListener);

impl Inside {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    fn heard_nothing(&self) {
        assert_eq!(self.0.accept().expect_err("somebody connected").kind(), WouldBlock);
    }
}

/// The step fails for good, with this kind of failure and a message that begins so.
async fn check_fails(world: World, kind: &str, beginning: &str) {
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Failed);
    let failure = world.failure(ended.row.run.run_id).await;
    assert_eq!(failure.0, kind, "{}", failure.1);
    assert!(failure.1.starts_with(beginning), "{}", failure.1);
    world.shutdown().await;
}

#[tokio::test]
async fn a_request_to_the_inside_is_not_sent_however_it_is_written() {
    let inside = Inside::new();
    let hosts = [
        "169.254.169.254",
        "[fd00:ec2::254]",
        "127.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "localhost",
        "localhost.",
        "10.0.0.1",
        "100.64.0.1",
    ];
    for host in hosts {
        let world = world(&format!("http://{host}:{}/", inside.port()), "", config("a")).await;
        let ended = world.run(json!(null)).await;
        is(&ended, RunStatus::Failed);
        let (kind, message) = world.failure(ended.row.run.run_id).await;
        assert_eq!(kind, "Invalid", "{message}");
        assert!(message.starts_with("ssrf_blocked: "), "{host}: {message}");
        assert_eq!(ended.row.run.steps[0].failures, 1, "{host} is not tried again");
        world.shutdown().await;
    }
    inside.heard_nothing();
}

#[tokio::test]
async fn a_host_that_resolves_to_the_inside_is_not_reached() {
    let inside = Inside::new();
    let mut config = config("a");
    config.http.resolver = Resolver::with(|_| vec![IpAddr::from([127, 0, 0, 1])]);
    let url = format!("http://friendly.example:{}/", inside.port());
    check_fails(world(&url, "", config).await, "Invalid", "ssrf_blocked: `friendly.example`").await;
    inside.heard_nothing();
}

#[tokio::test]
async fn a_host_that_moves_to_the_inside_later_is_not_reached() {
    let server = outside_server().await;
    let port = server.address().port();
    let inside = TcpListener::bind(("127.0.0.1", port)).unwrap();
    inside.set_nonblocking(true).unwrap();
    let busy = ResponseTemplate::new(503).insert_header("connection", "close");
    Mock::given(method("POST")).respond_with(busy).mount(&server).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let mut config = outside();
    config.http.resolver = Resolver::with(move |_| {
        let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        vec![IpAddr::from([127, 0, 0, if is_first { 2 } else { 1 }])]
    });
    let url = format!("http://rebinding.example:{port}/");
    let rest = ", retry: {attempts: 3, backoff: {initial: 1ms}}";
    check_fails(world(&url, rest, config).await, "Invalid", "ssrf_blocked: ").await;
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    Inside(inside).heard_nothing();
}

#[tokio::test]
async fn a_redirect_to_the_inside_is_not_followed() {
    let inside = Inside::new();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let server = outside_server().await;
        let location = format!("http://{host}:{}/", inside.port());
        let away = ResponseTemplate::new(302).insert_header("location", location.as_str());
        Mock::given(method("POST")).respond_with(away).mount(&server).await;
        check_fails(world(&server.uri(), "", outside()).await, "Invalid", "ssrf_blocked: ").await;
    }
    inside.heard_nothing();
}

#[tokio::test]
async fn redirects_that_lead_nowhere_are_given_up() {
    let rows = [
        ("/again", "too_many_redirects: ", 11),
        ("file:///etc/passwd", "redirect_invalid: scheme_forbidden: ", 1),
        ("http://[", "redirect_invalid: ", 1),
    ];
    for (location, beginning, sent) in rows {
        let server = outside_server().await;
        let away = ResponseTemplate::new(302).insert_header("location", location);
        Mock::given(method("POST")).respond_with(away).mount(&server).await;
        check_fails(world(&server.uri(), "", outside()).await, "Invalid", beginning).await;
        assert_eq!(server.received_requests().await.unwrap().len(), sent, "{location}");
    }
}

#[tokio::test]
async fn a_redirect_repeats_the_post_and_leaves_the_headers_of_the_flow_behind() {
    let (first, second) = (outside_server().await, outside_server().await);
    let here = ResponseTemplate::new(307).insert_header("location", "/here");
    Mock::given(method("POST")).and(path("/")).respond_with(here).mount(&first).await;
    let there = format!("http://user:pass@{}/there", second.address());
    let there = ResponseTemplate::new(308).insert_header("location", there.as_str());
    Mock::given(method("POST")).and(path("/here")).respond_with(there).mount(&first).await;
    let done = ResponseTemplate::new(200).set_body_json(json!({ "result": 7 }));
    Mock::given(method("POST")).and(path("/there")).respond_with(done).mount(&second).await;
    let world = world(&first.uri(), "", outside()).await;
    let ended = world.run(json!({ "n": 1 })).await;
    is(&ended, RunStatus::Completed);
    assert_eq!(world.result(ended.row.run.run_id, "a").await, json!(7));
    let at_first = first.received_requests().await.unwrap();
    assert!(at_first.iter().all(|request| request.headers["x-key"] == "k-1"));
    let at_second = &second.received_requests().await.unwrap()[0];
    assert!(!at_second.headers.contains_key("x-key"));
    assert!(!at_second.headers.contains_key("authorization"));
    assert_eq!(at_second.headers["idempotency-key"], at_first[0].headers["idempotency-key"]);
    assert_eq!(at_second.body, at_first[0].body);
    world.shutdown().await;
}

/// A server that answers each request with `head` and then goes on with `more` for ever, one
/// piece each `pause`; its URL, and what keeps it going.
async fn endless(
    head: &'static str,
    more: &'static [u8],
    pause: Duration,
) -> (String, JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind((OUTSIDE, 0)).await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut answers = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            answers.spawn(answer(stream, head, more, pause));
        }
    });
    (url, serving)
}

async fn answer(mut stream: TcpStream, head: &str, more: &[u8], pause: Duration) {
    let mut request = [0; 1 << 10];
    if stream.read(&mut request).await.is_err() || stream.write_all(head.as_bytes()).await.is_err()
    {
        return;
    }
    let mut pauses = tokio::time::interval(pause);
    while stream.write_all(more).await.is_ok() {
        pauses.tick().await;
    }
}

const QUICK: Duration = Duration::from_micros(1);

#[tokio::test]
async fn an_answer_without_an_end_is_cut_off() {
    let heads = [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    ];
    for head in heads {
        let more: &[u8] = if head.contains("chunked") { b"4\r\nxxxx\r\n" } else { &[b'x'; 4096] };
        let (url, _serving) = endless(head, more, QUICK).await;
        let mut config = outside();
        config.http.body_bytes_max = 10_000;
        check_fails(world(&url, "", config).await, "Invalid", "response_too_large: ").await;
    }
    // What an answer that is no success says is cut off too.
    let (url, _serving) = endless("HTTP/1.1 400 Bad\r\n\r\n", &[b'x'; 4096], QUICK).await;
    check_fails(world(&url, "", outside()).await, "Final", "the answer was 400").await;
}

#[tokio::test]
async fn a_small_answer_that_unpacks_to_a_large_one_is_cut_off() {
    let bomb = std::process::Command::new("sh")
        .args(["-c", "head -c 200000000 /dev/zero | gzip -9"])
        .output()
        .unwrap()
        .stdout;
    assert!(bomb.len() < 300_000, "{}", bomb.len());
    let server = outside_server().await;
    let packed =
        ResponseTemplate::new(200).insert_header("content-encoding", "gzip").set_body_bytes(bomb);
    Mock::given(method("POST")).respond_with(packed).mount(&server).await;
    check_fails(world(&server.uri(), "", outside()).await, "Invalid", "response_too_large: ").await;
}

#[tokio::test]
async fn a_server_that_answers_byte_by_byte_is_given_up_in_time_and_the_lease_is_kept() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n";
    let (url, _serving) = endless(head, b"{", Duration::from_millis(40)).await;
    let mut config = outside();
    (config.slots, config.lease) = (1, Duration::from_millis(200));
    let world = world(&url, ", timeout: 900ms, retry: {attempts: 1}", config).await;
    // The second one gets the slot of the first.
    for _ in 0..2 {
        let ended = world.run(json!(null)).await;
        let run_id = ended.row.run.run_id;
        assert_eq!(world.failure(run_id).await.0, "TimedOut");
        let story = world.story(run_id).await;
        assert!(!story.contains(&"step.lost a".to_owned()), "{story:?}");
        let took = ended.row.ended_at.unwrap().since(ended.row.started_at);
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    world.shutdown().await;
}

#[tokio::test]
async fn a_step_without_a_timeout_is_given_up_after_that_of_the_settings() {
    let (url, _serving) = endless("HTTP/1.1 200 OK\r\n", b"", Duration::from_millis(40)).await;
    let mut config = outside();
    config.http.timeout = Duration::from_millis(200);
    let world = world(&url, ", retry: {attempts: 1}", config).await;
    check_fails(world, "TimedOut", "there was no whole answer within 200ms").await;
}

#[tokio::test]
async fn names_that_other_languages_trip_over_are_data() {
    let server = outside_server().await;
    let result = json!({ "result": { "__proto__": { "x": 1 }, "constructor": "<script>" } });
    let answer = ResponseTemplate::new(200).set_body_json(&result);
    Mock::given(method("POST")).respond_with(answer).up_to_n_times(1).mount(&server).await;
    let bare = ResponseTemplate::new(200).set_body_string(r#"{"__proto__":{}}"#);
    Mock::given(method("POST")).respond_with(bare).mount(&server).await;
    let world = world(&server.uri(), "", outside()).await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Completed);
    assert_eq!(world.result(ended.row.run.run_id, "a").await, result["result"]);
    check_fails(world, "Invalid", "the answer is not").await;
}
