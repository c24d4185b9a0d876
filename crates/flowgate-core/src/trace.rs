//! Where a run stands in a distributed trace.
//!
//! The ids follow from the run alone, so every instance gives the same ones and nothing has to be
//! handed from one to the next: the trace of a run has the run's id, and its spans have the first
//! bytes of a hash.

use std::fmt::{self, Write};

use sha2::{Digest, Sha256};

use crate::ids::{LeaseToken, RunId};

/// A span in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanRef {
    /// The trace: the bytes of the run's id.
    pub trace_id: [u8; 16],
    /// The span; never all zero, which would mean none.
    pub span_id: [u8; 8],
}

impl SpanRef {
    /// The span of a whole run.
    pub fn of_run(run_id: RunId) -> Self {
        Self::derived(run_id, b"run", "", 0)
    }

    /// The span of an attempt that counts.
    pub fn of_attempt(run_id: RunId, step: &str, attempt: u32) -> Self {
        Self::derived(run_id, b"attempt", step, u64::from(attempt))
    }

    /// The span of an attempt that does not count, since the next one has the same number.
    pub fn of_lease(run_id: RunId, step: &str, token: LeaseToken) -> Self {
        Self::derived(run_id, b"lease", step, token.0)
    }

    /// The span of a wait.
    pub fn of_wait(run_id: RunId, step: &str) -> Self {
        Self::derived(run_id, b"wait", step, 0)
    }

    fn derived(run_id: RunId, kind: &[u8], step: &str, number: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(run_id.0.as_bytes());
        hash.update(kind);
        // A name cannot hold this byte, so no two spans hash the same text.
        hash.update([0]);
        hash.update(step.as_bytes());
        hash.update([0]);
        hash.update(number.to_be_bytes());
        let digest = hash.finalize();
        let mut span_id = [0; 8];
        span_id.copy_from_slice(&digest[..8]);
        if span_id == [0; 8] {
            span_id[7] = 1;
        }
        Self { trace_id: *run_id.0.as_bytes(), span_id }
    }
}

/// As the header `traceparent` of W3C Trace Context has it, sampled.
impl fmt::Display for SpanRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_char('-')?;
        self.span_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-01")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_id() -> RunId {
        "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap()
    }

    #[test]
    fn the_trace_of_a_run_has_its_id_and_the_header_says_so() {
        let text = SpanRef::of_attempt(run_id(), "charge", 2).to_string();
        assert_eq!(text, "00-01890a5dac96774bbcceb302099a8057-5009ade28369bcf2-01");
        assert_eq!(SpanRef::of_attempt(run_id(), "charge", 2).to_string(), text);
    }

    #[test]
    fn no_two_spans_of_a_run_are_the_same() {
        let spans = [
            SpanRef::of_run(run_id()),
            SpanRef::of_attempt(run_id(), "a", 1),
            SpanRef::of_attempt(run_id(), "a", 2),
            SpanRef::of_attempt(run_id(), "b", 1),
            SpanRef::of_lease(run_id(), "a", LeaseToken(1)),
            SpanRef::of_wait(run_id(), "a"),
        ];
        let ids: std::collections::HashSet<_> = spans.iter().map(|span| span.span_id).collect();
        assert_eq!(ids.len(), spans.len());
        assert!(spans.iter().all(|span| span.trace_id == spans[0].trace_id));
    }
}
