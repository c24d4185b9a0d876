//! The catalogue of bad input, rows B28 and B30 to B41: steps that reach for what they should not, and
//! answers and programs that do harm. Each ends alike on every store, and the next run has its slot.

use std::convert::Infallible;
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as Segment, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use flowgate_engine::{EngineConfig, PrivateTargets, Resolver, instance_id};
use flowgate_server::HostOptions;
use flowgate_store::Store;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::stores;
use crate::world::World;

/// A host outside, as far as the engine knows: the one address of this machine that is allowed.
const OUTSIDE: &str = "127.0.0.2";
/// More memory than this was never needed.
const RESIDENT_KIB_MAX: u64 = 400 << 10;

/// Answers that do harm, each at its path; `inside` is where nobody should be led.
async fn outside(inside: u16) -> (String, JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind((OUTSIDE, 0)).await.expect("the address is free");
    let url = format!("http://{}", listener.local_addr().expect("it has an address"));
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let routes = Router::new()
            .route("/hops/{hop}", post(hop))
            .route("/{harm}", post(answer))
            .with_state(inside);
        axum::serve(listener, routes).await.expect("it serves");
    });
    (url, serving)
}

async fn hop(Segment(hop): Segment<u32>) -> Response {
    leads_to(&format!("/hops/{}", hop + 1))
}

fn leads_to(location: &str) -> Response {
    (StatusCode::FOUND, [("location", location)]).into_response()
}

async fn answer(State(inside): State<u16>, Segment(harm): Segment<String>) -> Response {
    // A connection that stays open would not ask again where the name leads.
    let headers = [("content-type", "application/json"), ("connection", "close")];
    let json = |text: &'static str| (headers, text).into_response();
    match harm.as_str() {
        "inside" => leads_to(&format!("http://127.0.0.1:{inside}/")),
        "loop" => leads_to("/loop"),
        "endless" => Body::from_stream(stream::repeat_with(|| {
            Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 4096]))
        }))
        .into_response(),
        "huge" => {
            let pieces = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(b"xxxx")));
            ([("content-length", "10000000000")], Body::from_stream(pieces)).into_response()
        }
        "bomb" => ([("content-encoding", "gzip")], bomb()).into_response(),
        "silent" => std::future::pending().await,
        "slow" => {
            let ticks = tokio::time::interval(Duration::from_millis(40));
            let bytes = stream::unfold(ticks, async |mut ticks| {
                ticks.tick().await;
                Some((Ok::<_, Infallible>(Bytes::from_static(b"{")), ticks))
            });
            Body::from_stream(bytes).into_response()
        }
        "prototype" => json(r#"{"result":{"__proto__":{},"text":"<script>alert(1)</script>"}}"#),
        "page" => json("<html>no JSON</html>"),
        other => panic!("there is no {other}"),
    }
}

/// 200 MB of nothing, packed.
fn bomb() -> Vec<u8> {
    let mut packing = std::process::Command::new("sh");
    packing.args(["-c", "head -c 200000000 /dev/zero | gzip -9"]);
    let packed = packing.output().expect("there is a shell").stdout;
    assert!((1_000..300_000).contains(&packed.len()), "{}", packed.len());
    packed
}

fn config() -> EngineConfig {
    let mut config = EngineConfig { schedules: None, slots: 1, ..EngineConfig::new(instance_id()) };
    config.lease = Duration::from_millis(500);
    config.process.stdout_bytes_max = 1 << 20;
    config.process.kill_grace = Duration::from_millis(200);
    config.http.allow_private = PrivateTargets::Only(vec![OUTSIDE.parse().expect("an address")]);
    let asked = AtomicUsize::new(0);
    config.http.resolver = Resolver::with(move |host| {
        let is_outside =
            host == "rebinding.example" && asked.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
        vec![IpAddr::from([127, 0, 0, if is_outside { 2 } else { 1 }])]
    });
    config
}

/// A step, and how its run ends.
struct Row {
    /// Its number in the catalogue.
    id: &'static str,
    step: String,
    kind: &'static str,
    /// How the message begins.
    message: &'static str,
}

fn request(id: &'static str, url: &str, kind: &'static str, message: &'static str) -> Row {
    let url = json!(url);
    // Only what has to wait for it has a short one.
    let timeout = if kind == "timed_out" { "700ms" } else { "10s" };
    let step =
        format!("{{run: {{http: {{url: {url}}}}}, timeout: {timeout}, retry: {{attempts: 1}}}}");
    Row { id, step, kind, message }
}

fn rows(outside: &str, inside: u16, pids: &Path) -> Vec<Row> {
    let blocked =
        |id, host: &str| request(id, &format!("http://{host}/"), "invalid", "ssrf_blocked: ");
    let to =
        |id, path: &str, message| request(id, &format!("{outside}/{path}"), "invalid", message);
    let late = |path: &str| request("B40", &format!("{outside}/{path}"), "timed_out", "");
    let shell = |id, line: &str, kind, message| Row {
        id,
        step: format!("{{run: {{shell: {}}}, timeout: 5s, retry: {{attempts: 1}}}}", json!(line)),
        kind,
        message,
    };
    let stubborn = format!(
        "trap '' TERM; (trap '' TERM; echo $$ >> {0}; while :; do sleep 1; done) &
         sh -c 'echo $$ >> {0}; exec sleep 1000' & echo $$ >> {0}; wait",
        pids.display()
    );
    let stubborn = shell("B31", &stubborn, "timed_out", "");
    let mut rows = vec![
        shell("B30", "cat /dev/zero", "invalid", "the step wrote more than 1048576 bytes"),
        shell("B30", "yes x", "invalid", "the step wrote more than 1048576 bytes"),
        Row { step: stubborn.step.replace("timeout: 5s", "timeout: 500ms"), ..stubborn },
        blocked("B33", "169.254.169.254"),
        blocked("B33", "[fd00:ec2::254]"),
        blocked("B35", &format!("friendly.example:{inside}")),
        to("B36", "inside", "ssrf_blocked: "),
        to("B36", "loop", "too_many_redirects: "),
        to("B36", "hops/1", "too_many_redirects: "),
        to("B39", "endless", "response_too_large: "),
        to("B39", "huge", "response_too_large: "),
        to("B39", "bomb", "response_too_large: "),
        late("silent"),
        late("slow"),
        to("B41", "page", "the answer is not"),
    ];
    let loopback = [
        "127.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "localhost.",
    ];
    rows.extend(loopback.map(|host| blocked("B34", &format!("{host}:{inside}"))));
    rows
}

/// What became of one run of a flow with this step, once it has ended.
async fn outcome(world: &World, name: &str, step: &str) -> Value {
    let text = format!("{{flow: {name}, steps: {{a: {step}}}}}");
    let (status, answer) = world.post("/flows", &json!({ "text": text }).to_string()).await;
    assert!(status.is_success(), "{step}: {answer}");
    let run_id = world.start(name).await;
    world.ended(&run_id).await;
    let (_, run) = world.get(&format!("/runs/{run_id}")).await;
    let (_, events) = world.get(&format!("/runs/{run_id}/events")).await;
    assert!(!events.to_string().contains("step.lost"), "the lease was lost: {events}");
    run
}

/// Whether there is such a process, and not only its exit status.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// The most memory that this process ever had.
fn resident_kib_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is told");
    line.trim().trim_end_matches(" kB").parse().expect("it is a number")
}

/// B28: what a shell would act on is an argument like any other.
async fn passes_arguments_as_they_are(world: &World, place: &str) {
    let step = r#"{run: {process: [printf, "%s|", "$(id)", "; rm -rf /", "`id`", "*"]}}"#;
    let run = outcome(world, "arguments", step).await;
    assert_eq!(run["status"], "completed", "B28 on {place}: {run}");
    world.engine.flush_logs().await;
    let run_id = run["run_id"].as_str().expect("it has an id");
    let (_, logs) = world.get(&format!("/runs/{run_id}/logs")).await;
    assert_eq!(logs["items"][0]["text"], "$(id)|; rm -rf /|`id`|*|", "B28 on {place}: {logs}");
}

/// Every row on one store.
async fn catalogue(place: &str, store: Arc<dyn Store>) {
    let inside = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    inside.set_nonblocking(true).expect("it can be asked");
    let port = inside.local_addr().expect("it has an address").port();
    let (outside, _serving) = outside(port).await;
    let folder = tempfile::tempdir().expect("a folder can be made");
    let pids = folder.path().join("pids");
    let world = World::on(store, config(), HostOptions::default(), &[]).await;
    for (number, row) in rows(&outside, port, &pids).into_iter().enumerate() {
        let run = outcome(&world, &format!("bad-{number}"), &row.step).await;
        let said = format!("{} {} on {place}: {run}", row.id, row.step);
        assert_eq!(run["status"], "failed", "{said}");
        assert_eq!(run["failure"]["kind"], row.kind, "{said}");
        let message = run["failure"]["message"].as_str().unwrap_or_default();
        assert!(message.starts_with(row.message), "{said}");
        assert_eq!(run["steps"][0]["failures"], 1, "{said}");
    }
    // The same name leads outside, and inside when it is asked for again.
    let url = outside.replace(OUTSIDE, "rebinding.example");
    let step = format!("{{run: {{http: {{url: {}}}}}}}", json!(format!("{url}/prototype")));
    let run = outcome(&world, "rebinding", &step).await;
    assert_eq!(run["status"], "completed", "B35 on {place}: {run}");
    let expected = json!({ "__proto__": {}, "text": "<script>alert(1)</script>" });
    assert_eq!(run["steps"][0]["result"], expected, "B41 on {place}");
    let run = outcome(&world, "rebound", &step).await;
    let message = run["failure"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("ssrf_blocked: "), "B35 on {place}: {run}");
    passes_arguments_as_they_are(&world, place).await;
    let refused = inside.accept().expect_err("somebody was led inside").kind();
    assert_eq!(refused, std::io::ErrorKind::WouldBlock);
    let written = std::fs::read_to_string(&pids).expect("B31 wrote it");
    assert!(written.lines().count() >= 3, "{written}");
    assert!(!written.lines().any(|pid| is_alive(pid.trim())), "B31 on {place}: {written}");
    assert!(resident_kib_max() < RESIDENT_KIB_MAX, "on {place}: {} KiB", resident_kib_max());
    world.engine.shutdown().await;
}

#[tokio::test]
async fn bad_steps_end_as_they_should_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    catalogue("sqlite", stores::sqlite(folder.path()).await).await;
}

#[tokio::test]
async fn bad_steps_end_as_they_should_on_redis() {
    catalogue("redis", stores::redis().await).await;
}

#[tokio::test]
async fn bad_steps_end_as_they_should_on_postgres() {
    catalogue("postgres", stores::postgres().await).await;
}
