//! The rules that a deploy file must meet.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use url::Url;

use super::{AlertsFile, CanaryFile, DeployFile, ShadowFile, SmokeTestFile, WantedFile, test_path};
use crate::deploy::settings::{ShadowRules, Strategy};
use crate::flow::{Flow, Path, Problem, Span, compile_schema, nearest, shortened};
use crate::ids::is_identifier;
use crate::limits::{DURATION_MAX, EVENTS_PER_STEP_MAX, STEPS_MAX};
use crate::payload::Payload;

/// Smoke tests of a deployment.
const SMOKE_TESTS_MAX: usize = 100;
/// Paths that a shadow may ignore.
const IGNORED_MAX: usize = 100;
/// Ended runs that figures may be taken from.
const BEFORE_WINDOW_MAX: u32 = 10_000;
/// Starts that a hold may take.
const HOLD_MAX: u32 = 10_000_000;
/// Audit entries of a flow.
const AUDIT_ENTRIES_MAX: u32 = 10_000_000;
/// Runs of a canary that may be needed to decide.
const SAMPLES_MAX: u32 = 1_000_000;
/// The most that a ratio of latencies may be.
const LATENCY_RATIO_MAX: f64 = 1_000.0;

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, path: &Path, message: impl Into<String>, remedy: impl Into<String>) {
        let (message, remedy) = (message.into(), remedy.into());
        self.0.push(Problem { path: path.clone(), message, remedy });
    }

    fn name(&mut self, path: &Path, kind: &str, name: &str) {
        if !is_identifier(name) {
            self.add(
                path,
                format!("this {kind} cannot be called `{}`", name.escape_debug()),
                "use letters, digits, `.`, `_` and `-`, beginning with a letter or a digit",
            );
        }
    }

    fn span(&mut self, path: &Path, span: Option<Span>, min: Duration) {
        let Some(span) = span else { return };
        if span.0 < min {
            self.add(path, format!("`{span}` is no time at all"), "write at least `1ms`");
        } else if span.0 > DURATION_MAX {
            let max = Span(DURATION_MAX);
            self.add(path, format!("`{span}` is longer than {max}"), "write a shorter time");
        }
    }

    fn number(&mut self, path: &Path, number: Option<u32>, max: u32) {
        if let Some(number) = number
            && !(1..=max).contains(&number)
        {
            self.add(
                path,
                format!("`{number}` is out of range"),
                format!("write a number from 1 to {max}"),
            );
        }
    }

    fn real(&mut self, path: &Path, number: Option<f64>, (min, max): (f64, f64)) {
        if let Some(number) = number
            && !(min..=max).contains(&number)
        {
            self.add(
                path,
                format!("`{number}` is out of range"),
                format!("write a number from {min} to {max}"),
            );
        }
    }

    fn value(&mut self, path: &Path, value: &Value) {
        if let Err(error) = Payload::of(value) {
            self.add(
                path,
                format!("the value cannot be kept: {error}"),
                "make it smaller or flatter",
            );
        }
    }
}

pub(super) fn validate(file: &DeployFile) -> Vec<Problem> {
    const SOME_TIME: Duration = Duration::from_millis(1);
    let mut problems = Problems::default();
    let top = Path::default();
    let strategy = file.strategy.unwrap_or_default();
    if let Some(pool) = &file.pool {
        problems.name(&top.key("pool"), "pool", pool);
    }
    problems.span(&top.key("drain_timeout"), file.drain_timeout, Duration::ZERO);
    for (key, span) in [
        ("verify_timeout", file.verify_timeout),
        ("checkpoint_expiry", file.checkpoint_expiry),
        ("audit_retention", file.audit_retention),
    ] {
        problems.span(&top.key(key), span, SOME_TIME);
    }
    for (key, number, max) in [
        ("audit_max_per_flow", file.audit_max_per_flow, AUDIT_ENTRIES_MAX),
        ("before_window", file.before_window, BEFORE_WINDOW_MAX),
        ("hold_max", file.hold_max, HOLD_MAX),
    ] {
        problems.number(&top.key(key), number, max);
    }
    if file.migrate == Some(true) && strategy != Strategy::BlueGreen {
        problems.add(
            &top.key("migrate"),
            format!("`migrate` does nothing with `strategy: {strategy}`: open runs stay pinned"),
            "remove it, or write `strategy: blue-green`",
        );
    }
    validate_steps(&top.key("steps"), &file.steps, &mut problems);
    validate_tests(&top.key("smoke_tests"), &file.smoke_tests, &mut problems);
    if let Some(shadow) = &file.shadow {
        validate_shadow(&top.key("shadow"), shadow, &mut problems);
    }
    if let Some(canary) = &file.canary {
        validate_canary(&top.key("canary"), canary, strategy, &mut problems);
    }
    if let Some(alerts) = &file.alerts {
        validate_alerts(&top.key("alerts"), alerts, &mut problems);
    }
    problems.0
}

fn validate_steps(path: &Path, steps: &BTreeMap<String, String>, problems: &mut Problems) {
    if steps.len() > STEPS_MAX {
        let count = steps.len();
        problems.add(path, format!("{count} steps are over the limit of {STEPS_MAX}"), "map fewer");
    }
    let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
    for (old, new) in steps {
        let path = path.key(old);
        problems.name(&path, "step", old);
        problems.name(&path, "step", new);
        if let Some(other) = taken.insert(new, old) {
            problems.add(
                &path,
                format!("`{other}` and `{old}` both become `{new}`"),
                "map one of them to another step, or leave it out",
            );
        }
    }
}

fn validate_tests(path: &Path, tests: &[SmokeTestFile], problems: &mut Problems) {
    if tests.len() > SMOKE_TESTS_MAX {
        let count = tests.len();
        let message = format!("{count} smoke tests are over the limit of {SMOKE_TESTS_MAX}");
        problems.add(path, message, "keep those that tell most");
    }
    for (at, test) in tests.iter().enumerate() {
        let path = test_path(at);
        problems.name(&path.key("name"), "smoke test", &test.name);
        if tests[..at].iter().any(|other| other.name == test.name) {
            let message = format!("there are two smoke tests `{}`", test.name.escape_debug());
            problems.add(&path.key("name"), message, "rename one of them");
        }
        problems.value(&path.key("input"), &test.input);
        let Some(expect) = &test.expect else { continue };
        for (key, kind, wanted) in
            [("emits", "event", &expect.emits), ("result", "step", &expect.result)]
        {
            let path = path.key("expect").key(key);
            if wanted.len() > EVENTS_PER_STEP_MAX {
                let message = format!("more than {EVENTS_PER_STEP_MAX} names are expected here");
                problems.add(&path, message, "keep those that tell most");
            }
            for (name, wanted) in wanted {
                problems.name(&path.key(name), kind, name);
                validate_wanted(&path.key(name), wanted, problems);
            }
        }
    }
}

fn validate_wanted(path: &Path, wanted: &WantedFile, problems: &mut Problems) {
    const REMEDY: &str = "write one of `{equals: VALUE}` and `{schema: {type: object}}`";
    match (&wanted.equals, &wanted.schema) {
        (None, None) => problems.add(path, "it does not say what is expected", REMEDY),
        (Some(_), Some(_)) => problems.add(path, "it has both `equals` and `schema`", REMEDY),
        (Some(value), None) => problems.value(&path.key("equals"), value),
        (None, Some(schema)) => validate_schema(&path.key("schema"), schema, problems),
    }
}

fn validate_schema(path: &Path, schema: &Value, problems: &mut Problems) {
    let before = problems.0.len();
    problems.value(path, schema);
    if problems.0.len() > before {
        return;
    }
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        let remedy = "write a mapping such as `{type: object, required: [amount]}`";
        problems.add(path, "this is not a JSON Schema", remedy);
    } else if let Err(error) = compile_schema(schema) {
        problems.add(
            path,
            format!("this is not a valid JSON Schema: {}", shortened(error.to_string())),
            "correct it; it can only refer to parts of itself, such as `#/$defs/name`",
        );
    }
}

fn validate_shadow(path: &Path, shadow: &ShadowFile, problems: &mut Problems) {
    problems.number(&path.key("runs"), shadow.runs, ShadowRules::RUNS_MAX);
    problems.span(&path.key("timeout"), shadow.timeout, Duration::from_millis(1));
    let runs = shadow.runs.unwrap_or(ShadowRules::default().runs);
    if let Some(differ_max) = shadow.differ_max.filter(|differ_max| *differ_max >= runs) {
        problems.add(
            &path.key("differ_max"),
            format!("`{differ_max}` of {runs} runs may differ, so the shadow decides nothing"),
            "write less than `runs`, or leave `shadow` out",
        );
    }
    if shadow.ignore.len() > IGNORED_MAX {
        let message = format!("more than {IGNORED_MAX} paths are ignored");
        problems.add(&path.key("ignore"), message, "ignore what they have in common");
    }
}

fn validate_canary(path: &Path, canary: &CanaryFile, strategy: Strategy, problems: &mut Problems) {
    if strategy != Strategy::Canary {
        problems.add(
            path,
            format!("`canary` does nothing with `strategy: {strategy}`"),
            "remove it, or write `strategy: canary`",
        );
    }
    problems.number(&path.key("samples_min"), canary.samples_min, SAMPLES_MAX);
    problems.real(&path.key("error_rate_max"), canary.error_rate_max, (0.0, 1.0));
    let ratios = (1.0, LATENCY_RATIO_MAX);
    problems.real(&path.key("latency_ratio_max"), canary.latency_ratio_max, ratios);
    problems.span(&path.key("timeout"), canary.timeout, Duration::from_millis(1));
}

fn validate_alerts(path: &Path, alerts: &AlertsFile, problems: &mut Problems) {
    problems.real(&path.key("error_rate_max"), alerts.error_rate_max, (0.0, 1.0));
    let latency = alerts.latency_p99_max;
    problems.span(&path.key("latency_p99_max"), latency, Duration::from_millis(1));
    let Some(webhook) = &alerts.webhook else { return };
    let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    if !Url::parse(webhook).is_ok_and(|url| is_http(&url)) {
        problems.add(
            &path.key("webhook"),
            format!("`{}` is not the address of a web server", webhook.escape_debug()),
            "write one such as `https://example.com/alerts`",
        );
    }
}

/// What the smoke tests name must be there in the new revision, and so must be the new steps.
pub(super) fn validate_for(file: &DeployFile, flow: &Flow) -> Vec<Problem> {
    let mut problems = Problems::default();
    let steps: Vec<&str> = flow.steps.iter().map(|step| &*step.name).collect();
    let emitted = flow.steps.iter().flat_map(|step| &step.emits);
    let events: Vec<&str> = emitted.map(|slot| &*flow.slot(*slot).name).collect();
    let remedy = |name: &str, known: &[&str]| match nearest(name, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("it has {}", known.join(", ")),
    };
    for (old, new) in file.steps.iter().filter(|(_, new)| !steps.contains(&new.as_str())) {
        let path = Path::default().key("steps").key(old);
        let message = format!("the new revision has no step `{}`", new.escape_debug());
        problems.add(&path, message, remedy(new, &steps));
    }
    for (at, test) in file.smoke_tests.iter().enumerate() {
        let path = test_path(at);
        if let Ok(input) = Payload::of(&test.input)
            && let Err(problem) = flow.check_input(&input)
        {
            problems.add(&path.key("input"), problem.to_string(), "correct the input");
        }
        let Some(expect) = &test.expect else { continue };
        let path = path.key("expect");
        for name in expect.emits.keys().filter(|name| !events.contains(&name.as_str())) {
            let message = format!("no step of the new revision emits `{}`", name.escape_debug());
            problems.add(&path.key("emits").key(name), message, remedy(name, &events));
        }
        for name in expect.result.keys().filter(|name| !steps.contains(&name.as_str())) {
            let message = format!("the new revision has no step `{}`", name.escape_debug());
            problems.add(&path.key("result").key(name), message, remedy(name, &steps));
        }
    }
    problems.0
}
