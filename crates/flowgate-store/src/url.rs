//! Where a store is, in one line of text.
//!
//! ```text
//!   memory:                                    in this process, until it ends
//!   sqlite:PATH                                in this file
//!   redis://USER:PASSWORD@HOST:PORT/DB         also rediss:// (TLS)
//!   redis-cluster://HOST:PORT,HOST:PORT        also rediss-cluster://
//!   redis+sentinel://HOST:PORT,HOST:PORT/NAME  also rediss+sentinel://
//!   postgres://USER:PASSWORD@HOST:PORT/DB      also postgresql://
//! ```
//!
//! A URL may hold a password, so what is shown of one is masked; no error repeats it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use flowgate_core::flow::nearest;

use crate::{
    Breaker, Finding, Instrumented, PostgresOptions, PostgresStore, RedisOptions, RedisStore,
    RedisUrlError, Store, StoreError, postgres, redis, sqlite,
};

/// What stands for a secret.
const MASK: &str = "***";

/// What a URL may begin with, each with an example.
const SCHEMES: [(&str, &str); 10] = [
    ("memory", "memory:"),
    ("sqlite", "sqlite:.flowgate/flowgate.db"),
    ("redis", "redis://localhost:6379"),
    ("rediss", "rediss://user:password@redis.example:6380"),
    ("redis-cluster", "redis-cluster://one:6379,two:6379,three:6379"),
    ("rediss-cluster", "rediss-cluster://one:6379,two:6379,three:6379"),
    ("redis+sentinel", "redis+sentinel://one:26379,two:26379,three:26379/primary"),
    ("rediss+sentinel", "rediss+sentinel://one:26379,two:26379,three:26379/primary"),
    ("postgres", "postgres://user@localhost:5432/flowgate"),
    ("postgresql", "postgresql://user@localhost:5432/flowgate"),
];

/// Where a store is.
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// In this process, until it ends.
    Memory,
    /// In this file.
    Sqlite(PathBuf),
    /// On Redis, Redis Cluster or behind Sentinel.
    Redis(Remote<RedisOptions>),
    /// On PostgreSQL.
    Postgres(Remote<PostgresOptions>),
}

/// A store that is reached over a network.
#[derive(Clone, Debug)]
pub struct Remote<O> {
    /// How it is reached and used.
    pub options: O,
    shown: String,
}

/// Why a text is not the URL of a store.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreUrlError {
    message: String,
    /// What to write instead.
    pub help: String,
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let no_url = || StoreUrlError {
            message: format!("`{}` is not a store URL", masked(text)),
            help: format!("write one such as {}", examples()),
        };
        let (scheme, rest) = text.split_once(':').ok_or_else(no_url)?;
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "sqlite" if !rest.is_empty() && !is_with_host(rest) => {
                // `sqlite:///a` is how other tools write an absolute path.
                let path = if rest.starts_with("///") { &rest[2..] } else { rest };
                Ok(Self::Sqlite(path.into()))
            }
            "memory" | "sqlite" => Err(no_url()),
            "postgres" | "postgresql" if rest.starts_with("//") => {
                let options = PostgresOptions::new(text)
                    .map_err(|error| wrong(scheme, &plain_message(error)))?;
                Ok(Self::Postgres(Remote { options, shown: masked(text) }))
            }
            known if known.starts_with("redis") && is_known(known) && rest.starts_with("//") => {
                let options = text
                    .parse()
                    .map_err(|error: RedisUrlError| wrong(known, &error.to_string()))?;
                Ok(Self::Redis(Remote { options, shown: masked(text) }))
            }
            known if is_known(known) => {
                Err(wrong(known, &format!("after `{known}:` comes `//` and a host")))
            }
            unknown if is_scheme(unknown) => Err(StoreUrlError {
                message: format!("there is no store `{unknown}:`"),
                help: match nearest(unknown, SCHEMES.iter().map(|(name, _)| *name)) {
                    Some(near) => format!("did you mean `{near}:`, as in {}?", example(near)),
                    None => format!("write one such as {}", examples()),
                },
            }),
            _ => Err(no_url()),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Redis(remote) => f.write_str(&remote.shown),
            Self::Postgres(remote) => f.write_str(&remote.shown),
        }
    }
}

impl StoreUrl {
    /// Lets a store be used that may lose what it acknowledged; only Redis can be such a one.
    pub fn allow_volatile(&mut self) {
        match self {
            Self::Redis(remote) => remote.options.allow_volatile = true,
            Self::Memory | Self::Sqlite(_) | Self::Postgres(_) => {}
        }
    }

    /// Whether more than one instance may use the store at the same time.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Memory | Self::Sqlite(_) => false,
            Self::Redis(_) | Self::Postgres(_) => true,
        }
    }

    /// Looks at the store and its settings for what may cost runs, without changing anything.
    pub async fn examine(&self) -> Vec<Finding> {
        match self {
            Self::Memory => {
                let remedy = "keep runs with sqlite:PATH";
                vec![Finding::warning("store", "runs end with their process", remedy)]
            }
            Self::Sqlite(path) => sqlite::examine(path).await,
            Self::Redis(remote) => redis::examine(&remote.options).await,
            Self::Postgres(remote) => postgres::examine(&remote.options).await,
        }
    }

    /// Opens a shared store, as an instance needs it: a store that does not answer is not waited
    /// for again and again, and every call that reaches it is measured.
    pub async fn open_shared(&self) -> Result<Arc<dyn Store>, StoreError> {
        let store: Arc<dyn Store> = match self {
            Self::Memory | Self::Sqlite(_) => {
                let message = format!("{self} cannot be shared; name a server");
                return Err(StoreError::Incompatible { message });
            }
            Self::Redis(remote) => Arc::new(RedisStore::open(remote.options.clone()).await?),
            Self::Postgres(remote) => Arc::new(PostgresStore::open(remote.options.clone()).await?),
        };
        Ok(Arc::new(Breaker::new(Arc::new(Instrumented::new(store)))))
    }
}

/// Opens the shared store that `url` names, as an instance needs it.
pub async fn open_shared(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let parsed: StoreUrl = url.parse().map_err(|error: StoreUrlError| {
        let message = format!("{error}; {}", error.help);
        StoreError::Incompatible { message }
    })?;
    parsed.open_shared().await
}

/// `url` without its passwords, also where it is not a URL of ours.
pub fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (place, query) = match rest.split_once('?') {
        Some((place, query)) if place.contains('@') || !query.contains('@') => (place, Some(query)),
        // A password with a `?` in it: what looks like parameters is part of the secret.
        Some(_) | None => (rest, None),
    };
    let place = match place.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:{MASK}@{host}"),
            None => place.to_owned(),
        },
        None => place.to_owned(),
    };
    let Some(query) = query else { return format!("{scheme}://{place}") };
    let parameters: Vec<String> = query.split('&').map(masked_parameter).collect();
    format!("{scheme}://{place}?{}", parameters.join("&"))
}

fn masked_parameter(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, _)) if name.to_ascii_lowercase().contains("pass") => format!("{name}={MASK}"),
        // A URL as a value may have a password of its own.
        Some((name, value)) if value.contains('@') || value.contains("%40") => {
            format!("{name}={MASK}")
        }
        Some(_) | None => parameter.to_owned(),
    }
}

fn wrong(scheme: &str, message: &str) -> StoreUrlError {
    StoreUrlError { message: message.to_owned(), help: format!("write it as {}", example(scheme)) }
}

/// What is wrong with a URL, without what is said about stores in general.
fn plain_message(error: StoreError) -> String {
    match error {
        StoreError::Incompatible { message } => message,
        other @ (StoreError::Unavailable { .. }
        | StoreError::Full { .. }
        | StoreError::Owned { .. }
        | StoreError::ReadOnly
        | StoreError::Corrupt { .. }
        | StoreError::Unsafe { .. }) => other.to_string(),
    }
}

fn is_known(scheme: &str) -> bool {
    SCHEMES.iter().any(|(name, _)| *name == scheme)
}

fn example(scheme: &str) -> &'static str {
    let found = SCHEMES.iter().find(|(name, _)| *name == scheme);
    found.expect("the scheme is one of ours").1
}

fn examples() -> String {
    ["memory", "sqlite", "redis", "redis-cluster", "postgres"].map(example).join(", ")
}

/// `sqlite://host/path` names a file on another machine, which no SQLite can open.
fn is_with_host(rest: &str) -> bool {
    rest.starts_with("//") && !rest.starts_with("///")
}

fn is_scheme(text: &str) -> bool {
    let is_letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.' | b'_');
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, expected: &str) {
        let shown = match url.parse::<StoreUrl>() {
            Ok(parsed) => parsed.to_string(),
            Err(error) => format!("{error} ({})", error.help),
        };
        assert_eq!(shown, expected, "{url}");
    }

    #[test]
    fn a_url_names_a_store_and_shows_no_password() {
        check("memory:", "memory:");
        check("sqlite:a.db", "sqlite:a.db");
        check("sqlite:/var/a.db", "sqlite:/var/a.db");
        check("sqlite:///var/a.db", "sqlite:/var/a.db");
        check("postgres://u:secret@h:1/db?schema=a", "postgres://u:***@h:1/db?schema=a");
        check("postgresql://u@h/db", "postgresql://u@h/db");
        check("redis://:secret@h:1/0?prefix=a", "redis://:***@h:1/0?prefix=a");
        check("rediss-cluster://a:1,b:2", "rediss-cluster://a:1,b:2");
        check("redis+sentinel://a:1/main", "redis+sentinel://a:1/main");
    }

    #[test]
    fn a_text_that_names_no_store_says_what_to_write() {
        let all = "write one such as memory:, sqlite:.flowgate/flowgate.db, \
                   redis://localhost:6379, redis-cluster://one:6379,two:6379,three:6379, \
                   postgres://user@localhost:5432/flowgate";
        check("here.db", &format!("`here.db` is not a store URL ({all})"));
        check("", &format!("`` is not a store URL ({all})"));
        check("sqlite:", &format!("`sqlite:` is not a store URL ({all})"));
        check("sqlite://host/a.db", &format!("`sqlite://host/a.db` is not a store URL ({all})"));
        check("memory:a", &format!("`memory:a` is not a store URL ({all})"));
        check("mysql://h/db", &format!("there is no store `mysql:` ({all})"));
        check(
            "postgre://u:secret@h/db",
            "there is no store `postgre:` (did you mean `postgres:`, as in \
             postgres://user@localhost:5432/flowgate?)",
        );
        check(
            "postgres:h/db",
            "after `postgres:` comes `//` and a host \
             (write it as postgres://user@localhost:5432/flowgate)",
        );
    }

    #[test]
    fn a_bad_part_of_a_redis_url_is_named() {
        check(
            "redis://h?partitions=0",
            "`0` cannot be the partitions of a Redis store: it is from 1 to 256 \
             (write it as redis://localhost:6379)",
        );
        check(
            "redis-clutser://h",
            "there is no store `redis-clutser:` (did you mean `redis-cluster:`, as in \
             redis-cluster://one:6379,two:6379,three:6379?)",
        );
    }

    #[test]
    fn a_pooler_may_have_the_server_behind_it_named_for_hints() {
        let url =
            "postgres://u@pooler/db?listen_url=postgres%3A%2F%2Fu%40server%2Fdb%3Fa%3Db&schema=s";
        let parsed: StoreUrl = url.parse().expect("a URL");
        let StoreUrl::Postgres(remote) = parsed else { panic!("it is PostgreSQL") };
        assert_eq!(remote.options.listen_url.as_deref(), Some("postgres://u@server/db?a=b"));
        assert_eq!(
            (&*remote.options.url, &*remote.options.schema),
            ("postgres://u@pooler/db", "s")
        );
    }

    #[test]
    fn no_part_of_a_password_is_shown() {
        for (url, expected) in [
            ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
            ("redis://u:a:b@h", "redis://u:***@h"),
            ("redis://u:a@b@h", "redis://u:***@h"),
            ("redis://u:a/b@h/0", "redis://u:***@h/0"),
            ("redis://u:a?b@h/0", "redis://u:***@h/0"),
            (
                "redis://u@h?sentinel_password=x&prefix=a",
                "redis://u@h?sentinel_password=***&prefix=a",
            ),
            ("postgres://h/db?PASSWORD=x", "postgres://h/db?PASSWORD=***"),
            ("postgres://u:x@h/db?listen=postgres://u:y@h", "postgres://u:***@h/db?listen=***"),
            ("sqlite:a@b", "sqlite:a@b"),
        ] {
            assert_eq!(masked(url), expected, "{url}");
        }
    }

    #[tokio::test]
    async fn an_embedded_store_cannot_be_opened_as_a_shared_one() {
        let error = open_shared("sqlite:a.db").await.unwrap_err();
        assert!(error.to_string().contains("sqlite:a.db cannot be shared"), "{error}");
        let error = open_shared("mysql://h").await.unwrap_err();
        assert!(error.to_string().contains("there is no store `mysql:`"), "{error}");
    }
}
