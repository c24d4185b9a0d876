//! A folder of its own for each test, and the processes in it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A folder with the examples in it.
pub(crate) struct Sandbox {
    folder: tempfile::TempDir,
}

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// With the examples of the repository.
    pub(crate) fn with_examples() -> Self {
        let sandbox = Self::new();
        for entry in std::fs::read_dir(repository().join("examples")).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            std::fs::copy(&path, sandbox.path(path.file_name().unwrap().to_str().unwrap()))
                .unwrap();
        }
        sandbox
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Lines in a file; 0 if there is none.
    pub(crate) fn lines_in(&self, name: &str) -> usize {
        std::fs::read_to_string(self.path(name)).map_or(0, |text| text.lines().count())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flowgate"));
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("FLOWGATE_")) {
                command.env_remove(name);
            }
        }
        command.args(args).current_dir(self.folder.path()).env("COLUMNS", "100").env("TZ", "UTC");
        command
    }

    /// Runs a command to its end.
    pub(crate) fn flowgate(&self, args: &[&str]) -> Done {
        Done::of(self.command(args).stdin(Stdio::null()).output().unwrap())
    }

    /// Runs a command with variables in its environment.
    pub(crate) fn flowgate_with(&self, variables: &[(&str, &str)], args: &[&str]) -> Done {
        let mut command = self.command(args);
        Done::of(command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap())
    }

    /// Runs a command that reads `input`.
    pub(crate) fn flowgate_reading(&self, input: &str, args: &[&str]) -> Done {
        let mut command = self.command(args);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        Done::of(child.wait_with_output().unwrap())
    }

    /// Runs a command whose output nobody reads.
    pub(crate) fn flowgate_cut_short(&self, args: &[&str]) -> Done {
        let mut command = self.command(args);
        let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        drop(child.stdout.take());
        Done::of(child.wait_with_output().unwrap())
    }

    /// Starts a command and returns while it runs.
    pub(crate) fn spawn(&self, args: &[&str]) -> Running {
        self.spawn_with(&[], args)
    }

    /// Starts a command with variables in its environment and returns while it runs.
    pub(crate) fn spawn_with(&self, variables: &[(&str, &str)], args: &[&str]) -> Running {
        let mut command = self.command(args);
        command.envs(variables.iter().copied());
        Running::start(&mut command)
    }

    /// Starts another program in the folder, and returns while it runs.
    pub(crate) fn program(
        &self,
        program: &str,
        variables: &[(&str, &str)],
        args: &[&str],
    ) -> Running {
        let mut command = Command::new(program);
        command.args(args).envs(variables.iter().copied()).current_dir(self.folder.path());
        Running::start(&mut command)
    }

    /// Starts `dev` and waits until it is ready.
    pub(crate) fn dev(&self, args: &[&str]) -> Running {
        let dev = self.spawn(&[&["dev"], args].concat());
        dev.stderr.wait_for("ready in");
        dev
    }

    /// Starts `worker start` at a free port and waits until it is ready.
    pub(crate) fn worker(&self, args: &[&str]) -> Worker {
        let worker = self.worker_soon(args);
        worker.process.stderr.wait_for("ready in");
        worker
    }

    /// Starts `worker start` at a port that was free a moment ago.
    pub(crate) fn worker_soon(&self, args: &[&str]) -> Worker {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        let listen = address.to_string();
        let process = self.spawn(&[&["worker", "start", "--listen", &listen][..], args].concat());
        Worker { process, address }
    }
}

/// A worker, and where its health and metrics are.
pub(crate) struct Worker {
    pub(crate) process: Running,
    pub(crate) address: std::net::SocketAddr,
}

impl Worker {
    /// The status and the body of the answer to a GET, if it answers.
    pub(crate) fn try_get(&self, path: &str) -> Option<(u16, String)> {
        ask(
            self.address,
            &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
        )
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        eventually("the worker answers", || self.try_get(path))
    }

    /// The sum of a metric over all series that hold all of `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200);
        sum_of(&text, name, labels)
    }

    /// Stops it as a service manager does.
    pub(crate) fn terminate(self) -> Done {
        self.process.signal("TERM");
        self.process.end()
    }
}

/// The sum of a metric over all series of an exposition that hold all of `labels`.
pub(crate) fn sum_of(exposition: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let series = exposition.lines().filter_map(|line| {
        let (key, value) = line.rsplit_once(' ')?;
        let (found, with) = key.split_once('{').unwrap_or((key, ""));
        let is_meant = found == name && labels.iter().all(|label| with.contains(label));
        is_meant.then(|| value.parse::<f64>().unwrap())
    });
    series.reduce(|one, other| one + other)
}

/// Sends a request and returns the status and the body of its answer, if there is one.
pub(crate) fn ask(address: std::net::SocketAddr, request: &str) -> Option<(u16, String)> {
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let body = answer.split_once("\r\n\r\n")?.1.to_owned();
    Some((status, body))
}

/// The top of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

impl Done {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The exit code must be this.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// The one JSON value on stdout.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// A JSON value per line of stdout.
    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The error on stderr of a command with `--json`.
    #[track_caller]
    pub(crate) fn json_error(&self) -> Value {
        let line = self.stderr.lines().last().unwrap_or_default();
        let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{self:#?}"));
        value["error"].clone()
    }

    /// Both outputs, with what differs from run to run taken out.
    pub(crate) fn shown(&self) -> String {
        let code = self.code.unwrap_or(-1);
        let (stdout, stderr) = (redacted(&self.stdout), redacted(&self.stderr));
        format!("exit: {code}\n--- stdout\n{stdout}--- stderr\n{stderr}")
    }
}

/// A process that has not ended yet.
pub(crate) struct Running {
    child: Child,
    pub(crate) stdout: Collected,
    pub(crate) stderr: Collected,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let stdout = Collected::from(child.stdout.take().unwrap());
        let stderr = Collected::from(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    /// Whether it has not ended.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name: `INT`, `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Ends it without a word.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Done {
        let code = eventually("the process ends", || self.child.try_wait().unwrap()).code();
        let (stdout, stderr) = (self.stdout.whole(), self.stderr.whole());
        Done { code, stdout, stderr }
    }

    /// Stops it as Ctrl-C does.
    pub(crate) fn interrupt(self) -> Done {
        self.signal("INT");
        self.end()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// What a process has written so far.
pub(crate) struct Collected {
    text: Arc<Mutex<String>>,
    reader: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Collected {
    fn from(pipe: impl std::io::Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let shared = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines() {
                let Ok(line) = line else { return };
                let mut text = shared.lock().unwrap();
                text.push_str(&line);
                text.push('\n');
            }
        });
        Self { text, reader: Mutex::new(Some(reader)) }
    }

    pub(crate) fn so_far(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    /// Everything, once the process has ended.
    fn whole(&self) -> String {
        if let Some(reader) = self.reader.lock().unwrap().take() {
            reader.join().unwrap();
        }
        self.so_far()
    }

    /// Waits for a text and returns the line that it is in.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        eventually(&format!("`{text}` is written"), || {
            self.so_far().lines().find(|line| line.contains(text)).map(str::to_owned)
        })
    }
}

/// Waits for a fact of another process.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut fact: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = fact() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until something holds of another process.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

/// The text without ids, times, spans and the number of spaces between columns.
pub(crate) fn redacted(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        lines.push_str(&line[..indent]);
        let words: Vec<String> = line.split_whitespace().map(redacted_word).collect();
        lines.push_str(&words.join(" "));
        lines.push('\n');
    }
    lines
}

fn redacted_word(word: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '.' | '+');
    let mut result = String::new();
    let mut rest = word;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        result.push_str(&redacted_part(part));
        let other = after.chars().next().map_or(0, char::len_utf8);
        result.push_str(&after[..other]);
        rest = &after[other..];
    }
    result
}

fn redacted_part(part: &str) -> String {
    let core = part.trim_end_matches([':', '.']);
    let tail = &part[core.len()..];
    let dashes = core.matches('-').count();
    let is_hex = core.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let is_id = is_hex && ((core.len() == 36 && dashes == 4) || (core.len() == 18 && dashes == 2));
    let is_time = core.len() == 24 && core.ends_with('Z') && core.as_bytes()[10] == b'T';
    let is_span = core.starts_with(|c: char| c.is_ascii_digit() || c == '+')
        && core.ends_with(['s', 'm', 'h'])
        && core.bytes().all(|b| b.is_ascii_digit() || b".+msh".contains(&b));
    let is_instance = core.rsplit_once('-').is_some_and(|(host, random)| {
        !host.is_empty() && random.len() == 8 && random.bytes().all(|b| b.is_ascii_hexdigit())
    });
    let shown = if is_id {
        "RUN"
    } else if is_time {
        "TIME"
    } else if is_span {
        "SPAN"
    } else if is_instance {
        "INSTANCE"
    } else {
        core
    };
    format!("{shown}{tail}")
}
