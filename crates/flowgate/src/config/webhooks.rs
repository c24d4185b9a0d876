//! Webhooks in the settings file: `[webhooks.NAME]`.

use std::collections::BTreeMap;
use std::time::Duration;

use flowgate_core::flow::{SecretPart, Span, secret_parts};
use flowgate_core::ids::is_identifier;
use flowgate_server::webhooks::signature::Key;
use flowgate_server::webhooks::{
    Effect, SECRETS_MAX, TOLERANCE_DEFAULT, Webhook, WebhookSecret, Webhooks,
};
use serde::Deserialize;
use toml::Spanned;

use super::Origin;
use crate::failure::Failure;

const TOLERANCE_MIN: Duration = Duration::from_secs(1);
const TOLERANCE_MAX: Duration = Duration::from_hours(1);

/// A webhook that the settings ask for.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    pub(crate) name: String,
    pub(crate) effect: Effect,
    secrets: Vec<Source>,
    tolerance: Duration,
    pub(crate) origin: Origin,
}

/// Where a secret comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// `${secret:NAME}`.
    Named(String),
    /// `env:NAME`.
    Variable(String),
}

impl Hook {
    /// What it does, for people.
    pub(crate) fn shown(&self) -> String {
        match &self.effect {
            Effect::Start(flow) => format!("starts {flow}"),
            Effect::Signal(signal) => format!("signals {signal}"),
        }
    }
}

/// The part of the file that is about webhooks.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    webhooks: BTreeMap<Spanned<String>, Spanned<HookFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HookFile {
    flow: Option<String>,
    signal: Option<String>,
    secrets: Vec<String>,
    tolerance: Option<Span>,
}

/// The webhooks that `text`, the file called `name`, asks for.
pub(super) fn parse(name: &str, text: &str) -> Result<Vec<Hook>, Failure> {
    let line = |offset: usize| super::file::line_at(text, offset);
    let wrong = |line: usize, message: &str| {
        Failure::usage("config_invalid", format!("{name}:{line}: {message}"))
            .help("see docs/guide/webhooks.md for the settings of a webhook")
            .path(name)
    };
    let file: File = toml::from_str(text)
        .map_err(|error| wrong(error.span().map_or(1, |span| line(span.start)), error.message()))?;
    let hooks = file.webhooks.into_iter().map(|(id, hook)| {
        let line = line(id.span().start);
        let id = id.into_inner();
        let origin = Origin::File { path: name.to_owned(), line };
        read(&id, hook.into_inner(), origin)
            .map_err(|message| wrong(line, &format!("webhook `{id}`: {message}")))
    });
    hooks.collect()
}

fn read(name: &str, file: HookFile, origin: Origin) -> Result<Hook, String> {
    if !is_identifier(name) {
        return Err("it cannot be called that: letters, digits, `.`, `_` and `-`".to_owned());
    }
    let effect = match (file.flow, file.signal) {
        (Some(flow), None) => Effect::Start(flow),
        (None, Some(signal)) => Effect::Signal(signal),
        (Some(_), Some(_)) | (None, None) => {
            return Err("it has either `flow`, which it starts, or `signal`".to_owned());
        }
    };
    if file.secrets.is_empty() || file.secrets.len() > SECRETS_MAX {
        return Err(format!("`secrets` has 1 to {SECRETS_MAX} entries"));
    }
    let tolerance = file.tolerance.map_or(TOLERANCE_DEFAULT, |span| span.0);
    if !(TOLERANCE_MIN..=TOLERANCE_MAX).contains(&tolerance) {
        return Err("`tolerance` is from 1s to 1h".to_owned());
    }
    let secrets = file.secrets.iter().map(|text| source(text)).collect::<Result<_, _>>()?;
    Ok(Hook { name: name.to_owned(), effect, secrets, tolerance, origin })
}

/// The message does not repeat what may be a secret.
fn source(text: &str) -> Result<Source, String> {
    if let Some(name) = text.strip_prefix("env:") {
        return Ok(Source::Variable(name.to_owned()));
    }
    match secret_parts(text).as_deref() {
        Ok([SecretPart::Secret(name)]) => Ok(Source::Named((*name).to_owned())),
        Ok(_) | Err(_) => Err("an entry of `secrets` is `${secret:NAME}` or `env:VARIABLE`; the \
                               file is no place for a secret itself"
            .to_owned()),
    }
}

/// The webhooks as they are served, with the secrets that are in variables.
pub(super) fn resolve(
    hooks: &[Hook],
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Webhooks, Failure> {
    let wrong = |hook: &Hook, message: String| {
        let message = format!("webhook `{}` ({}): {message}", hook.name, hook.origin);
        Failure::usage("config_invalid", message)
            .help("put `whsec_` and the secret in Base64 into the variable")
            .path(format!("webhooks.{}", hook.name))
    };
    let secret = |hook: &Hook, source: &Source| match source {
        Source::Named(name) => Ok(WebhookSecret::Named(name.clone())),
        Source::Variable(name) => {
            let value = variable(name)
                .ok_or_else(|| wrong(hook, format!("there is no variable `{name}`")))?;
            let key = Key::parse(&value)
                .map_err(|error| wrong(hook, format!("the variable `{name}`: {error}")))?;
            Ok(WebhookSecret::Key(key))
        }
    };
    let hooks = hooks.iter().map(|hook| {
        let secrets = hook.secrets.iter().map(|source| secret(hook, source));
        let secrets = secrets.collect::<Result<_, Failure>>()?;
        let (effect, tolerance) = (hook.effect.clone(), hook.tolerance);
        Ok((hook.name.clone(), Webhook { effect, secrets, tolerance }))
    });
    hooks.collect()
}
