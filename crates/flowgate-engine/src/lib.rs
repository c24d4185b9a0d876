//! The processes of a flowgate instance.
//!
//! The core decides, the store applies, the engine waits: an [`Engine`] claims due jobs, executes
//! their attempts, keeps their leases, and commits what the rules decide about their ends.
//!
//! - Executing a step at least once, and settling it at most once, needs no lock here: every commit
//!   is guarded by the lease that it is made under and by the run's version.
//! - A run is decided in one place, the committer, which batches and joins.
//! - User code runs as tasks; it can fail, panic, block or never end without harm to other runs.
#![warn(missing_docs)]

mod attempt;
mod audit;
mod backoff;
mod beats;
mod clock;
mod committer;
mod config;
mod context;
mod dead;
mod dead_messages;
mod debounce;
mod debouncer;
mod degradation;
mod deploys;
mod ends;
mod error;
mod executor;
mod flows;
mod follow;
mod foreign;
mod gates;
mod health;
mod housekeeping;
mod id_map;
mod in_flight;
mod inbox;
mod instance;
mod leadership;
mod leases;
mod logs;
mod metrics;
mod moves;
mod permits;
mod queues;
pub mod remote;
mod retries;
mod run_ids;
mod scheduler;
mod schedules;
mod secrets;
mod singleton;
mod slots;
mod starts;
pub mod subscriber;
mod supervisor;
mod text;
mod worker;

pub use attempt::Stop;
pub use audit::{
    AuditPage, AuditQuery, AuditSummary, AuditTrail, SUMMARY_RUNS_MAX, TRAIL_MARKS_MAX,
    audit_entries, audit_summary, audit_trail,
};
pub use config::{
    ConfigError, EngineConfig, HttpConfig, LEADER_LEASE_MIN, LEASE_MIN, ProcessConfig, Renewals,
    SLOTS_DEFAULT, SLOTS_MAX, SchedulerConfig, instance_id,
};
pub use context::{ContextError, StepContext};
pub use dead::{DeadFilter, DeadLetter, DeadReason, Fate, dead_letters, drop_dead_letter, fate_of};
pub use dead_messages::{
    DEAD_MESSAGE_BYTES_MAX, DEAD_MESSAGE_KEPT, DeadMessage, FirstBytes, KeptMessage,
    dead_message_key, dead_messages, keep_dead_message,
};
pub use debounce::{Debounced, StartDebounce, find as find_debounced};
pub use degradation::{Bounds, Degradation, DegradationConfig};
pub use deploys::{
    Ask, Checkpoint, CheckpointState, CheckpointStep, DeployPlan, DeployProgress, DeployRequest,
    canary_figures, checkpoints, deployment_progress, deployment_report, deployments,
    find_checkpoint, find_deployment, open_deployments,
};
pub use error::{EngineError, FlowError};
pub use executor::http::guard::{PrivateTarget, PrivateTargetError, PrivateTargets, Resolver};
pub use executor::publish::{OutgoingMessage, Publisher};
pub use executor::worker::{HandlerError, Workers};
pub use follow::{FollowFrom, Follower};
pub use gates::{GateStanding, HoldRequest};
pub use health::Health;
pub use instance::Applied;
pub use leadership::{FLAP_TERMS_MAX, FLAP_WINDOW, Leadership, flapping_terms};
pub use moves::{Move, MoveTo};
pub use queues::{QueueRate, QueueSettings, change_queue, queue_settings};
pub use retries::RetryOn;
pub use schedules::{NamedSchedule, OCCURRENCE, SCHEDULE, read_ledger, read_schedules};
pub use secrets::{Secret, SecretFault, Secrets};
pub use supervisor::{Engine, FlowRef, QueueDepth, StartRequest, Started, Stats};
