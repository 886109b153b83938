//! The parts of the report that say what was recorded, where, and how completely.

use std::collections::BTreeSet;

use super::report::{
    BelowMinStall, ClockRow, CoverageRow, EnvironmentRow, HostRow, ProbeRow, RankRow, TargetRow,
};
use crate::model::Model;

/// Launchers' names for a process's rank and the number of ranks, the best first.
const RANK: [&str; 4] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
const RANKS: [&str; 4] = ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"];

pub fn host(model: &Model) -> HostRow {
    HostRow { name: model.host.name.clone(), kernel: model.host.kernel.clone(), cpus: model.host.cpus }
}

pub fn target(model: &Model) -> TargetRow {
    let processes = model.processes.values();
    let first = processes.min_by_key(|process| (!process.asked_for, process.seen_ns, process.pid));
    let start_unix_ns = model.clock.map_or(0, |clock| {
        let offset = i128::from(model.window.start_ns) - i128::from(clock.monotonic_ns);
        u64::try_from(i128::from(clock.unix_ns) + offset).unwrap_or(0)
    });
    TargetRow {
        pids: model.processes.keys().copied().collect(),
        comm: first.map(|process| process.comm.clone()).unwrap_or_default(),
        start_unix_ns,
        duration_ns: model.whole().len(),
        ranks: ranks(model),
    }
}

/// Processes whose environment names their rank.
fn ranks(model: &Model) -> Vec<RankRow> {
    let pids: BTreeSet<u32> =
        model.environment.iter().map(|entry| entry.pid).filter(|pid| *pid != 0).collect();
    let number = |pid: u32, names: &[&str]| {
        names.iter().find_map(|name| {
            let entry = model.environment.iter().find(|entry| entry.pid == pid && entry.what == *name)?;
            entry.value.trim().parse::<u32>().ok()
        })
    };
    pids.into_iter()
        .map(|pid| RankRow { pid, rank: number(pid, &RANK), nranks: number(pid, &RANKS), gpu: None })
        .filter(|row| row.rank.is_some())
        .collect()
}

/// Each value once, also where several processes have it.
pub fn environment(model: &Model) -> Vec<EnvironmentRow> {
    let rows: BTreeSet<(&str, &str)> =
        model.environment.iter().map(|entry| (entry.what.as_str(), entry.value.as_str())).collect();
    rows.into_iter()
        .map(|(what, value)| EnvironmentRow { what: what.to_owned(), value: value.to_owned() })
        .collect()
}

pub fn coverage(model: &Model) -> CoverageRow {
    let probes = model.coverage.iter().map(|coverage| ProbeRow {
        family: coverage.family.clone(),
        state: coverage.state,
        reason: coverage.reason.clone(),
    });
    let lost = model.losses.values().filter(|(_, events)| *events).map(|(count, _)| *count);
    let unresolved = model
        .stacks
        .values()
        .map(|stack| stack.frames.iter().filter(|frame| frame.function.is_empty()).count() as u64);
    let mut below_min_stall = BelowMinStall::default();
    for call in &model.calls {
        below_min_stall.count = below_min_stall.count.saturating_add(call.below);
        below_min_stall.sum_ns = below_min_stall.sum_ns.saturating_add(call.below_ns);
    }
    let seen = model.calls.iter().filter(|call| call.seen > 0);
    CoverageRow {
        probes: probes.collect(),
        lost_events: lost.fold(0, u64::saturating_add),
        truncated_stacks: model.stacks.values().filter(|stack| stack.truncated).count() as u64,
        unmatched_completions: 0,
        unresolved_frames: unresolved.sum(),
        below_min_stall,
        syscalls_seen: seen.map(|call| (call.call.name().to_owned(), call.seen)).collect(),
        losses: model.losses.iter().map(|(what, (count, _))| (what.clone(), *count)).collect(),
    }
}

/// One trace has one clock: there is nothing to align and no error. Traces of several hosts are aligned
/// when they are merged.
pub fn clock() -> ClockRow {
    ClockRow { aligned: false, offset_error_ns: 0 }
}
