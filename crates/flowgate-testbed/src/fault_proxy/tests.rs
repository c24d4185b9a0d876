use super::*;
use crate::resp::{Connection, Reply};
use crate::{PrivateServer, Redis, site};

/// How long a test waits for an answer that must not come.
const SILENCE: Duration = Duration::from_millis(200);

fn start() -> (Redis, FaultProxy) {
    let redis = Redis::start().unwrap();
    let proxy = FaultProxy::start(redis.address()).unwrap();
    (redis, proxy)
}

fn connect_to(proxy: &FaultProxy) -> Connection {
    Connection::open(proxy.address()).unwrap()
}

fn is_silent(connection: &mut Connection, words: &[&str]) -> bool {
    connection.wait_at_most(SILENCE).unwrap();
    let error = connection.ask(words).unwrap_err();
    let error = error.downcast::<std::io::Error>().expect("reading or writing failed");
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn text(text: &str) -> Reply {
    Reply::Text(text.into())
}

#[test]
fn without_a_fault_everything_passes_and_nothing_is_counted() {
    let (redis, proxy) = start();
    let mut connection = connect_to(&proxy);
    let large = "x".repeat(5 * CHUNK_BYTES);
    assert_eq!(connection.ask(&["SET", "key", &large]).unwrap(), text("OK"));
    assert_eq!(connection.ask(&["GET", "key"]).unwrap(), text(&large));
    assert_eq!(redis.ask(&["GET", "key"]).unwrap(), text(&large));
    assert_eq!(proxy.connections(), 1);
    drop(connection);
    site::wait_until("the connection has ended", || proxy.connections() == 0).unwrap();
    assert!(!proxy.effects().is_any());
}

#[test]
fn a_cut_ends_connections_and_refuses_new_ones_until_it_heals() {
    let (_redis, proxy) = start();
    let mut open = connect_to(&proxy);
    assert_eq!(open.ask(&["PING"]).unwrap(), text("PONG"));
    proxy.cut();
    open.ask(&["PING"]).unwrap_err();
    connect_to(&proxy).ask(&["PING"]).unwrap_err();
    let effects = proxy.effects();
    assert_eq!((effects.connections_cut, effects.connections_refused), (1, 1));
    proxy.pass();
    assert_eq!(connect_to(&proxy).ask(&["PING"]).unwrap(), text("PONG"));
}

#[test]
fn a_half_open_connection_is_silent_and_goes_on_when_it_heals() {
    let (redis, proxy) = start();
    let mut open = connect_to(&proxy);
    assert_eq!(open.ask(&["PING"]).unwrap(), text("PONG"));
    proxy.half_open();
    assert!(is_silent(&mut open, &["SET", "key", "late"]));
    assert!(is_silent(&mut connect_to(&proxy), &["PING"]));
    assert_eq!(redis.ask(&["GET", "key"]).unwrap(), Reply::Nil);
    let effects = proxy.effects();
    assert_eq!(effects.connections_silent, 1);
    assert!(effects.bytes_withheld > 0);
    proxy.pass();
    let has_arrived = || redis.ask(&["GET", "key"]).unwrap() == text("late");
    site::wait_until("what was withheld arrives", has_arrived).unwrap();
}

#[test]
fn what_a_cut_finds_withheld_never_arrives() {
    let (redis, proxy) = start();
    let mut open = connect_to(&proxy);
    assert_eq!(open.ask(&["PING"]).unwrap(), text("PONG"));
    proxy.half_open();
    assert!(is_silent(&mut open, &["SET", "key", "lost"]));
    proxy.cut();
    proxy.pass();
    assert_eq!(connect_to(&proxy).ask(&["PING"]).unwrap(), text("PONG"));
    assert_eq!(redis.ask(&["GET", "key"]).unwrap(), Reply::Nil);
}

#[test]
fn only_the_silent_direction_is_silent() {
    for (direction, expected) in
        [(Direction::ToServer, Reply::Nil), (Direction::ToClient, text("1"))]
    {
        let (redis, proxy) = start();
        let mut open = connect_to(&proxy);
        assert_eq!(open.ask(&["PING"]).unwrap(), text("PONG"));
        proxy.silence(direction);
        assert!(is_silent(&mut open, &["INCR", "counter"]));
        assert_eq!(redis.ask(&["GET", "counter"]).unwrap(), expected, "{direction:?}");
        assert!(proxy.effects().bytes_withheld > 0, "{direction:?}");
    }
}

#[test]
fn the_work_behind_a_swallowed_reply_is_done() {
    let (redis, proxy) = start();
    let mut open = connect_to(&proxy);
    assert_eq!(open.ask(&["PING"]).unwrap(), text("PONG"));
    proxy.swallow_replies(2);
    assert_eq!(proxy.effects().replies_swallowed, 0);
    open.ask(&["INCR", "counter"]).unwrap_err();
    connect_to(&proxy).ask(&["INCR", "counter"]).unwrap_err();
    assert_eq!(proxy.effects().replies_swallowed, 2);
    assert_eq!(redis.ask(&["GET", "counter"]).unwrap(), text("2"));
    assert_eq!(connect_to(&proxy).ask(&["INCR", "counter"]).unwrap(), Reply::Number(3));
}

#[test]
fn a_delay_counts_once_in_each_direction() {
    const DELAY: Duration = Duration::from_millis(50);
    let (_redis, proxy) = start();
    let mut open = connect_to(&proxy);
    proxy.delay(DELAY);
    let watch = Stopwatch::start();
    assert_eq!(open.ask(&["PING"]).unwrap(), text("PONG"));
    assert!(watch.elapsed() >= 2 * DELAY);
    assert_eq!(proxy.effects().chunks_delayed, 2);
    proxy.pass();
    assert_eq!(open.ask(&["PING"]).unwrap(), text("PONG"));
    assert_eq!(proxy.effects().chunks_delayed, 2);
}

#[test]
fn a_server_that_is_down_shows_as_an_ended_connection() {
    let (mut redis, proxy) = start();
    redis.kill().unwrap();
    connect_to(&proxy).ask(&["PING"]).unwrap_err();
    redis.restart().unwrap();
    assert_eq!(connect_to(&proxy).ask(&["PING"]).unwrap(), text("PONG"));
    assert!(!proxy.effects().is_any(), "the proxy had no part in it");
}

#[test]
fn a_dropped_proxy_closes_its_connections_and_its_port_in_every_mode() {
    let faults: [fn(&FaultProxy); 5] = [
        FaultProxy::pass,
        FaultProxy::cut,
        FaultProxy::half_open,
        |proxy| proxy.silence(Direction::ToClient),
        |proxy| proxy.delay(Duration::from_hours(1)),
    ];
    for fault in faults {
        let (_redis, proxy) = start();
        let mut open = connect_to(&proxy);
        assert_eq!(open.ask(&["PING"]).unwrap(), text("PONG"));
        fault(&proxy);
        let _silent = connect_to(&proxy);
        let port = proxy.address().port();
        drop(proxy);
        open.ask(&["PING"]).unwrap_err();
        assert!(!ports::is_taken(port));
    }
}
