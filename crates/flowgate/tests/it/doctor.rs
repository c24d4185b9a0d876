//! `flowgate doctor`.

use flowgate_testbed::{PrivateServer, Redis, Reply};

use crate::sandbox::Sandbox;
use crate::shared::Place;

fn set(redis: &Redis, setting: &str, value: &str) {
    let answer = redis.ask(&["CONFIG", "SET", setting, value]).unwrap();
    assert_eq!(answer, Reply::Text("OK".into()));
}

#[test]
fn a_redis_that_may_lose_runs_is_named_and_refused_unless_that_is_allowed() {
    let sandbox = Sandbox::with_examples();
    let redis = Redis::start().unwrap();
    set(&redis, "maxmemory-policy", "allkeys-lru");
    set(&redis, "appendonly", "no");
    let url = redis.url();
    let doctor = sandbox.flowgate(&["doctor", "--store", &url]).exits(1);
    assert!(doctor.stdout.contains("allkeys-lru"), "{doctor:#?}");
    assert!(doctor.stdout.contains("append-only file"), "{doctor:#?}");
    let found = sandbox.flowgate(&["doctor", "--store", &url, "--json"]).exits(1).json();
    assert_eq!(found["healthy"], false);
    let findings = found["findings"].as_array().unwrap();
    let bad = findings.iter().filter(|finding| finding["level"] == "bad");
    assert!(bad.clone().count() >= 2, "{found:#}");
    assert!(bad.clone().all(|finding| finding["remedy"].is_string()), "{found:#}");
    let dev = sandbox.flowgate(&["dev", "--store", &url]).exits(2);
    assert!(dev.stderr.contains("error: the store is not safe to use"), "{dev:#?}");
    assert!(dev.stderr.contains("allkeys-lru") && dev.stderr.contains("appendonly"), "{dev:#?}");
    let run = ["run", "order.yaml", "--input", r#"{"orderId": 7}"#, "--store", &url];
    sandbox.flowgate(&run).exits(2);
    sandbox.flowgate(&[&run[..], &["--set", "store.allow_volatile=true"]].concat()).exits(0);
    sandbox.flowgate_with(&[("FLOWGATE_STORE_ALLOW_VOLATILE", "true")], &run).exits(0);
}

#[test]
fn sound_servers_pass() {
    let sandbox = Sandbox::new();
    for place in [Place::on_postgres(), Place::on_redis()] {
        let found = place.flowgate(&sandbox, &["doctor", "--json"]).exits(0).json();
        assert_eq!(found["healthy"], true, "{found:#}");
        assert!(found["findings"].as_array().unwrap().len() > 5, "{found:#}");
        // It looked and left nothing behind.
        let listed = place.flowgate(&sandbox, &["runs", "list"]).exits(0);
        assert_eq!(listed.stdout.lines().count(), 0, "{listed:#?}");
    }
}

#[test]
fn a_file_is_looked_at_without_being_made_or_changed() {
    let sandbox = Sandbox::with_examples();
    let nothing = sandbox.flowgate(&["doctor", "--store", "sqlite:a.db"]).exits(0);
    assert!(nothing.stdout.contains("nothing is stored at"), "{nothing:#?}");
    assert!(!sandbox.path("a.db").exists());
    let input = r#"{"orderId": 7}"#;
    sandbox.flowgate(&["run", "order.yaml", "--input", input, "--store", "sqlite:a.db"]).exits(0);
    let doctor = sandbox.flowgate(&["doctor", "--store", "sqlite:a.db"]).exits(0);
    for check in ["file", "format", "owner", "journal", "integrity", "disk space", "file system"] {
        assert!(doctor.stdout.contains(check), "{check}: {doctor:#?}");
    }
    let dev = sandbox.dev(&["--store", "sqlite:a.db"]);
    let beside = sandbox.flowgate(&["doctor", "--store", "sqlite:a.db"]).exits(0);
    assert!(beside.stdout.contains(&format!("process {}", dev.id())), "{beside:#?}");
    let instances = sandbox.flowgate(&["instances", "--store", "sqlite:a.db"]).exits(0);
    assert!(instances.stdout.contains(&dev.id().to_string()), "{instances:#?}");
    dev.interrupt().exits(130);
    let whole = std::fs::read(sandbox.path("a.db")).unwrap();
    std::fs::write(sandbox.path("a.db"), &whole[..whole.len() / 2]).unwrap();
    let cut = sandbox.flowgate(&["doctor", "--store", "sqlite:a.db"]).exits(1);
    assert!(cut.stdout.contains("restore a backup"), "{cut:#?}");
}
