//! Permits: limits by key, and who waits for them. Those of one key are in one partition, which the
//! key names.
//!
//! A lost reply does no harm, but may cost time: who asks again has what the first sending got. Who
//! was granted a permit by a release whose reply was lost is not woken for it; the permit ends with
//! its lease, and the job asks by itself when it is due.

use std::time::Duration;

use flowgate_core::ids::{JobId, StepIndex};
use flowgate_core::time::Timestamp;
use futures_util::future::try_join_all;
use redis::Cmd;

use super::script::{self, Reply, parse};
use super::{RedisStore, fault, millis};
use crate::StoreError;
use crate::control::{
    Limit, PERMIT_PLACE_KEPT, PermitAsk, PermitGrant, PermitOutcome, PermitRelease, PermitState,
};

/// The greatest share of a rate. A place is a score, which is a double.
const SHARE_US_MAX: i64 = 9_000_000_000_000_000;
/// Permits of one key that one release grants; who is beyond them gets one at the next look.
const GRANTS_MAX: usize = 1_000;
/// Keys of a partition that one sweep forgets.
const FORGOTTEN_MAX: usize = 1_000;

/// The releases of a key.
struct Release<'a> {
    key: &'a str,
    limit: Limit,
    jobs: Vec<JobId>,
}

impl RedisStore {
    /// Asks for permits.
    pub(super) async fn ask_for_permits(
        &self,
        asks: &[PermitAsk],
        lease: Duration,
    ) -> Result<Vec<PermitOutcome>, StoreError> {
        let parts = self.by_key(asks, |ask| &ask.key);
        let parts = parts.into_iter().map(|(index, part)| async move {
            let write = |command: &mut Cmd| {
                command.arg(millis(lease)).arg(millis(PERMIT_PLACE_KEPT)).arg(part.len());
                for (_, ask) in &part {
                    write_limit(command, &ask.key, ask.limit);
                    write_job(command, ask.job_id);
                }
            };
            let prefix = self.partitions.prefix(index);
            let answer = self.run("taking permits", &script::TAKE_PERMITS, prefix, write).await?;
            let mut reply = Reply::of(answer)?;
            let outcomes = part.iter().map(|(at, _)| Ok((*at, read_outcome(&mut reply)?)));
            outcomes.collect::<Result<Vec<_>, StoreError>>()
        });
        let mut outcomes: Vec<_> = try_join_all(parts).await?.into_iter().flatten().collect();
        outcomes.sort_unstable_by_key(|(at, _)| *at);
        Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
    }

    /// Gives permits back, and says who got them.
    pub(super) async fn give_permits_back(
        &self,
        releases: &[PermitRelease],
        lease: Duration,
    ) -> Result<Vec<PermitGrant>, StoreError> {
        let releases = of_keys(releases);
        let parts = self.by_key(&releases, |release| release.key);
        let parts = parts.into_iter().map(|(index, part)| async move {
            let write = |command: &mut Cmd| {
                command.arg(millis(lease)).arg(millis(PERMIT_PLACE_KEPT)).arg(GRANTS_MAX);
                command.arg(part.len());
                for (_, release) in &part {
                    write_limit(command, release.key, release.limit);
                    command.arg(release.jobs.len());
                    for job_id in &release.jobs {
                        write_job(command, *job_id);
                    }
                }
            };
            let prefix = self.partitions.prefix(index);
            let answer =
                self.run("releasing permits", &script::RELEASE_PERMITS, prefix, write).await?;
            let mut reply = Reply::of(answer)?;
            let mut grants = Vec::new();
            for (at, release) in &part {
                let mut jobs = reply.array()?;
                while jobs.left() > 0 {
                    let job_id = decode_job_id(&jobs.word()?)?;
                    grants.push((*at, PermitGrant { key: release.key.into(), job_id }));
                }
            }
            Ok::<_, StoreError>(grants)
        });
        let mut grants: Vec<_> = try_join_all(parts).await?.into_iter().flatten().collect();
        grants.sort_by_key(|(at, _)| *at);
        Ok(grants.into_iter().map(|(_, grant)| grant).collect())
    }

    /// Who holds permits of a key.
    pub(super) async fn permits(&self, key: &str) -> Result<PermitState, StoreError> {
        let write = |command: &mut Cmd| {
            command.arg(key).arg(millis(PERMIT_PLACE_KEPT));
        };
        let prefix = self.partitions.prefix(self.partitions.of_key(key));
        let answer = self.run("reading permits", &script::READ_PERMITS, prefix, write).await?;
        let mut reply = Reply::of(answer)?;
        let in_line = reply.number()?;
        let mut holders = Vec::with_capacity(reply.left() / 2);
        while reply.left() > 0 {
            holders.push((decode_job_id(&reply.word()?)?, Timestamp(reply.number()?)));
        }
        holders.sort_unstable_by_key(|(job_id, until)| (*until, *job_id));
        Ok(PermitState { holders, in_line })
    }

    /// Forgets keys of which nothing matters any more, a bounded number of them.
    pub(super) async fn forget_permits(&self) -> Result<(), StoreError> {
        let write = |command: &mut Cmd| {
            command.arg(FORGOTTEN_MAX);
        };
        let parts = self.partitions.all().map(|(_, prefix)| {
            self.run("forgetting permits", &script::FORGET_PERMITS, prefix, write)
        });
        try_join_all(parts).await.map(drop)
    }

    /// Divides what is about permits by partition, and remembers its place.
    fn by_key<'a, T>(
        &self,
        items: &'a [T],
        key: impl Fn(&T) -> &str,
    ) -> Vec<(usize, Vec<(usize, &'a T)>)> {
        let mut parts: Vec<Vec<(usize, &T)>> = Vec::new();
        parts.resize_with(usize::from(self.partitions.count()), Vec::new);
        for (at, item) in items.iter().enumerate() {
            parts[self.partitions.of_key(key(item))].push((at, item));
        }
        parts.into_iter().enumerate().filter(|(_, part)| !part.is_empty()).collect()
    }
}

/// The releases of each key together, in the order in which keys are first named. What counts is
/// the limit that is named last.
fn of_keys(releases: &[PermitRelease]) -> Vec<Release<'_>> {
    let mut of_keys: Vec<Release<'_>> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for release in releases {
        let key = &*release.key;
        let place = *places.entry(key).or_insert_with(|| {
            of_keys.push(Release { key, limit: release.limit, jobs: Vec::new() });
            of_keys.len() - 1
        });
        of_keys[place].limit = release.limit;
        of_keys[place].jobs.extend(release.job_id);
    }
    of_keys
}

/// Key, how many at once (-1 for a rate), and the share of a rate in microseconds, within what a
/// score can hold.
fn write_limit(command: &mut Cmd, key: &str, limit: Limit) {
    command.arg(key);
    match limit {
        Limit::AtOnce(count) => command.arg(count).arg(0),
        Limit::Rate { count, per_ms } => {
            command.arg(-1).arg(Limit::share_us(count, per_ms).min(SHARE_US_MAX))
        }
    };
}

fn write_job(command: &mut Cmd, job_id: JobId) {
    let mut buffer = uuid::Uuid::encode_buffer();
    let run_id = super::rows::encode_run(job_id.run_id, &mut buffer);
    command.arg(format!("{run_id}:{}", job_id.step.0));
}

fn decode_job_id(text: &str) -> Result<JobId, StoreError> {
    let (run_id, step) = text.split_once(':').ok_or_else(|| fault::unreadable("half a job id"))?;
    Ok(JobId { run_id: parse(run_id)?, step: StepIndex(parse(step)?) })
}

fn read_outcome(reply: &mut Reply) -> Result<PermitOutcome, StoreError> {
    let (outcome, number): (u8, i64) = (reply.number()?, reply.number()?);
    match outcome {
        0 => Ok(PermitOutcome::Granted),
        1 => Ok(PermitOutcome::InLine(number.unsigned_abs())),
        2 => Ok(PermitOutcome::NotBefore(Timestamp(number))),
        other => Err(fault::unreadable(format_args!("the outcome {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use flowgate_core::ids::RunId;
    use uuid::Uuid;

    use super::*;

    fn job(step: u16) -> JobId {
        JobId { run_id: RunId(Uuid::nil()), step: StepIndex(step) }
    }

    #[test]
    fn releases_of_a_key_are_one_in_the_order_of_first_mention() {
        let release = |key: &str, limit, step: Option<u16>| PermitRelease {
            key: key.into(),
            limit: Limit::AtOnce(limit),
            job_id: step.map(job),
        };
        let releases = [release("b", 1, Some(1)), release("a", 1, None), release("b", 2, Some(2))];
        let merged = of_keys(&releases);
        let shown: Vec<_> = merged.iter().map(|r| (r.key, r.limit, r.jobs.as_slice())).collect();
        let of_b = [job(1), job(2)];
        assert_eq!(shown, [("b", Limit::AtOnce(2), &of_b[..]), ("a", Limit::AtOnce(1), &[])]);
    }

    #[test]
    fn a_job_is_named_by_its_run_and_step() {
        let text = "00000000-0000-0000-0000-000000000000:12";
        assert_eq!(decode_job_id(text).unwrap(), job(12));
        assert!(decode_job_id("00000000-0000-0000-0000-000000000000").is_err());
    }
}
