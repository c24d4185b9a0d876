//! Who may call the API, by which name, and with which certificate.

use std::collections::BTreeMap;
use std::path::PathBuf;

use flowgate_core::ids::is_identifier;
use flowgate_core::time::Timestamp;
use flowgate_server::auth::{Scope, TokenEntry, parse_hex};
use serde::Deserialize;
use toml::Spanned;

use super::{Origin, Setting, Wrong};
use crate::failure::Failure;

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// A token of `[tokens.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) entry: TokenEntry,
    pub(crate) origin: Origin,
}

impl Token {
    /// What it allows, as anybody may see it.
    pub(crate) fn shown(&self) -> String {
        let scope = self.entry.scope.as_str();
        match self.entry.expires {
            None => scope.to_owned(),
            Some(at) => format!("{scope}, until {at}"),
        }
    }
}

pub(super) fn parse_switch(text: &str) -> Result<bool, Wrong> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err((format!("`{other}` is neither on nor off"), "write on or off".to_owned())),
    }
}

pub(super) fn parse_hosts(text: &str) -> Result<Vec<String>, Wrong> {
    let names: Vec<&str> = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let is_name = |name: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        name.bytes().all(is_letter) && (name.starts_with('[') || !name.contains(':'))
    };
    match names.iter().find(|name| !is_name(name)) {
        None => Ok(names.into_iter().map(str::to_owned).collect()),
        Some(name) => {
            let help = "write names without a port, with commas between: flowgate.example.org";
            Err((format!("`{name}` is not the name of a host"), help.to_owned()))
        }
    }
}

/// The files of a certificate, if both are named.
pub(super) fn tls(cert: &Setting, key: &Setting) -> Result<Option<TlsFiles>, Failure> {
    let named = |setting: &Setting| Some(setting.value.clone()).filter(|path| !path.is_empty());
    match (named(cert), named(key)) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert: cert.into(), key: key.into() })),
        (Some(_), None) | (None, Some(_)) => {
            let message = "`tls.cert` and `tls.key` go together, and one of them is not set";
            Err(Failure::usage("config_invalid", message).help("set both, or none").path("tls"))
        }
    }
}

/// The part of the file that is about tokens.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    tokens: BTreeMap<Spanned<String>, TokenFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    sha256: String,
    scope: String,
    expires: Option<String>,
}

/// The tokens that `text`, the file called `name`, knows.
pub(super) fn parse(name: &str, text: &str) -> Result<Vec<Token>, Failure> {
    let line = |offset: usize| super::file::line_at(text, offset);
    let wrong = |line: usize, message: &str| {
        Failure::usage("config_invalid", format!("{name}:{line}: {message}"))
            .help("`flowgate tokens new NAME --scope read` makes one and says what to write")
            .path(name)
    };
    let file: File = toml::from_str(text)
        .map_err(|error| wrong(error.span().map_or(1, |span| line(span.start)), error.message()))?;
    let tokens = file.tokens.into_iter().map(|(id, token)| {
        let line = line(id.span().start);
        let id = id.into_inner();
        let entry = read(&id, &token)
            .map_err(|message| wrong(line, &format!("token `{id}`: {message}")))?;
        Ok(Token { entry, origin: Origin::File { path: name.to_owned(), line } })
    });
    tokens.collect()
}

fn read(id: &str, file: &TokenFile) -> Result<TokenEntry, String> {
    if !is_identifier(id) {
        return Err("it cannot be called that: letters, digits, `.`, `_` and `-`".to_owned());
    }
    let sha256 = parse_hex(&file.sha256)
        .ok_or("`sha256` is not 64 hexadecimal digits; never write the token itself here")?;
    let scope =
        Scope::parse(&file.scope).ok_or("`scope` is none of read, run, deploy and admin")?;
    let expires = match &file.expires {
        None => None,
        Some(text) => {
            let time: jiff::Timestamp = text
                .parse()
                .map_err(|_| "`expires` is not a time such as \"2030-01-01T00:00:00Z\"")?;
            Some(Timestamp(time.as_millisecond()))
        }
    };
    Ok(TokenEntry { name: id.into(), sha256, scope, expires })
}
