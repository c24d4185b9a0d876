//! Rules about what a step does: `run` and `wait`.

use url::Url;

use super::Problems;
use super::mqtt;
use super::times::validate_span;
use crate::flow::secret::{SecretError, names_a_secret, secret_parts};
use crate::flow::{HttpFile, OnTimeout, Path, ProcessFile, RunFile, StepFile, WaitFile};

/// Variables through which somebody could put code into the program that is started.
const ENV_REFUSED: [&str; 6] =
    ["BASH_ENV", "GCONV_PATH", "GLIBC_TUNABLES", "PERL5OPT", "PYTHONSTARTUP", "RUBYOPT"];
/// How variables begin that tell the loader what to load.
const ENV_REFUSED_STARTS: [&str; 2] = ["LD_", "DYLD_"];
/// Headers that flowgate sets itself.
const HEADERS_OURS: [&str; 4] = ["content-type", "idempotency-key", "host", "content-length"];

/// Checks a step's `run` and `wait`.
pub(super) fn validate(path: &Path, step: &StepFile, problems: &mut Problems) {
    if step.run.is_some() && step.wait.is_some() {
        problems.add(
            &path.key("wait"),
            "a step has either `run` or `wait`, and this one has both",
            "make it two steps, the second with `subscribes: [\"step:NAME\"]`",
        );
    }
    if let Some(run) = &step.run {
        let at = path;
        let path = path.key("run");
        match run {
            RunFile::Process(process) => validate_process(&path.key("process"), process, problems),
            RunFile::Shell(line) => validate_shell(&path.key("shell"), line, problems),
            RunFile::Http(http) => validate_http(&path.key("http"), http, problems),
            RunFile::Mqtt(file) => mqtt::validate(at, step, file, problems),
            RunFile::Worker(name) => problems.name(&path.key("worker"), "worker", name),
        }
    }
    if let Some(wait) = &step.wait {
        validate_wait(&path.key("wait"), step, wait, problems);
    }
}

fn validate_process(path: &Path, process: &ProcessFile, problems: &mut Problems) {
    let short = process.cwd.is_none() && process.env.is_empty();
    let command = if short { path.clone() } else { path.key("command") };
    match process.command.first() {
        None => problems.add(
            &command,
            "the command is empty",
            "name the program and its arguments, such as `[python3, start.py]`",
        ),
        Some(program) if program.is_empty() => {
            problems.add(
                &command.index(0),
                "the program's name is empty",
                "name the program to start",
            );
        }
        Some(_) => {}
    }
    for (at, argument) in process.command.iter().enumerate() {
        no_nul(&command.index(at), "the command", argument, problems);
        no_secret(&command.index(at), "the command", argument, problems);
    }
    if let Some(cwd) = &process.cwd {
        if cwd.is_empty() {
            problems.add(&path.key("cwd"), "`cwd` is empty", "name a folder, or remove `cwd`");
        }
        no_nul(&path.key("cwd"), "`cwd`", cwd, problems);
        no_secret(&path.key("cwd"), "`cwd`", cwd, problems);
    }
    for (name, value) in &process.env {
        let path = path.key("env").key(name);
        validate_variable(&path, name, problems);
        no_nul(&path, &format!("the value of `{}`", name.escape_debug()), value, problems);
        validate_secrets(&path, value, problems);
    }
}

/// No system can pass NUL to a program.
fn no_nul(path: &Path, what: &str, text: &str, problems: &mut Problems) {
    if text.contains('\0') {
        problems.add(path, format!("arg_invalid: {what} holds the character NUL"), "take it out");
    }
}

/// Refuses a secret where everybody would see its value.
fn no_secret(path: &Path, what: &str, text: &str, problems: &mut Problems) {
    if names_a_secret(text) {
        problems.add(
            path,
            format!("{what} names a secret, which is put in for variables and headers only"),
            "give it to the program as a variable, `process: {command: […], env: {TOKEN: \
             \"${secret:TOKEN}\"}}`, or to the service as a header",
        );
    }
}

fn validate_secrets(path: &Path, text: &str, problems: &mut Problems) {
    let Err(error) = secret_parts(text) else { return };
    let remedy = match error {
        SecretError::Open => "close it, as in `${secret:TOKEN}`",
        SecretError::Name(_) => "use letters, digits and `_`, and do not begin with a digit",
    };
    problems.add(path, error.to_string(), remedy);
}

fn validate_variable(path: &Path, name: &str, problems: &mut Problems) {
    let mut bytes = name.bytes();
    let valid = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !valid {
        problems.add(
            path,
            format!("`{}` cannot be the name of a variable", name.escape_debug()),
            "use letters, digits and `_`, and do not begin with a digit",
        );
    } else if ENV_REFUSED.contains(&name)
        || ENV_REFUSED_STARTS.iter().any(|start| name.starts_with(start))
    {
        problems.add(
            path,
            format!(
                "env_forbidden: `{name}` could load foreign code into the program and is refused"
            ),
            "set it in a script of your own that the step starts",
        );
    } else if name.starts_with("FLOWGATE_") {
        problems.add(
            path,
            format!(
                "`{name}` begins with `FLOWGATE_`, which is for the variables that flowgate sets"
            ),
            "choose another name",
        );
    }
}

fn validate_shell(path: &Path, line: &str, problems: &mut Problems) {
    if line.trim().is_empty() {
        problems.add(path, "the line is empty", "write what `sh -c` shall run");
    }
    no_nul(path, "the line", line, problems);
    no_secret(path, "the line", line, problems);
}

fn validate_http(path: &Path, http: &HttpFile, problems: &mut Problems) {
    let shown = http.url.escape_debug();
    let at = path.key("url");
    no_secret(&at, "the URL", &http.url, problems);
    match Url::parse(&http.url) {
        Err(error) => problems.add(
            &at,
            format!("`{shown}` is not a URL: {error}"),
            "write it in full, such as `http://127.0.0.1:9000/charge`",
        ),
        Ok(url) if !matches!(url.scheme(), "http" | "https") => problems.add(
            &at,
            format!("scheme_forbidden: `{shown}` is not an HTTP URL"),
            "begin it with `http://` or `https://`",
        ),
        // The message does not repeat what may be a password.
        Ok(url) if !url.username().is_empty() || url.password().is_some() => problems.add(
            &at,
            "the URL holds a user name or a password, which every reader of the flow would see",
            "take it out and send it as a header, `headers: {Authorization: \"Bearer \
             ${secret:NAME}\"}`",
        ),
        // The parser drops line ends without a word, and whoever reads the file sees two lines.
        Ok(_) if http.url.chars().any(char::is_control) => problems.add(
            &at,
            format!("`{shown}` holds a line end or another control character"),
            "take it out, or write it with a percent sign, such as `%0A`",
        ),
        Ok(_) => {}
    }
    for (name, value) in &http.headers {
        validate_header(&path.key("headers").key(name), name, value, problems);
    }
}

fn validate_header(path: &Path, name: &str, value: &str, problems: &mut Problems) {
    let shown = name.escape_debug();
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        problems.add(
            path,
            format!("`{shown}` cannot be the name of a header"),
            "use letters, digits and `-`",
        );
    } else if HEADERS_OURS.contains(&name.to_ascii_lowercase().as_str()) {
        problems.add(path, format!("flowgate sets the header `{shown}` itself"), "remove it");
    }
    if !value.chars().all(|c| matches!(c, ' '..='~' | '\t')) {
        problems.add(
            path,
            format!("the value of the header `{shown}` holds something that HTTP cannot carry"),
            "keep to one line of printable ASCII",
        );
    }
    validate_secrets(path, value, problems);
}

fn validate_wait(path: &Path, step: &StepFile, wait: &WaitFile, problems: &mut Problems) {
    let kinds = [
        ("delay", wait.delay.is_some()),
        ("until", wait.until.is_some()),
        ("signal", wait.signal.is_some()),
    ];
    let given: Vec<&str> = kinds.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
    if given.is_empty() {
        problems.add(
            path,
            "the wait does not say what for",
            "give it one of `delay`, `until` and `signal`",
        );
    } else if given.len() > 1 {
        problems.add(
            &path.key(given[1]),
            format!("the wait has both `{}` and `{}`", given[0], given[1]),
            "keep one, or make it two steps",
        );
    }
    if let Some(delay) = wait.delay {
        validate_span(&path.key("delay"), delay, problems);
    }
    if let Some(until) = &wait.until
        && until.parse::<jiff::Timestamp>().is_err()
    {
        problems.add(
            &path.key("until"),
            format!("`{}` is not a point in time", until.escape_debug()),
            "write it in RFC 3339 with an offset, such as `2030-01-01T09:00:00Z`",
        );
    }
    if let Some(signal) = &wait.signal {
        problems.name(&path.key("signal"), "signal", signal);
    }
    if let Some(matches) = &wait.matches {
        for (key, value) in matches {
            problems.no_nul(&path.key("match"), "`match`", key);
            problems.json(&path.key("match"), "`match`", value);
        }
    }
    validate_signal_options(path, step, wait, problems);
}

fn validate_signal_options(path: &Path, step: &StepFile, wait: &WaitFile, problems: &mut Problems) {
    if wait.signal.is_none() && (wait.delay.is_some() || wait.until.is_some()) {
        let options = [
            ("match", wait.matches.is_some()),
            ("timeout", wait.timeout.is_some()),
            ("on_timeout", wait.on_timeout.is_some()),
        ];
        for (key, _) in options.iter().filter(|(_, given)| *given) {
            problems.add(
                &path.key(key),
                format!("`{key}` does nothing without `signal`"),
                "remove it, or wait for a `signal`",
            );
        }
        return;
    }
    if let Some(timeout) = wait.timeout {
        validate_span(&path.key("timeout"), timeout, problems);
    }
    let Some(on_timeout) = &wait.on_timeout else { return };
    let path = path.key("on_timeout");
    if wait.timeout.is_none() {
        problems.add(
            &path,
            "`on_timeout` does nothing without `timeout`",
            "add a `timeout` such as `48h`, or remove `on_timeout`",
        );
    }
    if let OnTimeout::Emit(event) = on_timeout
        && !step.emits.contains(event)
    {
        problems.add(
            &path.key("emit"),
            format!("`{}` is not among the step's `emits`", event.escape_debug()),
            super::did_you_mean(event, step.emits.iter().map(String::as_str), || {
                "add it there".to_owned()
            }),
        );
    }
}
