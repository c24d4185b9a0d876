//! Terms: names that one holder has at a time. All of them are in the first partition.

use std::sync::Arc;

use flowgate_core::time::Timestamp;
use redis::Cmd;

use super::range::Range;
use super::script::{self, Reply, parse};
use super::{RedisStore, fault, millis};
use crate::StoreError;
use crate::control::{TERMS_KEPT_MAX, Term, TermAsk, TermOutcome, TermRef};

/// Names that one call lists.
const NAMES_MAX: usize = 1_000;

impl RedisStore {
    /// Takes a name or extends its term. A second sending of the same ask extends.
    pub(super) async fn take_name(&self, ask: &TermAsk) -> Result<TermOutcome, StoreError> {
        let write = |command: &mut Cmd| {
            command.arg(&*ask.name).arg(&*ask.holder).arg(millis(ask.span));
            command.arg(ask.renews.map(|number| number.to_string()).unwrap_or_default());
            command.arg(TERMS_KEPT_MAX);
        };
        let prefix = self.partitions.prefix(0);
        let answer = self.run("taking a term", &script::TAKE_TERM, prefix, write).await?;
        let mut reply = Reply::of(answer)?;
        let is_held = reply.number::<u8>()? == 1;
        let term = match reply.text()? {
            Some(text) => decode_term(&ask.name, &text)?,
            // Only a renewal finds none: the server has lost it.
            None => Term::never_held(&ask.name),
        };
        Ok(if is_held { TermOutcome::Held(term) } else { TermOutcome::NotHeld(term) })
    }

    /// Ends a term.
    pub(super) async fn release_name(&self, term: &TermRef) -> Result<(), StoreError> {
        let write = |command: &mut Cmd| {
            command.arg(&*term.name).arg(term.number);
        };
        let prefix = self.partitions.prefix(0);
        self.run("releasing a term", &script::RELEASE_TERM, prefix, write).await.map(drop)
    }

    /// The last term of each name with this prefix.
    pub(super) async fn names(&self, prefix: &str) -> Result<Vec<Term>, StoreError> {
        let mut terms: Vec<Term> = Vec::new();
        loop {
            let after = terms.last().map(|term| &*term.term.name);
            let range = Range::ascending(prefix, after);
            let write = |command: &mut Cmd| {
                command.arg(&range.begin).arg(&range.end).arg(NAMES_MAX);
            };
            let first = self.partitions.prefix(0);
            let answer = self.run("listing terms", &script::LIST_TERMS, first, write).await?;
            let mut reply = Reply::of(answer)?;
            let found = reply.left() / 2;
            while reply.left() > 0 {
                let name = reply.word()?.into();
                terms.push(decode_term(&name, &reply.word()?)?);
            }
            if found < NAMES_MAX {
                return Ok(terms);
            }
        }
    }

    /// The last terms of a name.
    pub(super) async fn terms_of(&self, name: &str, limit: usize) -> Result<Vec<Term>, StoreError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let write = |command: &mut Cmd| {
            command.arg(name).arg(limit.min(TERMS_KEPT_MAX + 1));
        };
        let prefix = self.partitions.prefix(0);
        let answer = self.run("listing past terms", &script::PAST_TERMS, prefix, write).await?;
        let (mut reply, name) = (Reply::of(answer)?, Arc::from(name));
        let mut terms = Vec::with_capacity(reply.left());
        while reply.left() > 0 {
            terms.push(decode_term(&name, &reply.word()?)?);
        }
        Ok(terms)
    }
}

/// A term as `take_term.lua` keeps it: `NUMBER;BEGAN;EXPIRES;RELEASED;HOLDER`.
fn decode_term(name: &Arc<str>, text: &str) -> Result<Term, StoreError> {
    let mut parts = text.splitn(5, ';');
    let mut part = || parts.next().ok_or_else(|| fault::unreadable("half a term"));
    let number = parse(part()?)?;
    let (began_at, expires_at) = (Timestamp(parse(part()?)?), Timestamp(parse(part()?)?));
    let released = part()?;
    let released_at = (!released.is_empty()).then(|| parse(released)).transpose()?.map(Timestamp);
    let term = TermRef { name: Arc::clone(name), number };
    Ok(Term { term, holder: part()?.into(), began_at, expires_at, released_at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_read_whatever_its_holder_is_called() {
        let name = Arc::from("leader");
        let term = decode_term(&name, "7;1000;2000;;host;1/ab").unwrap();
        assert_eq!((term.term.number, &*term.holder), (7, "host;1/ab"));
        assert_eq!((term.began_at, term.expires_at), (Timestamp(1_000), Timestamp(2_000)));
        assert_eq!(term.released_at, None);
        let term = decode_term(&name, "7;1000;2000;1500;").unwrap();
        assert_eq!((term.released_at, &*term.holder), (Some(Timestamp(1_500)), ""));
        assert!(decode_term(&name, "7;1000;2000").is_err());
    }
}
