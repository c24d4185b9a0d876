//! Gates: the record of each is in the first partition, and every partition has what a start needs
//! to know of it.
//!
//! A gate that closes is written down first and then closed in each partition: it counts as closed
//! when all have it. So is one that only sends starts elsewhere, for those who are told of it by a
//! partition. One that opens is opened in each partition first, and goes on to send starts where it
//! did. Whoever was interrupted sets the same gate again.

use std::sync::Arc;

use flowgate_core::gate::Gate;
use flowgate_core::payload::Payload;
use redis::Cmd;

use super::RedisStore;
use super::script::{self, Reply};
use crate::StoreError;
use crate::control::{Expect, GATE, GateOutcome, RecordWrite, RecordsOutcome, gate_of};

impl RedisStore {
    pub(super) async fn put_gate(
        &self,
        flow: &Arc<str>,
        gate: &Gate,
        only_if_empty: bool,
    ) -> Result<GateOutcome, StoreError> {
        let found = self.records(GATE, std::slice::from_ref(flow)).await?;
        let found = found.into_iter().next().flatten();
        let before = gate_of(found.as_ref())?;
        let is_there = found.is_some() && before == *gate;
        if !is_there && before.generation + 1 != gate.generation {
            return Ok(GateOutcome::Changed);
        }
        let expect = found.map_or(Expect::Absent, |found| Expect::Version(found.version));
        let is_closed = gate.state.is_closed();
        let is_first = is_closed || !before.state.is_closed();
        if is_first && !is_there && !self.put_gate_record(flow, gate, expect).await? {
            return Ok(GateOutcome::Changed);
        }
        for (_, prefix) in self.partitions.all() {
            let write = |command: &mut Cmd| {
                command.arg(&**flow).arg(gate.generation);
                command.arg(u8::from(is_closed)).arg(u8::from(only_if_empty));
            };
            let answer = self.run("setting a gate", &script::SET_GATE, prefix, write).await?;
            if Reply::of(answer)?.number::<u8>()? == 1 {
                return Ok(GateOutcome::HoldsRuns);
            }
        }
        if !is_first && !is_there && !self.put_gate_record(flow, gate, expect).await? {
            return Ok(GateOutcome::Changed);
        }
        Ok(GateOutcome::Set)
    }

    async fn put_gate_record(
        &self,
        flow: &Arc<str>,
        gate: &Gate,
        expect: Expect,
    ) -> Result<bool, StoreError> {
        let value = Payload::of(gate).expect("a gate's JSON form is within the limits");
        let key = Arc::clone(flow);
        let write = RecordWrite { kind: GATE, key, expect, value: Some(value), keep: None };
        Ok(matches!(self.put_records(&[write], None).await?, RecordsOutcome::Written(_)))
    }
}
