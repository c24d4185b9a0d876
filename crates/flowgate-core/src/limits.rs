//! Every limit, with its name. A value over a limit is refused before anything is written.

use std::time::Duration;

/// Bytes of a name of a flow, step, event, queue, worker or signal.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of a flow file.
pub const FLOW_FILE_BYTES_MAX: usize = 1 << 20;
/// Bytes of the description of a flow or a step.
pub const DESCRIPTION_BYTES_MAX: usize = 10_000;
/// Bytes of a topic that a step publishes to: MQTT has no longer text.
pub const TOPIC_BYTES_MAX: usize = 65_535;
/// Bytes of the name of whoever registered a revision.
pub const AUTHOR_BYTES_MAX: usize = 256;
/// Bytes of what a revision is registered for.
pub const NOTE_BYTES_MAX: usize = 4 << 10;
/// Steps of a flow.
pub const STEPS_MAX: usize = 1_000;
/// Event names that one step may declare, or subscribe to.
pub const EVENTS_PER_STEP_MAX: usize = 100;
/// Event names of a flow, with those of `step:` and `step.failed:`.
pub const SLOTS_MAX: usize = 10_000;
/// Bytes of a payload: a start's input, an emitted event's data, a result, a signal's data.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Levels that a payload may nest.
pub const PAYLOAD_DEPTH_MAX: usize = 64;
/// Events that one attempt may emit.
pub const EMITS_PER_ATTEMPT_MAX: usize = 10_000;
/// Bytes of all payloads of one commit.
pub const COMMIT_BYTES_MAX: usize = 16 << 20;
/// Names of state values in a run.
pub const STATE_KEYS_MAX: usize = 256;
/// Bytes of one state value.
pub const STATE_VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a log line; the rest is cut off and said so.
pub const LOG_LINE_BYTES_MAX: usize = 8 << 10;
/// Log lines kept for one run; later ones are counted, not kept.
pub const LOG_LINES_MAX: u64 = 10_000;
/// Bytes of an error's message; the rest is cut off.
pub const ERROR_BYTES_MAX: usize = 4 << 10;
/// Bytes of a start's key.
pub const KEY_BYTES_MAX: usize = 512;
/// Tags of a run.
pub const TAGS_MAX: usize = 32;
/// Signals that a run keeps for waits that have not begun.
pub const SIGNALS_KEPT_MAX: usize = 100;
/// Leases of one step that may be lost before the step fails: a step that ends its process each
/// time must not do so for ever.
pub const LOST_MAX: u32 = 25;
/// Attempts that a retry policy may allow.
pub const ATTEMPTS_MAX: u32 = 1_000;
/// The longest delay, timeout or wait.
pub const DURATION_MAX: Duration = Duration::from_hours(366 * 24);
/// Commits in one call to a store.
pub const COMMIT_BATCH_MAX: usize = 512;
/// Jobs in one claim.
pub const CLAIM_BATCH_MAX: usize = 512;
/// Rows in one page of a listing.
pub const PAGE_MAX: usize = 1_000;
/// The highest priority of a job.
pub const PRIORITY_MAX: u8 = 9;
/// The most that a limit of jobs at once, or in a span, may be.
pub const LIMIT_MAX: u32 = 1_000_000;
/// Schedules of a flow file.
pub const SCHEDULES_MAX: usize = 100;
/// Bytes of a schedule's name, with that of its flow.
pub const SCHEDULE_NAME_BYTES_MAX: usize = 1_000;
/// Bytes of a cron expression.
pub const CRON_BYTES_MAX: usize = 256;
/// The shortest interval of a schedule.
pub const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The longest window in which a schedule catches up.
pub const CATCH_UP_WINDOW_MAX: Duration = Duration::from_hours(31 * 24);
/// Occurrences of a schedule that are decided in one go, or wait to be started.
pub const OCCURRENCES_MAX: usize = 500;
