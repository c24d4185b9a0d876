//! The catalogue of bad input: each row has the same status and code on every store, and changes
//! nothing in it.
//!
//! Rows B12 and B15 to B17 need a socket and are in `flowgate`; what becomes of steps that are
//! accepted (B28, B30 to B41) is in `bad_steps`, and of webhooks (B42 to B47) in `webhooks`; there are
//! no namespaces for B49; what a browser does with hostile text (B53) is a test of the dashboard.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Request};
use flowgate_engine::{EngineConfig, instance_id};
use flowgate_server::HostOptions;
use flowgate_server::auth::{Scope, TokenEntry, Tokens, digest};
use flowgate_store::control::{RECORD_KINDS, RecordQuery};
use flowgate_store::{RunQuery, Store, whole_log};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::stores;
use crate::world::{ONE_STEP, World};

const TOKEN: &str = "the-token-of-an-admin";
const WAITING: &str = "flow: waiting\nsteps:\n  a: { wait: { signal: go } }\n";
const SCORED: &str = "flow: scored\nsteps:\n  score: { run: { worker: score } }\n";
/// The only program that steps may start.
const ALLOWED: &str = "/usr/bin/env";
const HEALTH: &str = "flow: health\nsteps:\n  only: {}\n";

/// A request, and what is answered.
struct Row {
    /// Its number in the catalogue.
    id: &'static str,
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    status: u16,
    /// None where the answer is no refusal.
    code: Option<&'static str>,
}

impl Row {
    fn new(id: &'static str, method: Method, path: impl Into<String>) -> Self {
        let headers = vec![
            ("host", "localhost".to_owned()),
            ("authorization", format!("Bearer {TOKEN}")),
            ("content-type", "application/json".to_owned()),
        ];
        let (path, body) = (path.into(), Vec::new());
        Self { id, method, path, headers, body, status: 200, code: None }
    }

    fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self
    }

    fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn is(mut self, status: u16, code: &'static str) -> Self {
        (self.status, self.code) = (status, Some(code));
        self
    }

    async fn check(self, world: &World, place: &str) {
        let (id, said) = (self.id, format!("{} {} {}", self.id, self.method, short(&self.path)));
        let mut request =
            Request::builder().method(self.method).uri(format!("/api/v1{}", self.path));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Body::from(self.body)).expect(id);
        let (began, before) = (Instant::now(), digest_of(world).await);
        let (status, answer) = world.ask(request).await;
        assert!(began.elapsed().as_secs() < 5, "{said} on {place}: {:?}", began.elapsed());
        let code = answer["error"]["code"].as_str();
        assert_eq!(
            (status.as_u16(), code),
            (self.status, self.code),
            "{said} on {place}: {answer}"
        );
        if code.is_some() {
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(!message.is_empty() && message.len() < 2_000, "{said} on {place}: {answer}");
        }
        assert_eq!(digest_of(world).await, before, "{said} on {place} changed something");
    }
}

fn short(text: &str) -> String {
    text.chars().take(100).collect()
}

fn post(id: &'static str, path: &str, body: impl Into<Vec<u8>>) -> Row {
    Row::new(id, Method::POST, path).body(body)
}

fn get(id: &'static str, path: impl Into<String>) -> Row {
    Row::new(id, Method::GET, path)
}

/// A start with this input.
fn start(id: &'static str, input: &str) -> Row {
    post(id, "/runs", format!(r#"{{"flow":"one","input":{input}}}"#))
}

/// A start of a flow of this name.
fn named(id: &'static str, name: &str) -> Row {
    post(id, "/runs", json!({ "flow": name }).to_string())
}

/// A flow file.
fn flow_file(id: &'static str, text: &str) -> Row {
    post(id, "/flows", json!({ "text": text }).to_string())
}

/// What the store holds: runs with their logs, flows and records.
async fn digest_of(world: &World) -> Vec<u8> {
    let store = &**world.engine.store();
    let mut hash = Sha256::new();
    let rows = store.list_runs(&RunQuery { limit: 1_000, ..RunQuery::default() }).await;
    for row in rows.expect("the store is there") {
        let log = whole_log(store, row.run.run_id).await.expect("the store is there");
        hash.update(format!("{:?} {log:?}", row.run));
    }
    let flows = store.list_revisions(None).await.expect("the store is there");
    hash.update(format!("{flows:?}"));
    for kind in RECORD_KINDS {
        let (prefix, after) = ("".into(), None);
        let query = RecordQuery { kind, prefix, after, is_descending: false, limit: 1_000 };
        let records = store.list_records(&query).await.expect("the store is there");
        hash.update(format!("{kind} {records:?}"));
    }
    hash.finalize().to_vec()
}

/// B1 to B14: what a body may be.
fn bodies() -> Vec<Row> {
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let keys: Vec<String> = (0..20_000).map(|n| format!("\"k{n}\":1")).collect();
    let start_with = |id, text: &str| post(id, "/runs", format!(r#"{{"flow":"one",{text}}}"#));
    let typed = |value: &str| {
        post("B14", "/runs", "{}").without("content-type").header("content-type", value)
    };
    let mut rows = vec![
        post("B1", "/runs", "").is(400, "body_empty"),
        post("B2", "/runs", "not json").is(400, "json_syntax"),
        post("B3", "/runs", "{} trailing").is(400, "json_syntax"),
        post("B4", "/runs", "\u{feff}{}").is(400, "json_syntax"),
        post("B5", "/runs", b"{\"a\":\"\xff\"}".to_vec()).is(400, "utf8_invalid"),
        post("B6", "/runs", deep(65)).is(400, "json_too_deep"),
        post("B6", "/runs", deep(100_000)).is(400, "json_too_deep"),
        start("B6", &deep(100_000)).is(400, "json_too_deep"),
        start("B7", r#""\ud800""#).is(400, "json_string"),
        start("B8", r#""a\u0000b""#).is(422, "nul_not_allowed"),
        start("B8", r#"{"\u0000":1}"#).is(422, "nul_not_allowed"),
        start("B9", r#"{"a":1,"a":2}"#).is(400, "json_duplicate_key"),
        start("B10", "1e400").is(400, "number_out_of_range"),
        start("B10", "NaN").is(400, "json_syntax"),
        start("B10", "Infinity").is(400, "json_syntax"),
        start_with("B11", r#""delay_ms":18446744073709551616"#).is(422, "integer_out_of_range"),
        start_with("B11", r#""delay_ms":9007199254740993"#).is(422, "integer_out_of_range"),
        start_with("B11", r#""delay_ms":-1"#).is(422, "integer_out_of_range"),
        start_with("B11", r#""delay_ms":1.5"#).is(422, "integer_out_of_range"),
        start_with("B11", r#""priority":256"#).is(422, "integer_out_of_range"),
        // A start may hold a payload of 1 MiB, and so 64 KiB more than that.
        post("B12", "/runs", vec![b' '; (1 << 20) + (64 << 10) + 1]).is(413, "body_too_large"),
        post("B12", "/schedules", vec![b' '; (1 << 20) + 1]).is(413, "body_too_large"),
        typed("text/plain").is(415, "media_type"),
        typed("multipart/form-data; boundary=x").is(415, "media_type"),
        post("B14", "/runs", "{}").without("content-type").is(415, "media_type"),
        named("B18", &"a".repeat(300_000)).is(422, "too_long"),
        start("B18", &format!("{{{}}}", keys.join(","))).is(422, "too_many_keys"),
        post("B55", "/runs", r#"{"flow":"one","inputs":{}}"#).is(422, "unknown_field"),
    ];
    for encoding in ["gzip", "deflate", "br"] {
        let row = post("B13", "/runs", "{}").header("content-encoding", encoding);
        rows.push(row.is(415, "encoding_unsupported"));
    }
    rows
}

/// B20 to B27: parameters and names.
fn names() -> Vec<Row> {
    let mut rows = vec![
        get("B20", "/runs?limit=1000000"),
        get("B21", "/runs?days=999999999").is(400, "query_param"),
        get("B22", "/runs?after=18c5d.x").is(400, "cursor_invalid"),
        get("B22", "/runs?after=forged").is(400, "cursor_invalid"),
        get("B22", "/runs?after=18bcfe56800.019a8b2c1f3e7").is(400, "cursor_invalid"),
        get("B23", "/runs?offset=9223372036854775808").is(400, "query_param"),
        get("B26", "/runs?flow=%27%3B%20DROP%20TABLE%20events%3B--"),
        get("B26", "/runs?tag=a%3D%27%3B%20DROP%20TABLE%20events%3B--"),
        get("B26", "/runs?search=%27%3B%20DROP%20TABLE%20events%3B--"),
        get("B26", "/runs?status=%27%3B--").is(400, "query_param"),
        get("B20", "/audit?limit=0").is(400, "query_param"),
        get("B22", "/audit?after=forged").is(400, "cursor_invalid"),
        get("B26", "/audit?direction=%27%3B--").is(400, "query_param"),
        get("B26", "/audit?flow=%27%3B%20DROP%20TABLE%20events%3B--"),
        get("B26", "/audit/summary?since=%27%3B--").is(400, "time_invalid"),
        get("B26", "/runs?since=%27%3B--").is(400, "time_invalid"),
    ];
    for limit in ["-1", "abc", "1e3", "", "0"] {
        rows.push(get("B20", format!("/runs?limit={limit}")).is(400, "query_param"));
    }
    let long = "a".repeat(129);
    for name in ["../../etc/passwd", "..%2f..%2f", "a/b", ".", "", &long] {
        rows.push(named("B24", name).is(422, "identifier_invalid"));
    }
    for name in ["..%2f..%2fetc%2fpasswd", "a%2Fb", &long] {
        rows.push(get("B24", format!("/flows/{name}")).is(404, "flow_not_found"));
    }
    for name in ["a:b", "{a}", "a*", "a\nb", "a\r\nSET x 1"] {
        rows.push(named("B25", name).is(422, "identifier_invalid"));
    }
    rows.push(named("B26", "'; DROP TABLE events;--").is(422, "identifier_invalid"));
    for name in ["a\u{202e}b", "\u{430}ne", "e\u{301}", "\u{e9}", "o\u{200b}ne"] {
        rows.push(named("B27", name).is(422, "identifier_invalid"));
    }
    rows
}

/// B48 to B52: who asks, and from where.
fn callers() -> Vec<Row> {
    let no_token = |id, path: &str| get(id, path).without("authorization");
    let bearer = |value: &str| no_token("B48", "/runs").header("authorization", value);
    let foreign = || start("B52", "1").header("cookie", &format!("flowgate-session={TOKEN}"));
    vec![
        no_token("B48", "/runs").is(401, "token_missing"),
        no_token("B48", &format!("/runs?token={TOKEN}")).is(401, "token_missing"),
        bearer("Bearer ").is(401, "token_invalid"),
        bearer("Bearer").is(401, "token_invalid"),
        bearer(&format!("Basic {TOKEN}")).is(401, "token_invalid"),
        bearer("Bearer another").is(401, "token_invalid"),
        get("B48", "/runs").header("authorization", "Bearer x").is(400, "authorization_twice"),
        no_token("B50", "/flows/health").is(401, "token_missing"),
        get("B51", "/runs")
            .without("host")
            .header("host", "evil.example")
            .is(421, "host_not_allowed"),
        foreign().without("authorization").header("sec-fetch-site", "cross-site").is(403, "csrf"),
        foreign().without("authorization").header("origin", "null").is(403, "csrf"),
        foreign().header("origin", "http://evil.example").is(403, "csrf"),
    ]
}

/// B19 and B54 to B57: flow files and schedules.
fn files() -> Vec<Row> {
    let steps = |id, steps: &str| flow_file(id, &format!("flow: bad\nsteps: {steps}\n"));
    let pattern = |pattern: &str| {
        let text = json!({
            "flow": "bad", "input": { "type": "string", "pattern": pattern }, "steps": { "a": {} },
        });
        flow_file("B19", &text.to_string())
    };
    let many: Vec<String> = (0..10_001).map(|n| format!("s{n}: {{}}")).collect();
    let retry = |retry: &str| {
        let text = format!("flow: bad\nsteps: {{a: {{run: {{worker: w}}, retry: {retry}}}}}\n");
        flow_file("B57", &text).is(422, "out_of_range")
    };
    let mut rows = vec![
        pattern("(?:a{1000}){1000}").is(422, "flow_invalid"),
        pattern("(unclosed").is(422, "flow_invalid"),
        steps("B54", "{a: {subscribes: [y], emits: [x]}, b: {subscribes: [x], emits: [y]}}")
            .is(422, "flow_invalid"),
        steps("B54", "{s: {}, a: {subscribes: [x], emits: [x]}}").is(422, "flow_invalid"),
        steps("B54", "{s: {}, a: {subscribes: [nothing]}}").is(422, "flow_invalid"),
        steps("B54", "{a: {}, a: {}}").is(422, "flow_invalid"),
        steps("B54", "{}").is(422, "flow_invalid"),
        steps("B54", &format!("{{{}}}", many.join(", "))).is(422, "flow_invalid"),
        steps("B55", "{a: {runs: {worker: w}}}").is(422, "unknown_field"),
        retry("{attempts: 0}"),
        retry("{attempts: -1}"),
        retry("{attempts: 1000000000}"),
        retry("{attempts: 2, backoff: {initial: 0s}}"),
        retry("{attempts: 2, backoff: {factor: .nan}}"),
        retry("{attempts: 2, backoff: {max: 1000000000000000000ms}}"),
    ];
    let schedule = |spec: Value| {
        let body = json!({ "name": "bad", "spec": spec });
        post("B56", "/schedules", body.to_string())
    };
    for cron in ["* * * * * * *", "61 * * * *", "@reboot", &"*".repeat(10_000)] {
        rows.push(schedule(json!({ "flow": "one", "cron": cron })).is(422, "cron_invalid"));
    }
    let never = json!({ "flow": "one", "cron": "0 0 31 2 *" });
    rows.push(schedule(never).is(422, "cron_never_fires"));
    let zone = json!({ "flow": "one", "cron": "0 0 * * *", "zone": "Mars/Base" });
    rows.push(schedule(zone).is(422, "cron_invalid"));
    rows
}

/// B29, B32, B37 and B38: steps that no instance should take.
fn steps() -> Vec<Row> {
    let run = |id, run: Value| {
        let text = json!({ "flow": "bad", "steps": { "a": { "run": run } } });
        flow_file(id, &text.to_string())
    };
    let program = |id, program: &str, argument: &str, name: &str| {
        let env = json!({ name: "x" });
        run(id, json!({ "process": { "command": [program, argument], "env": env } }))
    };
    let request = |id, url: &str, value: &str| {
        run(id, json!({ "http": { "url": url, "headers": { "x-a": value } } }))
    };
    let (url, line) = ("http://example.com/", "a\r\nX-Evil: 1");
    let mut rows = vec![
        program("B32", ALLOWED, "a", "LD_PRELOAD").is(422, "env_forbidden"),
        program("B32", ALLOWED, "a\0b", "A").is(422, "arg_invalid"),
        run("B29", json!({ "shell": "true" })).is(422, "program_forbidden"),
        request("B38", "http://good@evil.example/", "a").is(422, "flow_invalid"),
        request("B38", &format!("{url}{line}"), "a").is(422, "flow_invalid"),
        request("B38", url, line).is(422, "flow_invalid"),
    ];
    for other in ["env", "./env", "/usr/bin/../bin/env", "/bin/ls"] {
        rows.push(program("B29", other, "a", "A").is(422, "program_forbidden"));
    }
    for url in ["file:///etc/passwd", "gopher://a/", "ftp://a/", "javascript:alert(1)"] {
        rows.push(request("B37", url, "a").is(422, "scheme_forbidden"));
    }
    rows
}

/// B58 to B60: what has been done, or is not there. `ended` has ended, `open` is waiting, and `job`
/// is claimed.
fn runs(ended: &str, open: &str, job: &Value) -> Vec<Row> {
    let nobody = "019a8b2c-1f3e-7000-8000-000000000000";
    let settle = |run: &str, step: &str, token: &str| {
        let body = json!({ "token": token }).to_string();
        post("B58", &format!("/jobs/{run}/{step}/complete"), body)
    };
    let leased = job["run_id"].as_str().unwrap_or_default();
    let other = job["token"].as_str().and_then(|token| token.parse::<u64>().ok()).unwrap_or(7) + 1;
    let keyed = |input: &str| {
        let text = format!(r#"{{"flow":"one","key":"k","input":{input}}}"#);
        post("B59", "/runs", text)
    };
    vec![
        settle(nobody, "score", "1").is(404, "job_not_found"),
        settle(leased, "nothing", "1").is(404, "job_not_found"),
        settle(leased, "score", "0").is(409, "fenced"),
        settle(leased, "score", &other.to_string()).is(409, "fenced"),
        // Its step calls no worker. One that does, in a run that has ended: the engine's tests.
        settle(ended, "only", "1").is(404, "job_not_found"),
        keyed("1"),
        keyed("2").is(409, "idempotency_conflict"),
        post("B60", &format!("/runs/{ended}/cancel"), "{}").is(409, "run_terminal"),
        post("B60", &format!("/runs/{nobody}/cancel"), "{}").is(404, "run_not_found"),
        post("B60", &format!("/runs/{nobody}/signal"), r#"{"signal":"go"}"#)
            .is(404, "run_not_found"),
        post("B60", &format!("/runs/{ended}/signal"), r#"{"signal":"go"}"#).is(409, "run_terminal"),
        post("B60", &format!("/runs/{open}/signal"), r#"{"signal":"stop"}"#)
            .is(422, "signal_unknown"),
    ]
}

async fn world(store: Arc<dyn Store>) -> World {
    let (name, sha256, scope) = ("admin".into(), digest(TOKEN), Scope::Admin);
    let tokens = Tokens::new(vec![TokenEntry { name, sha256, scope, expires: None }]);
    let options = HostOptions { tokens, ..HostOptions::default() };
    // Nothing may move by itself.
    let mut config = EngineConfig { schedules: None, ..EngineConfig::new(instance_id()) };
    config.process.allowed = Arc::new([ALLOWED.to_owned()]);
    World::on(store, config, options, &[ONE_STEP, WAITING, SCORED, HEALTH]).await
}

/// The answer to a request that is accepted.
async fn done(world: &World, path: &str, body: &str) -> Value {
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("/api/v1{path}"))
        .header("host", "localhost")
        .header("authorization", format!("Bearer {TOKEN}"))
        .header("content-type", "application/json")
        .body(Body::from(body.to_owned()))
        .expect("it is a request");
    let (status, answer) = world.ask(request).await;
    assert!(status.is_success(), "{path}: {status} {answer}");
    answer
}

/// Every row on one store.
async fn catalogue(place: &str, store: Arc<dyn Store>) {
    let world = world(store).await;
    let ended = done(&world, "/runs", r#"{"flow":"one","key":"k","input":1}"#).await;
    let ended = ended["run_id"].as_str().expect("a run has an id");
    world.engine.wait(ended.parse().expect("it is an id")).await.expect("the run ends");
    let open = done(&world, "/runs", r#"{"flow":"waiting"}"#).await;
    let open = open["run_id"].as_str().expect("a run has an id").to_owned();
    done(&world, "/runs", r#"{"flow":"scored"}"#).await;
    let claim =
        r#"{"worker_id":"w","workers":["score"],"max":1,"wait_ms":10000,"lease_ms":600000}"#;
    let claimed = done(&world, "/jobs/claim", claim).await;
    let job = &claimed["jobs"][0];
    assert!(job["token"].is_string(), "{claimed}");
    // What stands open may still be written down.
    let mut settled = digest_of(&world).await;
    loop {
        let pause = tokio::time::timeout(
            std::time::Duration::from_millis(300),
            std::future::pending::<()>(),
        );
        drop(pause.await);
        let now = digest_of(&world).await;
        if now == settled {
            break;
        }
        settled = now;
    }
    let rows = [bodies(), names(), callers(), files(), steps(), runs(ended, &open, job)];
    let mut count = 0;
    for row in rows.into_iter().flatten() {
        row.check(&world, place).await;
        count += 1;
    }
    assert!(count > 120, "{count} rows");
    // What is good is still taken, to the last digit.
    let exact = r#"{"flow":"one","input":{"n":18446744073709551616,"f":1.10}}"#;
    let exact = done(&world, "/runs", exact).await;
    let run_id = exact["run_id"].as_str().expect("a run has an id").parse().expect("it is an id");
    let log = world.engine.store().read_events(run_id, 0, 1).await.expect("the store is there");
    assert_eq!(log[0].event.payload().get(), r#"{"n":18446744073709551616,"f":1.10}"#);
    let linear = json!({
        "flow": "linear", "input": { "type": "string", "pattern": "(a+)+$" }, "steps": { "a": {} },
    });
    done(&world, "/flows", &json!({ "text": linear.to_string() }).to_string()).await;
    // Cancelled twice is cancelled.
    for _ in 0..2 {
        let cancelled = done(&world, &format!("/runs/{open}/cancel"), "{}").await;
        assert_eq!(cancelled["status"], "cancelled");
    }
    world.engine.shutdown().await;
}

#[tokio::test]
async fn bad_input_is_refused_and_changes_nothing_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    catalogue("sqlite", stores::sqlite(folder.path()).await).await;
}

#[tokio::test]
async fn bad_input_is_refused_and_changes_nothing_on_redis() {
    catalogue("redis", stores::redis().await).await;
}

#[tokio::test]
async fn bad_input_is_refused_and_changes_nothing_on_postgres() {
    catalogue("postgres", stores::postgres().await).await;
}
