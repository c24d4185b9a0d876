//! Whether the servers can be trusted with runs.

use std::collections::BTreeMap;

use redis::{Cmd, RedisError};
use uuid::Uuid;

use super::fault;
use super::link::Link;
use super::options::{RedisOptions, ServersKind};
use super::partition::{FORMAT, FORMAT_MIN, Partitions, partition_prefix};
use super::script::{self, Reply};
use crate::clock::{Clock, Stopwatch};
use crate::{Finding, StoreError};

/// The first version that has all that the scripts use: ranges of a stream that leave their first
/// row out.
const VERSION_MIN: (u32, u32) = (6, 2);
/// Partitions of a new data set on Redis Cluster.
const CLUSTER_PARTITIONS: u16 = 16;

/// Makes TLS work in a process that did not choose a provider.
pub(super) fn use_ring() {
    // It fails where the process has chosen one.
    drop(rustls::crypto::ring::default_provider().install_default());
}

/// What a primary says of itself.
#[derive(Debug)]
struct Facts {
    address: String,
    facts: BTreeMap<String, String>,
}

impl Facts {
    fn read(address: String, info: &str) -> Self {
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        let facts = lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Self { address, facts: facts.collect() }
    }

    fn get(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap_or(0)
    }

    fn is_too_old(&self) -> bool {
        let mut parts = self.get("redis_version").split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < VERSION_MIN
    }

    fn evicts(&self) -> bool {
        !matches!(self.get("maxmemory_policy"), "" | "noeviction")
    }

    fn has_log(&self) -> bool {
        self.get("aof_enabled") == "1"
    }
}

async fn facts(link: &Link) -> Result<Vec<Facts>, RedisError> {
    let answers = link.call_each(&redis::cmd("INFO")).await?;
    let read = |(address, answer)| {
        redis::from_redis_value::<String>(answer).map(|info| Facts::read(address, &info))
    };
    answers.into_iter().map(read).collect::<Result<_, _>>().map_err(RedisError::from)
}

/// Refuses servers that are too old or that may lose what they acknowledged.
pub(super) async fn check(link: &Link, options: &RedisOptions) -> Result<(), StoreError> {
    let primaries = facts(link).await.map_err(|error| fault::error("opening the store", error))?;
    if let Some(old) = primaries.iter().find(|primary| primary.is_too_old()) {
        let version = old.get("redis_version");
        return Err(StoreError::Incompatible {
            message: format!(
                "Redis {version} at {} is too old: version {}.{} or newer is needed, for streams \
                 that are read from after a row",
                old.address, VERSION_MIN.0, VERSION_MIN.1
            ),
        });
    }
    if options.allow_volatile {
        return Ok(());
    }
    let wrongs: Vec<String> = primaries.iter().filter_map(wrong).collect();
    if wrongs.is_empty() {
        return Ok(());
    }
    Err(StoreError::Unsafe {
        message: format!(
            "{}. To use it all the same and lose runs, add allow_volatile=true to the URL",
            wrongs.join("; ")
        ),
    })
}

/// What is wrong with a server's settings, and how to put it right.
fn wrong(primary: &Facts) -> Option<String> {
    let (mut reasons, mut remedies) = (Vec::new(), Vec::new());
    if primary.evicts() {
        reasons.push(format!(
            "removes keys when it is full (maxmemory-policy {})",
            primary.get("maxmemory_policy")
        ));
        remedies.push("CONFIG SET maxmemory-policy noeviction");
    }
    if !primary.has_log() {
        reasons.push("forgets what it acknowledged when it ends (appendonly no)".to_owned());
        remedies.push("CONFIG SET appendonly yes");
    }
    if reasons.is_empty() {
        return None;
    }
    Some(format!(
        "Redis at {} {}; run {}, then CONFIG REWRITE",
        primary.address,
        reasons.join(" and "),
        remedies.join(" and ")
    ))
}

/// The partitions that the data set has; new ones if there is none.
pub(super) async fn open_partitions(
    link: &Link,
    options: &RedisOptions,
) -> Result<Partitions, StoreError> {
    let doing = |error| fault::error("opening the store", error);
    let existing = read_meta(link, options).await.map_err(doing)?;
    let by_default = match &options.servers.kind {
        ServersKind::Cluster(_) => CLUSTER_PARTITIONS,
        ServersKind::Single(_) | ServersKind::Sentinel { .. } => 1,
    };
    let count = match existing {
        Some((_, there)) => there,
        None => options.partitions.unwrap_or(by_default),
    };
    let epoch = format!("{:016x}", Uuid::now_v7().as_u64_pair().1);
    for index in 0..count {
        let write = |command: &mut Cmd| {
            command.arg(FORMAT).arg(count).arg(index).arg(&epoch).arg(FORMAT_MIN);
        };
        let prefix = partition_prefix(&options.prefix, index);
        let answer = script::OPEN.run(link, &prefix, write).await.map_err(doing)?;
        let mut reply = Reply::of(answer)?;
        fits(options, reply.number()?, reply.number()?, count)?;
    }
    Ok(Partitions::new(&options.prefix, count))
}

/// Format and number of partitions of the data set.
async fn read_meta(link: &Link, options: &RedisOptions) -> Result<Option<(u32, u16)>, RedisError> {
    let mut command = redis::cmd("HMGET");
    command.arg(format!("{}meta", partition_prefix(&options.prefix, 0)));
    command.arg("format").arg("partitions");
    let answer: (Option<u32>, Option<u16>) = redis::from_redis_value(link.call(&command).await?)?;
    Ok(answer.0.zip(answer.1))
}

/// Whether this flowgate can work with a data set.
fn fits(options: &RedisOptions, format: u32, there: u16, count: u16) -> Result<(), StoreError> {
    let prefix = &options.prefix;
    if !(FORMAT_MIN..=FORMAT).contains(&format) {
        return Err(StoreError::Incompatible {
            message: format!(
                "the data set `{prefix}` has the format {format} and this flowgate writes \
                 {FORMAT}; use the flowgate that wrote it, or another prefix"
            ),
        });
    }
    let wanted = options.partitions.unwrap_or(count);
    if there != count || there != wanted {
        return Err(StoreError::Incompatible {
            message: format!(
                "the data set `{prefix}` is divided into {there} partitions and not into \
                 {wanted}, which never changes; leave the parameter partitions away, or copy the \
                 runs into a data set with another prefix"
            ),
        });
    }
    Ok(())
}

/// Looks at the servers of a store for whoever has to care for them.
pub async fn examine(options: &RedisOptions) -> Vec<Finding> {
    use_ring();
    let link = Link::new(std::sync::Arc::new(options.servers.clone()), options.call_timeout);
    let watch = Stopwatch::start();
    let primaries = match facts(&link).await {
        Ok(primaries) => primaries,
        Err(error) => {
            let found = fault::error("connecting", error).to_string();
            let remedy = "check the URL of the store, that Redis runs and that it can be reached";
            return vec![Finding::bad("reachable", found, remedy)];
        }
    };
    let connected = watch.elapsed();
    let watch = Stopwatch::start();
    let again = link.call(&redis::cmd("PING")).await;
    let round_trip = if again.is_ok() { watch.elapsed() } else { connected };
    let mut findings = vec![if round_trip.as_millis() > 20 {
        let remedy = "every step takes one round trip at least: bring flowgate nearer to Redis";
        Finding::warning("round trip", format!("{round_trip:?}"), remedy)
    } else {
        Finding::good("round trip", format!("{round_trip:?}"))
    }];
    for primary in &primaries {
        findings.extend(examine_primary(primary));
    }
    findings.extend(examine_config(&link).await);
    if let ServersKind::Cluster(_) = &options.servers.kind {
        findings.push(examine_cluster(&link).await);
    }
    findings.push(examine_clock(&link).await);
    findings.push(examine_data_set(&link, options).await);
    findings
}

fn examine_primary(primary: &Facts) -> Vec<Finding> {
    let at = &primary.address;
    let version = format!("{} at {at}", primary.get("redis_version"));
    let mut findings = vec![if primary.is_too_old() {
        Finding::bad("version", version, "update Redis to 6.2 or newer")
    } else {
        Finding::good("version", version)
    }];
    findings.push(if primary.evicts() {
        let found = format!("maxmemory-policy {} at {at}", primary.get("maxmemory_policy"));
        let remedy = "CONFIG SET maxmemory-policy noeviction, then CONFIG REWRITE";
        Finding::bad("eviction", found, remedy)
    } else {
        Finding::good("eviction", format!("maxmemory-policy noeviction at {at}"))
    });
    findings.push(if primary.has_log() {
        Finding::good("append-only file", format!("on at {at}"))
    } else {
        let remedy = "CONFIG SET appendonly yes, then CONFIG REWRITE";
        Finding::bad("append-only file", format!("off at {at}"), remedy)
    });
    findings.extend(["aof_last_write_status", "rdb_last_bgsave_status"].iter().filter_map(
        |name| {
            let status = primary.get(name);
            let remedy = "look for a full disk or missing rights in the log of Redis";
            (!matches!(status, "" | "ok"))
                .then(|| Finding::bad("persistence", format!("{name} {status} at {at}"), remedy))
        },
    ));
    findings.push(examine_memory(primary));
    let replicas = primary.number("connected_slaves");
    findings.push(if replicas == 0 {
        let remedy = "without a replica the runs are as safe as this one server";
        Finding::warning("replicas", format!("none at {at}"), remedy)
    } else {
        Finding::good("replicas", format!("{replicas} at {at}"))
    });
    findings
}

fn examine_memory(primary: &Facts) -> Finding {
    let (used, limit) = (primary.number("used_memory"), primary.number("maxmemory"));
    let (at, used_text) = (&primary.address, primary.get("used_memory_human"));
    if limit == 0 {
        let remedy =
            "set maxmemory, so that Redis refuses writes before the host has no memory left";
        let found = format!("{used_text} used and no limit at {at}");
        return Finding::warning("memory", found, remedy);
    }
    let share = used.saturating_mul(100) / limit;
    let found = format!("{used_text} used, {share} % of maxmemory at {at}");
    if share >= 80 {
        let remedy = "shorten the retention, or give Redis more memory";
        return Finding::warning("memory", found, remedy);
    }
    Finding::good("memory", found)
}

/// What only `CONFIG GET` tells; a managed Redis may forbid it.
async fn examine_config(link: &Link) -> Vec<Finding> {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("appendfsync");
    let Ok(answers) = link.call_each(&command).await else {
        let remedy = "ask whoever runs Redis for appendfsync and min-replicas-to-write";
        return vec![Finding::warning("sync", "CONFIG GET is forbidden", remedy)];
    };
    let mut findings = Vec::new();
    for (address, answer) in answers {
        let found: BTreeMap<String, String> = redis::from_redis_value(answer).unwrap_or_default();
        let sync = found.get("appendfsync").map_or("", String::as_str);
        let text = format!("appendfsync {sync} at {address}");
        findings.push(match sync {
            "always" => Finding::good("sync", text),
            "everysec" => Finding::good("sync", format!("{text}: a power cut may cost a second")),
            _ => {
                let remedy = "CONFIG SET appendfsync everysec, then CONFIG REWRITE";
                Finding::bad("sync", text, remedy)
            }
        });
    }
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("min-replicas-to-write");
    for (address, answer) in link.call_each(&command).await.unwrap_or_default() {
        let found: BTreeMap<String, u64> = redis::from_redis_value(answer).unwrap_or_default();
        let least = found.values().next().copied().unwrap_or(0);
        let text = format!("min-replicas-to-write {least} at {address}");
        findings.push(if least > 0 {
            Finding::good("failover", text)
        } else {
            let remedy = "with replicas, set min-replicas-to-write to 1: it bounds what a failover \
                          loses";
            Finding::warning("failover", text, remedy)
        });
    }
    findings
}

async fn examine_cluster(link: &Link) -> Finding {
    let mut command = redis::cmd("CLUSTER");
    command.arg("INFO");
    let remedy = "redis-cli --cluster check tells which slots and nodes are missing";
    let info = match link.call(&command).await.map(redis::from_redis_value::<String>) {
        Ok(Ok(info)) => Facts::read(String::new(), &info),
        Ok(Err(_)) | Err(_) => return Finding::bad("cluster", "CLUSTER INFO failed", remedy),
    };
    let (state, slots) = (info.get("cluster_state"), info.number("cluster_slots_ok"));
    let found =
        format!("{state}, {slots} of 16384 slots, {} nodes", info.get("cluster_known_nodes"));
    if state == "ok" && slots == 16_384 {
        Finding::good("cluster", found)
    } else {
        Finding::bad("cluster", found, remedy)
    }
}

async fn examine_clock(link: &Link) -> Finding {
    let time = link.call(&redis::cmd("TIME")).await.map(redis::from_redis_value::<(i64, i64)>);
    let Ok(Ok((seconds, micros))) = time else {
        return Finding::warning("clock", "TIME failed", "allow the command TIME");
    };
    let difference = (seconds * 1_000 + micros / 1_000 - Clock::wall().now().0).unsigned_abs();
    let found = format!("{difference} ms from this host's");
    if difference > 1_000 {
        let remedy = "runs go by the clock of Redis; set both with NTP so that times make sense";
        return Finding::warning("clock", found, remedy);
    }
    Finding::good("clock", found)
}

async fn examine_data_set(link: &Link, options: &RedisOptions) -> Finding {
    let prefix = &options.prefix;
    match read_meta(link, options).await {
        Ok(None) => Finding::good("data set", format!("`{prefix}` is not there yet")),
        Ok(Some((format, partitions))) => match fits(options, format, partitions, partitions) {
            Ok(()) => Finding::good(
                "data set",
                format!("`{prefix}`, format {format}, partitions {partitions}"),
            ),
            Err(error) => Finding::bad("data set", error.to_string(), "see there"),
        },
        Err(error) => Finding::bad(
            "data set",
            fault::error("reading it", error).to_string(),
            "use another prefix, or remove the keys that are not ours",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(lines: &[&str]) -> Facts {
        Facts::read("here".to_owned(), &lines.join("\r\n"))
    }

    #[test]
    fn an_unsafe_server_is_told_with_the_commands_that_help() {
        let both = facts(&["aof_enabled:0", "maxmemory_policy:allkeys-lru"]);
        let text = wrong(&both).unwrap();
        assert!(
            text.contains("CONFIG SET maxmemory-policy noeviction and CONFIG SET appendonly yes")
        );
        assert!(text.contains("allkeys-lru"));
        assert_eq!(wrong(&facts(&["aof_enabled:1", "maxmemory_policy:noeviction"])), None);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, is_too_old) in
            [("6.0.16", true), ("5.0", true), ("6.2.0", false), ("7.0.15", false), ("10.1", false)]
        {
            let line = format!("redis_version:{version}");
            assert_eq!(facts(&[line.as_str()]).is_too_old(), is_too_old, "{version}");
        }
    }
}
