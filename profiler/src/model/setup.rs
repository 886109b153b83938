//! The kernel's side of RDMA: calls that set something up, what all of them add up to, and events of devices.

use std::collections::BTreeMap;

use profiler_common::rdma_kernel::SetupOp;

use crate::hash::FastMap;
use crate::trace::rdma_setup::{RdmaCommandTotals, RdmaDeviceEvent, RdmaSetup, RdmaSetupTotals};

/// Calls and answers that are kept one by one; the totals have all.
const CALLS_MAX: usize = 1 << 20;
/// Rows of totals, and events, at most; more is a forgery.
const ROWS_MAX: usize = 1 << 16;

/// What the trace says of it.
#[derive(Clone, Debug, Default)]
pub struct Setups {
    /// As they came.
    calls: Vec<RdmaSetup>,
    /// By start and end: where the wait of a call has its particulars.
    by_time: FastMap<(u64, u64), u32>,
    /// The last ones, by process and operation.
    totals: BTreeMap<(u32, SetupOp), RdmaSetupTotals>,
    commands: BTreeMap<u32, RdmaCommandTotals>,
    events: Vec<RdmaDeviceEvent>,
}

impl Setups {
    /// False where it makes no sense, or there are too many.
    pub fn add(&mut self, call: RdmaSetup) -> bool {
        if call.end_ns < call.start_ns || self.calls.len() >= CALLS_MAX {
            return false;
        }
        let Ok(index) = u32::try_from(self.calls.len()) else { return false };
        if call.op.is_call() {
            self.by_time.insert((call.start_ns, call.end_ns), index);
        }
        self.calls.push(call);
        true
    }

    pub fn add_totals(&mut self, totals: RdmaSetupTotals) -> bool {
        let key = (totals.pid, totals.op);
        if self.totals.len() >= ROWS_MAX && !self.totals.contains_key(&key) {
            return false;
        }
        self.totals.insert(key, totals);
        true
    }

    pub fn add_commands(&mut self, totals: RdmaCommandTotals) -> bool {
        if self.commands.len() >= ROWS_MAX && !self.commands.contains_key(&totals.opcode) {
            return false;
        }
        self.commands.insert(totals.opcode, totals);
        true
    }

    pub fn add_event(&mut self, event: RdmaDeviceEvent) -> bool {
        let room = self.events.len() < ROWS_MAX;
        if room {
            self.events.push(event);
        }
        room
    }

    /// The call whose wait this is.
    pub fn of_wait(&self, start_ns: u64, end_ns: u64) -> Option<&RdmaSetup> {
        self.calls.get(*self.by_time.get(&(start_ns, end_ns))? as usize)
    }

    pub fn calls(&self) -> &[RdmaSetup] {
        &self.calls
    }

    pub fn totals(&self) -> impl Iterator<Item = &RdmaSetupTotals> {
        self.totals.values()
    }

    pub fn commands(&self) -> impl Iterator<Item = &RdmaCommandTotals> {
        self.commands.values()
    }

    /// By time. The kernel tells every process that has the device open: of the same at nearly the same time one is kept.
    pub fn events(&self) -> Vec<RdmaDeviceEvent> {
        let mut sorted = self.events.clone();
        sorted.sort_unstable();
        let mut last: FastMap<(u32, u32), u64> = FastMap::default();
        sorted.retain(|event| {
            let before = last.insert((event.event, event.port), event.time_ns);
            before.is_none_or(|before| event.time_ns.saturating_sub(before) > SAME_NS)
        });
        sorted
    }
}

/// Events of a kind and port that are closer together are one.
const SAME_NS: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_finds_its_call_and_an_answer_has_none() {
        let mut setups = Setups::default();
        let call =
            RdmaSetup { start_ns: 5, end_ns: 9, tid: 3, op: SetupOp::Deregister, ..RdmaSetup::default() };
        assert!(setups.add(call));
        assert!(setups.add(RdmaSetup { start_ns: 6, end_ns: 8, op: SetupOp::RouteAnswer, ..call }));
        assert!(!setups.add(RdmaSetup { start_ns: 9, end_ns: 8, ..call }));
        assert_eq!(setups.of_wait(5, 9), Some(&call));
        assert_eq!((setups.of_wait(6, 8), setups.of_wait(5, 8)), (None, None));
    }

    #[test]
    fn of_totals_the_last_count() {
        let mut setups = Setups::default();
        for calls in [1, 7] {
            setups.add_totals(RdmaSetupTotals { pid: 3, calls, ..RdmaSetupTotals::default() });
        }
        assert_eq!(setups.totals().map(|row| row.calls).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn an_event_that_several_processes_were_told_of_is_one() {
        let mut setups = Setups::default();
        for (time_ns, port) in [(2_000_000_000, 1), (5_000, 1), (900, 1), (7_000, 2)] {
            setups.add_event(RdmaDeviceEvent { time_ns, event: 10, port });
        }
        let seen: Vec<(u64, u32)> = setups.events().iter().map(|one| (one.time_ns, one.port)).collect();
        assert_eq!(seen, [(900, 1), (7_000, 2), (2_000_000_000, 1)]);
    }
}
