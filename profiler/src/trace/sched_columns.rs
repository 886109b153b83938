//! Columns behind those of the first version of a block of waits: where the threads slept. Readers of that version do not
//! look behind the columns that they know.

use serde::{Deserialize, Serialize};

use super::record::{Sched, Wait};

const HAS_SLEEP: u8 = 1;
const HAS_WAKE: u8 = 2;

/// One element for each wait, or none at all.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SchedColumns {
    /// `HAS_SLEEP`, `HAS_WAKE`: the time is there, and not 0.
    has: Vec<u8>,
    /// `sleep_ns - start_ns`
    lead: Vec<u64>,
    /// `end_ns - wake_ns`
    tail: Vec<u64>,
    runq: Vec<u64>,
    owner: Vec<u32>,
}

impl SchedColumns {
    pub(super) fn push(&mut self, wait: &Wait) {
        let Sched { sleep_ns, wake_ns, runq_ns, owner } = wait.sched;
        let bit = |time_ns: u64, bit: u8| if time_ns == 0 { 0 } else { bit };
        self.has.push(bit(sleep_ns, HAS_SLEEP) | bit(wake_ns, HAS_WAKE));
        self.lead.push(if sleep_ns == 0 { 0 } else { sleep_ns.wrapping_sub(wait.start_ns) });
        self.tail.push(if wake_ns == 0 { 0 } else { wait.end_ns.wrapping_sub(wake_ns) });
        self.runq.push(runq_ns);
        self.owner.push(owner);
    }

    /// Appends the columns where they say anything.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Result<(), postcard::Error> {
        // A time that is there can be nothing as a difference.
        let has_times = self.has.iter().any(|has| *has != 0);
        if !has_times && self.runq.iter().all(|ns| *ns == 0) && self.owner.iter().all(|tid| *tid == 0) {
            return Ok(());
        }
        postcard::to_io(self, out).map(|_| ())
    }

    /// From the bytes behind the other columns; `None` where the columns have other lengths than `rows`.
    pub(super) fn decode(bytes: &[u8], rows: usize) -> Option<SchedColumns> {
        if bytes.is_empty() {
            return Some(SchedColumns::default());
        }
        let (columns, _) = postcard::take_from_bytes::<SchedColumns>(bytes).ok()?;
        let lens = [
            columns.has.len(),
            columns.lead.len(),
            columns.tail.len(),
            columns.runq.len(),
            columns.owner.len(),
        ];
        lens.iter().all(|&len| len == rows).then_some(columns)
    }

    pub(super) fn get(&self, row: usize, start_ns: u64, end_ns: u64) -> Sched {
        let Some(&has) = self.has.get(row) else { return Sched::default() };
        let at = |column: &[u64]| column.get(row).copied().unwrap_or(0);
        Sched {
            sleep_ns: if has & HAS_SLEEP == 0 { 0 } else { start_ns.wrapping_add(at(&self.lead)) },
            wake_ns: if has & HAS_WAKE == 0 { 0 } else { end_ns.wrapping_sub(at(&self.tail)) },
            runq_ns: at(&self.runq),
            owner: self.owner.get(row).copied().unwrap_or(0),
        }
    }

    /// Keeps the memory.
    pub(super) fn clear(&mut self) {
        self.has.clear();
        self.lead.clear();
        self.tail.clear();
        self.runq.clear();
        self.owner.clear();
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::Call;

    use super::*;
    use crate::model::fixture::{slept, wait};

    #[test]
    fn a_sleep_from_the_first_to_the_last_moment_is_kept() {
        let whole = slept(1000, 2000, wait(Call::Read, 1000, 2000, Vec::new()));
        let mut columns = SchedColumns::default();
        columns.push(&whole);
        let mut bytes = Vec::new();
        columns.encode(&mut bytes).unwrap();
        let read = SchedColumns::decode(&bytes, 1).unwrap();
        assert_eq!(read.get(0, 1000, 2000), whole.sched);
        assert_eq!(SchedColumns::decode(&bytes, 2), None);
    }

    #[test]
    fn columns_that_say_nothing_take_no_room() {
        let mut columns = SchedColumns::default();
        columns.push(&wait(Call::Read, 1000, 2000, Vec::new()));
        let mut bytes = Vec::new();
        columns.encode(&mut bytes).unwrap();
        assert!(bytes.is_empty());
        assert_eq!(SchedColumns::decode(&bytes, 1), Some(SchedColumns::default()));
    }
}
