//! The parts of the report that say what was recorded, where, and how completely.

use std::collections::{BTreeSet, HashSet};

use super::report::{
    BelowMinStall, ClockRow, CoverageRow, EnvironmentRow, HostRow, ProbeRow, PythonCoverage, RankRow,
    StallSum, TargetRow,
};
use super::stall::Stall;
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
    let mut below_min_stall = BelowMinStall::default();
    for call in &model.calls {
        below_min_stall.count = below_min_stall.count.saturating_add(call.below);
        below_min_stall.sum_ns = below_min_stall.sum_ns.saturating_add(call.below_ns);
    }
    let seen = model.calls.iter().filter(|call| call.seen > 0);
    CoverageRow {
        probes: probes.collect(),
        lost_events: model.lost_events(),
        truncated_stacks: model.stacks.values().filter(|stack| stack.truncated).count() as u64,
        unmatched_completions: 0,
        unresolved_frames: places_without_a_name(model),
        below_min_stall,
        syscalls_seen: seen.map(|call| (call.call.name().to_owned(), call.seen)).collect(),
        losses: model.losses.iter().map(|(what, (count, _))| (what.clone(), *count)).collect(),
        python: None,
    }
}

/// Places in code that the trace's stacks have no name for, each counted once however many stacks lead through it.
fn places_without_a_name(model: &Model) -> u64 {
    let frames =
        model.stacks.values().flat_map(|stack| stack.frames.iter().map(move |frame| (stack.space, frame)));
    let unnamed = frames.filter(|(_, frame)| frame.function.is_empty());
    unnamed.map(|(space, frame)| (space, &frame.module, frame.offset)).collect::<HashSet<_>>().len() as u64
}

/// How many stalls have Python functions; `None` where no stall has anything to do with Python.
pub fn python<'s>(model: &Model, stalls: impl Iterator<Item = (&'s Stall, u64)>) -> Option<PythonCoverage> {
    let mut coverage = PythonCoverage::default();
    let add = |sum: &mut StallSum, stall: &Stall, count: u64| {
        sum.count += count;
        sum.stalled_ns = sum.stalled_ns.saturating_add(stall.weight_ns);
    };
    for (stall, count) in stalls.filter(|(stall, _)| stall.user_stack != 0) {
        let stack = &stall.user_stack;
        if model.python.with.contains(stack) {
            add(&mut coverage.with, stall, count);
        } else if model.python.without.contains(stack) {
            add(&mut coverage.without, stall, count);
        }
        if model.python.unmatched.contains(stack) {
            add(&mut coverage.unmatched, stall, count);
        }
    }
    (coverage != PythonCoverage::default()).then_some(coverage)
}

/// One trace has one clock: there is nothing to align and no error. Traces of several hosts are aligned
/// when they are merged.
pub fn clock() -> ClockRow {
    ClockRow { aligned: false, offset_error_ns: 0 }
}

#[cfg(test)]
mod tests {
    use profiler_common::Call;

    use super::*;
    use crate::model::fixture::Trace;
    use crate::trace::record::{
        CallCount, Clock, Coverage, Environment, FamilyState, Frame, Loss, Record, Space, Stack,
    };

    fn environment(what: &str, value: &str, pid: u32) -> Record {
        Record::Environment(Environment { what: what.into(), value: value.into(), pid })
    }

    #[test]
    fn ranks_come_from_the_launcher_s_variables() {
        let model = Trace::new()
            .add(environment("RANK", "3", 100))
            .add(environment("WORLD_SIZE", "8", 100))
            .add(environment("SLURM_PROCID", "5", 100))
            .add(environment("SLURM_PROCID", "4", 101))
            .add(environment("WORLD_SIZE", "8", 102))
            .add(environment("RANK", "none", 103))
            .model();
        let rows: Vec<_> = target(&model).ranks.iter().map(|row| (row.pid, row.rank, row.nranks)).collect();
        assert_eq!(rows, [(100, Some(3), Some(8)), (101, Some(4), None)]);
    }

    #[test]
    fn the_window_s_start_is_given_as_wall_time() {
        let model = Trace::new().add(Record::Clock(Clock { monotonic_ns: 1200, unix_ns: 1_000_000 })).model();
        let row = target(&model);
        assert_eq!((row.start_unix_ns, row.duration_ns), (999_800, 1000));
    }

    #[test]
    fn the_environment_is_without_repetitions() {
        let model = Trace::new()
            .add(environment("resolv.conf", "nameserver 10.0.0.53", 100))
            .add(environment("resolv.conf", "nameserver 10.0.0.53", 101))
            .add(environment("resolv.conf", "nameserver 10.0.0.54", 102))
            .model();
        assert_eq!(super::environment(&model).len(), 2);
    }

    #[test]
    fn coverage_adds_up_what_is_missing() {
        let frame = |&(function, module, offset): &(&str, &str, u64)| Frame {
            function: function.into(),
            module: module.into(),
            offset,
        };
        let stack = |id, truncated, frames: &[(&str, &str, u64)]| {
            let frames = frames.iter().map(frame).collect();
            Record::Stack(Stack { id, space: Space::User, frames, truncated })
        };
        let probe = |state, reason: &str| {
            Record::Coverage(Coverage { family: "net".into(), state, reason: reason.into() })
        };
        let loss = |what: &str, count, events| Record::Loss(Loss { what: what.into(), count, events });
        let count =
            |call, seen, below, below_ns| Record::CallCount(CallCount { call, seen, below, below_ns });
        let model = Trace::new()
            .add(probe(FamilyState::On, ""))
            .add(probe(FamilyState::Partial, "no io_uring"))
            .add(stack(1, true, &[("recv", "libc", 0), ("", "job", 16)]))
            // The first one is there already, the second is another place, the third another module's.
            .add(stack(2, false, &[("", "job", 16), ("", "job", 32), ("", "lib", 16), ("main", "job", 0)]))
            .add(loss("wait_ring_full", 3, true))
            .add(loss("dns_ring_full", 4, true))
            .add(loss("stack_truncated", 9, false))
            .add(count(Call::Read, 100, 90, 1000))
            .add(count(Call::Write, 10, 10, 50))
            .add(count(Call::Accept, 0, 0, 0))
            .model();
        let row = coverage(&model);
        assert_eq!((row.lost_events, row.truncated_stacks, row.unresolved_frames), (7, 1, 3));
        assert_eq!(row.below_min_stall, BelowMinStall { count: 100, sum_ns: 1050 });
        assert_eq!(
            row.syscalls_seen.into_iter().collect::<Vec<_>>(),
            [("read".into(), 100), ("write".into(), 10)]
        );
        assert_eq!((row.probes.len(), row.probes[0].state), (1, FamilyState::Partial));
        assert_eq!(row.losses.len(), 3);
    }
}
