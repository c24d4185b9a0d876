//! Where requests of steps may go: to the outside, and inside only where somebody said so.
//!
//! A URL comes from a flow, and a flow may come from somebody who cannot reach the network that the
//! instance is in. So an address counts as it is connected to: names are resolved here and what
//! they resolve to is filtered, on each connection, so that a name that changes its address later
//! gains nothing. An address that stands in the URL itself never gets to a resolver and is checked
//! before the request, and so is each hop of a redirect.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// What steps may reach of the addresses that are not public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrivateTargets {
    /// All of them.
    All,
    /// These; none if the list is empty.
    Only(Vec<PrivateTarget>),
}

/// Addresses or a host that steps may reach although they are not public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrivateTarget {
    /// The addresses whose first `bits` bits are those of `address`.
    Network {
        /// One of them.
        address: IpAddr,
        /// How many bits they share.
        bits: u8,
    },
    /// Whatever this name resolves to; in small letters, without a dot at its end.
    Host(String),
}

/// A text that is neither addresses nor a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an address, nor a network such as 10.0.0.0/8, nor the name of a host")]
pub struct PrivateTargetError(String);

/// Who says which addresses a name has.
#[derive(Clone)]
pub struct Resolver(Option<Arc<Lookup>>);

type Lookup = dyn Fn(&str) -> Vec<IpAddr> + Send + Sync;

/// A request that is not sent because of where it would go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ssrf_blocked: {}, {kind}; if the step is meant to reach it, put it into the setting \
     `http.allow_private`",
    Place(.host, *.address)
)]
pub(crate) struct Blocked {
    host: String,
    address: IpAddr,
    kind: &'static str,
}

/// A host and its address, which may be the same.
struct Place<'a>(&'a str, IpAddr);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(host, address) = self;
        if host.parse::<IpAddr>().ok() == Some(*address) {
            write!(f, "the URL leads to {address}")
        } else {
            write!(f, "`{host}` resolves to {address}")
        }
    }
}

impl PrivateTargets {
    /// Nothing but what is public.
    pub const NONE: Self = Self::Only(Vec::new());

    /// Checks a URL as far as that is possible without a resolver.
    pub(crate) fn check_url(&self, url: &Url) -> Result<(), Blocked> {
        let Some(host) = url.host_str() else { return Ok(()) };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match bare.parse() {
            Ok(address) => self.check(bare, address),
            Err(_) => Ok(()),
        }
    }

    fn check(&self, host: &str, address: IpAddr) -> Result<(), Blocked> {
        let Some(kind) = kind(address) else { return Ok(()) };
        if self.allows(host, address) {
            return Ok(());
        }
        Err(Blocked { host: host.to_owned(), address, kind })
    }

    fn allows(&self, host: &str, address: IpAddr) -> bool {
        match self {
            Self::All => true,
            Self::Only(targets) => targets.iter().any(|target| match target {
                PrivateTarget::Network { address: one, bits } => shares(*one, address, *bits),
                PrivateTarget::Host(name) => *name == plain(host),
            }),
        }
    }
}

impl FromStr for PrivateTarget {
    type Err = PrivateTargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || PrivateTargetError(text.to_owned());
        let (start, bits) = match text.split_once('/') {
            Some((start, bits)) => (start, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        if let Ok(address) = start.parse::<IpAddr>() {
            let bits_max = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.unwrap_or(bits_max);
            return if bits <= bits_max {
                Ok(Self::Network { address, bits })
            } else {
                Err(wrong())
            };
        }
        let is_host = bits.is_none()
            && start.bytes().any(|b| b.is_ascii_alphabetic())
            && start.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        if is_host { Ok(Self::Host(plain(start))) } else { Err(wrong()) }
    }
}

impl Resolver {
    /// That of the operating system.
    pub const SYSTEM: Self = Self(None);

    /// One that asks nobody: `lookup` knows the addresses of every name.
    pub fn with(lookup: impl Fn(&str) -> Vec<IpAddr> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(lookup)))
    }

    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let found: Vec<IpAddr> = match &self.0 {
            Some(lookup) => lookup(host),
            None => tokio::net::lookup_host((host, 0)).await?.map(|found| found.ip()).collect(),
        };
        if found.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("`{host}` has no address"),
            ));
        }
        Ok(found)
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Resolver::with(…)" } else { "Resolver::SYSTEM" })
    }
}

/// A resolver that keeps addresses back to which requests may not go.
#[derive(Clone, Debug)]
pub(super) struct Guarded {
    pub(super) resolver: Resolver,
    pub(super) allowed: PrivateTargets,
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let guarded = self.clone();
        Box::pin(async move {
            let host = name.as_str();
            let found = if is_localhost(host) {
                // Such a name means this host, whatever a resolver says.
                vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            } else {
                guarded.resolver.resolve(host).await?
            };
            let mut blocked = None;
            let mut open = Vec::new();
            for address in found {
                match guarded.allowed.check(host, address) {
                    Ok(()) => open.push(SocketAddr::new(address, 0)),
                    Err(why) => blocked = blocked.or(Some(why)),
                }
            }
            match blocked {
                Some(why) if open.is_empty() => Err(why.into()),
                Some(_) | None => Ok(Box::new(open.into_iter()) as Addrs),
            }
        })
    }
}

/// Why an attempt to send failed, if it is that the request may not go there.
pub(super) fn blocked(error: &reqwest::Error) -> Option<&Blocked> {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(blocked) = error.downcast_ref() {
            return Some(blocked);
        }
        cause = error.source();
    }
    None
}

fn plain(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

fn is_localhost(host: &str) -> bool {
    let host = plain(host);
    host == "localhost" || host.ends_with(".localhost")
}

/// Whether two addresses share their first `bits` bits.
fn shares(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    match (one, other.to_canonical()) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            let differing = u32::from(one) ^ u32::from(other);
            differing.leading_zeros() >= u32::from(bits)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            let differing = u128::from(one) ^ u128::from(other);
            differing.leading_zeros() >= u32::from(bits)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

const LOOPBACK: &str = "a loopback address";
const UNSPECIFIED: &str = "an unspecified address";
const PRIVATE: &str = "a private address";
const LINK_LOCAL: &str = "a link-local address, as those of cloud metadata are";
const METADATA: &str = "an address of cloud metadata";
const CARRIER: &str = "a shared address behind a carrier's NAT";
const DOCUMENTATION: &str = "an address for documentation";
const MULTICAST: &str = "a multicast address";
const RESERVED: &str = "a reserved address";

/// IPv4 networks that are not public: how each begins, its bits and what it is.
const V4_KINDS: [([u8; 4], u8, &str); 16] = [
    ([0, 0, 0, 0], 8, UNSPECIFIED),
    ([10, 0, 0, 0], 8, PRIVATE),
    ([100, 64, 0, 0], 10, CARRIER),
    ([127, 0, 0, 0], 8, LOOPBACK),
    ([168, 63, 129, 16], 32, METADATA),
    ([169, 254, 0, 0], 16, LINK_LOCAL),
    ([172, 16, 0, 0], 12, PRIVATE),
    ([192, 0, 0, 0], 24, RESERVED),
    ([192, 0, 2, 0], 24, DOCUMENTATION),
    ([192, 88, 99, 0], 24, RESERVED),
    ([192, 168, 0, 0], 16, PRIVATE),
    ([198, 18, 0, 0], 15, RESERVED),
    ([198, 51, 100, 0], 24, DOCUMENTATION),
    ([203, 0, 113, 0], 24, DOCUMENTATION),
    ([224, 0, 0, 0], 4, MULTICAST),
    ([240, 0, 0, 0], 4, RESERVED),
];

/// What an address is if it is not public.
fn kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

fn kind_v4(address: Ipv4Addr) -> Option<&'static str> {
    let is_in = |start: [u8; 4], bits| shares(Ipv4Addr::from(start).into(), address.into(), bits);
    V4_KINDS.iter().find(|(start, bits, _)| is_in(*start, *bits)).map(|(.., kind)| *kind)
}

fn kind_v6(address: Ipv6Addr) -> Option<&'static str> {
    if let Some(inner) = address.to_ipv4_mapped() {
        return kind_v4(inner);
    }
    let parts = address.segments();
    match parts {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(UNSPECIFIED),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(LOOPBACK),
        // Behind a translator and in a tunnel the address inside is the one that is reached.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            kind_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
        }
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(DOCUMENTATION),
        // Assignments of the IETF, with tunnels that hide an address.
        [0x2001, 0..=0x1ff, ..] => Some(RESERVED),
        [0x2000..=0x3fff, ..] => None,
        [0xfc00..=0xfdff, ..] => Some(PRIVATE),
        [0xfe80..=0xfebf, ..] => Some(LINK_LOCAL),
        [0xff00..=0xffff, ..] => Some(MULTICAST),
        // Public addresses all begin with 2 or 3.
        _ => Some(RESERVED),
    }
}

#[cfg(test)]
mod tests;
