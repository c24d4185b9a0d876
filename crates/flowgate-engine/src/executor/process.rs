//! Steps that start a program, with or without a shell.
//!
//! The program gets the input as JSON on its standard input, `FLOWGATE_*` variables that say what
//! it works on, `TRACEPARENT` if spans are exported, and of this process's environment only `PATH`,
//! `HOME`, `LANG` and `TMPDIR`. What it writes to its standard output is read as
//! [`super::protocol`] says; what it writes to its standard error are log lines of level `warn`.
//! Exit code 0 is success unless it said `fail`.
//!
//! A program that the settings do not allow is not started, and neither is one of a flow that came
//! without a folder where the settings forbid that. The secrets that its variables name are put in
//! here and masked in all that it says.
//!
//! The program is the leader of a process group of its own, and the group ends with the attempt,
//! however that ends: SIGTERM, a grace, SIGKILL. What the program left behind in its group when it
//! exited gets SIGKILL at once.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::decide::Outcome;
use flowgate_core::event::ErrorKind;
use flowgate_core::flow::{Action, ProcessFile};
use flowgate_core::limits;
use flowgate_core::payload::Payload;
use flowgate_store::LogLevel;
use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::process::{ChildStdin, Command};

use super::lines::Lines;
use super::protocol::{self, Line, Message};
use super::worker::with_causes;
use crate::attempt::{Attempt, Ending};
use crate::config::SHELL;
use crate::secrets::SECRET_BYTES_MAX;
use crate::{clock, context};

const SIGTERM: i32 = 15;
/// How long output is still read after the program has exited: something that it left behind may
/// hold the pipe open for ever.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// Lines of standard error that a failure quotes.
const STDERR_LINES_QUOTED: usize = 10;
/// Bytes of a line of standard error: those that are kept, and room to find a secret whole.
const STDERR_LINE_BYTES_MAX: usize = limits::LOG_LINE_BYTES_MAX + SECRET_BYTES_MAX;
/// A message line holds a payload, its key and some air.
const LINE_BYTES_MAX: usize = limits::PAYLOAD_BYTES_MAX + (4 << 10);

/// Executes a `process` or `shell` step.
pub(crate) async fn execute(attempt: &Arc<Attempt>) -> Ending {
    let running = &attempt.instance.processes;
    let _permit = tokio::select! {
        biased;
        permit = running.acquire() => permit.expect("the semaphore is never closed"),
        stop = attempt.stopped() => return Ending::Stopped(stop),
    };
    let began = clock::now();
    let process = process_of(attempt);
    let config = &attempt.instance.config.process;
    let has_folder = attempt.flow.folder.is_some();
    if let Some(why) = config.refusal(&attempt.step().action, has_folder) {
        return Ending::failed(ErrorKind::Invalid, &why);
    }
    let env = match variables(attempt, &process).await {
        Ok(env) => env,
        Err(message) => return Ending::failed(ErrorKind::Failed, &message),
    };
    let program = process.command.first().cloned().unwrap_or_default();
    let command = command(attempt, &process, &env);
    let mut group = match Group::spawn(command) {
        Ok(group) => group,
        Err(error) => return not_started(attempt, &program, &error),
    };
    let ended = tokio::select! {
        biased;
        ended = converse(attempt, &mut group) => Ok(ended),
        interrupt = attempt.interrupted(began) => Err(interrupt),
    };
    group.end(attempt.instance.config.process.kill_grace).await;
    match ended {
        Ok(outcome) => Ending::Outcome(outcome),
        Err(interrupt) => attempt.ending_of(interrupt),
    }
}

/// What the step starts.
fn process_of(attempt: &Attempt) -> Cow<'_, ProcessFile> {
    match &attempt.step().action {
        Action::Process(process) => Cow::Borrowed(process),
        Action::Shell(line) => {
            let command = vec![SHELL.to_owned(), "-c".to_owned(), line.clone()];
            Cow::Owned(ProcessFile { command, ..ProcessFile::default() })
        }
        Action::Nothing
        | Action::Http(_)
        | Action::Mqtt(_)
        | Action::Worker(_)
        | Action::Wait(_) => {
            unreachable!("only a step with a program gets here")
        }
    }
}

/// The step's own variables, with the secrets that they name.
async fn variables(
    attempt: &Attempt,
    process: &ProcessFile,
) -> Result<Vec<(String, String)>, String> {
    let mut used = Vec::new();
    let mut env = Vec::with_capacity(process.env.len());
    for (name, value) in &process.env {
        let filled = attempt.instance.config.secrets.fill(value, &mut used).await;
        env.push((name.clone(), filled.map_err(|error| with_causes(&error))?));
    }
    attempt.hide(&used);
    Ok(env)
}

/// How to start the program.
fn command(attempt: &Attempt, process: &ProcessFile, env: &[(String, String)]) -> Command {
    let mut command = Command::new(process.command.first().map_or("", String::as_str));
    command.args(process.command.iter().skip(1)).env_clear();
    command.envs(attempt.instance.config.process.env.iter().map(|(name, value)| (name, value)));
    command.envs(env.iter().map(|(name, value)| (name, value))).envs(identity(attempt));
    command.envs(attempt.traceparent().map(|place| ("TRACEPARENT", place)));
    if let Some(folder) = folder(attempt.flow.folder.as_deref(), process.cwd.as_deref()) {
        command.current_dir(folder);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What the program works on.
fn identity(attempt: &Attempt) -> [(&'static str, String); 6] {
    [
        ("FLOWGATE_RUN_ID", attempt.claimed.run.run_id.to_string()),
        ("FLOWGATE_FLOW", attempt.flow.flow.name.to_string()),
        ("FLOWGATE_REVISION", attempt.flow.flow.revision.to_string()),
        ("FLOWGATE_STEP", attempt.step().name.to_string()),
        ("FLOWGATE_ATTEMPT", attempt.claimed.job.attempt.to_string()),
        ("FLOWGATE_KEY", attempt.key()),
    ]
}

fn folder(base: Option<&Path>, cwd: Option<&str>) -> Option<PathBuf> {
    match (base, cwd) {
        (Some(base), Some(cwd)) => Some(base.join(cwd)),
        (Some(base), None) => Some(base.to_owned()),
        (None, Some(cwd)) => Some(cwd.into()),
        (None, None) => None,
    }
}

fn not_started(attempt: &Attempt, program: &str, error: &io::Error) -> Ending {
    let process = &attempt.instance.config.process;
    let path = process.env.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or_else(String::new, |(_, value)| value.to_string_lossy().into_owned());
    #[expect(clippy::wildcard_enum_match_arm, reason = "the system may fail in any other way")]
    let (kind, hint) = match error.kind() {
        io::ErrorKind::NotFound => {
            let folder = attempt.flow.folder.as_deref().map(|folder| folder.display().to_string());
            let folder = folder.unwrap_or_else(|| "the folder of the instance".to_owned());
            (ErrorKind::Invalid, format!("; looked in PATH={path}, started in {folder}"))
        }
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::Invalid, "; is the file executable?".to_owned())
        }
        io::ErrorKind::InvalidInput => {
            (ErrorKind::Invalid, "; an argument or variable holds a NUL character".to_owned())
        }
        _ => (ErrorKind::Failed, String::new()),
    };
    Ending::failed(kind, &format!("the program `{program}` could not be started: {error}{hint}"))
}

/// A program and all that it started.
#[derive(Debug)]
struct Group {
    leader: Box<dyn ChildWrapper>,
    status: Option<ExitStatus>,
    is_ended: bool,
}

impl Group {
    fn spawn(command: Command) -> io::Result<Self> {
        let mut wrapped = CommandWrap::from(command);
        wrapped.wrap(ProcessGroup::leader()).wrap(KillOnDrop);
        Ok(Self { leader: wrapped.spawn()?, status: None, is_ended: false })
    }

    async fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        let status = self.leader.wait().await?;
        self.status = Some(status);
        Ok(status)
    }

    /// Ends whatever is left of the group.
    async fn end(&mut self, grace: Duration) {
        if self.status.is_none() && self.leader.signal(SIGTERM).is_ok() {
            drop(tokio::time::timeout(grace, self.wait()).await);
        }
        self.kill();
        if let Err(error) = self.wait().await {
            tracing::warn!(%error, "a program could not be waited for");
        }
        self.is_ended = true;
    }

    /// An error means that nothing of the group is left.
    fn kill(&mut self) {
        drop(self.leader.start_kill());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_ended {
            self.kill();
        }
    }
}

/// What a program has said so far.
#[derive(Default)]
struct Said {
    result: Option<Payload>,
    failure: Option<(ErrorKind, String)>,
    stderr_tail: VecDeque<String>,
}

/// Talks with the program until it exits, or breaks a rule.
async fn converse(attempt: &Arc<Attempt>, group: &mut Group) -> Outcome {
    let stdin = group.leader.stdin().take().expect("stdin is piped");
    let stdout = group.leader.stdout().take().expect("stdout is piped");
    let stderr = group.leader.stderr().take().expect("stderr is piped");
    let mut said = Said::default();
    let mut tail = VecDeque::new();
    let talk = async {
        let written = async {
            feed(stdin, &attempt.input()).await;
            Ok(())
        };
        tokio::try_join!(
            written,
            listen(attempt, stdout, &mut said),
            listen_to_errors(attempt, stderr, &mut tail),
        )
    };
    let status = {
        tokio::pin!(talk);
        let mut talked = None;
        let status = loop {
            tokio::select! {
                biased;
                result = &mut talk, if talked.is_none() => match result {
                    Ok(_) => talked = Some(()),
                    Err(broken) => return attempt.failure(ErrorKind::Invalid, &broken, None),
                },
                status = group.wait() => break status,
            }
        };
        if talked.is_none()
            && let Ok(Err(broken)) = tokio::time::timeout(DRAIN_MAX, &mut talk).await
        {
            return attempt.failure(ErrorKind::Invalid, &broken, None);
        }
        status
    };
    said.stderr_tail = tail;
    match status {
        Ok(status) => outcome(attempt, status, said),
        Err(error) => attempt.failure(ErrorKind::Failed, &with_causes(&error), None),
    }
}

/// Writes the input. A program that does not read it is fine.
async fn feed(mut stdin: ChildStdin, input: &str) {
    if stdin.write_all(input.as_bytes()).await.is_ok() {
        drop(stdin.shutdown().await);
    }
}

async fn listen(
    attempt: &Attempt,
    stdout: impl AsyncRead + Unpin,
    said: &mut Said,
) -> Result<(), String> {
    let bytes_max = attempt.instance.config.process.stdout_bytes_max;
    let mut lines = Lines::new(stdout, LINE_BYTES_MAX, bytes_max);
    let too_much = |_| format!("the step wrote more than {bytes_max} bytes to its output");
    while let Some(line) = lines.next().await.map_err(too_much)? {
        if line.is_cut && protocol::is_message_start(&line.text) {
            return Err(format!("the step wrote a message of more than {LINE_BYTES_MAX} bytes"));
        }
        let text = attempt.masked(&line.text);
        match protocol::read(&text)? {
            Line::Text => attempt.log(LogLevel::Info, &text),
            Line::Messages(messages) => {
                for message in messages {
                    take(attempt, message, said)?;
                }
            }
        }
    }
    Ok(())
}

fn take(attempt: &Attempt, message: Message, said: &mut Said) -> Result<(), String> {
    match message {
        Message::State(key, value) => {
            context::state_set(attempt, &key, value).map_err(|error| with_causes(&error))
        }
        Message::Emit(event, data) => {
            context::emit(attempt, &event, data).map_err(|error| with_causes(&error))
        }
        Message::Log(level, text) => {
            attempt.log(level, &text);
            Ok(())
        }
        Message::Result(result) => {
            said.result = Some(result);
            Ok(())
        }
        Message::Fail { message, retry } => {
            let kind = if retry { ErrorKind::Failed } else { ErrorKind::Final };
            said.failure = Some((kind, message));
            Ok(())
        }
    }
}

async fn listen_to_errors(
    attempt: &Attempt,
    stderr: impl AsyncRead + Unpin,
    tail: &mut VecDeque<String>,
) -> Result<(), String> {
    let mut lines = Lines::new(stderr, STDERR_LINE_BYTES_MAX, usize::MAX);
    while let Ok(Some(line)) = lines.next().await {
        let text = attempt.masked(&line.text);
        attempt.log(LogLevel::Warn, &text);
        if tail.len() == STDERR_LINES_QUOTED {
            tail.pop_front();
        }
        tail.push_back(text.into_owned());
    }
    Ok(())
}

fn outcome(attempt: &Attempt, status: ExitStatus, said: Said) -> Outcome {
    if let Some((kind, message)) = said.failure {
        return attempt.failure(kind, &message, None);
    }
    if status.success() {
        return Outcome::Succeeded(attempt.take_output(said.result));
    }
    let mut message = match (status.code(), status.signal()) {
        (Some(code), _) => format!("the program ended with exit code {code}"),
        (None, Some(signal)) => format!("the program was ended by signal {signal}"),
        (None, None) => format!("the program ended: {status}"),
    };
    let quoted: Vec<&str> = said.stderr_tail.iter().map(String::as_str).collect();
    let quoted = quoted.join("\n");
    // The end of what it said is worth more than the beginning.
    let start = quoted.ceil_char_boundary(quoted.len().saturating_sub(limits::ERROR_BYTES_MAX / 2));
    if !quoted.is_empty() {
        message.push_str(": ");
        message.push_str(&quoted[start..]);
    }
    attempt.failure(ErrorKind::Failed, &message, None)
}
