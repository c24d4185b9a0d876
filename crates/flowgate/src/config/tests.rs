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
            "server= default",
            "token= default",
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
            "api=on default",
            "api.hosts= default",
            "tls.cert= default",
            "tls.key= default",
            "summary_interval=30s default",
            "degradation.store_latency=250ms,1s default",
            "degradation.loop_delay=200ms,1s default",
            "degradation.memory=80%,92% default",
            "degradation.memory_limit=auto default",
            "degradation.queue_due=50000,1000000 default",
            "degradation.queue_age=5m,1h default",
            "degradation.schedules=pause default",
            "http.allow_private= default",
            "process.allow= default",
            "api.allow_process=false default",
            "secrets.folder= default",
            "otlp.endpoint=off default",
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
fn what_steps_may_reach_and_start_is_read() {
    let config = load(&[], &[], "").unwrap();
    assert_eq!(config.http_allow_private, PrivateTargets::NONE);
    assert!(config.process_allow.is_empty() && !config.api_allow_process);
    let file = "api.allow_process = true\n[http]\nallow_private = [\"127.0.0.1\", \"a.internal\"]\n\
                [process]\nallow = [\"/bin/sh\"]\n";
    let config = load(&[], &[], file).unwrap();
    let targets = ["127.0.0.1", "a.internal"].map(|target| target.parse().unwrap());
    assert_eq!(config.http_allow_private, PrivateTargets::Only(targets.to_vec()));
    assert_eq!(*config.process_allow, ["/bin/sh".to_owned()]);
    assert!(config.api_allow_process);
    let config = load(&[], &[("FLOWGATE_HTTP_ALLOW_PRIVATE", "true")], file).unwrap();
    assert_eq!(config.http_allow_private, PrivateTargets::All);
}

#[test]
fn a_wrong_setting_of_what_steps_may_do_says_what_to_write() {
    let rows = [
        (
            "http.allow_private = \"127.0.0.1:80\"",
            "http.allow_private (flowgate.toml:1): `127.0.0.1:80` is neither an address, nor a \
             network such as 10.0.0.0/8, nor the name of a host",
            "write addresses, networks and hosts with commas between, such as \
             127.0.0.1,10.20.0.0/16,billing.internal, or true for all",
        ),
        (
            "process.allow = \"python3\"",
            "process.allow (flowgate.toml:1): `python3` is not an absolute path",
            "write absolute paths with commas between, such as /usr/bin/python3,/bin/sh",
        ),
        (
            "secrets.folder = \"/no/such/folder\"",
            "secrets.folder (flowgate.toml:1): there is no folder `/no/such/folder`",
            "name a folder with one file for each secret, or leave it empty",
        ),
    ];
    for (file, message, help) in rows {
        check_refused(load(&[], &[], file), message, help);
    }
}

#[tokio::test]
async fn a_variable_with_the_right_beginning_is_a_secret_and_is_never_shown() {
    let variables = [("FLOWGATE_SECRET_TOKEN", "canary-7"), ("FLOWGATE_STORE", "memory:")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let secrets = Secrets::default().with(guard::secrets(variables.into_iter()));
    assert_eq!(secrets.get("TOKEN").await.unwrap().reveal(), "canary-7");
    assert!(secrets.get("STORE").await.is_err());
    let config = Config { secrets, ..load(&[], &[], "").unwrap() };
    assert!(!format!("{config:?}").contains("canary"));
    check_variables(["FLOWGATE_SECRET_STOER".to_owned()].into_iter()).unwrap();
}

#[test]
fn a_webhook_has_one_effect_and_secrets_that_stand_elsewhere() {
    let file = "[webhooks.build]\nflow = \"build\"\n\
                secrets = [\"${secret:NEW}\", \"env:OLD_HOOK\"]\ntolerance = \"1m\"\n";
    let config = load(&[], &[], file).unwrap();
    let canary = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5";
    let given = |value: &'static str| move |name: &str| (name == "OLD_HOOK").then(|| value.into());
    let served = webhooks::resolve(&config.hooks, given(canary)).unwrap();
    let hook = &served["build"];
    assert_eq!((hook.secrets.len(), hook.tolerance), (2, Duration::from_mins(1)));
    assert!(!format!("{served:?}").contains("canary"));
    let absent = webhooks::resolve(&config.hooks, |_| None).unwrap_err();
    assert!(absent.message.contains("there is no variable `OLD_HOOK`"), "{}", absent.message);
    let wrong = webhooks::resolve(&config.hooks, given("canary")).unwrap_err();
    assert!(!wrong.message.contains("canary"), "{}", wrong.message);
    let help = "see docs/guide/webhooks.md for the settings of a webhook";
    let rows = [
        ("secrets = ['env:A']", "it has either `flow`, which it starts, or `signal`"),
        ("flow = 'a'\nsecrets = []", "`secrets` has 1 to 10 entries"),
        ("flow = 'a'\nsecrets = ['env:A']\ntolerance = '2h'", "`tolerance` is from 1s to 1h"),
        (
            "flow = 'a'\nsecrets = ['whsec_abc']",
            "an entry of `secrets` is `${secret:NAME}` or `env:VARIABLE`; the file is no place for \
             a secret itself",
        ),
    ];
    for (rest, message) in rows {
        let message = format!("flowgate.toml:1: webhook `a`: {message}");
        check_refused(load(&[], &[], &format!("[webhooks.a]\n{rest}\n")), &message, help);
    }
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

#[test]
fn the_collector_is_named_by_our_variable_or_by_the_standard_one() {
    type Row<'a> = (&'a [(&'a str, &'a str)], &'a str, Option<&'a str>);
    let ours = ("FLOWGATE_OTLP_ENDPOINT", "http://a:4318");
    let standard = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:4318");
    let file = "[otlp]\nendpoint = \"http://c:4318\"\n";
    let rows: [Row<'_>; 6] = [
        (&[], "", None),
        (&[ours, standard], file, Some("http://a:4318/v1/traces")),
        (&[standard], file, Some("http://b:4318/v1/traces")),
        (&[], file, Some("http://c:4318/v1/traces")),
        (&[("FLOWGATE_OTLP_ENDPOINT", "off"), standard], file, None),
        (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], "", None),
    ];
    for (variables, file, expected) in rows {
        let endpoint = load(&[], variables, file).unwrap().otlp_endpoint;
        assert_eq!(endpoint.map(|endpoint| endpoint.traces_url()).as_deref(), expected);
    }
    check_refused(
        load(&[("otlp.endpoint", "grpc://a:4317")], &[], ""),
        "otlp.endpoint (flag --set): `grpc://a:4317` is not the URL of a collector: it begins \
         neither with http:// nor with https://",
        "write the base URL of OTLP over HTTP, such as http://127.0.0.1:4318, or off",
    );
}

#[test]
fn the_settings_of_the_api_are_read() {
    let digest = "ab".repeat(32);
    let file = format!(
        "[api]\nserve = \"off\"\nhosts = [\"a.example\", \"[::2]\"]\n[tls]\ncert = \"c.pem\"\n\
         key = \"k.pem\"\n[tokens.ci]\nsha256 = \"{digest}\"\nscope = \"run\"\n\
         expires = \"2030-01-01T00:00:00Z\"\n"
    );
    let config = load(&[], &[], &file).unwrap();
    assert!(!config.api);
    assert_eq!(config.api_hosts, ["a.example", "[::2]"]);
    assert_eq!(config.tls.map(|files| files.key), Some("k.pem".into()));
    let token = &config.tokens[0];
    assert_eq!((&*token.entry.name, token.entry.sha256), ("ci", [0xab; 32]));
    assert_eq!(token.shown(), "run, until 2030-01-01T00:00:00.000Z");
    assert_eq!(token.origin.to_string(), "flowgate.toml:7");
}

#[test]
fn a_token_that_cannot_be_used_says_where_it_stands() {
    let help = "`flowgate tokens new NAME --scope read` makes one and says what to write";
    let digest = "ab".repeat(32);
    let rows = [
        (
            "sha256 = \"x\"\nscope = \"run\"".to_owned(),
            "`sha256` is not 64 hexadecimal digits; never write the token itself here",
        ),
        (
            format!("sha256 = \"{digest}\"\nscope = \"all\""),
            "`scope` is none of read, run, deploy and admin",
        ),
    ];
    for (lines, said) in rows {
        let message = format!("flowgate.toml:1: token `ci`: {said}");
        check_refused(load(&[], &[], &format!("[tokens.ci]\n{lines}\n")), &message, help);
    }
    check_refused(
        load(&[("tls.cert", "c.pem")], &[], ""),
        "`tls.cert` and `tls.key` go together, and one of them is not set",
        "set both, or none",
    );
}
