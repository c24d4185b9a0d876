//! Who asks, and what they may.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flowgate_core::time::Timestamp;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What a caller may do. Each holds those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Look at everything.
    Read,
    /// Start, stop and settle runs.
    Run,
    /// Change flows and schedules.
    Deploy,
    /// Change what concerns everybody.
    Admin,
}

impl Scope {
    /// All of them, the least first.
    pub const ALL: [Self; 4] = [Self::Read, Self::Run, Self::Deploy, Self::Admin];

    /// As it is written in settings and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Deploy => "deploy",
            Self::Admin => "admin",
        }
    }

    /// The scope called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }

    /// It and all that it holds.
    pub fn held(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |scope| *scope <= self)
    }
}

/// A token as the settings have it: never itself, only its SHA-256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenEntry {
    /// Whose it is, for the log.
    pub name: Arc<str>,
    /// The SHA-256 of the token.
    pub sha256: [u8; 32],
    /// What it allows.
    pub scope: Scope,
    /// When it ends; never if none.
    pub expires: Option<Timestamp>,
}

/// The SHA-256 of a token, as [`TokenEntry::sha256`] has it.
pub fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// A new token: 256 bits by chance, as text; none if the system has no randomness.
pub fn new_token() -> Option<String> {
    let mut bytes = [0; 32];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes).ok()?;
    Some(format!("fg_{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// A digest as the settings have it.
pub fn hex(digest: &[u8; 32]) -> String {
    crate::assets::hex(digest)
}

/// The digest that [`hex`] wrote.
pub fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut digest = [0; 32];
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2).filter(|_| is_hex)?, 16).ok()?;
    }
    Some(digest)
}

/// The tokens of the settings.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Vec<TokenEntry>);

impl Tokens {
    /// These.
    pub fn new(entries: Vec<TokenEntry>) -> Self {
        Self(entries)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose token it is. Takes the same time whichever it is, and if it is nobody's.
    pub(crate) fn find(&self, token: &str, now: Timestamp) -> Option<Caller> {
        let given = digest(token);
        let mut found = None;
        for entry in &self.0 {
            if bool::from(entry.sha256.ct_eq(&given)) {
                found = Some(entry);
            }
        }
        let entry = found.filter(|entry| entry.expires.is_none_or(|expires| now < expires))?;
        Some(Caller { name: Arc::clone(&entry.name), scope: Some(entry.scope), has_token: true })
    }
}

/// Who sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) name: Arc<str>,
    /// None if they showed nothing that is known.
    pub(crate) scope: Option<Scope>,
    /// Whether they showed a token, so that the name is theirs.
    pub(crate) has_token: bool,
}

impl Caller {
    /// Somebody who needs no token here.
    pub(crate) fn trusted(name: &str) -> Self {
        Self { name: name.into(), scope: Some(Scope::Admin), has_token: false }
    }

    /// Somebody who showed no token.
    pub(crate) fn unknown() -> Self {
        Self { name: "nobody".into(), scope: None, has_token: false }
    }

    /// Whose a thing is that they ask for: as they say, or as their token is called.
    pub(crate) fn author(&self, said: Option<String>) -> Option<String> {
        said.or_else(|| self.has_token.then(|| self.name.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_until_it_expires() {
        let entry = |name: &str, token, expires| TokenEntry {
            name: name.into(),
            sha256: digest(token),
            scope: Scope::Run,
            expires,
        };
        let tokens =
            Tokens::new(vec![entry("a", "one", None), entry("b", "two", Some(Timestamp(10)))]);
        let name = |token, now| tokens.find(token, Timestamp(now)).map(|caller| caller.name);
        assert_eq!(name("one", 99).as_deref(), Some("a"));
        assert_eq!(name("two", 9).as_deref(), Some("b"));
        assert_eq!(name("two", 10), None);
        assert_eq!(name("three", 0), None);
        assert_eq!(name("", 0), None);
    }

    #[test]
    fn a_new_token_is_long_and_its_digest_is_read_as_it_is_written() {
        let (one, two) = (new_token().unwrap(), new_token().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.len(), "fg_".len() + 43);
        assert_eq!(parse_hex(&hex(&digest(&one))), Some(digest(&one)));
        for bad in ["", "ab", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(parse_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_scope_holds_those_before_it() {
        let held: Vec<&str> = Scope::Deploy.held().map(Scope::as_str).collect();
        assert_eq!(held, ["read", "run", "deploy"]);
    }
}
