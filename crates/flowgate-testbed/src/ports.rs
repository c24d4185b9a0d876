//! Ports of the loopback interface.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};

/// The ports that servers get.
///
/// They lie below those that Linux gives to outgoing connections by default: there a client which
/// connects again and again to a server that is down would sooner or later get that very port
/// for its own end, connect to itself, and keep the server from coming back.
const PORTS: std::ops::Range<u16> = 15_000..32_000;

/// How many ports are looked at until one is free.
const LOOKS_MAX: usize = 1_000;

/// The ports that this process was given: its servers must not take them from each other.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port of the loopback interface that nobody listens on, and that was not given before.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let count = u64::from(PORTS.end - PORTS.start);
    for _ in 0..LOOKS_MAX {
        // Each `RandomState` has keys of its own, which is all the chance that is needed here.
        let offset = u16::try_from(RandomState::new().build_hasher().finish() % count)
            .context("choosing a port")?;
        let port = PORTS.start + offset;
        let is_new = GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port);
        if is_new && !is_taken(port) {
            return Ok(port);
        }
    }
    bail!("no free port between {} and {}", PORTS.start, PORTS.end)
}

/// Whether somebody listens on this port of the loopback interface.
pub(crate) fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_until_somebody_listens_on_it() {
        let port = free_port().unwrap();
        assert!(PORTS.contains(&port));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(is_taken(port));
        drop(listener);
        assert!(!is_taken(port));
    }
}
