//! Calls of threads that waited for the GPU, as the CUDA runtime's own records say, column by column.

use serde::{Deserialize, Serialize};

/// Calls of one record at most; more is damage.
pub const ROWS: usize = 1 << 14;

/// Calls of one process, in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSyncs {
    pub pid: u32,
    /// Thread, by its id in its own PID namespace, and function, by its place in [`profiler_common::cuda::SYNCS`].
    pub calls: Vec<(u32, u16)>,
    /// Index into `calls`.
    pub call: Vec<u32>,
    /// `CLOCK_MONOTONIC`, as the difference to the start before.
    pub start: Vec<i64>,
    pub duration: Vec<u64>,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuSync {
    pub pid: u32,
    pub ns_tid: u32,
    pub function: u16,
    pub start_ns: u64,
    pub end_ns: u64,
}

impl GpuSyncs {
    pub fn new(pid: u32) -> GpuSyncs {
        GpuSyncs { pid, ..GpuSyncs::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.call.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.call.len() >= ROWS
    }

    /// Adds a row. `last` is the start of the row before, and becomes that of this one.
    pub fn push(&mut self, sync: &GpuSync, last: &mut u64) {
        let call = (sync.ns_tid, sync.function);
        let index = self.calls.iter().position(|known| *known == call).unwrap_or_else(|| {
            self.calls.push(call);
            self.calls.len() - 1
        });
        self.call.push(index as u32);
        self.start.push(sync.start_ns.wrapping_sub(*last) as i64);
        *last = sync.start_ns;
        self.duration.push(sync.end_ns.saturating_sub(sync.start_ns));
    }

    /// The rows; `None` where columns do not fit together.
    pub fn rows(&self) -> Option<Vec<GpuSync>> {
        let rows = self.call.len();
        if rows > ROWS || self.start.len() != rows || self.duration.len() != rows {
            return None;
        }
        let mut start_ns = 0_u64;
        let mut found = Vec::with_capacity(rows);
        for ((call, start), duration) in self.call.iter().zip(&self.start).zip(&self.duration) {
            let &(ns_tid, function) = self.calls.get(*call as usize)?;
            start_ns = start_ns.wrapping_add(*start as u64);
            let end_ns = start_ns.checked_add(*duration)?;
            found.push(GpuSync { pid: self.pid, ns_tid, function, start_ns, end_ns });
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(ns_tid: u32, function: u16, start_ns: u64) -> GpuSync {
        GpuSync { pid: 9, ns_tid, function, start_ns, end_ns: start_ns + 5 }
    }

    #[test]
    fn rows_come_back_as_they_went_in() {
        let rows = [sync(1, 1, 1000), sync(2, 1, 900), sync(1, 1, u64::MAX - 9)];
        let (mut batch, mut last) = (GpuSyncs::new(9), 0);
        for row in &rows {
            batch.push(row, &mut last);
        }
        assert_eq!(batch.rows().unwrap(), rows);
        assert_eq!(batch.calls, [(1, 1), (2, 1)]);
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let mut batch = GpuSyncs::new(9);
        batch.push(&sync(1, 1, 7), &mut 0);
        let broken = [
            GpuSyncs { calls: vec![], ..batch.clone() },
            GpuSyncs { start: vec![], ..batch.clone() },
            GpuSyncs { duration: vec![u64::MAX], ..batch.clone() },
        ];
        assert!(broken.iter().all(|batch| batch.rows().is_none()));
    }
}
