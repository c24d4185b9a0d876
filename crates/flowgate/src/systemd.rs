//! What a service manager is told, where there is one (`Type=notify`).

use std::time::Duration;

use sd_notify::NotifyState;

/// It works.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// What it is doing.
pub(crate) fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// It is not up yet, and wants that much more time for it.
pub(crate) fn starting(status: &str, more: Duration) {
    let more = u32::try_from(more.as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::ExtendTimeoutUsec(more), NotifyState::Status(status)]);
}

/// It ends.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// It lives.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How often the service manager wants to hear that it lives, if it does.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}
