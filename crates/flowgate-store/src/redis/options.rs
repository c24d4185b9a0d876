//! Where a Redis store is, and how it is used.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo};

/// The greatest number of partitions.
const PARTITIONS_MAX: u16 = 256;
/// Bytes of a prefix.
const PREFIX_BYTES_MAX: usize = 64;

/// Which Redis to use, and how.
///
/// Read from a URL: `redis://[USER:PASSWORD@]HOST:PORT[/DB]`, `redis-cluster://HOST:PORT,HOST:PORT`
/// or `redis+sentinel://HOST:PORT,HOST:PORT/PRIMARY[/DB]`, with `rediss` in place of `redis` for
/// TLS. Parameters: `prefix` (of all keys, `fg` by default), `partitions`, `allow_volatile=true`,
/// `ca` (a file of PEM certificates to trust in place of the system's), and for Sentinel
/// `sentinel_user` and `sentinel_password`.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    pub(super) servers: Servers,
    /// What all keys and the channel begin with.
    pub prefix: String,
    /// Into how many partitions a new data set is divided; one by default, 16 on Redis Cluster.
    /// An existing data set keeps its number, and another one is refused.
    pub partitions: Option<u16>,
    /// Whether a server may be used that loses acknowledged writes when it ends or is full.
    pub allow_volatile: bool,
    /// How long to wait for an answer, and for a connection.
    pub call_timeout: Duration,
}

/// Where the servers are.
#[derive(Clone, Debug)]
pub(super) struct Servers {
    pub(super) kind: ServersKind,
    /// The certificates to trust in place of the system's.
    pub(super) authorities: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub(super) enum ServersKind {
    Single(Box<ConnectionInfo>),
    Cluster(Vec<ConnectionInfo>),
    Sentinel { sentinels: Vec<ConnectionInfo>, primary: String, node: Box<ConnectionInfo> },
}

/// Why a URL names no Redis.
#[derive(Debug, thiserror::Error)]
pub enum RedisUrlError {
    /// It begins otherwise.
    #[error(
        "`{0}` is no Redis store: its URL begins with redis://, rediss://, redis-cluster://, \
         rediss-cluster://, redis+sentinel:// or rediss+sentinel://"
    )]
    Scheme(String),
    /// A host, port, user, password or database is not written as one.
    #[error("`{0}` is no address of Redis, such as 127.0.0.1:6379")]
    Address(String, #[source] Option<redis::RedisError>),
    /// It names Sentinels and no primary.
    #[error("after the Sentinels the URL names the primary: redis+sentinel://HOST:PORT/PRIMARY")]
    Primary,
    /// A parameter is not known.
    #[error(
        "`{0}` is no parameter of a Redis store; there are prefix, partitions, allow_volatile, ca, \
         sentinel_user and sentinel_password"
    )]
    Parameter(String),
    /// A parameter has a value that it cannot have.
    #[error("`{value}` cannot be the {parameter} of a Redis store: {reason}")]
    Value {
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl FromStr for RedisOptions {
    type Err = RedisUrlError;

    fn from_str(url: &str) -> Result<Self, RedisUrlError> {
        let no_scheme = || RedisUrlError::Scheme(url.split("://").next().unwrap_or(url).to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(no_scheme)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let parameters = Parameters::parse(query)?;
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let address = Address {
            scheme: if scheme.starts_with("rediss") { "rediss" } else { "redis" },
            user: authority.rsplit_once('@').map(|(user, _)| user),
            hosts: authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts),
        };
        let kind = match scheme {
            "redis" | "rediss" => ServersKind::Single(Box::new(address.single(path)?)),
            "redis-cluster" | "rediss-cluster" if path.is_empty() => {
                ServersKind::Cluster(address.all()?)
            }
            "redis-cluster" | "rediss-cluster" => {
                return Err(RedisUrlError::Address(format!("{authority}/{path}"), None));
            }
            "redis+sentinel" | "rediss+sentinel" => parameters.sentinel(&address, path)?,
            _ => return Err(no_scheme()),
        };
        Ok(Self {
            servers: Servers { kind, authorities: parameters.authorities },
            prefix: parameters.prefix.unwrap_or_else(|| "fg".to_owned()),
            partitions: parameters.partitions,
            allow_volatile: parameters.allow_volatile,
            call_timeout: Duration::from_millis(2_500),
        })
    }
}

/// The part of a URL that says where.
struct Address<'a> {
    scheme: &'static str,
    user: Option<&'a str>,
    hosts: &'a str,
}

impl Address<'_> {
    fn single(&self, path: &str) -> Result<ConnectionInfo, RedisUrlError> {
        if self.hosts.contains(',') {
            return Err(RedisUrlError::Address(self.hosts.to_owned(), None));
        }
        self.info(self.hosts, self.user, path)
    }

    fn all(&self) -> Result<Vec<ConnectionInfo>, RedisUrlError> {
        self.hosts.split(',').map(|host| self.info(host, self.user, "")).collect()
    }

    fn info(
        &self,
        host: &str,
        user: Option<&str>,
        path: &str,
    ) -> Result<ConnectionInfo, RedisUrlError> {
        if host.is_empty() {
            return Err(RedisUrlError::Address(host.to_owned(), None));
        }
        let user = user.map(|user| format!("{user}@")).unwrap_or_default();
        let url = format!("{}://{user}{host}/{path}", self.scheme);
        // The user's part is left out: it may hold a password.
        url.into_connection_info()
            .map_err(|error| RedisUrlError::Address(format!("{host}/{path}"), Some(error)))
    }
}

#[derive(Debug, Default)]
struct Parameters {
    prefix: Option<String>,
    partitions: Option<u16>,
    allow_volatile: bool,
    authorities: Option<PathBuf>,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
}

impl Parameters {
    fn parse(query: &str) -> Result<Self, RedisUrlError> {
        let mut parameters = Self::default();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let bad = |parameter, reason| RedisUrlError::Value {
                parameter,
                value: value.clone().into_owned(),
                reason,
            };
            match &*name {
                "prefix" if is_prefix(&value) => parameters.prefix = Some(value.into_owned()),
                "prefix" => {
                    return Err(bad(
                        "prefix",
                        "it is 1 to 64 ASCII letters, digits, `.`, `_`, `-`, `:`",
                    ));
                }
                "partitions" => {
                    let number = value.parse().ok().filter(|n| (1..=PARTITIONS_MAX).contains(n));
                    let number = number.ok_or_else(|| bad("partitions", "it is from 1 to 256"))?;
                    parameters.partitions = Some(number);
                }
                "allow_volatile" => {
                    parameters.allow_volatile =
                        value.parse().map_err(|_| bad("allow_volatile", "it is true or false"))?;
                }
                "ca" => parameters.authorities = Some(PathBuf::from(value.into_owned())),
                "sentinel_user" => parameters.sentinel_user = Some(value.into_owned()),
                "sentinel_password" => parameters.sentinel_password = Some(value.into_owned()),
                _ => return Err(RedisUrlError::Parameter(name.into_owned())),
            }
        }
        Ok(parameters)
    }

    fn sentinel(&self, address: &Address<'_>, path: &str) -> Result<ServersKind, RedisUrlError> {
        let (primary, database) = path.split_once('/').unwrap_or((path, ""));
        if primary.is_empty() {
            return Err(RedisUrlError::Primary);
        }
        let sentinels = address.hosts.split(',').map(|host| {
            let info = address.info(host, None, "")?;
            let mut settings = info.redis_settings().clone();
            if let Some(user) = &self.sentinel_user {
                settings = settings.set_username(user);
            }
            if let Some(password) = &self.sentinel_password {
                settings = settings.set_password(password);
            }
            Ok(info.set_redis_settings(settings))
        });
        // Only its user, password, database and TLS count: the Sentinels know the place.
        let node = address.info("primary", address.user, database)?;
        Ok(ServersKind::Sentinel {
            sentinels: sentinels.collect::<Result<_, _>>()?,
            primary: primary.to_owned(),
            node: Box::new(node),
        })
    }
}

/// A brace would move the hash tag that keeps a partition together.
fn is_prefix(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':');
    (1..=PREFIX_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, expected: &str) {
        let shown = match url.parse::<RedisOptions>() {
            Err(error) => error.to_string(),
            Ok(options) => match &options.servers.kind {
                ServersKind::Single(info) => format!("{} {}", info.addr(), options.prefix),
                ServersKind::Cluster(nodes) => {
                    let nodes: Vec<_> = nodes.iter().map(|node| node.addr().to_string()).collect();
                    format!("{} {:?}", nodes.join(" "), options.partitions)
                }
                ServersKind::Sentinel { sentinels, primary, node } => {
                    let database = node.redis_settings().db();
                    format!("{} {primary} {database}", sentinels[0].addr())
                }
            },
        };
        assert!(shown.contains(expected), "{url}: {shown}");
    }

    #[test]
    fn a_url_names_a_server_a_cluster_or_sentinels() {
        check("redis://127.0.0.1:7000", "127.0.0.1:7000 fg");
        check("redis://:secret@cache/3?prefix=team-a", "cache:6379 team-a");
        check("rediss://cache:7001", "cache:7001");
        check("redis-cluster://a:1,b:2", "a:1 b:2 None");
        check("redis-cluster://a:1,b:2/?partitions=64", "a:1 b:2 Some(64)");
        check("redis+sentinel://a:26379,b:26379/main/2", "a:26379 main 2");
    }

    #[test]
    fn a_url_that_names_none_says_what_is_wrong() {
        check("http://a", "begins with redis://");
        check("redis", "begins with redis://");
        check("redis://", "is no address");
        check("redis://a:port", "`a:port/` is no address");
        check("redis://a:1,b:2", "`a:1,b:2` is no address");
        check("redis://a/x", "`a/x` is no address");
        check("redis-cluster://a:1/3", "`a:1/3` is no address");
        check("redis-cluster://a:1,,b:2", "`` is no address");
        check("redis+sentinel://a:26379", "names the primary");
        check("redis://a?partitions=0", "`0` cannot be the partitions");
        check("redis://a?partitions=many", "from 1 to 256");
        check("redis://a?prefix=a{b}", "`a{b}` cannot be the prefix");
        check("redis://a?prefix=", "cannot be the prefix");
        check("redis://a?allow_volatile=1", "it is true or false");
        check("redis://a?pefix=x", "`pefix` is no parameter");
    }
}
