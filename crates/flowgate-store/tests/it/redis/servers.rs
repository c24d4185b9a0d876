//! Servers that are refused, examined, reached by TLS, or named by Sentinels.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use flowgate_store::conformance::world::{World, chain};
use flowgate_store::redis::examine;
use flowgate_store::{Level, RedisStore, Store, StoreError};
use flowgate_testbed::{PrivateServer, Redis, Reply};
use tempfile::TempDir;

use super::{RedisHarness, open, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_lose_runs_is_refused_unless_that_is_allowed() {
    let server = Redis::start().unwrap();
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
    let refused = Box::pin(RedisStore::open(options(&server.url()))).await;
    let Err(StoreError::Unsafe { message }) = refused else { panic!("{refused:?}") };
    assert!(message.contains("maxmemory-policy allkeys-lru"), "{message}");
    assert!(message.contains("CONFIG SET maxmemory-policy noeviction"), "{message}");
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
    server.ask(&["CONFIG", "SET", "appendonly", "no"]).unwrap();
    let refused = Box::pin(RedisStore::open(options(&server.url()))).await;
    let Err(StoreError::Unsafe { message }) = refused else { panic!("{refused:?}") };
    assert!(message.contains("CONFIG SET appendonly yes"), "{message}");
    let findings = examine(&options(&server.url())).await;
    let bad: Vec<_> = findings.iter().filter(|f| f.level == Level::Bad).map(|f| f.check).collect();
    assert_eq!(bad, ["append-only file"], "{findings:?}");
    open(&format!("{}?allow_volatile=true", server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_set_of_another_format_is_refused_and_left_as_it_is() {
    let server = Redis::start().unwrap();
    let url = format!("{}?prefix=old", server.url());
    open(&url).await;
    // The format before runs and their logs were one hash.
    server.ask(&["HSET", "old:{p0}:meta", "format", "1"]).unwrap();
    let refused = Box::pin(RedisStore::open(options(&url))).await;
    let Err(StoreError::Incompatible { message }) = refused else { panic!("{refused:?}") };
    assert!(message.contains("has the format 1 and this flowgate writes 3"), "{message}");
    assert!(message.contains("use the flowgate that wrote it, or another prefix"), "{message}");
    let kept = server.ask(&["HGET", "old:{p0}:meta", "format"]).unwrap();
    assert_eq!(kept, Reply::Text("1".to_owned()));
    let findings = examine(&options(&url)).await;
    let bad: Vec<_> = findings.iter().filter(|f| f.level == Level::Bad).map(|f| f.check).collect();
    assert_eq!(bad, ["data set"], "{findings:?}");
}

/// What the run's hash reads in a field.
fn field(server: &Redis, key: &str, name: &str) -> String {
    let reply = server.ask(&["HGET", key, name]).expect("the server answers");
    let Reply::Text(text) = reply else { panic!("{name}: {reply:?}") };
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_set_from_before_there_was_shorthand_is_taken_over_with_its_runs() {
    let server = Redis::start().unwrap();
    let mut harness = RedisHarness::on(&server.url(), "").await;
    let mut world = World::new(&mut harness);
    let run_id = world.started(&chain(), "1").await;
    let (before, events) = (world.run(run_id).await, world.events(run_id).await);
    let key = server.ask(&["KEYS", &format!("*:run:{run_id}")]).unwrap();
    let Reply::List(keys) = key else { panic!("{key:?}") };
    let [Reply::Text(key)] = &keys[..] else { panic!("{keys:?}") };
    let (meta, row) =
        (key.replace(&format!("run:{run_id}"), "meta"), field(&server, key, "version"));

    let plain: Vec<_> = events.iter().map(|stored| &stored.event).collect();
    let plain = serde_json::to_string(&plain).unwrap();
    let stored = field(&server, key, &row);
    let (head, shorthand) = stored.split_at(stored.match_indices(';').nth(2).unwrap().0 + 1);
    assert!(shorthand.len() * 2 < plain.len(), "{shorthand:?}");
    server.ask(&["HSET", key, &row, &format!("{head}{plain}")]).unwrap();
    let record = serde_json::to_string(&*before.row.run).unwrap();
    assert!(field(&server, key, "record").len() * 2 < record.len());
    server.ask(&["HSET", key, "record", &record]).unwrap();
    server.ask(&["HSET", &meta, "format", "2"]).unwrap();

    assert!(world.reopen().await);
    assert_eq!(field(&server, &meta, "format"), "3");
    assert_eq!(world.run(run_id).await, before);
    assert_eq!(world.events(run_id).await, events);
    world.finish(&chain(), run_id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_has_no_room_and_takes_commits_again_later() {
    let server = Redis::start().unwrap();
    let mut harness = RedisHarness::on(&server.url(), "").await;
    let world = World::new(&mut harness);
    world.started(&chain(), "1").await;
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let start = world.start(&chain(), "1");
    let full = world.store().commit(vec![start.clone()], None).await.unwrap_err();
    assert!(matches!(full, StoreError::Full { .. }), "{full}");
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    assert!(world.store().read_run(start.run_id).await.unwrap().is_none());
    world.apply(start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_told_and_not_tried_again() {
    let server = Redis::start().unwrap();
    server.ask(&["CONFIG", "SET", "requirepass", "secret"]).unwrap();
    for user in ["", ":wrong@"] {
        let url = server.url().replace("redis://", &format!("redis://{user}"));
        let refused = Box::pin(RedisStore::open(options(&url))).await.unwrap_err();
        assert!(!refused.is_transient(), "{refused}");
        assert!(refused.to_string().contains("password"), "{refused}");
    }
    open(&server.url().replace("redis://", "redis://:secret@")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_well_kept_server_has_no_bad_findings() {
    let server = Redis::start().unwrap();
    open(&server.url()).await;
    let findings = examine(&options(&server.url())).await;
    assert!(findings.iter().all(|finding| finding.level != Level::Bad), "{findings:?}");
    for check in ["round trip", "version", "eviction", "append-only file", "sync", "data set"] {
        assert!(findings.iter().any(|finding| finding.check == check), "{check}: {findings:?}");
    }
    let nowhere = examine(&options("redis://127.0.0.1:1")).await;
    assert_eq!((nowhere.len(), nowhere[0].level), (1, Level::Bad));
}

/// How often a test looks whether a server is ready.
const TICK: Duration = Duration::from_millis(20);

/// A program that this test started, and its folder.
struct Started {
    child: Child,
    folder: TempDir,
    port: u16,
}

impl Drop for Started {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

fn start(folder: TempDir, port: u16, arguments: &[&str]) -> Started {
    let child = Command::new("redis-server")
        .args(arguments)
        .args(["--bind", "127.0.0.1", "--dir"])
        .arg(folder.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server starts");
    Started { child, folder, port }
}

fn start_redis(arguments: &[&str]) -> Started {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
    let port_text = port.to_string();
    let mut all = vec!["--port", &port_text, "--appendonly", "yes", "--save", ""];
    all.extend(arguments);
    start(folder, port, &all)
}

async fn open_when_ready(url: &str) -> RedisStore {
    let mut ticks = tokio::time::interval(TICK);
    for _ in 0..1_000 {
        ticks.tick().await;
        match Box::pin(RedisStore::open(options(url))).await {
            Ok(redis) => return redis,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    panic!("{url} was never ready");
}

fn openssl(folder: &Path, arguments: &str) {
    let made = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(folder)
        .stderr(Stdio::null())
        .status();
    assert!(made.expect("openssl runs").success(), "openssl {arguments}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_reached_by_tls_with_its_own_authority() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(folder.path().join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
    openssl(
        folder.path(),
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ca -days 2",
    );
    openssl(
        folder.path(),
        "req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=redis",
    );
    openssl(
        folder.path(),
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 1 -extfile names",
    );
    let (certificate, key, authority) = (at("cert.pem"), at("key.pem"), at("ca.pem"));
    let port_text = port.to_string();
    let server = start(
        folder,
        port,
        &[
            "--port",
            "0",
            "--tls-port",
            &port_text,
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &authority,
            "--tls-auth-clients",
            "no",
            "--appendonly",
            "yes",
            "--save",
            "",
        ],
    );
    let url = format!("rediss://127.0.0.1:{}", server.port);
    let redis =
        open_when_ready(&format!("{url}?ca={}", server.folder.path().join("ca.pem").display()))
            .await;
    Store::now(&redis).await.unwrap();
    let stranger = Box::pin(RedisStore::open(options(&url))).await;
    assert!(stranger.is_err(), "an unknown authority is not trusted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_sentinels_name_is_followed_over_a_failover() {
    let mut primary = start_redis(&[]);
    let primary_port = primary.port.to_string();
    let of = format!("127.0.0.1 {primary_port}");
    let replica = start_redis(&["--replicaof", &of, "--repl-diskless-sync-delay", "0"]);
    // Sentinel asks a primary for its replicas when it meets it, and then not for a while.
    replica_is_in_step(replica.port).await;
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let config = folder.path().join("sentinel.conf");
    let monitor = format!(
        "port {port}\nsentinel monitor main 127.0.0.1 {primary_port} 1\n\
         sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n"
    );
    std::fs::write(&config, monitor).unwrap();
    let sentinel = start(folder, port, &[&config.display().to_string(), "--sentinel"]);
    said_by(sentinel.port, &["SENTINEL", "REPLICAS", "main"], "role-reported\nslave").await;
    let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port);
    drop(open_when_ready(&url).await);
    let mut harness = RedisHarness::on(&url, "").await;
    let redis = harness.redis.clone();
    let world = World::new(&mut harness);
    let flow = chain();
    let run_id = world.started(&flow, "1").await;
    replica_is_in_step(replica.port).await;
    primary.child.kill().unwrap();
    primary.child.wait().unwrap();
    let mut ticks = tokio::time::interval(TICK);
    let start = world.start(&flow, "2");
    let followed = async {
        // Until the replica is promoted nobody answers, or it refuses writes.
        while let Err(error) = redis.commit(vec![start.clone()], None).await {
            assert!(error.is_transient(), "{error}");
            ticks.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(50), followed).await.expect("the failover comes");
    world.finish(&flow, run_id).await;
}

/// Waits until the server says `expected` to `words`.
async fn said_by(port: u16, words: &[&str], expected: &str) {
    let mut ticks = tokio::time::interval(TICK);
    for _ in 0..1_000 {
        ticks.tick().await;
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port.to_string(), "--raw"]).args(words);
        let said = command.output().expect("redis-cli runs");
        if String::from_utf8_lossy(&said.stdout).replace('\r', "").contains(expected) {
            return;
        }
    }
    panic!("{words:?} never said {expected}");
}

async fn replica_is_in_step(port: u16) {
    let up = "master_link_status:up\nmaster_last_io_seconds_ago:";
    said_by(port, &["INFO", "replication"], up).await;
}
