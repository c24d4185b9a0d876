//! What an engine is told before it starts.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::{Action, Flow};
use flowgate_core::ids::{InstanceId, is_identifier};
use flowgate_core::limits;
use flowgate_store::{Queues, Retention};

use crate::degradation::DegradationConfig;
use crate::executor::http::guard::{PrivateTargets, Resolver};
use crate::secrets::Secrets;

/// Attempts that an instance executes at a time, unless it is told otherwise.
pub const SLOTS_DEFAULT: usize = 256;
/// The most slots that an instance may have.
pub const SLOTS_MAX: usize = 100_000;
/// The shortest lease: a renewal must fit into it three times.
pub const LEASE_MIN: Duration = Duration::from_millis(30);

/// What the line of a `shell` step is given to.
pub(crate) const SHELL: &str = "/bin/sh";

/// The shortest lease of a leader: a call to the store must fit into it four times.
pub const LEADER_LEASE_MIN: Duration = Duration::from_millis(500);

/// How an instance works.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Its name.
    pub instance: InstanceId,
    /// What it is for, in a word that is listed with it.
    pub role: Option<Arc<str>>,
    /// Its pool: it executes what is for that pool besides what is for anybody, and nothing that is
    /// for another.
    pub pool: Option<Arc<str>>,
    /// The queues that it serves. One that serves none is a client: it starts and steers runs, and
    /// neither executes anything, nor looks after what others left, nor counts as an instance.
    pub queues: Queues,
    /// Attempts that it executes at a time.
    pub slots: usize,
    /// How long a lease lasts unless it is renewed. Renewed at a third of it.
    pub lease: Duration,
    /// How long a claimer waits at most without looking at the store, before jitter.
    pub poll_max: Duration,
    /// How long a shutdown lets attempts finish.
    pub shutdown_grace: Duration,
    /// How long an attempt runs before the log says that it does.
    pub started_after: Duration,
    /// How long finished runs are kept.
    pub retention: Retention,
    /// How often what is older is removed.
    pub retention_interval: Duration,
    /// How often open runs are checked for steps that nothing would ever execute.
    pub reconcile_interval: Duration,
    /// How often it says that it is there, before jitter. Two seconds or less let it notice within
    /// five that its store does not answer.
    pub beat_interval: Duration,
    /// Where renewals and beats run.
    pub renewals: Renewals,
    /// How it leads when its turn comes, and fires schedules; without it, it never does. A client
    /// never does either.
    pub schedules: Option<SchedulerConfig>,
    /// From where on it is strained.
    pub degradation: DegradationConfig,
    /// For steps that start a program.
    pub process: ProcessConfig,
    /// For steps that send a request.
    pub http: HttpConfig,
    /// What steps may be given that flows only name.
    pub secrets: Secrets,
    /// Whether steps are told their place in the run's trace: whoever exports spans sets it.
    pub is_traced: bool,
}

/// Where lease renewals and beats run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewals {
    /// On an OS thread of their own: handlers that block cannot starve them.
    OwnThread,
    /// On the caller's runtime, whose time a test can pause.
    OnRuntime,
}

/// How an instance leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// How long a term lasts unless it is renewed.
    pub lease: Duration,
    /// How often it is renewed; less than half of the lease, so that one renewal may fail.
    pub renew: Duration,
    /// How long the ledger of occurrences is kept.
    pub ledger_keep: Duration,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self::with_lease(Duration::from_secs(10))
    }
}

impl SchedulerConfig {
    /// The defaults for a lease of this length: it is renewed at a third.
    pub fn with_lease(lease: Duration) -> Self {
        Self { lease, renew: lease / 3, ledger_keep: Duration::from_hours(30 * 24) }
    }

    /// How long one call to the store may take.
    pub(crate) fn call_max(&self) -> Duration {
        self.lease / 4
    }

    /// How long after it was asked for a term is acted in.
    pub(crate) fn usable(&self) -> Duration {
        self.lease / 10 * 9
    }

    fn validate(&self) -> Result<(), ConfigError> {
        if self.lease < LEADER_LEASE_MIN {
            return Err(ConfigError::LeaderLeaseTooShort(self.lease));
        }
        if self.renew.is_zero() || self.renew * 2 >= self.lease {
            let (renew, lease) = (self.renew, self.lease);
            return Err(ConfigError::LeaderRenewal { renew, lease });
        }
        Ok(())
    }
}

/// Limits of steps that start a program.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// Programs that run at a time.
    pub running_max: usize,
    /// Bytes that one attempt may write to its standard output.
    pub stdout_bytes_max: usize,
    /// How long a program has between SIGTERM and SIGKILL.
    pub kill_grace: Duration,
    /// Variables that every program gets, besides those of its step.
    pub env: Arc<[(OsString, OsString)]>,
    /// The programs that may be started, each as its absolute path; any if there is none.
    pub allowed: Arc<[String]>,
    /// Whether programs of a flow that came without a folder are started: one that was not read
    /// from a file of this host, but came over the API or was built in Rust.
    pub without_folder: bool,
}

/// Limits of steps that send a request.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a request may take in all, for steps without a `timeout` of their own.
    pub timeout: Duration,
    /// Bytes of an answer's body, after decompression.
    pub body_bytes_max: usize,
    /// What they may reach of the addresses that are not public.
    pub allow_private: PrivateTargets,
    /// Who knows the addresses of names.
    pub resolver: Resolver,
}

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No slots, or too many.
    #[error("slots is {0}; it must be from 1 to {SLOTS_MAX}")]
    Slots(usize),
    /// The pool has a name that none can have.
    #[error("`{0}` is not a pool; write letters, digits, `-`, `_` and `.`")]
    Pool(Arc<str>),
    /// The lease is too short.
    #[error("the lease is {0:?}; it must be {LEASE_MIN:?} or longer")]
    LeaseTooShort(Duration),
    /// A span that must be longer than zero is not.
    #[error("{0} is zero; it must be longer")]
    Zero(&'static str),
    /// The leader's lease is too short.
    #[error("the leader's lease is {0:?}; it must be {LEADER_LEASE_MIN:?} or longer")]
    LeaderLeaseTooShort(Duration),
    /// The leader renews too seldom: one lost renewal would end its term.
    #[error(
        "the leader renews every {renew:?}; it must be more often than twice in its lease of {lease:?}"
    )]
    LeaderRenewal {
        /// How often it would renew.
        renew: Duration,
        /// Its lease.
        lease: Duration,
    },
    /// A program that may be started is not named by an absolute path.
    #[error("process.allow names `{0}`; it must be an absolute path")]
    ProgramRelative(String),
    /// No program may run.
    #[error("process.running_max is 0; it must be at least 1")]
    NoProcess,
    /// The bounds of a level are not in order.
    #[error("degradation.{0} must be over zero, and critical not under degraded")]
    Bounds(&'static str),
}

impl EngineConfig {
    /// The defaults, for the instance called `instance`.
    pub fn new(instance: InstanceId) -> Self {
        Self {
            instance,
            role: None,
            pool: None,
            queues: Queues::All,
            slots: SLOTS_DEFAULT,
            lease: Duration::from_secs(30),
            poll_max: Duration::from_secs(1),
            shutdown_grace: Duration::from_secs(10),
            started_after: Duration::from_millis(50),
            retention: Retention::DEFAULT,
            retention_interval: Duration::from_mins(1),
            reconcile_interval: Duration::from_mins(1),
            beat_interval: Duration::from_secs(2),
            renewals: Renewals::OwnThread,
            schedules: Some(SchedulerConfig::default()),
            degradation: DegradationConfig::DEFAULT,
            process: ProcessConfig::from_env(),
            http: HttpConfig::DEFAULT,
            secrets: Secrets::default(),
            is_traced: false,
        }
    }

    /// Whether it only starts and steers runs that others execute.
    pub fn is_client(&self) -> bool {
        matches!(&self.queues, Queues::Only(queues) if queues.is_empty())
    }

    /// Whether it can work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let Some(pool) = self.pool.as_ref().filter(|pool| !is_identifier(pool)) {
            return Err(ConfigError::Pool(Arc::clone(pool)));
        }
        if self.slots == 0 || self.slots > SLOTS_MAX {
            return Err(ConfigError::Slots(self.slots));
        }
        if self.lease < LEASE_MIN {
            return Err(ConfigError::LeaseTooShort(self.lease));
        }
        let spans = [
            ("poll_max", self.poll_max),
            ("retention_interval", self.retention_interval),
            ("reconcile_interval", self.reconcile_interval),
            ("beat_interval", self.beat_interval),
            ("http.connect_timeout", self.http.connect_timeout),
            ("http.timeout", self.http.timeout),
        ];
        if let Some((name, _)) = spans.into_iter().find(|(_, span)| span.is_zero()) {
            return Err(ConfigError::Zero(name));
        }
        if self.process.running_max == 0 {
            return Err(ConfigError::NoProcess);
        }
        if let Some(program) = self.process.allowed.iter().find(|path| !path.starts_with('/')) {
            return Err(ConfigError::ProgramRelative(program.clone()));
        }
        self.schedules.as_ref().map_or(Ok(()), SchedulerConfig::validate)?;
        if let Some(measure) = self.degradation.wrong() {
            return Err(ConfigError::Bounds(measure));
        }
        Ok(())
    }
}

impl ProcessConfig {
    /// The defaults; of this process's environment, programs get the four variables that most
    /// cannot do without.
    pub fn from_env() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let env = ["PATH", "HOME", "LANG", "TMPDIR"]
            .into_iter()
            .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
            .collect();
        Self {
            running_max: (4 * cores).max(16),
            stdout_bytes_max: 16 << 20,
            kill_grace: Duration::from_secs(2),
            env,
            allowed: Arc::default(),
            without_folder: true,
        }
    }

    /// Why the settings do not let the first such step of `flow` start its program, if there is
    /// one. `has_folder` is whether the flow was read from a file of this host.
    pub fn refuses(&self, flow: &Flow, has_folder: bool) -> Option<String> {
        flow.process_steps().find_map(|step| {
            let why = self.refusal(&step.action, has_folder)?;
            Some(format!("step `{}`: {why}", step.name))
        })
    }

    /// Why the settings do not let the program of `action` be started.
    pub(crate) fn refusal(&self, action: &Action, has_folder: bool) -> Option<String> {
        let program = match action {
            Action::Process(process) => process.command.first()?.as_str(),
            Action::Shell(_) => SHELL,
            Action::Nothing
            | Action::Http(_)
            | Action::Mqtt(_)
            | Action::Worker(_)
            | Action::Wait(_) => return None,
        };
        if !has_folder && !self.without_folder {
            let why = "process_forbidden: the flow came over the API, and its steps may not start \
                       programs here; put it into a file that this instance reads, or set \
                       `api.allow_process`";
            return Some(why.to_owned());
        }
        // As it is written: a link or a detour to a program that is allowed is another path.
        if self.allowed.is_empty() || self.allowed.iter().any(|allowed| allowed == program) {
            return None;
        }
        Some(format!(
            "program_forbidden: this instance may not start `{}`; name one of those that the \
             setting `process.allow` has, as it stands there: `{}`",
            program.escape_debug(),
            self.allowed.join("`, `")
        ))
    }
}

impl HttpConfig {
    /// Ten seconds to connect, five minutes in all, a body that holds the largest payload, and
    /// nothing but public addresses.
    pub const DEFAULT: Self = Self {
        connect_timeout: Duration::from_secs(10),
        timeout: Duration::from_mins(5),
        body_bytes_max: limits::PAYLOAD_BYTES_MAX + (64 << 10),
        allow_private: PrivateTargets::NONE,
        resolver: Resolver::SYSTEM,
    };
}

/// A name that no other instance has: the host's name and a random part.
pub fn instance_id() -> InstanceId {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var_os("HOSTNAME").and_then(|name| name.into_string().ok()))
        .unwrap_or_default();
    let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(64).collect();
    let host = if host.is_empty() { "instance" } else { host.as_str() };
    InstanceId(format!("{host}-{:08x}", fastrand::u32(..)).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degradation::Bounds;

    #[test]
    fn a_configuration_that_cannot_work_is_refused() {
        let good = EngineConfig::new(instance_id());
        assert_eq!(good.validate(), Ok(()));
        let no_slots = EngineConfig { slots: 0, ..good.clone() };
        assert_eq!(no_slots.validate(), Err(ConfigError::Slots(0)));
        let short = Duration::from_millis(1);
        let lease = EngineConfig { lease: short, ..good.clone() };
        assert_eq!(lease.validate(), Err(ConfigError::LeaseTooShort(short)));
        let turned = Some(Bounds { degraded: 2, critical: 1 });
        let degradation = DegradationConfig { queue_due: turned, ..DegradationConfig::DEFAULT };
        let bounds = EngineConfig { degradation, ..good.clone() };
        assert_eq!(bounds.validate(), Err(ConfigError::Bounds("queue_due")));
        let poll = EngineConfig { poll_max: Duration::ZERO, ..good };
        assert_eq!(poll.validate(), Err(ConfigError::Zero("poll_max")));
    }

    #[test]
    fn a_leader_that_would_renew_only_once_in_its_lease_is_refused() {
        let check = |lease: u64, renew: u64| {
            let (lease, renew) = (Duration::from_millis(lease), Duration::from_millis(renew));
            let schedules = Some(SchedulerConfig { lease, renew, ..SchedulerConfig::default() });
            EngineConfig { schedules, ..EngineConfig::new(instance_id()) }.validate()
        };
        assert_eq!(check(10_000, 3_333), Ok(()));
        assert_eq!(check(10_000, 4_999), Ok(()));
        let (lease, renew) = (Duration::from_secs(10), Duration::from_secs(5));
        assert_eq!(check(10_000, 5_000), Err(ConfigError::LeaderRenewal { renew, lease }));
        assert!(check(10_000, 0).is_err());
        assert!(check(100, 10).is_err());
        let defaults = SchedulerConfig::default();
        assert!(defaults.call_max() < defaults.lease / 3);
    }

    #[test]
    fn a_program_is_refused_unless_it_is_allowed_as_it_is_written() {
        let flow =
            |run: &str| Flow::parse(&format!("{{flow: f, steps: {{a: {{run: {run}}}}}}}")).unwrap();
        let sh = || flow("{shell: 'true'}");
        let program = |program: &str| flow(&format!("{{process: [{program}]}}"));
        let open = ProcessConfig::from_env();
        assert_eq!(open.refuses(&sh(), false), None);
        let from_files = ProcessConfig { without_folder: false, ..open.clone() };
        assert_eq!(from_files.refuses(&sh(), true), None);
        let told = from_files.refuses(&sh(), false).unwrap();
        assert!(told.starts_with("step `a`: process_forbidden: "), "{told}");
        let http = flow("{http: {url: 'http://example.com/'}}");
        assert_eq!(from_files.refuses(&http, false), None);
        let listed = ProcessConfig { allowed: Arc::new(["/usr/bin/env".to_owned()]), ..open };
        assert_eq!(listed.refuses(&program("/usr/bin/env"), true), None);
        for other in ["env", "./env", "/usr/bin/../bin/env", "/bin/sh"] {
            let told = listed.refuses(&program(other), true).unwrap();
            assert!(told.contains("program_forbidden: "), "{told}");
        }
        assert!(listed.refuses(&sh(), true).is_some());
        let relative = EngineConfig {
            process: ProcessConfig { allowed: Arc::new(["env".to_owned()]), ..listed },
            ..EngineConfig::new(instance_id())
        };
        assert_eq!(relative.validate(), Err(ConfigError::ProgramRelative("env".to_owned())));
    }

    #[test]
    fn two_instances_have_two_names() {
        assert_ne!(instance_id(), instance_id());
    }
}
