//! Time on GPUs: NCCL's kernels, copies, and what waited to be run. Of the domain `gpu`, never added to that of threads.

use std::collections::BTreeMap;

use super::gpu_ranks::Ranks;
use super::report::{CauseRow, CollectiveRow, Distribution, Domain, GpuRow};
use super::{gpu_kernels, sections};
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::gpu::{Gpu, GpuClass};
use crate::trace::gpu::{GpuActivity, GpuWhat};

/// Evidence of CUPTI's activity records.
const MEASURED: &str = "measured.gpu";

/// `[start, end)`, sorted and apart from each other.
type Union = Vec<(u64, u64)>;

/// A row for each name of an NCCL kernel, process and device; the longest in sum first.
pub fn collective_rows(model: &Model, compared: &Ranks) -> Vec<CollectiveRow> {
    let gpu = &model.gpu;
    let ranks = sections::target(model).ranks;
    let mut groups: BTreeMap<(u32, u32, u32), Vec<&GpuActivity>> = BTreeMap::new();
    for one in of_class(gpu, GpuClass::Nccl) {
        if let GpuWhat::Kernel(id) = one.what {
            groups.entry((one.pid, one.device, id)).or_default().push(one);
        }
    }
    let mut rows: Vec<CollectiveRow> = groups
        .into_iter()
        .filter_map(|((pid, device, id), activities)| {
            let name = gpu.name(id)?;
            let nccl = name.nccl.clone()?;
            let rank = ranks.iter().find(|row| row.pid == pid);
            let beside =
                union(of_process(gpu, pid, device).filter(|one| gpu.class(one) == GpuClass::Compute));
            let together = union(activities.iter().copied());
            let exposed_ns = exposed(&together, &beside);
            let among_ranks = compared.get(&(pid, nccl.label()));
            Some(CollectiveRow {
                op: nccl.op,
                rank: rank.and_then(|row| row.rank),
                nranks: rank.and_then(|row| row.nranks),
                count: activities.len() as u64,
                kernel: Distribution::of(activities.iter().map(|one| one.end_ns - one.start_ns).collect()),
                launch_queue: Distribution::of(activities.iter().filter_map(|one| one.queue_ns).collect()),
                peer_late_ns: among_ranks.map(|times| times.peer_late_ns),
                network_ns: among_ranks.map(|times| times.network_ns),
                evidence: MEASURED.to_owned(),
                gap: Distribution::of(gaps(&activities)),
                data_type: nccl.data_type,
                reduction: nccl.reduction,
                algorithm: nccl.algorithm,
                protocol: nccl.protocol,
                kernel_name: name.text.clone(),
                pid,
                device,
                exposed_ns,
                hidden_ns: len(&together) - exposed_ns,
                ..CollectiveRow::default()
            })
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.kernel.sum_ns));
    rows
}

/// Rows of the domain `gpu`: kernels of NCCL, copies, and kernels and copies that waited after their launch.
pub fn cause_rows(model: &Model) -> Vec<CauseRow> {
    let gpu = &model.gpu;
    let durations = |class| of_class(gpu, class).map(|one| one.end_ns - one.start_ns).collect();
    let queues = gpu.activities.iter().filter_map(|one| one.queue_ns).collect();
    [
        (Cause::NcclKernel, durations(GpuClass::Nccl)),
        (Cause::GpuCopy, durations(GpuClass::Copy)),
        (Cause::GpuQueue, queues),
    ]
    .into_iter()
    .filter(|(_, durations): &(Cause, Vec<u64>)| !durations.is_empty())
    .map(|(cause, durations)| {
        let duration = Distribution::of(durations);
        CauseRow {
            cause,
            domain: Domain::Gpu,
            count: duration.count,
            stalled_ns: duration.sum_ns,
            in_flight: 0,
            longest_ns: duration.max_ns,
            began_earlier: false,
            duration,
        }
    })
    .collect()
}

/// A row for each process and device.
pub fn gpu_rows(model: &Model) -> Vec<GpuRow> {
    let gpu = &model.gpu;
    let mut lanes: Vec<(u32, u32)> = gpu.activities.iter().map(|one| (one.pid, one.device)).collect();
    lanes.dedup();
    lanes
        .into_iter()
        .map(|(pid, device)| {
            let of = |class| of_process(gpu, pid, device).filter(move |one| gpu.class(one) == class);
            let (nccl, compute) = (union(of(GpuClass::Nccl)), union(of(GpuClass::Compute)));
            let copies = of(GpuClass::Copy);
            let bytes = of(GpuClass::Copy).map(|one| match one.what {
                GpuWhat::Copy { bytes, .. } => bytes,
                GpuWhat::Kernel(_) => 0,
            });
            let copied = copies.clone().count() as u64;
            GpuRow {
                pid,
                device,
                kernels: of_process(gpu, pid, device).count() as u64 - copied,
                copies: copied,
                copied_bytes: bytes.fold(0, u64::saturating_add),
                busy_ns: len(&union(of_process(gpu, pid, device))),
                compute_ns: len(&compute),
                nccl_ns: len(&nccl),
                nccl_exposed_ns: exposed(&nccl, &compute),
                copy_ns: len(&union(copies)),
                span_ns: span_ns(of_process(gpu, pid, device)),
                gaps: Distribution::of(
                    gpu_kernels::gaps(of_process(gpu, pid, device)).iter().map(|gap| gap.ns).collect(),
                ),
                by_name: gpu_kernels::rows(gpu, of_process(gpu, pid, device)),
            }
        })
        .collect()
}

fn of_class(gpu: &Gpu, class: GpuClass) -> impl Iterator<Item = &GpuActivity> + Clone {
    gpu.activities.iter().filter(move |one| gpu.class(one) == class)
}

/// From the first start to the last end.
pub(super) fn span_ns<'a>(activities: impl Iterator<Item = &'a GpuActivity> + Clone) -> u64 {
    let first = activities.clone().map(|one| one.start_ns).min().unwrap_or(0);
    activities.map(|one| one.end_ns).max().unwrap_or(0).saturating_sub(first)
}

pub(super) fn of_process(gpu: &Gpu, pid: u32, device: u32) -> impl Iterator<Item = &GpuActivity> + Clone {
    // Ordered by process and device.
    let start = gpu.activities.partition_point(|one| (one.pid, one.device) < (pid, device));
    let end = gpu.activities.partition_point(|one| (one.pid, one.device) <= (pid, device));
    gpu.activities.get(start..end).unwrap_or_default().iter()
}

/// Between each activity and the next one on its stream.
fn gaps(activities: &[&GpuActivity]) -> Vec<u64> {
    let mut activities = activities.to_vec();
    activities.sort_unstable_by_key(|one| (one.stream, one.start_ns));
    let pairs = activities.iter().zip(activities.iter().skip(1));
    pairs
        .filter(|(one, next)| one.stream == next.stream)
        .map(|(one, next)| next.start_ns.saturating_sub(one.end_ns))
        .collect()
}

fn union<'a>(activities: impl Iterator<Item = &'a GpuActivity>) -> Union {
    let mut times: Vec<(u64, u64)> = activities.map(|one| (one.start_ns, one.end_ns)).collect();
    times.sort_unstable();
    let mut found: Union = Vec::new();
    for (start, end) in times {
        match found.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => found.push((start, end)),
        }
    }
    found
}

fn len(union: &Union) -> u64 {
    union.iter().map(|(start, end)| end - start).sum()
}

/// What of `union` lies outside of `others`.
fn exposed(union: &Union, others: &Union) -> u64 {
    let mut covered = 0;
    let mut from = 0;
    for &(start, end) in union {
        let rest = others.get(from..).unwrap_or_default();
        from += rest.partition_point(|other| other.1 <= start);
        for other in others.get(from..).unwrap_or_default() {
            if other.0 >= end {
                break;
            }
            covered += other.1.min(end) - other.0.max(start);
        }
    }
    len(union) - covered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture::Trace;
    use crate::trace::gpu::{GpuActivities, GpuName};
    use crate::trace::record::Record;

    fn model(activities: &[(u32, GpuWhat, u64, u64, Option<u64>)]) -> Model {
        let name = |id, name: &str| Record::GpuName(GpuName { id, name: name.into() });
        let mut batch = GpuActivities::new(100);
        let mut last = 0;
        for &(stream, what, start_ns, end_ns, queue_ns) in activities {
            let one = GpuActivity { pid: 100, device: 0, stream, what, start_ns, end_ns, queue_ns };
            batch.push(&one, &mut last);
        }
        Trace::new()
            .add(name(1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"))
            .add(name(2, "gemm"))
            .add(Record::GpuActivities(batch))
            .model()
    }

    const NCCL: GpuWhat = GpuWhat::Kernel(1);
    const GEMM: GpuWhat = GpuWhat::Kernel(2);

    #[test]
    fn a_collective_is_exposed_where_no_compute_kernel_runs() {
        // The window of fixtures is [1000, 2000).
        let model = model(&[
            (8, NCCL, 1100, 1300, Some(50)),
            (7, GEMM, 1050, 1150, None),
            (7, GEMM, 1250, 1400, Some(10)),
            (8, NCCL, 1500, 1600, None),
        ]);
        let rows = collective_rows(&model, &Ranks::new());
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!(
            (row.op.as_str(), row.count, row.kernel.sum_ns, row.exposed_ns),
            ("AllReduce", 2, 300, 200)
        );
        assert_eq!((row.launch_queue.count, row.launch_queue.max_ns), (1, 50));
        assert_eq!((row.gap.count, row.gap.max_ns), (1, 200));
        assert_eq!(row.evidence, "measured.gpu");
        let gpus = gpu_rows(&model);
        assert_eq!((gpus[0].nccl_ns, gpus[0].nccl_exposed_ns, gpus[0].compute_ns), (300, 200, 250));
        assert_eq!((gpus[0].busy_ns, gpus[0].kernels), (450, 4));
    }

    #[test]
    fn causes_of_the_gpu_are_of_its_own_domain() {
        let copy = GpuWhat::Copy { kind: 1, bytes: 4096 };
        let model = model(&[(7, copy, 1000, 1030, Some(5)), (8, NCCL, 1100, 1300, None)]);
        let rows: Vec<_> = cause_rows(&model)
            .into_iter()
            .map(|row| (row.cause, row.domain, row.count, row.stalled_ns))
            .collect();
        assert_eq!(
            rows,
            [
                (Cause::NcclKernel, Domain::Gpu, 1, 200),
                (Cause::GpuCopy, Domain::Gpu, 1, 30),
                (Cause::GpuQueue, Domain::Gpu, 1, 5),
            ]
        );
        assert_eq!(gpu_rows(&model)[0].copied_bytes, 4096);
    }
}
