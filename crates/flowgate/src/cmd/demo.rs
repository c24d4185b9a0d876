//! `flowgate demo`: everything at once, on a store that goes away with it.
//!
//! Two processes: this one shows and judges, the other owns the store, executes the steps, serves
//! the dashboard and starts runs ([`instance`]). So with `--crash` what is killed is all of
//! flowgate that there is, and what is left is the file. This one never writes to it.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flowgate_core::flow::Span;
use flowgate_core::view::Brief;
use flowgate_store::StoreUrl;
use serde_json::json;

use self::child::{Child, Told};
use self::judge::Judge;
use self::redeploy::Shown;
use self::screen::Screen;
use super::App;
use crate::clock;
use crate::config::{Listen, Origin};
use crate::failure::{Exit, Failure, Outcome};
use crate::signals::Stop;

mod child;
pub(crate) mod instance;
mod judge;
mod load;
mod redeploy;
mod screen;

/// The flows, in the order in which they are shown.
const FLOWS: [(&str, &str); 4] = [
    ("order", include_str!("demo/order.yaml")),
    ("import", include_str!("demo/import.yaml")),
    ("expense", include_str!("demo/expense.yaml")),
    ("report", include_str!("demo/report.yaml")),
];
/// How long the first kill waits, so that there is something to see before it.
const KILL_FIRST: Duration = Duration::from_secs(8);
/// How long after the last one was got over the next kill comes.
const KILL_NEXT: Duration = Duration::from_secs(30);
/// How long runs may take to end after a kill.
const RECOVERY_MAX: Duration = Duration::from_mins(1);
/// How often the figures are read.
const LOOK: Duration = Duration::from_secs(1);

/// Shows flowgate at work.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Makes a store in a temporary folder, starts runs of four sample flows and serves the dashboard. \
It needs nothing but this program. Ctrl-C ends it and removes the folder.

With --crash the process that owns the store, executes the steps and serves the dashboard is \
killed with SIGKILL while runs are under way and started again, and it is checked that each of \
them ended once. Exit code 1 if one did not.

With --redeploy orders come in all the time while a new revision of their flow is deployed, with a \
smoke test and without a stop, and then a broken one, which is rolled back. It prints both reports, \
counts what became of every order, and ends. Exit code 1 if one was lost or doubled.

Examples:
  flowgate demo
  flowgate demo --crash
  flowgate demo --redeploy
  flowgate demo --for 30s --json")]
pub(crate) struct Args {
    /// Kill the process that does the work, again and again, and show that nothing is lost
    #[arg(long)]
    crash: bool,
    /// Replace a flow under load, try a broken revision, and show that nothing is lost
    #[arg(long, conflicts_with = "crash")]
    redeploy: bool,
    /// Leave the folder with the store behind
    #[arg(long)]
    keep: bool,
    /// End by itself this long after it is ready, such as 30s; with --redeploy not before it is done
    #[arg(long = "for", value_name = "SPAN")]
    span: Option<Span>,
    /// Serve the dashboard here [default: 127.0.0.1:7420, or a free port where that is taken]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let began = clock::instant();
    let mut stop = Stop::listen()?;
    if app.config.origin_of("store") == &Origin::Flag("--store") {
        return Err(Failure::usage("demo_store", "a demo makes a store of its own")
            .help("leave --store out; to serve your own flows: `flowgate dev`")
            .path("--store"));
    }
    let folder = tempfile::Builder::new().prefix("flowgate-demo-").tempdir().map_err(|error| {
        Failure::new(Exit::Store, "demo_failed", "cannot make a temporary folder").source(error)
    })?;
    let address = address(&app)?;
    let demo = Demo {
        database: folder.path().join("flowgate.db"),
        folder: folder.path().to_owned(),
        app: &app,
        args: &args,
        address,
        began,
    };
    let outcome = demo.show(&mut stop).await;
    if args.keep {
        let kept = folder.keep();
        app.output.note(format_args!(
            "the store is kept: flowgate runs list --store sqlite:{}",
            kept.join("flowgate.db").display()
        ));
    } else if let Err(error) = folder.close() {
        app.output.warning(format_args!("the temporary folder is left behind: {error}"));
    }
    outcome
}

/// Where the dashboard will be, each time the process starts.
fn address(app: &App) -> Result<SocketAddr, Failure> {
    let Listen::At(wanted) = app.config.listen else {
        return Err(Failure::usage("demo_listen", "a demo without its dashboard shows nothing")
            .help("name an address with --listen ADDR")
            .path("listen"));
    };
    let is_chosen = app.config.origin_of("listen") != &Origin::Default;
    let bound = TcpListener::bind(wanted).or_else(|error| {
        let ip: IpAddr = wanted.ip();
        if is_chosen { Err(error) } else { TcpListener::bind((ip, 0)) }
    });
    bound.and_then(|listener| listener.local_addr()).map_err(|error| {
        Failure::refused("listen_failed", format!("cannot listen at {wanted}"))
            .source(error)
            .help("name another address with --listen ADDR")
            .path("listen")
    })
}

struct Demo<'a> {
    app: &'a App,
    args: &'a Args,
    folder: PathBuf,
    database: PathBuf,
    address: SocketAddr,
    began: Instant,
}

impl Demo<'_> {
    async fn show(&self, stop: &mut Stop) -> Outcome {
        let mut judge = Judge::new(&self.database);
        let mut child = Child::start(self)?;
        let outcome = if self.args.redeploy {
            self.redeploy(stop, &mut child, &mut judge).await
        } else {
            self.work(stop, &mut child, &mut judge).await.map(|()| Shown::Part)
        };
        self.app.output.note("stopping");
        tokio::select! {
            () = child.stop(&mut judge) => {}
            _ = stop.next() => child.kill().await,
        }
        match outcome? {
            Shown::Part => self.conclude(&judge).await,
            Shown::Whole(verdict) if verdict.is_good() => Ok(Exit::Done),
            Shown::Whole(verdict) => Err(broken(&verdict.violations)),
        }
    }

    /// Shows what happens until the user or the clock ends it.
    async fn work(
        &self,
        stop: &mut Stop,
        child: &mut Child,
        judge: &mut Judge,
    ) -> Result<(), Failure> {
        self.ready(child, judge).await?;
        let mut screen = Screen::new(self.app.output, self.args.crash);
        screen.greet(&self.folder, self.address, clock::instant().duration_since(self.began))?;
        let ready_at = clock::instant();
        let mut next_kill = self.began.elapsed() + KILL_FIRST;
        let mut has_finished = false;
        let mut look = tokio::time::interval(LOOK);
        loop {
            if self.args.span.is_some_and(|Span(span)| ready_at.elapsed() >= span) {
                return Ok(());
            }
            if self.args.crash && self.began.elapsed() >= next_kill {
                self.crash(child, judge, &mut screen).await?;
                next_kill = self.began.elapsed() + KILL_NEXT;
            }
            tokio::select! {
                _ = stop.next() => return Ok(()),
                _ = look.tick() => screen.show(&judge.figures().await?)?,
                told = child.told() => match told {
                    Told::Started(run_id) => judge.note_started(run_id),
                    Told::Finished if !has_finished => {
                        has_finished = true;
                        screen.first(self.began.elapsed())?;
                    }
                    Told::Finished | Told::Ready => {}
                    Told::Gone(status) => return Err(gone(&status)),
                },
            }
        }
    }

    /// Waits until the process serves.
    async fn ready(&self, child: &mut Child, judge: &mut Judge) -> Result<(), Failure> {
        loop {
            match child.told().await {
                Told::Ready => return Ok(()),
                Told::Started(run_id) => judge.note_started(run_id),
                Told::Finished => {}
                Told::Gone(status) => return Err(gone(&status)),
            }
        }
    }

    /// Kills the process while runs are under way, starts it again, and waits for their ends.
    async fn crash(
        &self,
        child: &mut Child,
        judge: &mut Judge,
        screen: &mut Screen,
    ) -> Result<(), Failure> {
        let killed = child.id();
        child.kill().await;
        let killed_at = clock::instant();
        for told in child.last_words().await {
            if let Told::Started(run_id) = told {
                judge.note_started(run_id);
            }
        }
        let in_flight = judge.open_runs().await?;
        screen.killed(killed, &in_flight)?;
        *child = Child::start(self)?;
        self.ready(child, judge).await?;
        screen.restarted(child.id(), clock::instant().duration_since(killed_at))?;
        while !judge.have_ended(&in_flight).await? {
            if clock::instant().duration_since(killed_at) > RECOVERY_MAX {
                break;
            }
            let pause = tokio::time::sleep(LOOK / 4);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    told = child.told() => match told {
                        Told::Started(run_id) => judge.note_started(run_id),
                        Told::Finished | Told::Ready => {}
                        Told::Gone(status) => return Err(gone(&status)),
                    },
                }
            }
        }
        let took = clock::instant().duration_since(killed_at);
        let verdict = judge.verdict(in_flight).await?;
        let is_good = verdict.is_good();
        screen.verdict(&verdict, took)?;
        if is_good { Ok(()) } else { Err(broken(&verdict.violations)) }
    }

    /// Judges every run that there is.
    async fn conclude(&self, judge: &Judge) -> Outcome {
        let verdict = judge.of_all().await?;
        if self.app.output.json {
            self.app.output.json_line(&json!({ "event": "ended", "verdict": verdict }))?;
        } else {
            self.app.output.note(format_args!(
                "{} runs, {} of them finished, {} lost, {} steps doubled, {} attempts repeated, \
                 in {}",
                verdict.runs,
                verdict.finished,
                verdict.lost,
                verdict.doubled,
                verdict.repeated,
                Brief(self.began.elapsed()),
            ));
        }
        if verdict.lost == 0 && verdict.violations.is_empty() {
            return Ok(Exit::Done);
        }
        Err(broken(&verdict.violations))
    }
}

fn gone(status: &str) -> Failure {
    let message = format!("the process of the demo ended by itself: {status}");
    Failure::new(Exit::RunFailed, "demo_failed", message)
        .help("what it said is above; try again with -v for more")
}

fn broken(violations: &[String]) -> Failure {
    let first = violations.first().map_or("a run did not end in time", String::as_str);
    Failure::new(Exit::RunFailed, "demo_failed", format!("the demo found a fault: {first}"))
        .help("that is a bug of flowgate: please report it with the store of `demo --keep`")
}

/// The store of a demo in `folder`.
fn store_url(database: &Path) -> String {
    StoreUrl::Sqlite(database.to_owned()).to_string()
}
