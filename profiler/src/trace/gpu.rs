//! What ran on GPUs, column by column: neighbours resemble each other, and there are many.

use serde::{Deserialize, Serialize};

/// Activities of one record at most; more is damage.
pub const ROWS: usize = 1 << 14;

/// Name of a kernel, mangled as the compiler did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuName {
    /// What activities refer to it by; 0 is no name.
    pub id: u32,
    pub name: String,
}

/// Kernels and copies of one process, in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuActivities {
    pub pid: u32,
    /// Device and stream, as the process numbers them.
    pub lanes: Vec<(u32, u32)>,
    /// For kernels the id of a [`GpuName`] times 2; for copies their kind (`CUpti_ActivityMemcpyKind`) times 2, plus 1.
    pub what: Vec<u32>,
    /// Index into `lanes`.
    pub lane: Vec<u32>,
    /// `CLOCK_MONOTONIC`, as the difference to the start before.
    pub start: Vec<i64>,
    pub duration: Vec<u64>,
    /// From the beginning of the call that launched it to its start, plus 1; 0 where that call was not seen.
    pub queue: Vec<u64>,
    /// Bytes of each copy.
    pub bytes: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuWhat {
    /// Id of its [`GpuName`].
    Kernel(u32),
    Copy {
        kind: u32,
        bytes: u64,
    },
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuActivity {
    pub pid: u32,
    pub device: u32,
    pub stream: u32,
    pub what: GpuWhat,
    pub start_ns: u64,
    pub end_ns: u64,
    /// From the beginning of its launch to its start.
    pub queue_ns: Option<u64>,
}

impl GpuActivities {
    pub fn new(pid: u32) -> GpuActivities {
        GpuActivities { pid, ..GpuActivities::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.what.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.what.len() >= ROWS
    }

    /// Adds a row. `last` is the start of the row before, and becomes that of this one.
    pub fn push(&mut self, activity: &GpuActivity, last: &mut u64) {
        let lane = (activity.device, activity.stream);
        let index = self.lanes.iter().position(|known| *known == lane).unwrap_or_else(|| {
            self.lanes.push(lane);
            self.lanes.len() - 1
        });
        self.what.push(match activity.what {
            GpuWhat::Kernel(name) => name.wrapping_mul(2),
            GpuWhat::Copy { kind, bytes } => {
                self.bytes.push(bytes);
                kind.wrapping_mul(2) | 1
            }
        });
        self.lane.push(index as u32);
        self.start.push(activity.start_ns.wrapping_sub(*last) as i64);
        *last = activity.start_ns;
        self.duration.push(activity.end_ns.saturating_sub(activity.start_ns));
        self.queue.push(activity.queue_ns.map_or(0, |queue| queue.saturating_add(1)));
    }

    /// The rows; `None` where columns do not fit together.
    pub fn rows(&self) -> Option<Vec<GpuActivity>> {
        let rows = self.what.len();
        let columns = [self.lane.len(), self.start.len(), self.duration.len(), self.queue.len()];
        if rows > ROWS || columns.iter().any(|len| *len != rows) {
            return None;
        }
        let mut bytes = self.bytes.iter();
        let mut start_ns = 0_u64;
        let mut found = Vec::with_capacity(rows);
        for row in 0..rows {
            let &(device, stream) = self.lanes.get(*self.lane.get(row)? as usize)?;
            start_ns = start_ns.wrapping_add(*self.start.get(row)? as u64);
            let what = *self.what.get(row)?;
            let queue = *self.queue.get(row)?;
            found.push(GpuActivity {
                pid: self.pid,
                device,
                stream,
                what: match what & 1 {
                    0 => GpuWhat::Kernel(what / 2),
                    _ => GpuWhat::Copy { kind: what / 2, bytes: *bytes.next()? },
                },
                start_ns,
                end_ns: start_ns.checked_add(*self.duration.get(row)?)?,
                queue_ns: queue.checked_sub(1),
            });
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(start_ns: u64, what: GpuWhat, queue_ns: Option<u64>) -> GpuActivity {
        GpuActivity { pid: 9, device: 0, stream: 7, what, start_ns, end_ns: start_ns + 5, queue_ns }
    }

    #[test]
    fn rows_come_back_as_they_went_in() {
        let mut batch = GpuActivities::new(9);
        let rows = [
            activity(1000, GpuWhat::Kernel(3), Some(0)),
            activity(900, GpuWhat::Copy { kind: 1, bytes: 64 }, None),
            GpuActivity { stream: 8, ..activity(u64::MAX - 9, GpuWhat::Kernel(0), Some(77)) },
        ];
        let mut last = 0;
        for row in &rows {
            batch.push(row, &mut last);
        }
        assert_eq!(batch.rows().unwrap(), rows);
        assert_eq!(batch.lanes, [(0, 7), (0, 8)]);
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let mut batch = GpuActivities::new(9);
        batch.push(&activity(1, GpuWhat::Copy { kind: 1, bytes: 64 }, None), &mut 0);
        let broken = [
            GpuActivities { lane: vec![], ..batch.clone() },
            GpuActivities { lane: vec![4], ..batch.clone() },
            GpuActivities { bytes: vec![], ..batch.clone() },
            GpuActivities { duration: vec![u64::MAX], ..batch.clone() },
        ];
        assert!(broken.iter().all(|batch| batch.rows().is_none()));
    }
}
