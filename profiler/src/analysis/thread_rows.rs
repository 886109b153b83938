//! The tables of threads and causes, and the totals.

use std::collections::BTreeMap;

use super::partition::{Piece, ThreadPartition, clipped};
use super::report::{CauseRow, Distribution, Domain, ThreadRow, Totals};
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::thread::ThreadTrack;

/// One row a thread. Its parts add up to `wall_ns`: stalled and idle time are measured exactly; CPU times
/// come from the kernel's own account, with what the thread span in a busy wait taken out of `running_ns`;
/// `other_ns` is the rest. Where the kernel's account overlaps the waits by more than the rest, `running_ns`
/// gives way, then `runnable_ns`.
pub fn thread_rows(model: &Model, partitions: &[ThreadPartition]) -> Vec<ThreadRow> {
    model
        .threads
        .iter()
        .zip(partitions)
        .map(|(track, partition)| thread_row(model, track, partition))
        .collect()
}

fn thread_row(model: &Model, track: &ThreadTrack, partition: &ThreadPartition) -> ThreadRow {
    let wall_ns = track.presence.len();
    let (running_ns, runnable_ns) = cpu_times(track);
    let free_ns = wall_ns.saturating_sub(partition.stalled_ns).saturating_sub(partition.idle_ns);
    let runnable_ns = runnable_ns.min(free_ns);
    let running_ns = running_ns.saturating_sub(partition.spin_ns).min(free_ns - runnable_ns);
    ThreadRow {
        pid: track.pid,
        tid: track.tid,
        ns_pid: model.processes.get(&track.pid).map_or(0, |process| process.ns_pid),
        name: model.thread_names.get(&track.tid).cloned().unwrap_or_default(),
        wall_ns,
        running_ns,
        runnable_ns,
        stalled_ns: partition.stalled_ns,
        idle_ns: partition.idle_ns,
        other_ns: free_ns - runnable_ns - running_ns,
    }
}

/// Running and runnable time between the first and the last look; from 0 for a thread born meanwhile.
fn cpu_times(track: &ThreadTrack) -> (u64, u64) {
    let Some((first, last)) = track.times else { return (0, 0) };
    if track.born {
        return (last.running_ns, last.runnable_ns);
    }
    (last.running_ns.saturating_sub(first.running_ns), last.runnable_ns.saturating_sub(first.runnable_ns))
}

pub fn totals(rows: &[ThreadRow]) -> Totals {
    let sum = |of: fn(&ThreadRow) -> u64| rows.iter().map(of).fold(0, u64::saturating_add);
    Totals {
        thread_wall_ns: sum(|row| row.wall_ns),
        stalled_ns: sum(|row| row.stalled_ns),
        idle_ns: sum(|row| row.idle_ns),
    }
}

/// What one row of a table collects.
#[derive(Debug, Default)]
pub struct Tally {
    pub waits: u64,
    pub stalled_ns: u64,
    pub in_flight: u64,
    pub polls: u64,
    /// Of the whole waits, clipped to the window.
    pub durations: Vec<u64>,
}

/// Adds the stalls of one thread up by `key` (`None`: not in this table). A wait counts once for each key
/// that has a part of it, with its whole duration.
pub fn tally<K: Ord + Copy>(
    model: &Model,
    track: &ThreadTrack,
    pieces: &[Piece],
    key: impl Fn(&Piece) -> Option<K>,
    into: &mut BTreeMap<K, Tally>,
) {
    let mut keyed: Vec<(u32, K, &Piece)> =
        pieces.iter().filter_map(|piece| Some((piece.wait, key(piece)?, piece))).collect();
    keyed.sort_by_key(|(wait, key, _)| (*wait, *key));
    for group in keyed.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let Some((index, key, _)) = group.first() else { continue };
        let Some(wait) = track.waits.get(*index as usize) else { continue };
        let tally = into.entry(*key).or_default();
        tally.waits += 1;
        tally.polls = tally.polls.saturating_add(u64::from(wait.polls));
        tally.durations.push(clipped(track, wait).len());
        let in_flight = group.iter().any(|(_, _, piece)| model.is_in_flight(track, wait, piece.span));
        tally.in_flight += u64::from(in_flight);
        for (_, _, piece) in group {
            tally.stalled_ns = tally.stalled_ns.saturating_add(piece.weight_ns);
        }
    }
}

/// Causes by stalled time, the largest first. `sched.runq` counts threads and has no single spans.
pub fn cause_rows(model: &Model, partitions: &[ThreadPartition], threads: &[ThreadRow]) -> Vec<CauseRow> {
    let mut tallies: BTreeMap<Cause, Tally> = BTreeMap::new();
    for (track, partition) in model.threads.iter().zip(partitions) {
        tally(model, track, &partition.pieces, |piece| Some(piece.cause), &mut tallies);
    }
    let mut rows: Vec<CauseRow> = tallies
        .into_iter()
        .map(|(cause, tally)| CauseRow {
            cause,
            domain: Domain::Thread,
            count: tally.waits,
            stalled_ns: tally.stalled_ns,
            in_flight: tally.in_flight,
            duration: Distribution::of(tally.durations),
        })
        .collect();
    let runnable_ns = threads.iter().map(|row| row.runnable_ns).fold(0, u64::saturating_add);
    if runnable_ns > 0 {
        rows.push(CauseRow {
            cause: Cause::SchedRunq,
            domain: Domain::Thread,
            count: threads.iter().filter(|row| row.runnable_ns > 0).count() as u64,
            stalled_ns: runnable_ns,
            in_flight: 0,
            duration: Distribution::default(),
        });
    }
    rows.sort_by_key(|row| (std::cmp::Reverse(row.stalled_ns), row.cause));
    rows
}
