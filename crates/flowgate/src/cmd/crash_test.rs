//! `crash-test`: kills a worker process again and again while runs go on, and then judges the log.
//!
//! The parent never touches the store while a worker lives. It feeds starts to the worker line by
//! line, counts those that the worker acknowledged, kills the worker at a random moment and starts
//! the next one. At the end it reads the file that is left and checks that every acknowledged start
//! has one run, that every run ended once, and that every log keeps the invariants. A separate
//! ledger file, which the steps append to, shows how often each step was really executed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use flowgate_core::check::{Violation, check_ended, check_run};
use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::flow::Flow;
use flowgate_core::ids::{LeaseToken, RunId};
use flowgate_store::sqlite::SqliteStore;
use flowgate_store::{Store, whole_log};
use serde::Serialize;

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Output;

pub(crate) mod worker;

/// The flow that the workers run: a diamond with a retry, a wait and a tail.
const FLOW: &str = include_str!("crash_test/flow.yaml");

/// How long a worker may take to become ready, or to finish what is left.
const PATIENCE: Duration = Duration::from_mins(2);

/// Kill a worker process at random moments while runs go on, and check what is left.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The kind of store to test, in files of the test's own
    #[arg(long = "on", value_name = "KIND", default_value = "sqlite", value_parser = ["sqlite"])]
    kind: String,
    /// Runs to start.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Times to kill the worker.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    kills: u32,
    /// The seed of the random moments; drawn and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
}

/// What was done and what was found.
#[derive(Debug, Serialize)]
struct Report {
    store: String,
    seed: u64,
    runs_started: usize,
    runs_finished: usize,
    runs_lost: usize,
    steps_succeeded: u64,
    steps_doubled: u64,
    terminal_events_per_run: TerminalEvents,
    kills: u32,
    leases_lost: u64,
    executions: u64,
    executions_repeated: u64,
    violations: Vec<String>,
    passed: bool,
}

/// The least and the most terminal events that a run has.
#[derive(Debug, Serialize)]
struct TerminalEvents {
    min: usize,
    max: usize,
}

/// Kills, judges and prints.
pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let output = app.output;
    let failed = |error: anyhow::Error| {
        Failure::new(Exit::RunFailed, "crash_test_failed", "the test did not come to an end")
            .source(error)
    };
    let folder = tempfile::Builder::new().prefix("flowgate-crash-").tempdir();
    let folder = folder.map_err(|error| failed(error.into()))?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut test = Test {
        database: folder.path().join("flowgate.db"),
        ledger: folder.path().join("ledger"),
        random: fastrand::Rng::with_seed(seed),
        started: BTreeMap::new(),
        runs: args.runs,
        kind: args.kind,
        output,
    };
    let report = test.execute(seed, args.kills).await;
    let report = report.map_err(|error| failed(error.context(format!("seed {seed}"))))?;
    if output.json {
        output.json(&report)?;
    } else {
        print(output, &report)?;
    }
    if report.passed {
        return Ok(Exit::Done);
    }
    output.note(format!("the store of this test is kept in {}", folder.keep().display()));
    Ok(Exit::RunFailed)
}

struct Test {
    database: PathBuf,
    ledger: PathBuf,
    random: fastrand::Rng,
    /// Acknowledged starts by key.
    started: BTreeMap<String, RunId>,
    runs: u32,
    kind: String,
    output: Output,
}

/// A worker process and what it says.
struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: mpsc::Receiver<String>,
}

impl Test {
    async fn execute(&mut self, seed: u64, kills: u32) -> anyhow::Result<Report> {
        self.kill_workers(kills)?;
        self.finish()?;
        self.judge(seed, kills).await
    }

    /// Lets `kills` workers begin, and kills each at a random moment.
    fn kill_workers(&mut self, kills: u32) -> anyhow::Result<()> {
        for kill in 0..kills {
            let mut worker = self.spawn()?;
            let share = u64::from(self.runs) * u64::from(kill + 1) / u64::from(kills + 1);
            self.feed(&mut worker, share)?;
            let moment = Duration::from_micros(self.random.u64(0..120_000));
            // The wait is the test: the moment of the kill is random by design.
            self.listen(&worker, moment);
            worker.child.kill().context("killing the worker")?;
            let status = worker.child.wait()?;
            ensure!(status.code().is_none(), "the worker ended by itself: {status}");
            self.drain(&worker);
            if (kill + 1) % 10 == 0 {
                self.output.note(format!("{} of {kills} kills", kill + 1));
            }
        }
        Ok(())
    }

    /// Lets one more worker start what is left and bring every run to its end.
    fn finish(&mut self) -> anyhow::Result<()> {
        let mut worker = self.spawn()?;
        self.feed(&mut worker, u64::from(self.runs))?;
        writeln!(worker.stdin, "finish")?;
        loop {
            match worker.lines.recv_timeout(PATIENCE) {
                Ok(line) if line == "finished" => break,
                Ok(line) => self.note_start(&line),
                Err(_) => bail!("the runs did not end within {PATIENCE:?}"),
            }
        }
        drop(worker.stdin);
        let status = worker.child.wait()?;
        ensure!(status.success(), "the last worker failed: {status}");
        Ok(())
    }

    fn spawn(&self) -> anyhow::Result<Worker> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut child = Command::new(program)
            .arg("crash-worker")
            .arg("--database")
            .arg(&self.database)
            .arg("--ledger")
            .arg(&self.ledger)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a worker")?;
        let stdin = child.stdin.take().expect("the child's stdin is a pipe");
        let stdout = child.stdout.take().expect("the child's stdout is a pipe");
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        match lines.recv_timeout(PATIENCE) {
            Ok(line) if line == "ready" => Ok(Worker { child, stdin, lines }),
            Ok(line) => bail!("the worker said {line:?} instead of ready"),
            Err(_) => bail!("the worker was not ready within {PATIENCE:?}"),
        }
    }

    /// Asks for the first `count` starts, again for those that were not acknowledged.
    fn feed(&self, worker: &mut Worker, count: u64) -> anyhow::Result<()> {
        for number in 0..count {
            let key = format!("run-{number}");
            if !self.started.contains_key(&key) {
                writeln!(worker.stdin, "start {key}").context("asking the worker to start")?;
            }
        }
        Ok(())
    }

    /// Notes acknowledgements for as long as `span`.
    fn listen(&mut self, worker: &Worker, span: Duration) {
        let clock = tokio::time::Instant::now();
        while let Some(left) = span.checked_sub(clock.elapsed()) {
            match worker.lines.recv_timeout(left) {
                Ok(line) => self.note_start(&line),
                Err(_) => return,
            }
        }
    }

    /// Notes what a dead worker said before it died.
    fn drain(&mut self, worker: &Worker) {
        while let Ok(line) = worker.lines.recv_timeout(PATIENCE) {
            self.note_start(&line);
        }
    }

    fn note_start(&mut self, line: &str) {
        let mut words = line.split(' ');
        if let (Some("started"), Some(key), Some(run_id)) =
            (words.next(), words.next(), words.next())
            && let Ok(run_id) = run_id.parse()
        {
            self.started.insert(key.to_owned(), run_id);
        }
    }

    async fn judge(&self, seed: u64, kills: u32) -> anyhow::Result<Report> {
        let flow = Flow::parse(FLOW).expect("the crash flow is valid");
        let file = SqliteStore::open_read_only(&self.database).await?;
        let executions = read_ledger(&self.ledger)?;
        let mut report = Report {
            store: self.kind.clone(),
            seed,
            runs_started: self.started.len(),
            runs_finished: 0,
            runs_lost: 0,
            steps_succeeded: 0,
            steps_doubled: 0,
            terminal_events_per_run: TerminalEvents { min: usize::MAX, max: 0 },
            kills,
            leases_lost: 0,
            executions: executions.values().sum(),
            executions_repeated: 0,
            violations: Vec::new(),
            passed: false,
        };
        for run_id in self.started.values() {
            judge_run(&file, &flow, *run_id, &executions, &mut report).await?;
        }
        let all: BTreeSet<RunId> = self.started.values().copied().collect();
        if all.len() != self.started.len() {
            report.violations.push("two keys have the same run".to_owned());
        }
        // A test in which no kill hit anything has shown nothing.
        let void = kills >= 10 && report.leases_lost == 0;
        if void {
            report.violations.push("no kill interrupted an attempt: the test is void".to_owned());
        }
        report.passed = report.violations.is_empty()
            && report.runs_lost == 0
            && report.steps_doubled == 0
            && report.runs_finished == report.runs_started
            && report.runs_started == usize::try_from(self.runs).unwrap_or(usize::MAX);
        Ok(report)
    }
}

async fn judge_run(
    store: &SqliteStore,
    flow: &Flow,
    run_id: RunId,
    executions: &BTreeMap<String, u64>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let Some(detail) = store.read_run(run_id).await? else {
        report.runs_lost += 1;
        report.violations.push(format!("run {run_id} was acknowledged and is not there"));
        return Ok(());
    };
    let log = whole_log(store, run_id).await?;
    let mut found: Vec<Violation> = check_run(&[flow], run_id, &log, Some(&detail.row.run));
    found.extend(check_ended(run_id, &log));
    report.violations.extend(found.iter().map(ToString::to_string));
    let terminal = log.iter().filter(|stored| stored.event.is_terminal()).count();
    report.runs_finished += usize::from(terminal == 1);
    let range = &mut report.terminal_events_per_run;
    (range.min, range.max) = (range.min.min(terminal), range.max.max(terminal));
    count_steps(&log, run_id, executions, report);
    Ok(())
}

/// Compares what the log says of each step with how often it was executed.
fn count_steps(
    log: &[StoredEvent],
    run_id: RunId,
    executions: &BTreeMap<String, u64>,
    report: &mut Report,
) {
    let mut leases: BTreeMap<&str, BTreeSet<LeaseToken>> = BTreeMap::new();
    let mut succeeded: BTreeMap<&str, u64> = BTreeMap::new();
    for event in log.iter().map(|stored| &stored.event) {
        let Some(step) = event.step() else { continue };
        if let Some(lease) = event.lease() {
            leases.entry(step).or_default().insert(lease.token);
        }
        if matches!(event, Event::StepSucceeded { .. }) {
            *succeeded.entry(step).or_default() += 1;
        }
        report.leases_lost += u64::from(matches!(event, Event::StepLost { .. }));
    }
    for (step, times) in succeeded {
        report.steps_succeeded += 1;
        report.steps_doubled += u64::from(times > 1);
        // A wait is not executed by anybody.
        let executed = executions.get(&format!("{run_id}/{step}/1")).copied().unwrap_or(0);
        let granted = leases.get(step).map_or(0, |tokens| tokens.len() as u64);
        if step != "pause" && executed == 0 {
            report.violations.push(format!("run {run_id}: `{step}` succeeded unexecuted"));
        }
        if executed > granted {
            report.violations.push(format!(
                "run {run_id}: `{step}` was executed {executed} times under {granted} leases"
            ));
        }
        report.executions_repeated += executed.saturating_sub(1);
    }
}

/// How often each idempotency key was executed.
fn read_ledger(path: &Path) -> anyhow::Result<BTreeMap<String, u64>> {
    let text = std::fs::read_to_string(path).context("reading the ledger")?;
    let mut executions = BTreeMap::new();
    // A kill can cut the last line short; the execution that it would tell of did not end.
    for key in text.lines().filter(|line| line.ends_with(';')) {
        *executions.entry(key.trim_end_matches(';').to_owned()).or_default() += 1;
    }
    Ok(executions)
}

fn print(output: Output, report: &Report) -> Result<(), Failure> {
    let TerminalEvents { min, max } = report.terminal_events_per_run;
    let lines = [
        format!("store             {} (seed {})", report.store, report.seed),
        format!("runs started      {}", report.runs_started),
        format!("runs finished     {}", report.runs_finished),
        format!("runs lost         {}", report.runs_lost),
        format!("steps succeeded   {}", report.steps_succeeded),
        format!("steps doubled     {}", report.steps_doubled),
        format!("terminal events   {min} at least, {max} at most, in a run"),
        format!("workers killed    {}", report.kills),
        format!("leases lost       {}, each taken over by a later attempt", report.leases_lost),
        format!(
            "executions        {} in all, {} of them repeated after a kill or a failure",
            report.executions, report.executions_repeated
        ),
        format!("violations        {}", report.violations.len()),
    ];
    for line in lines {
        output.line(line)?;
    }
    for violation in report.violations.iter().take(20) {
        output.line(format!("  {violation}"))?;
    }
    output.line(if report.passed { "passed" } else { "FAILED" })
}
