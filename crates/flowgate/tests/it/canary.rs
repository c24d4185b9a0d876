//! A canary in every place that holds a secret: it shows nowhere.

use std::io::{Read, Write};
use std::net::TcpListener;

use flowgate_server::webhooks::signature::Key;

use crate::sandbox::{Sandbox, Worker, ask, eventually};
use crate::shared::Place;

/// What every canary has in it.
const CANARY: &str = "canary-4f7a";
/// As a secret of a webhook, where everything is a canary.
const HOOK: &str = "Y2FuYXJ5LTRmN2EtaG9vay1ob29rLWhvb2sx";
const HOOK_OLD: &str = "Y2FuYXJ5LTRmN2EtaG9vay1ob29rLWhvb2sy";

/// A flow whose steps have secrets and are as careless with them as they can be.
fn careless(port: u16) -> String {
    format!(
        r#"
flow: careless
steps:
  program:
    run:
      process:
        command:
          - sh
          - -c
          - |
            printf %s "$TOKEN" > seen
            echo "token $TOKEN"; echo "token $FILE" >&2
            echo "{{\"emit\":\"told\",\"data\":{{\"token\":\"$TOKEN\"}}}}"
            echo "{{\"state\":{{\"token\":\"$FILE\"}}}}"; echo "{{\"result\":\"$TOKEN\"}}"
        env: {{ TOKEN: "${{secret:TOKEN}}", FILE: "${{secret:FILE}}" }}
    emits: [told]
  service:
    subscribes: [told]
    run:
      http:
        url: "http://127.0.0.1:{port}/"
        headers: {{ Authorization: "Bearer ${{secret:HEADER}}" }}
  fails:
    subscribes: ["step:service"]
    run:
      process: {{ command: [sh, -c, 'echo "no $TOKEN" >&2; exit 1'], env: {{ TOKEN: "${{secret:TOKEN}}" }} }}
    retry: {{ attempts: 2, backoff: {{ initial: 1ms }} }}
"#
    )
}

/// A service that answers with what it was sent; the request comes back.
fn echo(listener: TcpListener) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = vec![0; 64 << 10];
        let count = stream.read(&mut request).unwrap();
        let request = String::from_utf8(request[..count].to_vec()).unwrap();
        let sent = request.lines().find(|line| line.starts_with("authorization")).unwrap();
        let body = format!(r#"{{"result":"{sent}"}}"#);
        let length = body.len();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        request
    })
}

/// Starts a run by a signed message, whose status is answered. It has a token too, which nobody
/// asked for.
fn send(worker: &Worker, secret: &str) -> u16 {
    let now = jiff::Timestamp::now().as_second().to_string();
    let signature = Key::parse(secret).unwrap().sign(b"m-1", now.as_bytes(), b"{}");
    let request = format!(
        "POST /api/v1/hooks/careless HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         authorization: Bearer {CANARY}-api\r\nwebhook-id: m-1\r\nwebhook-timestamp: {now}\r\n\
         webhook-signature: {signature}\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    ask(worker.address, &request).unwrap().0
}

/// Every output of the program about the latest run and the rest.
fn outputs(sandbox: &Sandbox, variables: &[(&str, &str)]) -> String {
    let commands: [&[&str]; 14] = [
        &["runs", "show", "latest"],
        &["runs", "events", "latest"],
        &["runs", "logs", "latest"],
        &["runs", "list"],
        &["runs", "export", "latest"],
        &["why", "latest"],
        &["flows", "list"],
        &["flows", "show", "careless"],
        &["dead", "list"],
        &["queues", "list"],
        &["instances"],
        &["subscribers", "list"],
        &["doctor"],
        &["config", "show"],
    ];
    let mut all = String::new();
    for command in commands {
        for more in [&[][..], &["--json"]] {
            let done = sandbox.flowgate_with(variables, &[command, more].concat());
            assert_ne!(done.code, Some(2), "{command:?}: {done:?}");
            assert!(!done.stdout.is_empty() || !done.stderr.is_empty(), "{command:?}: {done:?}");
            all.push_str(&done.stdout);
            all.push_str(&done.stderr);
        }
    }
    all
}

#[test]
fn no_secret_shows_in_anything_that_is_kept_printed_or_measured() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    sandbox.write("careless.yaml", &careless(listener.local_addr().unwrap().port()));
    let service = echo(listener);
    std::fs::create_dir(sandbox.path("secrets")).unwrap();
    sandbox.write("secrets/FILE", &format!("{CANARY}-file\n"));
    sandbox.write(
        "flowgate.toml",
        "[webhooks.careless]\nflow = \"careless\"\nsecrets = [\"${secret:HOOK}\", \"env:HOOK_OLD\"]\n",
    );
    let (hook, hook_old) = (format!("whsec_{HOOK}"), format!("whsec_{HOOK_OLD}"));
    // The server takes any password.
    let url = Place::on_postgres().url.replacen("postgres@", &format!("postgres:{CANARY}-url@"), 1);
    assert!(url.contains(CANARY), "{url}");
    let (token, header) = (format!("{CANARY}-token"), format!("{CANARY}-header"));
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listen = address.to_string();
    let variables = [
        ("FLOWGATE_SECRET_TOKEN", token.as_str()),
        ("FLOWGATE_SECRET_HEADER", header.as_str()),
        ("FLOWGATE_SECRET_HOOK", hook.as_str()),
        ("HOOK_OLD", hook_old.as_str()),
        ("FLOWGATE_SECRETS_FOLDER", "secrets"),
        ("FLOWGATE_HTTP_ALLOW_PRIVATE", "127.0.0.1"),
        ("FLOWGATE_STORE", url.as_str()),
        ("FLOWGATE_LISTEN", listen.as_str()),
        ("FLOWGATE_LOG", "trace"),
    ];
    let process = sandbox.spawn_with(&variables, &["worker", "start", "."]);
    let worker = Worker { process, address };
    worker.process.stderr.wait_for("ready in");
    assert_eq!(send(&worker, "whsec_d3Jvbmd3cm9uZ3dyb25nd3Jvbmc="), 401);
    assert_eq!(send(&worker, &hook), 201);
    assert_eq!(send(&worker, &hook_old), 200);
    eventually("the run ends", || {
        let list = sandbox.flowgate_with(&variables, &["runs", "list", "--json"]).exits(0).json();
        (list["items"][0]["status"] == "failed").then_some(())
    });
    // Whoever should have the secrets had them.
    assert_eq!(std::fs::read_to_string(sandbox.path("seen")).unwrap(), token);
    assert!(service.join().unwrap().contains(&format!("Bearer {header}")));

    let mut all = outputs(&sandbox, &variables);
    all.push_str(&worker.get("/metrics").1);
    all.push_str(&worker.get("/readyz").1);
    let done = worker.terminate().exits(0);
    assert!(done.stderr.contains("\"level\":"), "it logs: {done:?}");
    all.push_str(&done.stdout);
    all.push_str(&done.stderr);
    let is_hit = |line: &&str| [CANARY, HOOK, HOOK_OLD].iter().any(|canary| line.contains(canary));
    let hits: Vec<&str> = all.lines().filter(is_hit).collect();
    assert!(hits.is_empty(), "{} hits: {hits:#?}", hits.len());
    assert!(all.contains("token ***") && all.contains("no ***"), "{all}");
    assert!(all.contains("${secret:TOKEN}"), "the flow still names its secrets");
}
