//! Settings: flags, then `FLOWGATE_*` variables, then `flowgate.toml`, then defaults.
//!
//! Every setting has one key, one variable and one default, all in [`KEYS`]. A value is kept as
//! text with where it came from until it is read, so that an error can name its place.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::Span;
use flowgate_core::ids::is_identifier;
use flowgate_engine::{DegradationConfig, PrivateTargets, Secrets};
use flowgate_server::webhooks::Webhooks;
use flowgate_store::url::{StoreUrlError, masked};
use flowgate_store::{Queues, Retention, StoreUrl};
use flowgate_traces::Endpoint;
use tracing_subscriber::filter::LevelFilter;

use crate::failure::Failure;
use flowgate_core::flow::nearest;

pub(crate) mod api;
mod file;
mod guard;
pub(crate) mod mqtt;
pub(crate) mod sinks;
mod strain;
pub(crate) mod webhooks;
mod worker;

pub(crate) use worker::{Listen, Role};

/// The file that is looked for in the current folder.
const FILE: &str = "flowgate.toml";
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_hours(1);
const CONCURRENCY_MAX: usize = 10_000;

/// A setting: its key in the file, its variable, its default and what it is.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) variable: &'static str,
    pub(crate) default: &'static str,
    pub(crate) what: &'static str,
}

const fn key(
    name: &'static str,
    variable: &'static str,
    default: &'static str,
    what: &'static str,
) -> Key {
    Key { name, variable, default, what }
}

/// Every setting there is.
pub(crate) const KEYS: [Key; 33] = [
    key("store", "FLOWGATE_STORE", "sqlite:.flowgate/flowgate.db", "where runs live"),
    key(
        "store.allow_volatile",
        "FLOWGATE_STORE_ALLOW_VOLATILE",
        "false",
        "true: use a Redis that may lose what it acknowledged",
    ),
    key("server", "FLOWGATE_SERVER", "", "an instance to ask instead of the store, by its URL"),
    key("token", "FLOWGATE_TOKEN", "", "what to show that instance"),
    key("concurrency", "FLOWGATE_CONCURRENCY", "256", "attempts at the same time"),
    key("lease", "FLOWGATE_LEASE", "30s", "how long a job stays with an instance unheard of"),
    key(
        "leader.lease",
        "FLOWGATE_LEADER_LEASE",
        "10s",
        "how long a leader that is unheard of keeps others from firing schedules",
    ),
    key("shutdown_grace", "FLOWGATE_SHUTDOWN_GRACE", "10s", "time for attempts to end on Ctrl-C"),
    key("retention.events", "FLOWGATE_RETENTION_EVENTS", "7d", "events of finished runs"),
    key("retention.runs", "FLOWGATE_RETENTION_RUNS", "30d", "records of finished runs"),
    key("synchronous", "FLOWGATE_SYNCHRONOUS", "full", "full: survives power loss; normal: faster"),
    key("log", "FLOWGATE_LOG", "warn", "off, error, warn, info, debug or trace"),
    key("queues", "FLOWGATE_QUEUES", "*", "queues to serve; `*` is all of them"),
    key("role", "FLOWGATE_ROLE", "all", "of a worker: all, job-worker, cron-worker or auto"),
    key("pool", "FLOWGATE_POOL", "", "the pool whose work it executes besides what is for anybody"),
    key("listen", "FLOWGATE_LISTEN", "127.0.0.1:7420", "where the API is; or off"),
    key("api", "FLOWGATE_API", "on", "on; off: only health and metrics are served"),
    key(
        "api.hosts",
        "FLOWGATE_API_HOSTS",
        "",
        "names by which the API may be called; empty: see docs/guide/api.md",
    ),
    key("tls.cert", "FLOWGATE_TLS_CERT", "", "a PEM file with the certificates of the API"),
    key("tls.key", "FLOWGATE_TLS_KEY", "", "a PEM file with its private key"),
    key(
        "summary_interval",
        "FLOWGATE_SUMMARY_INTERVAL",
        "30s",
        "between lines of figures; 0s: none",
    ),
    key(
        "degradation.store_latency",
        "FLOWGATE_DEGRADATION_STORE_LATENCY",
        "250ms,1s",
        "answers of the store that mean degraded, critical; or off",
    ),
    key(
        "degradation.loop_delay",
        "FLOWGATE_DEGRADATION_LOOP_DELAY",
        "200ms,1s",
        "delays of the event loop that mean degraded, critical; or off",
    ),
    key(
        "degradation.memory",
        "FLOWGATE_DEGRADATION_MEMORY",
        "80%,92%",
        "shares of memory that mean degraded, critical; or off",
    ),
    key(
        "degradation.memory_limit",
        "FLOWGATE_DEGRADATION_MEMORY_LIMIT",
        "auto",
        "such as 512MiB; auto: that of the control group",
    ),
    key(
        "degradation.queue_due",
        "FLOWGATE_DEGRADATION_QUEUE_DUE",
        "50000,1000000",
        "due jobs that mean degraded, critical; or off",
    ),
    key(
        "degradation.queue_age",
        "FLOWGATE_DEGRADATION_QUEUE_AGE",
        "5m,1h",
        "waits of the first due job that mean degraded, critical; or off",
    ),
    key(
        "degradation.schedules",
        "FLOWGATE_DEGRADATION_SCHEDULES",
        "pause",
        "schedules of a critical leader: pause or run",
    ),
    key(
        "http.allow_private",
        "FLOWGATE_HTTP_ALLOW_PRIVATE",
        "",
        "networks and hosts that are not public and that steps may reach; or true",
    ),
    key(
        "process.allow",
        "FLOWGATE_PROCESS_ALLOW",
        "",
        "absolute paths of the programs that steps may start; empty: any",
    ),
    key(
        "api.allow_process",
        "FLOWGATE_API_ALLOW_PROCESS",
        "false",
        "true: flows that come over the API may start programs",
    ),
    key("secrets.folder", "FLOWGATE_SECRETS_FOLDER", "", "a folder with a file for each secret"),
    key(
        "otlp.endpoint",
        "FLOWGATE_OTLP_ENDPOINT",
        "off",
        "the collector that gets spans, such as http://127.0.0.1:4318; or off",
    ),
];

/// Variables that others know by another name: that one counts where ours is not set.
const STANDARD_VARIABLES: [(&str, &str); 1] =
    [("FLOWGATE_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")];

/// Variables that a process step finds in its environment; they are no settings.
const STEP_VARIABLES: [&str; 6] = [
    "FLOWGATE_RUN_ID",
    "FLOWGATE_FLOW",
    "FLOWGATE_REVISION",
    "FLOWGATE_STEP",
    "FLOWGATE_ATTEMPT",
    "FLOWGATE_KEY",
];

/// How variables begin that Kubernetes puts into every container beside a service called flowgate.
const SERVICE_VARIABLES: [&str; 2] = ["FLOWGATE_PORT", "FLOWGATE_SERVICE_"];

/// Everything that can be set, read.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) store: StoreUrl,
    /// The instance that verbs ask, if they ask one.
    pub(crate) server: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) concurrency: usize,
    pub(crate) lease: Duration,
    pub(crate) leader_lease: Duration,
    pub(crate) shutdown_grace: Duration,
    pub(crate) retention: Retention,
    pub(crate) synchronous: Synchronous,
    pub(crate) log: LevelFilter,
    pub(crate) queues: Queues,
    pub(crate) role: Role,
    pub(crate) pool: Option<Arc<str>>,
    pub(crate) listen: Listen,
    /// Whether more than health and metrics is served.
    pub(crate) api: bool,
    /// Names by which the API may be called.
    pub(crate) api_hosts: Vec<String>,
    /// Certificates and private key of the API, if it is encrypted.
    pub(crate) tls: Option<api::TlsFiles>,
    /// None if there are no lines of figures.
    pub(crate) summary_interval: Option<Duration>,
    pub(crate) degradation: DegradationConfig,
    pub(crate) http_allow_private: PrivateTargets,
    /// Empty if any program may be started.
    pub(crate) process_allow: Arc<[String]>,
    pub(crate) api_allow_process: bool,
    pub(crate) secrets: Secrets,
    /// The collector that gets spans, if there is one.
    pub(crate) otlp_endpoint: Option<Endpoint>,
    /// Every setting as it was written, in the order of [`KEYS`].
    pub(crate) settings: Vec<Setting>,
    /// The subscribers that the file asks for.
    pub(crate) sinks: Vec<sinks::Sink>,
    /// The webhooks that the file asks for.
    pub(crate) hooks: Vec<webhooks::Hook>,
    /// They, as they are served.
    pub(crate) webhooks: Webhooks,
    /// The broker that the file asks for.
    pub(crate) mqtt: Option<mqtt::Mqtt>,
    /// Who may call the API.
    pub(crate) tokens: Vec<api::Token>,
}

/// When a commit counts as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synchronous {
    /// Once the disk has it.
    Full,
    /// Once the operating system has it.
    Normal,
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: &'static str,
    /// As it was written; may hold a password.
    value: String,
    pub(crate) origin: Origin,
}

impl Setting {
    /// The value as anybody may see it.
    pub(crate) fn shown(&self) -> String {
        if self.key == "token" && !self.value.is_empty() {
            return "***".to_owned();
        }
        masked(&self.value)
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(&'static str),
    Variable(&'static str),
    File { path: String, line: usize },
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// What the command line says about settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    /// Key, value and the flag that gave it.
    pub(crate) values: Vec<(String, String, &'static str)>,
    /// The settings file, if one is named.
    pub(crate) file: Option<PathBuf>,
}

impl Config {
    /// Reads the settings of this process.
    pub(crate) fn load(flags: &Flags) -> Result<Self, Failure> {
        #[expect(clippy::disallowed_methods, reason = "this is the place that reads variables")]
        let read = |name: &'static str| std::env::var(name).ok();
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        check_variables(names)?;
        let texts = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let file = match &flags.file {
            Some(path) => Some(file::read(path)?),
            None if Path::new(FILE).exists() => Some(file::read(Path::new(FILE))?),
            None => None,
        };
        let config = Self::layered(flags, read, &file.unwrap_or_default())?;
        #[expect(clippy::disallowed_methods, reason = "this is the place that reads variables")]
        let webhooks = webhooks::resolve(&config.hooks, |name| std::env::var(name).ok())?;
        let secrets = config.secrets.with(guard::secrets(texts));
        Ok(Self { secrets, webhooks, ..config })
    }

    /// Where the value of a setting came from.
    pub(crate) fn origin_of(&self, key: &str) -> &Origin {
        let found = self.settings.iter().find(|setting| setting.key == key);
        &found.expect("every key has a setting").origin
    }

    fn layered(
        flags: &Flags,
        variable: impl Fn(&'static str) -> Option<String>,
        file: &file::FileSettings,
    ) -> Result<Self, Failure> {
        for (name, ..) in &flags.values {
            known(name).map_err(|failure| failure.path("--set"))?;
        }
        let settings: Vec<Setting> = KEYS
            .iter()
            .map(|key| {
                let flag = flags.values.iter().rev().find(|(name, ..)| name == key.name);
                let (value, origin) = if let Some((_, value, flag)) = flag {
                    (value.clone(), Origin::Flag(flag))
                } else if let Some((value, name)) = of_variable(key, &variable) {
                    (value, Origin::Variable(name))
                } else if let Some((value, origin)) = file.settings.get(key.name) {
                    (value.clone(), origin.clone())
                } else {
                    (key.default.to_owned(), Origin::Default)
                };
                Setting { key: key.name, value, origin }
            })
            .collect();
        let (sinks, hooks, tokens) = (file.sinks.clone(), file.hooks.clone(), file.tokens.clone());
        let mqtt = file.mqtt.clone();
        Ok(Self { sinks, hooks, mqtt, tokens, ..Self::read(settings)? })
    }

    fn read(settings: Vec<Setting>) -> Result<Self, Failure> {
        let get = |name: &str| {
            settings.iter().find(|setting| setting.key == name).expect("every key has a setting")
        };
        let span = |name: &str| read(get(name), parse_span);
        let retention = Retention {
            events: span("retention.events")?,
            runs: span("retention.runs")?,
            ..Retention::DEFAULT
        };
        let mut store = read(get("store"), parse_store)?;
        if read(get("store.allow_volatile"), parse_flag)? {
            store.allow_volatile();
        }
        Ok(Self {
            store,
            server: read(get("server"), parse_server)?,
            token: read(get("token"), parse_token)?,
            concurrency: read(get("concurrency"), parse_concurrency)?,
            lease: read(get("lease"), parse_lease)?,
            leader_lease: read(get("leader.lease"), parse_lease)?,
            shutdown_grace: span("shutdown_grace")?,
            retention,
            synchronous: read(get("synchronous"), parse_synchronous)?,
            log: read(get("log"), parse_level)?,
            queues: read(get("queues"), parse_queues)?,
            role: read(get("role"), worker::parse_role)?,
            pool: read(get("pool"), worker::parse_pool)?,
            listen: read(get("listen"), worker::parse_listen)?,
            api: read(get("api"), api::parse_switch)?,
            api_hosts: read(get("api.hosts"), api::parse_hosts)?,
            tls: api::tls(get("tls.cert"), get("tls.key"))?,
            summary_interval: Some(span("summary_interval")?).filter(|span| !span.is_zero()),
            degradation: DegradationConfig {
                store_latency: read(get("degradation.store_latency"), strain::spans)?,
                loop_delay: read(get("degradation.loop_delay"), strain::spans)?,
                memory: read(get("degradation.memory"), strain::shares)?,
                memory_limit: read(get("degradation.memory_limit"), strain::limit)?,
                queue_due: read(get("degradation.queue_due"), strain::numbers)?,
                queue_age: read(get("degradation.queue_age"), strain::spans)?,
                pauses_schedules: read(get("degradation.schedules"), strain::pauses)?,
            },
            http_allow_private: read(get("http.allow_private"), guard::parse_private)?,
            process_allow: read(get("process.allow"), guard::parse_programs)?,
            api_allow_process: read(get("api.allow_process"), parse_flag)?,
            secrets: Secrets::new(
                BTreeMap::new(),
                read(get("secrets.folder"), guard::parse_folder)?,
            ),
            otlp_endpoint: read(get("otlp.endpoint"), worker::parse_endpoint)?,
            settings,
            sinks: Vec::new(),
            hooks: Vec::new(),
            webhooks: Webhooks::new(),
            mqtt: None,
            tokens: Vec::new(),
        })
    }
}

/// The variables of this process that set something, but for those about what it says and exports:
/// what a process must not inherit that is to have settings of its own.
pub(crate) fn variables_to_hide() -> impl Iterator<Item = String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let is_kept = |name: &str| matches!(name, "FLOWGATE_LOG" | "FLOWGATE_OTLP_ENDPOINT");
    names.filter(move |name| name.starts_with("FLOWGATE_") && !is_kept(name))
}

/// What the environment says of a setting, and the variable that does.
fn of_variable(
    key: &Key,
    read: impl Fn(&'static str) -> Option<String>,
) -> Option<(String, &'static str)> {
    let standard = STANDARD_VARIABLES.iter().filter(|(ours, _)| *ours == key.variable);
    let mut names = std::iter::once(key.variable).chain(standard.map(|(_, name)| *name));
    names.find_map(|name| Some((read(name)?, name)))
}

/// What is wrong with a value, and what to write instead.
pub(crate) type Wrong = (String, String);

fn read<T>(setting: &Setting, parse: fn(&str) -> Result<T, Wrong>) -> Result<T, Failure> {
    parse(&setting.value).map_err(|(message, help)| {
        let message = format!("{} ({}): {message}", setting.key, setting.origin);
        Failure::usage("config_invalid", message).help(help).path(setting.key)
    })
}

pub(crate) fn parse_store(text: &str) -> Result<StoreUrl, Wrong> {
    text.parse().map_err(|error: StoreUrlError| (error.to_string(), error.help))
}

fn parse_server(text: &str) -> Result<Option<String>, Wrong> {
    if text.is_empty() {
        return Ok(None);
    }
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let authority = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let is_plain = |authority: &str| {
        !authority.is_empty() && !authority.contains(['/', '?', '#', '@', ' ', '\\'])
    };
    if authority.is_some_and(is_plain) {
        Ok(Some(text.trim_end_matches('/').to_owned()))
    } else {
        let help = "write its scheme, name and port, such as `http://127.0.0.1:7420`";
        Err((format!("`{}` is not the address of an instance", masked(text)), help.to_owned()))
    }
}

fn parse_token(text: &str) -> Result<Option<String>, Wrong> {
    if text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Some(text.to_owned()).filter(|token| !token.is_empty()));
    }
    let help = "write it as `flowgate tokens new` printed it".to_owned();
    Err(("it has characters that no token has".to_owned(), help))
}

fn parse_flag(text: &str) -> Result<bool, Wrong> {
    let help = "write `true` or `false`".to_owned();
    text.parse().map_err(|_| (format!("`{text}` is neither true nor false"), help))
}

fn parse_concurrency(text: &str) -> Result<usize, Wrong> {
    text.parse().ok().filter(|number| (1..=CONCURRENCY_MAX).contains(number)).ok_or_else(|| {
        let help = format!("write a whole number from 1 to {CONCURRENCY_MAX}");
        (format!("`{text}` is not a number of attempts"), help)
    })
}

fn parse_span(text: &str) -> Result<Duration, Wrong> {
    let help = || "write whole numbers with units, such as `500ms`, `30s` or `7d`".to_owned();
    match text.parse::<Span>() {
        Ok(span) => Ok(span.0),
        Err(_) => Err((format!("`{text}` is not a length of time"), help())),
    }
}

fn parse_lease(text: &str) -> Result<Duration, Wrong> {
    let lease = parse_span(text)?;
    if (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        return Ok(lease);
    }
    Err((format!("a lease of `{text}` is out of bounds"), "write one from 1s to 1h".to_owned()))
}

fn parse_synchronous(text: &str) -> Result<Synchronous, Wrong> {
    match text {
        "full" => Ok(Synchronous::Full),
        "normal" => Ok(Synchronous::Normal),
        other => Err((format!("`{other}` is not a mode"), "write `full` or `normal`".to_owned())),
    }
}

fn parse_level(text: &str) -> Result<LevelFilter, Wrong> {
    let help = "write off, error, warn, info, debug or trace".to_owned();
    text.parse().map_err(|_| (format!("`{text}` is not a level"), help))
}

fn parse_queues(text: &str) -> Result<Queues, Wrong> {
    if text.trim() == "*" {
        return Ok(Queues::All);
    }
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    match names.iter().find(|name| !is_identifier(name)) {
        None => Ok(Queues::Only(names.into_iter().map(Into::into).collect())),
        Some(name) => {
            let help = "write names with commas between, or `*` for all queues".to_owned();
            Err((format!("`{name}` is not the name of a queue"), help))
        }
    }
}

/// The key called `name`, or what the user may have meant.
fn known(name: &str) -> Result<&'static str, Failure> {
    if let Some(key) = KEYS.iter().find(|key| key.name == name) {
        return Ok(key.name);
    }
    let help = match nearest(name, KEYS.iter().map(|key| key.name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the settings are {}", KEYS.map(|key| key.name).join(", ")),
    };
    Err(Failure::usage("config_invalid", format!("there is no setting `{name}`")).help(help))
}

/// Refuses variables that look like a slip of one of ours.
///
/// Others are let through.
fn check_variables(names: impl Iterator<Item = String>) -> Result<(), Failure> {
    for name in names.filter(|name| name.starts_with("FLOWGATE_")) {
        let is_ours = KEYS.iter().any(|key| key.variable == name);
        let is_of_service = SERVICE_VARIABLES.iter().any(|start| name.starts_with(start));
        let is_secret = guard::secret_of_variable(&name).is_some();
        if is_ours || is_of_service || is_secret || STEP_VARIABLES.contains(&name.as_str()) {
            continue;
        }
        let tail = &name["FLOWGATE_".len()..];
        let tails = KEYS.iter().map(|key| &key.variable["FLOWGATE_".len()..]);
        if let Some(near) = nearest(tail, tails) {
            let message = format!("there is no setting for the variable {name}");
            return Err(Failure::usage("config_invalid", message)
                .help(format!("did you mean FLOWGATE_{near}?"))
                .path(name.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
