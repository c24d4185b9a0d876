//! The sink of effects: a process of its own that no fault touches.
//!
//! A step tells it `KEY ATTEMPT INSTANCE` on a line and goes on when it is answered `ok`, which
//! means that the line is in the sink's file and the file is on the disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context;
use flowgate_engine::HandlerError;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

/// Lines that are written with one sync.
const GROUP_MAX: usize = 512;
/// How long a step waits for the sink's answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to append to
    #[arg(long)]
    file: PathBuf,
}

/// Takes effects until its standard input ends.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening")?;
    let port = listener.local_addr()?.port();
    let file = File::options().create(true).append(true).open(&args.file).context("opening")?;
    let (send, lines) = mpsc::sync_channel::<(String, TcpStream)>(10_000);
    std::thread::spawn(move || write(&file, &lines));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let send = send.clone();
            std::thread::spawn(move || read(stream, &send));
        }
    });
    let mut out = std::io::stdout();
    writeln!(out, "{port}")?;
    out.flush()?;
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

fn read(stream: TcpStream, send: &mpsc::SyncSender<(String, TcpStream)>) {
    let Ok(answers) = stream.try_clone() else { return };
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Ok(answers) = answers.try_clone() else { return };
        if send.send((line, answers)).is_err() {
            return;
        }
    }
}

/// Writes lines in groups, one sync each, and answers.
fn write(mut file: &File, lines: &mpsc::Receiver<(String, TcpStream)>) {
    while let Ok(first) = lines.recv() {
        let mut group = vec![first];
        group.extend(lines.try_iter().take(GROUP_MAX));
        let lines: Vec<&str> = group.iter().map(|(line, _)| line.as_str()).collect();
        let text = lines.join(";\n") + ";\n";
        // Without its file the sink is of no use: who waits gets no answer.
        if file.write_all(text.as_bytes()).and_then(|()| file.sync_data()).is_err() {
            return;
        }
        for (_, mut answers) in group {
            // Whoever asked may have been killed.
            drop(answers.write_all(b"ok\n"));
        }
    }
}

/// The running sink.
#[derive(Debug)]
pub(crate) struct Sink {
    process: Child,
    pub(crate) port: u16,
}

impl Sink {
    /// Starts the sink on this file.
    pub(crate) fn start(file: &Path) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe().context("finding this program")?)
            .args(["sink", "--file"])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the sink")?;
        let stdout = process.stdout.take().expect("the sink's stdout is a pipe");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("reading the sink's port")?;
        Ok(Self { process, port: line.trim().parse().context("the sink's port")? })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // It ends when its standard input does; killing it loses nothing that it answered for.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// An instance's way to the sink: connections are taken from a pool and given back.
#[derive(Debug)]
pub(crate) struct SinkClient {
    address: SocketAddr,
    instance: String,
    idle: parking_lot::Mutex<Vec<tokio::io::BufStream<tokio::net::TcpStream>>>,
}

impl SinkClient {
    pub(crate) fn new(port: u16, instance: String) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self { address, instance, idle: parking_lot::Mutex::default() }
    }

    /// Records one execution.
    pub(crate) async fn record(&self, key: &str, attempt: u32) -> Result<(), HandlerError> {
        let idle = self.idle.lock().pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => tokio::io::BufStream::new(tokio::net::TcpStream::connect(self.address).await?),
        };
        let line = format!("{key} {attempt} {}\n", self.instance);
        stream.write_all(line.as_bytes()).await?;
        stream.flush().await?;
        let mut answer = String::new();
        tokio::time::timeout(ANSWER_MAX, stream.read_line(&mut answer))
            .await
            .map_err(|_| HandlerError::retryable("the sink did not answer"))??;
        if answer != "ok\n" {
            return Err(HandlerError::retryable("the sink is gone"));
        }
        self.idle.lock().push(stream);
        Ok(())
    }
}

/// How often each idempotency key was executed.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<BTreeMap<String, u64>> {
    let text = std::fs::read_to_string(path).context("reading the sink's file")?;
    let mut executions = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_suffix(';')) {
        let key = line.split(' ').next().unwrap_or_default();
        *executions.entry(key.to_owned()).or_default() += 1;
    }
    Ok(executions)
}
