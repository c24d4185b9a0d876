//! A server of our own, which the test may change and kill.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use flowgate_store::conformance::world::{World, applied, chain};
use flowgate_store::{PostgresOptions, PostgresStore, RunQuery, Store};
use flowgate_testbed::{PgBouncer, Postgres, PrivateServer};

use crate::harness::MemoryHarness;

/// Makes a certificate for `localhost`, and has the server use it.
fn encrypt(server: &Postgres, folder: &Path) {
    let (key, certificate) = (folder.join("key.pem"), folder.join("certificate.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    assert!(made.expect("openssl runs").status.success(), "openssl makes a certificate");
    let data = server.ask("SHOW data_directory").expect("the server answers");
    let data = Path::new(data.trim());
    for (from, to) in [(&key, "server.key"), (&certificate, "server.crt")] {
        // The server writes the file, so that the file is the server's.
        let lines = fs::read_to_string(from).expect("openssl wrote it");
        let path = data.join(to);
        let rows = format!("SELECT unnest(string_to_array('{}', E'\\n'))", lines.trim());
        let copy = format!("COPY ({rows}) TO '{}'", path.display());
        server.ask(&copy).expect("the server writes");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("the file is ours");
    }
    server.ask("ALTER SYSTEM SET ssl = on").expect("the server can encrypt");
}

fn options(url: &str) -> PostgresOptions {
    let options = PostgresOptions::new(url).expect("a URL of a test server");
    PostgresOptions { pool_size: 2, call_timeout: Duration::from_secs(5), ..options }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_encrypted_and_the_server_is_verified_if_the_url_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Postgres::start().unwrap();
    encrypt(&server, folder.path());
    server.restart().unwrap();
    let url = server.url().replace("127.0.0.1", "localhost");
    let root = folder.path().join("certificate.pem");
    let verified = format!("{url}?sslmode=verify-full&sslrootcert={}", root.display());
    for url in [format!("{url}?sslmode=require"), verified.clone()] {
        let store = PostgresStore::open(options(&url)).await.unwrap();
        assert_eq!(store.list_runs(&RunQuery::default()).await.unwrap(), []);
        let plain = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE application_name = 'flowgate' AND NOT ssl";
        assert_eq!(server.ask(plain).unwrap().trim(), "0", "{url}");
        let encrypted = plain.replace("NOT ssl", "ssl");
        assert_ne!(server.ask(&encrypted).unwrap().trim(), "0", "{url}");
    }
    // Nobody vouches for this certificate, and it is not one for this name.
    let by_nobody = format!("{url}?sslmode=verify-full");
    let by_another_name = verified.replace("localhost", "127.0.0.1");
    for url in [by_nobody, by_another_name] {
        assert!(PostgresStore::open(options(&url)).await.is_err(), "{url}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_goes_on_when_its_server_comes_back_from_a_crash() {
    let mut server = Postgres::start().unwrap();
    let store = PostgresStore::open(options(&server.url())).await.unwrap();
    store.now().await.unwrap();
    server.kill().unwrap();
    let error = store.now().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    server.restart().unwrap();
    let mut now = store.now().await;
    for _ in 0..10 {
        if now.is_ok() {
            break;
        }
        now = store.now().await;
    }
    now.expect("the server is there again");
}

/// Parameters of a commit, and its mark.
const PARAMS: usize = 44;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_knows_another_statement_by_the_same_name_writes_nothing_elsewhere() {
    let server = Postgres::start().unwrap();
    let pooler = PgBouncer::start(&server).unwrap();
    let open = |schema: &str| {
        PostgresStore::open(PostgresOptions { schema: schema.into(), ..options(&pooler.url()) })
    };
    let (ours, others) = (open("ours").await.unwrap(), open("others").await.unwrap());
    drop(others);
    let mut harness = MemoryHarness::plain();
    let world = World::new(&mut harness);
    let commit = async || {
        let outcomes = ours.commit(vec![world.start(&chain(), "1")], None).await.unwrap();
        outcomes.into_iter().map(applied).for_each(drop);
    };
    commit().await;

    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    server.ask(end).unwrap();
    let places: Vec<String> = (1..PARAMS).map(|at| format!("${at}")).collect();
    let call = format!("SELECT * FROM others.commit_batch({})", places.join(", "));
    let known = |at| format!("PREPARE s{at} AS {call} WHERE ${PARAMS} = 'others';");
    pooler.ask(&(0..20).map(known).collect::<String>()).unwrap();
    commit().await;
    commit().await;
    let count = |schema| server.ask(&format!("SELECT count(*) FROM {schema}.runs")).unwrap();
    assert_eq!((count("ours").trim(), count("others").trim()), ("3", "0"));
}
