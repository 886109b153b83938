//! Time on GPUs beside the stalls of threads, as a second root of the view by cause: device, stream, kernel.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use super::{FlameOptions, FrameKind, Labels, View, ViewFrame, WeightedStack};
use crate::analysis::Analysis;
use crate::model::cause::Cause;
use crate::model::gpu::GpuClass;

/// The root: what is below it is time of GPUs, never to be added to that of threads.
const ROOT: &str = "GPU (GPU time, apart from that of threads)";

/// Device, process, stream, class and name.
type Key<'a> = (u32, u32, u32, GpuClass, Cow<'a, str>);

/// One stack for each stream and name, in GPU time.
pub(super) fn stacks(
    analysis: &Analysis,
    options: &FlameOptions,
    labels: &Labels,
    pids: Option<&HashSet<u32>>,
) -> Vec<WeightedStack> {
    if options.view != View::Cause || options.tid.is_some() {
        return Vec::new();
    }
    let gpu = &analysis.gpu;
    let mut sums: BTreeMap<Key<'_>, u64> = BTreeMap::new();
    for one in &gpu.activities {
        let class = gpu.class(one);
        let wanted = options.cause.is_none_or(|cause| cause_of(class) == Some(cause));
        if wanted && pids.is_none_or(|pids| pids.contains(&one.pid)) {
            let sum = sums.entry((one.device, one.pid, one.stream, class, gpu.short_label(one))).or_default();
            *sum = sum.saturating_add(one.end_ns - one.start_ns);
        }
    }
    let stack = |((device, pid, stream, class, name), weight_ns): (Key<'_>, u64)| WeightedStack {
        frames: vec![
            ViewFrame::new(ROOT, FrameKind::Mark),
            ViewFrame::new(&format!("device {device}"), FrameKind::Task),
            ViewFrame::new(&format!("stream {stream} of {}", labels.process(pid)), FrameKind::Task),
            match cause_of(class) {
                Some(cause) => ViewFrame::new(&format!("[{cause}] {name}"), FrameKind::Cause(cause)),
                None => ViewFrame::new(&name, FrameKind::User),
            },
        ],
        weight_ns,
    };
    sums.into_iter().filter(|(_, weight)| *weight > 0).map(stack).collect()
}

/// Computing is no stall.
fn cause_of(class: GpuClass) -> Option<Cause> {
    match class {
        GpuClass::Nccl => Some(Cause::NcclKernel),
        GpuClass::Copy => Some(Cause::GpuCopy),
        GpuClass::Compute => None,
    }
}
