//! Kernels and copies by name, and when a GPU had nothing to do between them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::report::{Distribution, GpuKernelRow};
use crate::model::gpu::{Gpu, GpuClass};
use crate::trace::gpu::GpuActivity;

/// Rows of one process and device; the rest has the least time.
const ROWS: usize = 1000;

/// A row for each name, most time first.
pub fn rows<'g>(gpu: &'g Gpu, activities: impl Iterator<Item = &'g GpuActivity>) -> Vec<GpuKernelRow> {
    let mut groups: BTreeMap<(GpuClass, Cow<'g, str>), Vec<&GpuActivity>> = BTreeMap::new();
    for one in activities {
        groups.entry((gpu.class(one), gpu.short_label(one))).or_default().push(one);
    }
    let mut rows: Vec<GpuKernelRow> = groups
        .into_iter()
        .map(|((class, name), activities)| {
            let duration = Distribution::of(activities.iter().map(|one| one.end_ns - one.start_ns).collect());
            GpuKernelRow {
                name: name.into_owned(),
                class: class.name().to_owned(),
                count: duration.count,
                sum_ns: duration.sum_ns,
                duration,
                launch_queue: Distribution::of(activities.iter().filter_map(|one| one.queue_ns).collect()),
            }
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.sum_ns));
    rows.truncate(ROWS);
    rows
}

/// A time between the end of all that ran and the start of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub ns: u64,
    /// From the launch to the start of what ended it.
    pub queue_ns: Option<u64>,
}

/// All gaps between some activities.
pub fn gaps<'g>(activities: impl Iterator<Item = &'g GpuActivity>) -> Vec<Gap> {
    let mut activities: Vec<&GpuActivity> = activities.collect();
    activities.sort_unstable_by_key(|one| (one.start_ns, one.end_ns));
    let mut gaps = Vec::new();
    let mut free_ns = u64::MAX;
    for one in activities {
        if one.start_ns > free_ns {
            gaps.push(Gap { ns: one.start_ns - free_ns, queue_ns: one.queue_ns });
        }
        free_ns = if free_ns == u64::MAX { one.end_ns } else { free_ns.max(one.end_ns) };
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture::{Trace, gpu};
    use crate::trace::gpu::GpuWhat;

    #[test]
    fn kernels_are_told_by_name_and_gaps_where_nothing_ran() {
        let (nccl, gemm) = (GpuWhat::Kernel(1), GpuWhat::Kernel(2));
        let mut trace = Trace::new();
        gpu(
            &mut trace,
            &[
                (7, gemm, 1100, 1200, Some(5)),
                (7, gemm, 1300, 1350, None),
                (8, nccl, 1150, 1250, Some(7)),
                (9, GpuWhat::Copy { kind: 1, bytes: 64 }, 1600, 1610, Some(9)),
            ],
        );
        let model = trace.model();
        let rows = rows(&model.gpu, model.gpu.activities.iter());
        let told: Vec<_> =
            rows.iter().map(|row| (row.class.as_str(), row.name.as_str(), row.count, row.sum_ns)).collect();
        assert_eq!(
            told,
            [
                ("compute", "gemm", 2, 150),
                ("nccl", "AllReduce Sum f32 RING_LL", 1, 100),
                ("copy", "host to device", 1, 10)
            ]
        );
        assert_eq!((rows[0].duration.max_ns, rows[0].launch_queue.count), (100, 1));
        let gaps: Vec<_> =
            gaps(model.gpu.activities.iter()).iter().map(|gap| (gap.ns, gap.queue_ns)).collect();
        assert_eq!(gaps, [(50, None), (250, Some(9))]);
    }
}
