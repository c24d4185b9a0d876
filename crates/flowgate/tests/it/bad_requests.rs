//! Requests that are wrong on the wire: rows B12 and B15 to B17 of the catalogue of bad input. Each is
//! answered alike on every store, and changes nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::sandbox::{Sandbox, Worker};
use crate::shared::Place;

/// How long an answer is waited for: a body may take 30 s.
const PATIENCE: Duration = Duration::from_mins(1);

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What comes until the other side closes; it may do so while it is still being sent to.
fn rest(mut stream: TcpStream) -> String {
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(count) = stream.read(&mut part) {
        if count == 0 {
            break;
        }
        answer.extend_from_slice(&part[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn head(extra: &str) -> String {
    format!(
        "POST /api/v1/runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{extra}\r\n"
    )
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

fn a_body_that_is_too_large_is_refused_before_it_is_read(worker: &Worker) {
    let mut stream = connect(worker.address);
    stream.write_all(head("content-length: 10000000000\r\n").as_bytes()).unwrap();
    let answer = rest(stream);
    assert_eq!(status(&answer), "413", "{answer}");
    assert!(answer.contains("body_too_large"), "{answer}");

    // Without an end: it is told long before everything that might come has come.
    let mut stream = connect(worker.address);
    stream.write_all(head("transfer-encoding: chunked\r\n").as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x1_0000));
    let sent = (0..1_000).take_while(|_| stream.write_all(chunk.as_bytes()).is_ok()).count();
    let answer = rest(stream);
    assert!(sent < 200, "{sent} chunks of 64 KiB were taken");
    assert!(answer.is_empty() || status(&answer) == "413", "{answer}");
    assert_eq!(worker.get("/readyz").0, 200);
}

fn heads_that_are_too_large_are_refused_with_what_is_too_large(worker: &Worker) {
    let ask = |request: &str| {
        let mut stream = connect(worker.address);
        // It may be closed before all of it is sent.
        drop(stream.write_all(request.as_bytes()));
        rest(stream)
    };
    let many: String = (0..200).flat_map(|n| [format!("x-{n}"), ": 1\r\n".to_owned()]).collect();
    let large = format!("x-large: {}\r\n", "a".repeat(64 << 10));
    for extra in [many, large] {
        let answer = ask(&format!("GET /api/v1/runs HTTP/1.1\r\nhost: localhost\r\n{extra}\r\n"));
        assert_eq!(status(&answer), "431", "{answer}");
    }
    let long = "a".repeat(16 << 10);
    let answer = ask(&format!(
        "GET /api/v1/runs?search={long} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    ));
    assert_eq!(status(&answer), "414", "{answer}");
    assert_eq!(worker.get("/readyz").0, 200);
}

fn whoever_sends_a_byte_a_second_is_let_go_and_holds_up_nobody(worker: &Worker) {
    let mut slow: Vec<TcpStream> = (0..200).map(|_| connect(worker.address)).collect();
    let mut body = connect(worker.address);
    body.write_all(head("content-length: 100\r\n").as_bytes()).unwrap();
    let began = Instant::now();
    let (mut asked, mut at) = (0, 0);
    let text = head("");
    while began.elapsed() < Duration::from_secs(12) {
        for stream in &mut slow {
            // Those that were let go are closed.
            drop(stream.write_all(&text.as_bytes()[at..=at]));
        }
        at += 1;
        drop(body.write_all(b" "));
        let before = Instant::now();
        assert_eq!(worker.get("/readyz").0, 200);
        assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
        asked += 1;
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(asked > 3);
    for stream in slow {
        let answer = rest(stream);
        assert!(answer.is_empty() || status(&answer) == "408", "{answer}");
    }
    while began.elapsed() < Duration::from_secs(31) {
        drop(body.write_all(b" "));
        std::thread::sleep(Duration::from_secs(1));
    }
    let answer = rest(body);
    assert_eq!(status(&answer), "408", "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
}

/// What holds of a worker on the embedded store, or on this one; nothing was started by it.
fn check(place: Option<&Place>, holds: fn(&Worker)) {
    let sandbox = Sandbox::new();
    let args: Vec<&str> = place.iter().flat_map(|place| ["--store", &place.url]).collect();
    let worker = sandbox.worker(&args);
    holds(&worker);
    let (status, runs) = worker.get("/api/v1/runs");
    assert_eq!(status, 200, "{runs}");
    assert!(runs.contains(r#""total":0"#), "{runs}");
    worker.terminate().exits(0);
}

macro_rules! on_every_store {
    ($($name:ident)*) => {
        mod on_sqlite {
            $(#[test] fn $name() { super::check(None, super::$name); })*
        }
        mod on_redis {
            $(#[test] fn $name() { super::check(Some(&super::Place::on_redis()), super::$name); })*
        }
        mod on_postgres {
            $(#[test] fn $name() { super::check(Some(&super::Place::on_postgres()), super::$name); })*
        }
    };
}

on_every_store! {
    a_body_that_is_too_large_is_refused_before_it_is_read
    heads_that_are_too_large_are_refused_with_what_is_too_large
    whoever_sends_a_byte_a_second_is_let_go_and_holds_up_nobody
}
