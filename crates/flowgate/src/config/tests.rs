use flowgate_engine::Bounds;

use super::*;

fn load(flags: &[(&str, &str)], variables: &[(&str, &str)], file: &str) -> Result<Config, Failure> {
    let values = flags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned(), "--set")).collect();
    let flags = Flags { values, file: None };
    let variable = |name: &'static str| {
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    };
    Config::layered(&flags, variable, &file::parse("flowgate.toml", file)?)
}

fn check_refused(loaded: Result<Config, Failure>, message: &str, help: &str) {
    let failure = loaded.expect_err(message);
    assert_eq!(failure.message, message);
    assert_eq!(failure.help.as_deref(), Some(help));
}

#[test]
fn a_flag_is_over_a_variable_over_the_file_over_the_default() {
    let file = "concurrency = 3\nlease = \"5s\"\n[retention]\nevents = \"1d\"\n";
    let config =
        load(&[("lease", "9s")], &[("FLOWGATE_LEASE", "7s"), ("FLOWGATE_LOG", "info")], file)
            .unwrap();
    assert_eq!(config.lease, Duration::from_secs(9));
    assert_eq!(config.concurrency, 3);
    assert_eq!(config.log, LevelFilter::INFO);
    assert_eq!(config.retention.events, Duration::from_hours(24));
    let origins: Vec<String> = config
        .settings
        .iter()
        .map(|setting| format!("{}={} {}", setting.key, setting.shown(), setting.origin))
        .collect();
    assert_eq!(
        origins,
        [
            "store=sqlite:.flowgate/flowgate.db default",
            "store.allow_volatile=false default",
            "concurrency=3 flowgate.toml:1",
            "lease=9s flag --set",
            "leader.lease=10s default",
            "shutdown_grace=10s default",
            "retention.events=1d flowgate.toml:4",
            "retention.runs=30d default",
            "synchronous=full default",
            "log=info variable FLOWGATE_LOG",
            "queues=* default",
            "role=all default",
            "pool= default",
            "listen=127.0.0.1:7420 default",
            "summary_interval=30s default",
            "degradation.store_latency=250ms,1s default",
            "degradation.loop_delay=200ms,1s default",
            "degradation.memory=80%,92% default",
            "degradation.memory_limit=auto default",
            "degradation.queue_due=50000,1000000 default",
            "degradation.queue_age=5m,1h default",
            "degradation.schedules=pause default",
        ]
    );
}

#[test]
fn every_default_can_be_read() {
    let config = load(&[], &[], "").unwrap();
    assert_eq!(config.store.to_string(), "sqlite:.flowgate/flowgate.db");
    assert_eq!(config.retention, Retention::DEFAULT);
    assert_eq!(config.queues, Queues::All);
    assert_eq!(config.degradation, DegradationConfig::DEFAULT);
    assert_eq!(config.summary_interval, Some(Duration::from_secs(30)));
    assert_eq!((config.role, config.pool), (Role::All, None));
}

#[test]
fn the_settings_of_a_worker_are_read() {
    let file = "role = \"job-worker\"\npool = \"gpu\"\nlisten = \"off\"\nsummary_interval = \"0s\"\n\
                [degradation]\nstore_latency = [\"1s\", \"2s\"]\nmemory = \"50%, 60%\"\n\
                memory_limit = \"512MiB\"\nqueue_due = \"off\"\nschedules = \"run\"\n";
    let config = load(&[], &[], file).unwrap();
    assert_eq!((config.role, config.pool.as_deref()), (Role::JobWorker, Some("gpu")));
    assert_eq!((config.listen, config.summary_interval), (Listen::Off, None));
    let expected = DegradationConfig {
        store_latency: Some(Bounds {
            degraded: Duration::from_secs(1),
            critical: Duration::from_secs(2),
        }),
        memory: Some(Bounds { degraded: 0.5, critical: 0.6 }),
        memory_limit: Some(512 << 20),
        queue_due: None,
        pauses_schedules: false,
        ..DegradationConfig::DEFAULT
    };
    assert_eq!(config.degradation, expected);
}

#[test]
fn an_unknown_key_names_the_nearest() {
    let message = "flowgate.toml:2: there is no setting `concurency`";
    check_refused(load(&[], &[], "\nconcurency = 3"), message, "did you mean `concurrency`?");
    let message = "flowgate.toml:1: there is no setting `retention.event`";
    check_refused(
        load(&[], &[], "retention.event = '1d'"),
        message,
        "did you mean `retention.events`?",
    );
    check_refused(
        load(&[("quues", "a")], &[], ""),
        "there is no setting `quues`",
        "did you mean `queues`?",
    );
}

#[test]
fn a_value_that_cannot_be_read_says_where_it_stands_and_what_to_write() {
    let rows = [
        (
            "lease = \"10\"",
            "lease (flowgate.toml:1): `10` is not a length of time",
            "write whole numbers with units, such as `500ms`, `30s` or `7d`",
        ),
        (
            "lease = 10",
            "flowgate.toml:1: `lease` cannot have such a value",
            "write it in quotes and with a unit, such as \"10s\"",
        ),
        (
            "lease = \"1ms\"",
            "lease (flowgate.toml:1): a lease of `1ms` is out of bounds",
            "write one from 1s to 1h",
        ),
        (
            "store = \"postgre://u:secret@host/db\"",
            "store (flowgate.toml:1): there is no store `postgre:`",
            "did you mean `postgres:`, as in postgres://user@localhost:5432/flowgate?",
        ),
        (
            "store.url = \"postgres:host/db\"",
            "store (flowgate.toml:1): after `postgres:` comes `//` and a host",
            "write it as postgres://user@localhost:5432/flowgate",
        ),
        (
            "store.allow_volatile = \"maybe\"",
            "store.allow_volatile (flowgate.toml:1): `maybe` is neither true nor false",
            "write `true` or `false`",
        ),
        (
            "concurrency = 0",
            "concurrency (flowgate.toml:1): `0` is not a number of attempts",
            "write a whole number from 1 to 10000",
        ),
        (
            "synchronous = \"off\"",
            "synchronous (flowgate.toml:1): `off` is not a mode",
            "write `full` or `normal`",
        ),
        (
            "queues = [\"a\", \"b c\"]",
            "queues (flowgate.toml:1): `b c` is not the name of a queue",
            "write names with commas between, or `*` for all queues",
        ),
    ];
    for (file, message, help) in rows {
        check_refused(load(&[], &[], file), message, help);
    }
}

#[test]
fn a_wrong_setting_of_a_worker_says_what_to_write() {
    let rows = [
        (
            "role = \"cron\"",
            "role (flowgate.toml:1): `cron` is not a role",
            "write all, job-worker, cron-worker or auto",
        ),
        (
            "pool = \"a b\"",
            "pool (flowgate.toml:1): `a b` is not a label",
            "write letters, digits, `-`, `_` and `.`",
        ),
        (
            "listen = \"7420\"",
            "listen (flowgate.toml:1): `7420` is not an address",
            "write an IP address and a port, such as 127.0.0.1:7420 or 0.0.0.0:7420, or off",
        ),
        (
            "degradation.queue_age = \"1h,5m\"",
            "degradation.queue_age (flowgate.toml:1): `1h,5m` does not grow",
            "write the bound of degraded and then that of critical, such as 5m,1h, or off",
        ),
        (
            "degradation.memory = \"80%\"",
            "degradation.memory (flowgate.toml:1): `80%` is not two shares",
            "write the bound of degraded and then that of critical, such as 80%,92%, or off",
        ),
        (
            "degradation.memory_limit = \"lots\"",
            "degradation.memory_limit (flowgate.toml:1): `lots` is not a number of bytes",
            "write a whole number with KiB, MiB or GiB, such as 512MiB, or auto",
        ),
        (
            "degradation.schedules = \"stop\"",
            "degradation.schedules (flowgate.toml:1): `stop` is not a policy",
            "write pause or run",
        ),
    ];
    for (file, message, help) in rows {
        check_refused(load(&[], &[], file), message, help);
    }
}

#[test]
fn a_variable_that_looks_like_a_slip_is_refused_and_others_are_let_through() {
    let check = |name: &str| check_variables([name.to_owned()].into_iter());
    let failure = check("FLOWGATE_STOER").unwrap_err();
    assert_eq!(failure.help.as_deref(), Some("did you mean FLOWGATE_STORE?"));
    for name in [
        "FLOWGATE_PORT",
        "FLOWGATE_PORT_80_TCP",
        "FLOWGATE_SERVICE_HOST",
        "FLOWGATE_FLOW",
        "FLOWGATE_LOG",
    ] {
        check(name).unwrap();
    }
}

#[test]
fn a_store_url_may_have_three_slashes() {
    let config = load(&[("store", "sqlite:///var/a.db")], &[], "").unwrap();
    assert_eq!(config.store.to_string(), "sqlite:/var/a.db");
}

#[test]
fn a_store_may_be_a_table_and_shows_no_password() {
    let file = "[store]\nurl = \"postgres://u:secret@h/db\"\nallow_volatile = true\n";
    let config = load(&[], &[], file).unwrap();
    let shown: Vec<_> = config.settings.iter().take(2).map(Setting::shown).collect();
    assert_eq!(shown, ["postgres://u:***@h/db", "true"]);
    assert_eq!(config.store.to_string(), "postgres://u:***@h/db");
}
