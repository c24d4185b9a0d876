//! The deploy file of a flow, `deploy.yaml`: how its deployments are done.
//!
//! ```yaml
//! strategy: blue-green
//! drain_timeout: 10s
//! steps: { charge: debit }
//! smoke_tests:
//!   - name: one-order
//!     input: { orderId: 7 }
//!     expect:
//!       emits: { payment.done: { schema: { required: [amount] } } }
//!       result: { ship: { equals: { shipped: true } } }
//! alerts: { error_rate_max: 0.05, webhook: "https://example.com/alerts" }
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::settings::{
    Alerts, Canary, Expectation, ExpectedStatus, Ignored, Migration, ReplayRate, Settings,
    ShadowRules, Share, SmokeTest, Strategy, Wanted,
};
use crate::flow::{Flow, FlowErrors, Path, Problem, Span, Words, notation, placed, read};

mod validate;

#[cfg(test)]
mod tests;

/// How deployments of a flow are done, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "how to deploy: a mapping such as `{strategy: blue-green}`, or `{}`"
)]
pub struct DeployFile {
    /// The way from the old revision to the new one; `rolling` if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub strategy: Option<Strategy>,
    /// The pool whose instances execute the new revision; any if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub pool: Option<String>,
    /// How long open runs may take before they are checkpointed; 30 s if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub drain_timeout: Option<Span>,
    /// How long the smoke tests may take together; 15 s if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub verify_timeout: Option<Span>,
    /// How long a checkpoint is kept; 24 h if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub checkpoint_expiry: Option<Span>,
    /// How long the record of an ended deployment is kept, with its report and checkpoints; 7 days
    /// if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub audit_retention: Option<Span>,
    /// How many ended deployments of the flow are kept, each with its report and checkpoints; 1,000
    /// if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub audit_max_per_flow: Option<u32>,
    /// How many checkpoints and held starts are let go in a second, or `unlimited`; 10 if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub replay_rate: Option<ReplayRate>,
    /// How many ended runs the figures before and after are taken from; 50 if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub before_window: Option<u32>,
    /// How many starts are held before callers are refused; 100,000 if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub hold_max: Option<u32>,
    /// Whether every run that is open at the drain timeout goes over to the new revision (`true`),
    /// or none (`false`); those that have a place there if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub migrate: Option<bool>,
    /// Steps of the old revision that have another name in the new one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, String>,
    /// Runs that the new revision must pass before it becomes active.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub smoke_tests: Vec<SmokeTestFile>,
    /// The new revision on the inputs of earlier runs, before it becomes active; none if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub shadow: Option<ShadowFile>,
    /// When a canary is promoted.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub canary: Option<CanaryFile>,
    /// What somebody is told of.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub alerts: Option<AlertsFile>,
}

/// A smoke test as it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a smoke test: a mapping such as `{name: one, input: {orderId: 7}}`"
)]
pub struct SmokeTestFile {
    /// Its name.
    pub name: String,
    /// The input of its run; `null` if absent.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// What must come of it; that it completes if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub expect: Option<ExpectFile>,
}

/// What must come of a smoke test, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "what to expect: a mapping such as `{status: completed, emits: {done: {equals: 7}}}`"
)]
pub struct ExpectFile {
    /// How the run ends; `completed` if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub status: Option<ExpectedStatus>,
    /// Events that it emits, and their data.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub emits: BTreeMap<String, WantedFile>,
    /// Steps that succeed, and their results.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub result: BTreeMap<String, WantedFile>,
}

/// What a value must be, as it is written: exactly one of `equals` and `schema`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "one of `{equals: VALUE}` and `{schema: {type: object}}`")]
pub struct WantedFile {
    /// The value.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub equals: Option<Value>,
    /// A JSON Schema that it meets.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub schema: Option<Value>,
}

/// The new revision on the inputs of earlier runs, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a shadow: a mapping such as `{runs: 20, ignore: [emits.order.done/at]}`, or `{}`"
)]
pub struct ShadowFile {
    /// How many of the last runs that completed; 20 if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub runs: Option<u32>,
    /// What may differ, such as `emits.order.done/at`, `result.ship` and `steps.notify`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<Ignored>,
    /// How many of the runs may differ; none if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub differ_max: Option<u32>,
    /// How long they may take together; 1 m if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub timeout: Option<Span>,
}

/// When a canary is promoted, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a canary: a mapping such as `{share: 5%, samples_min: 50}`"
)]
pub struct CanaryFile {
    /// The share of starts that goes to the new revision; `5%` if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub share: Option<Share>,
    /// How many runs of it must have ended before they decide; 50 if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub samples_min: Option<u32>,
    /// By how much its error rate may be over that of the old revision; 0.01 if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub error_rate_max: Option<f64>,
    /// How many times the old 99th percentile of latency the new one may be; 2 if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub latency_ratio_max: Option<f64>,
    /// How long there may be too few runs to decide; 1 h if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub timeout: Option<Span>,
}

/// What somebody is told of, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "alerts: a mapping such as `{error_rate_max: 0.05, latency_p99_max: 2s}`"
)]
pub struct AlertsFile {
    /// An error rate over this after the deployment, from 0 to 1.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub error_rate_max: Option<f64>,
    /// A 99th percentile of latency over this after the deployment.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub latency_p99_max: Option<Span>,
    /// Where that is sent, and that a deployment was rolled back.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub webhook: Option<String>,
}

impl DeployFile {
    /// Reads the form of a deploy file in YAML or JSON, without the rules of
    /// [`DeployFile::validate`].
    pub fn parse(text: &str) -> Result<Self, FlowErrors> {
        let top = "a mapping such as `strategy: blue-green`, or `{}`";
        read(text, &Words { what: "deploy file", top, belongs })
    }

    /// Everything that is wrong with the file; nothing if it is valid.
    pub fn validate(&self) -> Vec<Problem> {
        validate::validate(self)
    }

    /// What of it does not fit the revision that is to be deployed.
    pub fn validate_for(&self, flow: &Flow) -> Vec<Problem> {
        validate::validate_for(self, flow)
    }

    /// The settings, with every default filled in.
    pub fn settings(self) -> Result<Settings, Vec<Problem>> {
        let problems = self.validate();
        if problems.is_empty() { Ok(self.filled_in()) } else { Err(problems) }
    }

    fn filled_in(self) -> Settings {
        let default = Settings::default();
        let strategy = self.strategy.unwrap_or_default();
        let is_shadow = strategy == Strategy::Shadow;
        Settings {
            strategy,
            pool: self.pool,
            drain_timeout: self.drain_timeout.unwrap_or(default.drain_timeout),
            verify_timeout: self.verify_timeout.unwrap_or(default.verify_timeout),
            checkpoint_expiry: self.checkpoint_expiry.unwrap_or(default.checkpoint_expiry),
            audit_retention: self.audit_retention.unwrap_or(default.audit_retention),
            audit_max_per_flow: self.audit_max_per_flow.unwrap_or(default.audit_max_per_flow),
            replay_rate: self.replay_rate.unwrap_or(default.replay_rate),
            before_window: self.before_window.unwrap_or(default.before_window),
            hold_max: self.hold_max.unwrap_or(default.hold_max),
            migration: match self.migrate {
                None => Migration::Mappable,
                Some(true) => Migration::All,
                Some(false) => Migration::Never,
            },
            steps: self.steps,
            smoke_tests: self.smoke_tests.into_iter().map(SmokeTestFile::filled_in).collect(),
            shadow: self.shadow.or(is_shadow.then(ShadowFile::default)).map(ShadowFile::filled_in),
            canary: self.canary.unwrap_or_default().filled_in(),
            alerts: self.alerts.unwrap_or_default().filled_in(),
        }
    }
}

impl Settings {
    /// Reads a deploy file in YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, FlowErrors> {
        DeployFile::parse(text)?.settings().map_err(|problems| placed(text, problems))
    }

    /// Reads a deploy file for the revision that is to be deployed.
    pub fn parse_for(text: &str, flow: &Flow) -> Result<Self, FlowErrors> {
        let file = DeployFile::parse(text)?;
        let mut problems = file.validate();
        problems.extend(file.validate_for(flow));
        if problems.is_empty() { Ok(file.filled_in()) } else { Err(placed(text, problems)) }
    }
}

impl SmokeTestFile {
    fn filled_in(self) -> SmokeTest {
        let expect = self.expect.unwrap_or_default();
        let wanted = |files: BTreeMap<String, WantedFile>| {
            files.into_iter().map(|(name, file)| (name, file.filled_in())).collect()
        };
        let expect = Expectation {
            status: expect.status.unwrap_or_default(),
            emits: wanted(expect.emits),
            result: wanted(expect.result),
        };
        SmokeTest { name: self.name, input: self.input, expect }
    }
}

impl WantedFile {
    fn filled_in(self) -> Wanted {
        match (self.equals, self.schema) {
            (_, Some(schema)) => Wanted::Schema(schema),
            (equals, None) => Wanted::Equals(equals.expect("validation wants one of the two")),
        }
    }
}

impl ShadowFile {
    fn filled_in(self) -> ShadowRules {
        let default = ShadowRules::default();
        ShadowRules {
            runs: self.runs.unwrap_or(default.runs),
            ignore: self.ignore,
            differ_max: self.differ_max.unwrap_or(default.differ_max),
            timeout: self.timeout.unwrap_or(default.timeout),
        }
    }
}

impl CanaryFile {
    fn filled_in(self) -> Canary {
        let default = Canary::default();
        Canary {
            share: self.share.unwrap_or(default.share),
            samples_min: self.samples_min.unwrap_or(default.samples_min),
            error_rate_max: self.error_rate_max.unwrap_or(default.error_rate_max),
            latency_ratio_max: self.latency_ratio_max.unwrap_or(default.latency_ratio_max),
            timeout: self.timeout.unwrap_or(default.timeout),
        }
    }
}

impl AlertsFile {
    fn filled_in(self) -> Alerts {
        Alerts {
            error_rate_max: self.error_rate_max,
            latency_p99_max: self.latency_p99_max,
            webhook: self.webhook,
        }
    }
}

/// What belongs at a place of a deploy file that holds a mapping or a list.
fn belongs(keys: &[&str]) -> Option<&'static str> {
    match keys {
        [] => Some("write a mapping such as `strategy: blue-green`, or `{}`"),
        ["steps"] => Some("write `old step: new step` for each step that has another name"),
        ["smoke_tests"] => Some("write a list of tests, such as `[{name: one, input: {id: 7}}]`"),
        ["smoke_tests", _] => Some("write a test, such as `{name: one, input: {id: 7}}`"),
        ["smoke_tests", _, "expect"] => Some("write what to expect, such as `{status: completed}`"),
        ["smoke_tests", _, "expect", "emits"] => {
            Some("write events and their data, such as `{done: {equals: {id: 7}}}`")
        }
        ["smoke_tests", _, "expect", "result"] => {
            Some("write steps and their results, such as `{ship: {equals: {id: 7}}}`")
        }
        ["smoke_tests", _, "expect", _, _] => {
            Some("write `{equals: VALUE}` or `{schema: {type: object}}`")
        }
        ["shadow"] => Some("write a mapping such as `{runs: 20, ignore: [emits.order.done/at]}`"),
        ["shadow", "ignore"] => Some("write a list of paths, such as `[emits.order.done/at]`"),
        ["canary"] => Some("write a mapping such as `{share: 5%, samples_min: 50}`"),
        ["alerts"] => Some("write a mapping such as `{error_rate_max: 0.05, latency_p99_max: 2s}`"),
        _ => None,
    }
}

/// The place of the smoke test at `index`.
fn test_path(index: usize) -> Path {
    Path::default().key("smoke_tests").index(index)
}
