//! Redis by itself: a step is an output, a record, the end of a lease, a job and a new lease, and
//! a call is one script for a batch of them.

use std::sync::Arc;

use anyhow::Context;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Client, Script};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Left, OUTPUT, RECORD, STEPS, Upkeep, Worked};
use crate::cmd::bench::IN_FLIGHT;

/// Steps in one call.
const BATCH: usize = 20;

/// Connections, each with one call under way.
const CONNECTIONS: usize = 4;

/// When leases end, in no unit: no lease runs out here.
const LEASED_UNTIL: u64 = 1_900_000_000_000;

/// Keys that are removed at a time.
const REMOVED_MAX: usize = 1_000;

/// A Redis that is used without a store.
pub(crate) struct BareRedis {
    client: Client,
    prefix: String,
    script: Script,
}

impl BareRedis {
    /// All keys begin with `prefix`.
    pub(crate) fn open(url: &str, prefix: &str) -> anyhow::Result<Self> {
        let client = Client::open(url).context("reading the URL of Redis")?;
        let script = Script::new(include_str!("step.lua"));
        Ok(Self { client, prefix: format!("{prefix}:raw"), script })
    }

    /// The process id that the server has where it runs.
    pub(crate) async fn pid(&self) -> anyhow::Result<u32> {
        let info = self.info("server").await?;
        let pid = number(&info, "process_id").context("reading the process id of Redis")?;
        u32::try_from(pid).context("reading the process id of Redis")
    }

    /// How often the server wrote its data anew, from a copy of its process.
    pub(crate) async fn upkeep(&self) -> anyhow::Result<Upkeep> {
        Ok(upkeep(&self.info("persistence").await?))
    }

    async fn info(&self, section: &str) -> anyhow::Result<String> {
        let mut connection = self.client.get_multiplexed_async_connection().await?;
        Ok(redis::cmd("INFO").arg(section).query_async(&mut connection).await?)
    }

    /// Does `steps` steps.
    pub(crate) async fn steps(&self, steps: usize) -> anyhow::Result<Worked> {
        let mut connection = self.client.get_multiplexed_async_connection().await?;
        let jobs: Vec<String> = (0..IN_FLIGHT).map(|_| new_run()).collect();
        let () = connection.rpush(format!("{}:due", self.prefix), jobs).await?;
        let left = Arc::new(Left::new(steps));
        let mut workers = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let worker = Worker {
                connection: self.client.get_multiplexed_async_connection().await?,
                prefix: self.prefix.clone(),
                script: self.script.clone(),
            };
            workers.spawn(worker.work(Arc::clone(&left)));
        }
        let mut all = Worked::default();
        while let Some(worked) = workers.join_next().await {
            all.add(worked??);
        }
        let () = connection.del(format!("{}:due", self.prefix)).await?;
        Ok(all)
    }

    /// Removes every key that begins with `prefix`.
    pub(crate) async fn remove(&self, prefix: &str) -> anyhow::Result<()> {
        let mut connection = self.client.get_multiplexed_async_connection().await?;
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{prefix}:*")).arg("COUNT").arg(REMOVED_MAX);
            let (next, keys): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
            if !keys.is_empty() {
                let () = connection.unlink(keys).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }
}

/// What `INFO persistence` says of it; a server may not know one or the other.
fn upkeep(info: &str) -> Upkeep {
    let sum =
        |fields: [&str; 2]| -> u64 { fields.iter().filter_map(|field| number(info, field)).sum() };
    Upkeep {
        times: sum(["aof_rewrites", "rdb_saves"]),
        is_under_way: sum(["aof_rewrite_in_progress", "rdb_bgsave_in_progress"]) > 0,
    }
}

fn number(info: &str, field: &str) -> Option<u64> {
    let mut pairs = info.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(name, _)| *name == field)?.1.trim().parse().ok()
}

struct Worker {
    connection: MultiplexedConnection,
    prefix: String,
    script: Script,
}

impl Worker {
    async fn work(mut self, left: Arc<Left>) -> anyhow::Result<Worked> {
        let mut worked = Worked::default();
        let mut taken = self.call(&[], BATCH).await?;
        while left.takes(BATCH) {
            anyhow::ensure!(!taken.is_empty(), "nothing was due");
            worked.steps += taken.len();
            let clock = Instant::now();
            taken = self.call(&taken, BATCH).await?;
            worked.latencies.push(clock.elapsed());
        }
        self.call(&taken, 0).await?;
        Ok(worked)
    }

    /// Ends these jobs and takes up to `count`.
    async fn call(&mut self, ended: &[String], count: usize) -> anyhow::Result<Vec<String>> {
        let prefix = &self.prefix;
        let mut call = self.script.key(format!("{prefix}:due"));
        call.key(format!("{prefix}:leases")).arg(LEASED_UNTIL).arg(count);
        for job in ended {
            let (run, step) = job.split_once('/').context("reading a job")?;
            let step: usize = step.parse().context("reading the step of a job")?;
            call.arg(job).arg(format!("{prefix}:run:{run}")).arg(step).arg(OUTPUT).arg(RECORD);
            // A run that has ended makes room for another one.
            let is_last = step + 1 == STEPS;
            call.arg(if is_last { new_run() } else { format!("{run}/{}", step + 1) });
        }
        Ok(call.invoke_async(&mut self.connection).await?)
    }
}

/// The first job of a run.
fn new_run() -> String {
    format!("{:032x}/0", fastrand::u128(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_at_work_for_itself_while_it_writes_its_data_anew() {
        let info = |rewrites: u64, saving: u64| {
            format!(
                "# Persistence\r\nrdb_bgsave_in_progress:{saving}\r\nrdb_saves:1\r\n\
                 aof_rewrite_in_progress:0\r\naof_rewrites:{rewrites}\r\n"
            )
        };
        assert_eq!(upkeep(&info(2, 0)), Upkeep { times: 3, is_under_way: false });
        assert_eq!(upkeep(&info(0, 1)), Upkeep { times: 1, is_under_way: true });
        assert_eq!(upkeep("# Persistence\r\n"), Upkeep::default());
    }
}
