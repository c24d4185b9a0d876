//! A server, a sink and instances, each behind a proxy of its own, as the driver holds them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use flowgate_testbed::{FaultProxy, Stopwatch};
use parking_lot::Mutex;

use crate::instance::{Answer, Ask, Command, Say};
use crate::plant::Bug;
use crate::server::{self, Server};
use crate::sink::Sink;

/// How long an instance may take until it takes commands.
const UP_WAIT_MAX: Duration = Duration::from_mins(1);

/// How instances are started.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) url: String,
    pub(crate) sink: u16,
    pub(crate) lease: Duration,
    pub(crate) leader_lease: Duration,
    /// Whether instances have the projection of `tally`, and its lease.
    pub(crate) subscriber_lease: Option<Duration>,
    pub(crate) slots: usize,
    pub(crate) plant: Option<Bug>,
    pub(crate) folder: PathBuf,
}

/// A running instance, as the driver talks to it.
#[derive(Debug)]
pub(crate) struct Instance {
    process: Mutex<Child>,
    stdin: Mutex<Option<ChildStdin>>,
    state: Arc<State>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    answers: Mutex<HashMap<u64, mpsc::Sender<Answer>>>,
    said: Mutex<Said>,
}

/// What an instance has said of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) name: Option<String>,
    pub(crate) is_ready: bool,
    /// Its output has ended.
    pub(crate) is_gone: bool,
}

impl Instance {
    /// Starts a process; it may take a while until it takes commands.
    pub(crate) fn start(setup: &Setup, url: &str, label: &str) -> anyhow::Result<Self> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(setup.folder.join(format!("instance-{label}.log")))
            .context("making the log of an instance")?;
        let mut command = Process::new(std::env::current_exe().context("finding this program")?);
        command
            .args(["instance", "--store", url])
            .args(["--sink", &setup.sink.to_string()])
            .args(["--lease-ms", &setup.lease.as_millis().to_string()])
            .args(["--leader-lease-ms", &setup.leader_lease.as_millis().to_string()])
            .args(["--slots", &setup.slots.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        if let Some(lease) = setup.subscriber_lease {
            command.args(["--subscriber-lease-ms", &lease.as_millis().to_string()]);
        }
        if let Some(bug) = setup.plant {
            let name = clap::ValueEnum::to_possible_value(&bug).expect("every bug has a name");
            command.args(["--plant", name.get_name()]);
        }
        let mut process = command.spawn().context("starting an instance")?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().expect("the instance's stdout is a pipe");
        let state = Arc::new(State::default());
        let heard = Arc::clone(&state);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Ok(say) = serde_json::from_str(&line) {
                    heard.hear(say);
                }
            }
            heard.said.lock().is_gone = true;
            // Who waits for an answer gets none.
            heard.answers.lock().clear();
        });
        let (process, stdin) = (Mutex::new(process), Mutex::new(stdin));
        Ok(Self { process, stdin, state, next: AtomicU64::new(1) })
    }

    /// What it has said of itself.
    pub(crate) fn said(&self) -> Said {
        self.state.said.lock().clone()
    }

    /// Waits until it takes commands.
    pub(crate) fn wait_until_up(&self) -> anyhow::Result<()> {
        self.wait_for(UP_WAIT_MAX, |said| said.name.is_some()).context("waiting for an instance")
    }

    /// Waits until what it says of itself is as wanted.
    pub(crate) fn wait_for(
        &self,
        wait_max: Duration,
        wanted: impl Fn(&Said) -> bool,
    ) -> anyhow::Result<()> {
        let watch = Stopwatch::start();
        loop {
            let said = self.said();
            if wanted(&said) {
                return Ok(());
            }
            if said.is_gone {
                bail!("the instance ended by itself");
            }
            if watch.elapsed() > wait_max {
                bail!("nothing of that within {wait_max:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks for something; nothing if there is no answer within `wait_max`.
    pub(crate) fn ask(&self, ask: Ask, wait_max: Duration) -> Option<Answer> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (send, answered) = mpsc::channel();
        self.state.answers.lock().insert(id, send);
        let mut line =
            serde_json::to_string(&Command { id, ask }).expect("a command has a JSON form");
        line.push('\n');
        let sent = match self.stdin.lock().as_mut() {
            Some(stdin) => stdin.write_all(line.as_bytes()).is_ok(),
            None => false,
        };
        // A process that dies takes commands a moment longer than it answers. Who was waiting when it
        // was found gone is told so; whoever came later is not.
        let is_heard = sent && !self.said().is_gone;
        let answer = if is_heard { answered.recv_timeout(wait_max).ok() } else { None };
        self.state.answers.lock().remove(&id);
        answer
    }

    /// Sends its process a signal.
    pub(crate) fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let mut process = self.process.lock();
        if process.try_wait().context("looking at an instance")?.is_some() {
            bail!("the instance has ended");
        }
        // It has not been waited for, so nobody else can have its id.
        let done = Process::new("kill").args([signal, &process.id().to_string()]).status();
        if !done.context("sending a signal")?.success() {
            bail!("the signal {signal} was not taken");
        }
        Ok(())
    }

    /// Kills it, and waits until it is gone. True if it was alive until then.
    pub(crate) fn kill(&self) -> anyhow::Result<bool> {
        let mut process = self.process.lock();
        process.kill().context("killing an instance")?;
        let status = process.wait().context("waiting for a killed instance")?;
        Ok(status.code().is_none())
    }

    /// Asks it to end gracefully and waits for that.
    pub(crate) fn stop(&self, wait_max: Duration) -> anyhow::Result<()> {
        drop(self.stdin.lock().take());
        let watch = Stopwatch::start();
        loop {
            if let Some(status) =
                self.process.lock().try_wait().context("looking at an instance")?
            {
                if status.success() {
                    return Ok(());
                }
                bail!("the instance ended with {status}");
            }
            if watch.elapsed() > wait_max {
                bail!("the instance did not end within {wait_max:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let mut process = self.process.lock();
        drop(process.kill());
        drop(process.wait());
    }
}

impl State {
    fn hear(&self, say: Say) {
        match say {
            Say::Up { instance } => self.said.lock().name = Some(instance),
            Say::Ready(is_ready) => self.said.lock().is_ready = is_ready,
            Say::Answer { id, answer } => {
                if let Some(asked) = self.answers.lock().remove(&id) {
                    // Whoever asked may have given up.
                    drop(asked.send(answer));
                }
            }
        }
    }
}

/// Everything that runs.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) server: Mutex<Server>,
    pub(crate) setup: Setup,
    places: Vec<Place>,
    _sink: Sink,
}

/// Where an instance runs: the way to the server stays when the process goes.
#[derive(Debug)]
struct Place {
    url: String,
    proxy: Option<FaultProxy>,
    instance: Mutex<Arc<Instance>>,
    starts: AtomicU64,
}

/// How a cluster is made.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: server::Kind,
    pub(crate) instances: usize,
    pub(crate) lease: Duration,
    pub(crate) leader_lease: Duration,
    /// Whether instances have the projection of `tally`, and its lease.
    pub(crate) subscriber_lease: Option<Duration>,
    pub(crate) slots: usize,
    pub(crate) plant: Option<Bug>,
}

impl Cluster {
    /// Starts server, sink and instances; logs and the sink's file go to `folder`.
    pub(crate) fn start(plan: &Plan, folder: &Path) -> anyhow::Result<Self> {
        let server = Server::start(plan.kind)?;
        let sink = Sink::start(&folder.join("effects"))?;
        let setup = Setup {
            url: server.url(),
            sink: sink.port,
            lease: plan.lease,
            leader_lease: plan.leader_lease,
            subscriber_lease: plan.subscriber_lease,
            slots: plan.slots,
            plant: plan.plant,
            folder: folder.to_owned(),
        };
        let mut cluster =
            Self { server: Mutex::new(server), setup, places: Vec::new(), _sink: sink };
        for _ in 0..plan.instances {
            cluster.add(plan.kind)?;
        }
        for place in 0..plan.instances {
            cluster.instance(place).wait_until_up()?;
        }
        Ok(cluster)
    }

    /// Starts one more instance in a place of its own.
    pub(crate) fn add(&mut self, kind: server::Kind) -> anyhow::Result<()> {
        let (url, proxy) = if kind.takes_proxy() {
            let proxy = FaultProxy::start(server::address_of(&self.setup.url)?)?;
            (server::through(&self.setup.url, proxy.address())?, Some(proxy))
        } else {
            (self.setup.url.clone(), None)
        };
        let label = format!("{}-1", self.places.len());
        let instance = Mutex::new(Arc::new(Instance::start(&self.setup, &url, &label)?));
        self.places.push(Place { url, proxy, instance, starts: AtomicU64::new(1) });
        Ok(())
    }

    /// How many places there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// The instance in a place now.
    pub(crate) fn instance(&self, place: usize) -> Arc<Instance> {
        Arc::clone(&self.places[place].instance.lock())
    }

    /// The way of a place to the server, where there is one.
    pub(crate) fn proxy(&self, place: usize) -> Option<&FaultProxy> {
        self.places[place].proxy.as_ref()
    }

    /// Starts a new process in a place whose process is gone.
    pub(crate) fn replace(&self, place: usize) -> anyhow::Result<()> {
        let place_number = place;
        let place = &self.places[place];
        let starts = place.starts.fetch_add(1, Ordering::Relaxed) + 1;
        let label = format!("{place_number}-{starts}");
        let instance = Arc::new(Instance::start(&self.setup, &place.url, &label)?);
        *place.instance.lock() = instance;
        Ok(())
    }
}
