//! Flows written in Rust: the same values as those of a file.

use std::collections::BTreeMap;
use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::{
    BackoffFile, ConcurrencyFile, DebounceFile, Flow, FlowFile, HttpFile, MqttFile, OnTimeout,
    Path, Problem, ProcessFile, RateFile, RetryFile, RunFile, SingletonFile, Span, StepFile,
    Subscribes, WaitFile,
};
use crate::schedule::ScheduleFile;

/// Builds a flow.
///
/// ```
/// use flowgate_core::flow::{FlowBuilder, StepBuilder};
///
/// let flow = FlowBuilder::new("order")
///     .step(StepBuilder::new("start").worker("start").emits(["payment.requested"]))
///     .step(StepBuilder::new("charge").after_all(["payment.requested"]).worker("charge"))
///     .build()?;
/// assert_eq!(flow.steps.len(), 2);
/// # Ok::<(), Vec<flowgate_core::flow::Problem>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct FlowBuilder {
    file: FlowFile,
    /// Steps whose name was there before.
    doubles: Vec<Problem>,
}

impl FlowBuilder {
    /// A flow without steps.
    pub fn new(name: impl Into<String>) -> Self {
        let file = FlowFile {
            flow: name.into(),
            description: None,
            input: None,
            singleton: None,
            debounce: None,
            steps: IndexMap::new(),
            schedules: BTreeMap::new(),
        };
        Self { file, doubles: Vec::new() }
    }

    /// Says what the flow is for.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.file.description = Some(text.into());
        self
    }

    /// Sets the JSON Schema that a start's input must meet.
    pub fn input_schema(mut self, schema: Value) -> Self {
        self.file.input = Some(schema);
        self
    }

    /// Has one open run at a time, for each value of this path into the start's input.
    pub fn singleton_by(mut self, key: impl Into<String>) -> Self {
        self.file.singleton = Some(SingletonFile { key: Some(key.into()) });
        self
    }

    /// Has one open run at a time.
    pub fn singleton(mut self) -> Self {
        self.file.singleton = Some(SingletonFile::default());
        self
    }

    /// Has starts that follow each other within `window` become one run, with the last input.
    pub fn debounce(mut self, window: Duration) -> Self {
        self.file.debounce = Some(DebounceFile { key: None, window: Span(window), max: None });
        self
    }

    /// The same for each value of this path into the start's input, and no longer than `max` after
    /// the first of them.
    pub fn debounce_by(
        mut self,
        key: impl Into<String>,
        window: Duration,
        max: Option<Duration>,
    ) -> Self {
        let (key, max) = (Some(key.into()), max.map(Span));
        self.file.debounce = Some(DebounceFile { key, window: Span(window), max });
        self
    }

    /// Adds a step.
    pub fn step(mut self, step: StepBuilder) -> Self {
        if self.file.steps.contains_key(&step.name) {
            self.doubles.push(Problem {
                path: Path::default().key("steps").key(&step.name),
                message: format!("there are two steps `{}`", step.name),
                remedy: "rename one of them".to_owned(),
            });
        }
        self.file.steps.insert(step.name, step.file);
        self
    }

    /// Starts runs by the clock; a name that was there before is replaced.
    pub fn schedule(mut self, name: impl Into<String>, schedule: ScheduleFile) -> Self {
        self.file.schedules.insert(name.into(), schedule);
        self
    }

    /// The flow as it would be written in a file, unchecked.
    pub fn file(&self) -> &FlowFile {
        &self.file
    }

    /// Checks the flow and indexes it.
    pub fn build(self) -> Result<Flow, Vec<Problem>> {
        let mut problems = self.doubles;
        match Flow::new(self.file) {
            Ok(flow) if problems.is_empty() => Ok(flow),
            Ok(_) => Err(problems),
            Err(others) => {
                problems.extend(others);
                Err(problems)
            }
        }
    }
}

/// Builds a step. Without `after_all` or `after_any` it is the entry.
#[derive(Clone, Debug)]
#[must_use]
pub struct StepBuilder {
    name: String,
    file: StepFile,
}

fn owned<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Vec<String> {
    names.into_iter().map(Into::into).collect()
}

impl StepBuilder {
    /// A step that does nothing yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), file: StepFile::default() }
    }

    /// Says what the step is for.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.file.description = Some(text.into());
        self
    }

    /// Starts once all of these have happened.
    pub fn after_all<T: Into<String>>(mut self, events: impl IntoIterator<Item = T>) -> Self {
        self.file.subscribes = Some(Subscribes::All(owned(events)));
        self
    }

    /// Starts once the first of these has happened.
    pub fn after_any<T: Into<String>>(mut self, events: impl IntoIterator<Item = T>) -> Self {
        self.file.subscribes = Some(Subscribes::Any(owned(events)));
        self
    }

    /// Calls the handler that is registered under this name.
    pub fn worker(self, name: impl Into<String>) -> Self {
        self.run(RunFile::Worker(name.into()))
    }

    /// Starts a program; no shell is involved.
    pub fn process<T: Into<String>>(self, command: impl IntoIterator<Item = T>) -> Self {
        let command = owned(command);
        self.run(RunFile::Process(ProcessFile { command, ..ProcessFile::default() }))
    }

    /// Starts the program of [`StepBuilder::process`] in this folder.
    pub fn cwd(mut self, folder: impl Into<String>) -> Self {
        self.process_file().cwd = Some(folder.into());
        self
    }

    /// Adds a variable to the environment of the program of [`StepBuilder::process`].
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.process_file().env.insert(name.into(), value.into());
        self
    }

    /// Runs a line in `sh -c`.
    pub fn shell(self, line: impl Into<String>) -> Self {
        self.run(RunFile::Shell(line.into()))
    }

    /// Sends an HTTP POST.
    pub fn http(self, url: impl Into<String>) -> Self {
        self.run(RunFile::Http(HttpFile { url: url.into(), ..HttpFile::default() }))
    }

    /// Adds a header to the request of [`StepBuilder::http`].
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if !matches!(self.file.run, Some(RunFile::Http(_))) {
            self = self.http("");
        }
        if let Some(RunFile::Http(http)) = &mut self.file.run {
            http.headers.insert(name.into(), value.into());
        }
        self
    }

    /// Publishes the step's input at the MQTT broker of the instance that executes it.
    pub fn mqtt(self, topic: impl Into<String>) -> Self {
        self.run(RunFile::Mqtt(MqttFile { topic: topic.into(), ..MqttFile::default() }))
    }

    /// Publishes what this path finds in the step's input with [`StepBuilder::mqtt`], instead of
    /// all of it.
    pub fn payload(mut self, path: impl Into<String>) -> Self {
        self.mqtt_file().payload = Some(path.into());
        self
    }

    /// Has the broker keep the message of [`StepBuilder::mqtt`] for those who subscribe later.
    pub fn retain(mut self) -> Self {
        self.mqtt_file().retain = true;
        self
    }

    /// Does what `run` says.
    pub fn run(mut self, run: RunFile) -> Self {
        self.file.run = Some(run);
        self
    }

    /// Waits this long, holding no worker.
    pub fn wait_delay(mut self, delay: Duration) -> Self {
        self.wait().delay = Some(Span(delay));
        self
    }

    /// Waits until this point in time (RFC 3339), holding no worker.
    pub fn wait_until(mut self, time: impl Into<String>) -> Self {
        self.wait().until = Some(time.into());
        self
    }

    /// Waits for a signal, holding no worker.
    pub fn wait_signal(mut self, signal: impl Into<String>) -> Self {
        self.wait().signal = Some(signal.into());
        self
    }

    /// Only takes signals whose data has this field with this value.
    pub fn wait_match(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        let fields = self.wait().matches.get_or_insert_with(Map::new);
        fields.insert(field.into(), value.into());
        self
    }

    /// Waits for the signal no longer than this.
    pub fn wait_timeout(mut self, timeout: Duration, on_timeout: OnTimeout) -> Self {
        let wait = self.wait();
        wait.timeout = Some(Span(timeout));
        wait.on_timeout = Some(on_timeout);
        self
    }

    /// Declares the events that the step may emit.
    pub fn emits<T: Into<String>>(mut self, events: impl IntoIterator<Item = T>) -> Self {
        self.file.emits = owned(events);
        self
    }

    /// Makes this many attempts in all.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.retry().attempts = Some(attempts);
        self
    }

    /// Sets the delays between attempts.
    pub fn backoff(mut self, backoff: BackoffFile) -> Self {
        self.retry().backoff = Some(backoff);
        self
    }

    /// Bounds how long one attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.file.timeout = Some(Span(timeout));
        self
    }

    /// Lets the step's jobs wait in this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.file.queue = Some(queue.into());
        self
    }

    /// Puts the step's jobs ahead of others that became due when they did, from 0 to 9.
    pub fn priority(mut self, priority: u8) -> Self {
        self.file.priority = Some(priority);
        self
    }

    /// Lets this many of the step's jobs run at the same time, over all instances.
    pub fn concurrency(mut self, limit: u32) -> Self {
        self.file.concurrency = Some(ConcurrencyFile { key: None, limit });
        self
    }

    /// Lets this many of the step's jobs run at the same time for each value of this path into
    /// their input, over all instances.
    pub fn concurrency_by(mut self, key: impl Into<String>, limit: u32) -> Self {
        self.file.concurrency = Some(ConcurrencyFile { key: Some(key.into()), limit });
        self
    }

    /// Lets this many of the step's jobs begin in each span, over all instances.
    pub fn rate(mut self, limit: u32, per: Duration) -> Self {
        self.file.rate = Some(RateFile { key: None, limit, per: Span(per) });
        self
    }

    /// Lets this many of the step's jobs begin in each span for each value of this path into their
    /// input, over all instances.
    pub fn rate_by(mut self, key: impl Into<String>, limit: u32, per: Duration) -> Self {
        self.file.rate = Some(RateFile { key: Some(key.into()), limit, per: Span(per) });
        self
    }

    /// Says that the step changes something outside: shadow runs do not execute it.
    pub fn effect(mut self) -> Self {
        self.file.effect = true;
        self
    }

    fn wait(&mut self) -> &mut WaitFile {
        self.file.wait.get_or_insert_default()
    }

    fn retry(&mut self) -> &mut RetryFile {
        self.file.retry.get_or_insert_default()
    }

    /// The message to publish; one without a topic, which validation refuses, if there is none yet.
    fn mqtt_file(&mut self) -> &mut MqttFile {
        if !matches!(self.file.run, Some(RunFile::Mqtt(_))) {
            self.file.run = Some(RunFile::Mqtt(MqttFile::default()));
        }
        match &mut self.file.run {
            Some(RunFile::Mqtt(mqtt)) => mqtt,
            Some(
                RunFile::Process(_) | RunFile::Shell(_) | RunFile::Http(_) | RunFile::Worker(_),
            )
            | None => unreachable!("the step has just been given a message"),
        }
    }

    /// The program to start; an empty one, which validation refuses, if there is none yet.
    fn process_file(&mut self) -> &mut ProcessFile {
        if !matches!(self.file.run, Some(RunFile::Process(_))) {
            self.file.run = Some(RunFile::Process(ProcessFile::default()));
        }
        match &mut self.file.run {
            Some(RunFile::Process(process)) => process,
            Some(RunFile::Shell(_) | RunFile::Http(_) | RunFile::Mqtt(_) | RunFile::Worker(_))
            | None => unreachable!("the step has just been given a process"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn entry() -> StepBuilder {
        StepBuilder::new("start").worker("start").emits(["a", "b"])
    }

    /// A step with everything that a step that runs can have.
    fn charge() -> StepBuilder {
        let backoff = BackoffFile {
            initial: Some(Span(ms(200))),
            factor: Some(2.0),
            max: Some(Span(ms(60_000))),
            jitter: Some(0.2),
        };
        StepBuilder::new("charge")
            .description("Charges.")
            .after_all(["a", "b"])
            .http("http://127.0.0.1/")
            .header("X-A", "b")
            .attempts(5)
            .backoff(backoff)
            .timeout(ms(10_000))
            .queue("slow")
            .priority(5)
            .concurrency_by("input[\"a\"].tenant", 2)
            .rate(10, ms(1_000))
            .effect()
    }

    #[test]
    fn the_builder_makes_the_value_of_the_file() {
        let text = r#"
flow: order
description: Orders.
input: { type: object }
singleton: { key: input.tenant }
steps:
  start: { run: { worker: start }, emits: [a, b] }
  charge:
    description: Charges.
    subscribes: [a, b]
    run: { http: { url: "http://127.0.0.1/", headers: { X-A: b } } }
    retry: { attempts: 5, backoff: { initial: 200ms, factor: 2, max: 1m, jitter: 0.2 } }
    timeout: 10s
    queue: slow
    priority: 5
    concurrency: { key: 'input["a"].tenant', limit: 2 }
    rate: { limit: 10, per: 1s }
    effect: true
  list:
    subscribes: { any: [a, b] }
    run: { process: { command: [ls, -l], cwd: /tmp, env: { LANG: C } } }
  print: { subscribes: ["step:list"], run: { shell: "echo" } }
  approve:
    subscribes: ["step:print"]
    wait: { signal: ok, match: { level: 2 }, timeout: 2d, on_timeout: { emit: late } }
    emits: [yes, late]
  later: { subscribes: [late], wait: { delay: 1h } }
  newyear: { subscribes: [yes], wait: { until: 2030-01-01T00:00:00Z } }
  tell: { subscribes: [a], run: { mqtt: { topic: out, payload: input.a, retain: true } } }
schedules:
  nightly: { cron: "0 2 * * *", zone: Europe/Berlin, input: { orderId: 7 } }
"#;
        let list = StepBuilder::new("list").after_any(["a", "b"]).process(["ls", "-l"]);
        let approve = StepBuilder::new("approve")
            .after_all(["step:print"])
            .wait_signal("ok")
            .wait_match("level", 2)
            .wait_timeout(ms(172_800_000), OnTimeout::Emit("late".to_owned()))
            .emits(["yes", "late"]);
        let nightly = ScheduleFile {
            cron: Some("0 2 * * *".to_owned()),
            zone: Some("Europe/Berlin".to_owned()),
            input: Some(json!({ "orderId": 7 })),
            ..ScheduleFile::default()
        };
        let built = FlowBuilder::new("order")
            .description("Orders.")
            .input_schema(json!({ "type": "object" }))
            .singleton_by("input.tenant")
            .step(entry())
            .step(charge())
            .step(list.cwd("/tmp").env("LANG", "C"))
            .step(StepBuilder::new("print").after_all(["step:list"]).shell("echo"))
            .step(approve)
            .step(StepBuilder::new("later").after_all(["late"]).wait_delay(ms(3_600_000)))
            .step(StepBuilder::new("newyear").after_all(["yes"]).wait_until("2030-01-01T00:00:00Z"))
            .step(StepBuilder::new("tell").after_all(["a"]).mqtt("out").payload("input.a").retain())
            .schedule("nightly", nightly)
            .build()
            .unwrap();
        let parsed = Flow::parse(text).unwrap();
        assert_eq!(built.file, parsed.file);
        assert_eq!(built.revision, parsed.revision);
    }

    #[test]
    fn the_builder_refuses_what_a_file_could_not_say() {
        let double = FlowBuilder::new("order").step(entry()).step(entry()).build().unwrap_err();
        assert_eq!(double[0].message, "there are two steps `start`");
        let headless = StepBuilder::new("start").header("X-A", "b");
        assert!(FlowBuilder::new("order").step(headless).build().is_err());
        let endless = StepBuilder::new("start").cwd("/tmp");
        assert!(FlowBuilder::new("order").step(endless).build().is_err());
    }
}
