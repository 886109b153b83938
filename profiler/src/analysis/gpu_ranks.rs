//! NCCL's kernels of several ranks in one recording, one collective at a time: who began last, and who waited.
//!
//! All ranks of one machine share one clock. A kernel of a collective in which every rank needs every other one cannot end
//! before all have begun: what each has run until the last one begins is waiting for a late rank, and the rest is the way.
//! Without communicators the kernels that belong together are found by their times: of the same name, and each running
//! at one common moment. That is sure only where every rank of the job is recorded and takes part.

use std::collections::{BTreeMap, BTreeSet};

use super::report::RankRow;
use crate::model::gpu::{Gpu, NcclKernel};
use crate::model::thread::Interval;
use crate::trace::gpu::GpuWhat;

/// Operations in which every rank needs every other one.
const TOGETHER: [&str; 3] = ["AllReduce", "AllGather", "ReduceScatter"];
/// Collectives by which ranks are compared, at least.
const LEAST: usize = 10;
/// Share of the kernels that have to be found on all ranks.
const MATCHED_PERCENT: usize = 90;

/// What one rank's kernels of one name add up to, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankTimes {
    /// Until the last rank began.
    pub peer_late_ns: u64,
    /// From then on.
    pub network_ns: u64,
    /// By how much it began after all others, where it was the last one.
    pub late_ns: u64,
    /// Of how many collectives it was the last one.
    pub last: u64,
    pub collectives: u64,
}

/// By process and short name of the kernels.
pub type Ranks = BTreeMap<(u32, String), RankTimes>;

/// Empty where ranks cannot be compared.
pub fn compare(gpu: &Gpu, ranks: &[RankRow], window: Interval) -> Ranks {
    let mut kernels: BTreeMap<&NcclKernel, BTreeMap<u32, Vec<Interval>>> = BTreeMap::new();
    let mut pids = BTreeSet::new();
    for one in &gpu.activities {
        let GpuWhat::Kernel(id) = one.what else { continue };
        let Some(nccl) = gpu.name(id).and_then(|name| name.nccl.as_ref()) else { continue };
        pids.insert(one.pid);
        let span = Interval { start_ns: one.start_ns, end_ns: one.end_ns };
        kernels.entry(nccl).or_default().entry(one.pid).or_default().push(span);
    }
    let known: BTreeSet<(u32, u32)> = ranks
        .iter()
        .filter(|row| row.nranks.is_some_and(|nranks| nranks as usize == pids.len()))
        .filter_map(|row| Some((row.rank?, row.pid)))
        .filter(|(_, pid)| pids.contains(pid))
        .collect();
    let distinct: BTreeSet<u32> = known.iter().map(|(rank, _)| *rank).collect();
    let mut found = Ranks::new();
    if pids.len() < 2 || distinct.len() != pids.len() || known.len() != pids.len() {
        return found;
    }
    for (nccl, of_pids) in kernels {
        if !TOGETHER.contains(&nccl.op.as_str()) || of_pids.len() != pids.len() {
            continue;
        }
        for (pid, times) in compare_one(of_pids, window) {
            found.insert((pid, nccl.label()), times);
        }
    }
    found
}

/// The kernels of one name; empty where too few belong together.
fn compare_one(of_pids: BTreeMap<u32, Vec<Interval>>, window: Interval) -> BTreeMap<u32, RankTimes> {
    let mut lists: Vec<(u32, Vec<Interval>)> = of_pids.into_iter().collect();
    // Only what every process could be seen in: their agents did not begin at once.
    let starts = lists.iter().filter_map(|(_, list)| list.iter().map(|one| one.start_ns).min());
    let ends = lists.iter().filter_map(|(_, list)| list.iter().map(|one| one.end_ns).max());
    let common =
        Interval { start_ns: starts.max().unwrap_or(u64::MAX), end_ns: ends.min().unwrap_or(0) }.clip(window);
    for (_, list) in &mut lists {
        list.retain(|one| one.start_ns > common.start_ns && one.end_ns < common.end_ns);
        list.sort_unstable_by_key(|one| one.start_ns);
    }
    let most = lists.iter().map(|(_, list)| list.len()).max().unwrap_or(0);
    let groups = groups(&lists);
    if groups.len() < LEAST || groups.len() * 100 < most * MATCHED_PERCENT {
        return BTreeMap::new();
    }
    let mut sums: BTreeMap<u32, RankTimes> = BTreeMap::new();
    for group in groups {
        let mut starts: Vec<u64> = group.iter().map(|(_, one)| one.start_ns).collect();
        starts.sort_unstable();
        let (Some(last_ns), Some(before_ns)) = (starts.pop(), starts.pop()) else { continue };
        for (pid, one) in group {
            let times = sums.entry(pid).or_default();
            times.collectives += 1;
            times.peer_late_ns += last_ns - one.start_ns;
            times.network_ns += one.end_ns.saturating_sub(last_ns);
            if one.start_ns == last_ns && last_ns > before_ns {
                times.last += 1;
                times.late_ns += last_ns - before_ns;
            }
        }
    }
    sums
}

/// One kernel of each process, all of which ran at one common moment.
fn groups(lists: &[(u32, Vec<Interval>)]) -> Vec<Vec<(u32, Interval)>> {
    let mut at = vec![0_usize; lists.len()];
    let mut groups = Vec::new();
    loop {
        let heads: Option<Vec<(u32, Interval)>> =
            lists.iter().zip(&at).map(|((pid, list), at)| list.get(*at).map(|one| (*pid, *one))).collect();
        let Some(heads) = heads else { return groups };
        let last_start = heads.iter().map(|(_, one)| one.start_ns).max().unwrap_or(0);
        if heads.iter().all(|(_, one)| one.end_ns > last_start) {
            groups.push(heads);
            for at in &mut at {
                *at += 1;
            }
            continue;
        }
        // What ended before another one began has no counterpart.
        for (at, (_, one)) in at.iter_mut().zip(&heads) {
            *at += usize::from(one.end_ns <= last_start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::model::fixture::Trace;
    use crate::trace::gpu::{GpuActivities, GpuActivity, GpuName};
    use crate::trace::record::Record;

    /// Two processes with these kernels.
    fn model(kernels: &[(u32, u64, u64)], name: &str) -> Model {
        let mut trace = Trace::with_window(0, 1_000_000);
        trace.add(Record::GpuName(GpuName { id: 1, name: name.into() }));
        for &(pid, start_ns, end_ns) in kernels {
            let mut batch = GpuActivities::new(pid);
            let what = GpuWhat::Kernel(1);
            let one = GpuActivity { pid, device: 0, stream: 7, what, start_ns, end_ns, queue_ns: None };
            batch.push(&one, &mut 0);
            trace.add(Record::GpuActivities(batch));
        }
        trace.model()
    }

    fn ranks(nranks: u32) -> Vec<RankRow> {
        let row = |pid, rank| RankRow { pid, rank: Some(rank), nranks: Some(nranks), gpu: None };
        vec![row(100, 0), row(200, 1)]
    }

    const ALL_REDUCE: &str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)";

    /// Process 200 begins 30 later each time; both end together.
    fn late() -> Vec<(u32, u64, u64)> {
        (1..=20)
            .flat_map(|at| [(100, at * 1000, at * 1000 + 80), (200, at * 1000 + 30, at * 1000 + 80)])
            .collect()
    }

    fn told(kernels: &[(u32, u64, u64)], name: &str, nranks: u32) -> Vec<(u32, RankTimes)> {
        let model = model(kernels, name);
        let found = compare(&model.gpu, &ranks(nranks), model.whole());
        found.into_iter().map(|((pid, _), times)| (pid, times)).collect()
    }

    #[test]
    fn the_last_to_begin_is_late_and_the_rest_is_the_way() {
        let told = told(&late(), ALL_REDUCE, 2);
        // The first and the last one lie at the edges of what both were seen in.
        let (waits, is_late) = (told[0].1, told[1].1);
        assert_eq!((told[0].0, told[1].0, waits.collectives), (100, 200, 18));
        assert_eq!(
            (waits.peer_late_ns, waits.network_ns, waits.last, waits.late_ns),
            (18 * 30, 18 * 50, 0, 0)
        );
        assert_eq!((is_late.peer_late_ns, is_late.network_ns), (0, 18 * 50));
        assert_eq!((is_late.last, is_late.late_ns), (18, 18 * 30));
    }

    #[test]
    fn nothing_is_said_where_a_rank_is_not_recorded_or_need_not_come() {
        assert_eq!(told(&late(), ALL_REDUCE, 3), []);
        assert_eq!(told(&late(), "ncclDevKernel_SendRecv(args)", 2), []);
        assert_eq!(told(&late(), "gemm", 2), []);
        assert_eq!(told(&late()[..8], ALL_REDUCE, 2), []);
    }

    #[test]
    fn kernels_that_do_not_run_at_one_moment_are_not_of_one_collective() {
        let apart: Vec<(u32, u64, u64)> = (1..=20)
            .flat_map(|at| [(100, at * 1000, at * 1000 + 80), (200, at * 1000 + 90, at * 1000 + 180)])
            .collect();
        assert_eq!(told(&apart, ALL_REDUCE, 2), []);
        let mut one_more = late();
        one_more.push((200, 5200, 5300));
        assert_eq!(told(&one_more, ALL_REDUCE, 2)[0].1.collectives, 18);
    }
}
