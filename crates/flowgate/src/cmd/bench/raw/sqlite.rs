//! What the file itself can do: the rows that a scenario wrote, written again with bare rusqlite.
//!
//! The same tables and indexes, the same rows in the same order, as many commits in one transaction
//! as the store had on average, the same durability; no engine, no rules, nothing to encode.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;
use flowgate_engine::instance_id;
use flowgate_store::sqlite::{SqliteOptions, SqliteStore};
use rusqlite::{Connection, OpenFlags, params};
use tokio::time::Instant;

use crate::cmd::bench::Figure;
use crate::cmd::bench::flows::Scenario;
use crate::cmd::bench::measure::{Meter, as_f64};

/// Commits that are written again at most.
const COMMITS_MAX: i64 = 200_000;

/// An open job as a run's row holds it in mid-run: the rows of a finished run have none.
const JOBS: &str = concat!(
    r#"[{"job":{"job_id":{"run_id":"01890a5d-ac96-774b-bcce-b302099a8057","step":1},"#,
    r#""kind":"execute","queue":"default","attempt":1,"inputs":[4]},"due_at":1700000000000,"#,
    r#""lease":{"attempt":1,"token":4294967297,"instance":"host-0123456789abcdef"},"#,
    r#""expires_at":1700000030000,"lost":[]}]"#
);

struct CommitRow {
    run_id: Vec<u8>,
    seq: i64,
    count: i64,
    commit_id: Vec<u8>,
    at: i64,
    format: i64,
    events: String,
}

/// What a scenario wrote: its commits in order, and its runs by id.
struct Rows {
    commits: Vec<CommitRow>,
    runs: HashMap<Vec<u8>, RunRow>,
}

struct RunRow {
    flow: String,
    revision: String,
    version: i64,
    started_at: i64,
    record: String,
}

/// Writes what `scenario` left in `file` again, in transactions of `batch` commits.
pub(crate) async fn replay(
    file: &Path,
    scenario: &Scenario,
    batch: usize,
) -> anyhow::Result<Figure> {
    let copy = file.with_extension("raw.db");
    // Opening it as a store makes the same tables.
    let options = SqliteOptions::new(instance_id());
    SqliteStore::open(&copy, options).await?.close().await?;
    let (file, steps) = (file.to_owned(), scenario.flow().steps.len());
    let name = scenario.name;
    let replayed = tokio::task::spawn_blocking(move || write_again(&file, &copy, steps, batch));
    let mut figure = replayed.await??;
    name.clone_into(&mut figure.scenario);
    Ok(figure)
}

fn write_again(file: &Path, copy: &Path, steps: usize, batch: usize) -> anyhow::Result<Figure> {
    let source = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let Rows { commits, runs } = read(&source).context("reading what the scenario wrote")?;
    let mut target = Connection::open(copy)?;
    target.pragma_update(None, "synchronous", "FULL")?;
    let mut latencies = Vec::new();
    let mut position = 0;
    let meter = Meter::start();
    for group in commits.chunks(batch) {
        let clock = Instant::now();
        let tx = target.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        for commit in group {
            let run = &runs[&commit.run_id];
            write_run(&tx, commit, run)?;
            tx.prepare_cached("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)")?.execute(
                params![
                    position,
                    commit.run_id,
                    commit.seq,
                    commit.count,
                    commit.commit_id,
                    commit.at,
                    commit.format,
                    commit.events
                ],
            )?;
            position += commit.count;
        }
        tx.commit()?;
        latencies.push(clock.elapsed());
    }
    let figure = meter.stop("bare rusqlite", "", commits.len(), latencies);
    // A start is a commit without a step, and two steps that end together can share one.
    let started = commits.iter().filter(|commit| commit.seq == 1).count();
    let share = as_f64(steps * started) / as_f64(commits.len());
    Ok(Figure {
        steps_per_s: figure.steps_per_s * share,
        cpu_us_per_step: figure.cpu_us_per_step / share,
        ..figure
    })
}

fn write_run(tx: &Connection, commit: &CommitRow, run: &RunRow) -> rusqlite::Result<usize> {
    let version = commit.seq + commit.count - 1;
    if commit.seq == 1 {
        let insert = "INSERT INTO runs (run_id, flow, revision, status, version, started_at, \
                      updated_at, record, jobs) VALUES (?, ?, ?, 'running', ?, ?, ?, ?, ?)";
        return tx.prepare_cached(insert)?.execute(params![
            commit.run_id,
            run.flow,
            run.revision,
            version,
            run.started_at,
            commit.at,
            run.record,
            JOBS
        ]);
    }
    let ended = version == run.version;
    let update = "UPDATE runs SET status = ?, version = ?, updated_at = ?, ended_at = ?, \
                  record = ?, jobs = ? WHERE run_id = ?";
    tx.prepare_cached(update)?.execute(params![
        if ended { "completed" } else { "running" },
        version,
        commit.at,
        ended.then_some(commit.at),
        run.record,
        if ended { "[]" } else { JOBS },
        commit.run_id
    ])
}

fn read(source: &Connection) -> anyhow::Result<Rows> {
    let mut select = source.prepare(
        "SELECT run_id, seq, count, commit_id, at, format, events FROM log ORDER BY position \
         LIMIT ?",
    )?;
    let commits = select
        .query_map([COMMITS_MAX], |row| {
            Ok(CommitRow {
                run_id: row.get(0)?,
                seq: row.get(1)?,
                count: row.get(2)?,
                commit_id: row.get(3)?,
                at: row.get(4)?,
                format: row.get(5)?,
                events: row.get(6)?,
            })
        })?
        .collect::<Result<Vec<_>, _>>()?;
    let mut select =
        source.prepare("SELECT run_id, flow, revision, version, started_at, record FROM runs")?;
    let runs = select
        .query_map([], |row| {
            let run = RunRow {
                flow: row.get(1)?,
                revision: row.get(2)?,
                version: row.get(3)?,
                started_at: row.get(4)?,
                record: row.get(5)?,
            };
            Ok((row.get(0)?, run))
        })?
        .collect::<Result<HashMap<_, _>, _>>()?;
    Ok(Rows { commits, runs })
}
