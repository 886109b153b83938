//! The tables of threads and causes, and the totals.

use std::collections::BTreeMap;
use std::hash::Hash;

use super::on_cpu;
use super::partition::{Piece, ThreadPartition, clipped};
use super::report::{CauseRow, Distribution, Domain, StallRow, ThreadRow, Totals};
use super::sockets;
use crate::hash::FastMap;
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::thread::ThreadTrack;
use crate::model::wait::{Awaited, WaitSpan};

/// One row a thread. Its parts add up to `wall_ns`: stalled and idle time are what it slept in its waits; CPU times
/// come from the kernel's own account, with what the thread span in a busy wait taken out of `running_ns`;
/// `other_ns` is the rest: sleep outside of the watched calls, or shorter than what is recorded. Where the kernel's
/// account overlaps the waits by more than the rest (no scheduler probes), `running_ns` gives way, then `runnable_ns`.
pub fn thread_rows(model: &Model, partitions: &[ThreadPartition]) -> Vec<ThreadRow> {
    model
        .threads
        .iter()
        .zip(partitions)
        .map(|(thread, partition)| thread_row(model, &thread.track, partition))
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
        on_cpu: track.samples.map(|samples| on_cpu::of(&samples, wall_ns)),
    }
}

/// Running and runnable time between the first and the last look; from 0 for a thread born meanwhile.
pub(super) fn cpu_times(track: &ThreadTrack) -> (u64, u64) {
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
    pub longest: Longest,
}

/// The longest of some waits: from its start, which may lie before the recording, to its end or that of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Longest {
    pub ns: u64,
    /// It began before the recording: it is at least so long.
    pub began_earlier: bool,
}

impl Longest {
    fn of(model: &Model, track: &ThreadTrack, wait: &WaitSpan) -> Longest {
        let span = clipped(track, wait);
        Longest {
            ns: span.end_ns.saturating_sub(wait.start_ns),
            began_earlier: model.began_earlier(track, wait, span),
        }
    }

    pub fn take(&mut self, other: Longest) {
        // Of equals the one that is known less exactly may be the longer.
        if (other.ns, other.began_earlier) > (self.ns, self.began_earlier) {
            *self = other;
        }
    }
}

impl Tally {
    /// Adds a wait with its pieces.
    fn add<K>(
        &mut self,
        model: &Model,
        track: &ThreadTrack,
        wait: &WaitSpan,
        pieces: &[(u32, K, &Piece)],
        is_whole: bool,
    ) {
        self.polls = self.polls.saturating_add(u64::from(wait.polls));
        for (_, _, piece) in pieces {
            self.stalled_ns = self.stalled_ns.saturating_add(piece.weight_ns);
        }
        if is_whole {
            self.waits += 1;
            self.durations.push(clipped(track, wait).len());
            self.longest.take(Longest::of(model, track, wait));
            let in_flight = pieces.iter().any(|(_, _, piece)| model.is_in_flight(track, wait, piece.span));
            self.in_flight += u64::from(in_flight);
        }
    }

    fn append_ref(&mut self, other: &Tally) {
        self.append(Tally { durations: Vec::new(), ..*other });
        self.durations.extend_from_slice(&other.durations);
    }

    /// Adds what was tallied of other waits.
    pub fn append(&mut self, mut other: Tally) {
        self.waits += other.waits;
        self.stalled_ns = self.stalled_ns.saturating_add(other.stalled_ns);
        self.in_flight += other.in_flight;
        self.polls = self.polls.saturating_add(other.polls);
        self.durations.append(&mut other.durations);
        self.longest.take(other.longest);
    }
}

/// Adds the stalls of one thread up by `key` (`None`: not in this table). A wait counts once for each key
/// that has a part of it, with its whole duration.
pub(super) fn tally<K: Ord + Copy + Hash>(
    model: &Model,
    track: &ThreadTrack,
    pieces: &[Piece],
    key: impl Fn(&Piece) -> Option<K>,
    into: &mut FastMap<K, Tally>,
) {
    for_each_wait(model, track, pieces, key, |key, wait, pieces, is_whole| {
        into.entry(key).or_default().add(model, track, wait, pieces, is_whole);
    });
}

/// The tallies of all tables.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    pub causes: FastMap<Cause, Tally>,
    /// By peer and whether it is sent to.
    pub sockets: FastMap<(NameId, bool), Tally>,
    /// Without durations.
    pub stalls: FastMap<(Cause, NameId), Tally>,
}

impl Tallies {
    /// Adds the stalls of one thread up by all keys. Nearly all waits have one piece alone, which is then looked up once.
    pub(super) fn of(model: &Model, track: &ThreadTrack, pieces: &[Piece]) -> Tallies {
        let mut tallies = Tallies::default();
        let mut single: FastMap<(Cause, NameId, Option<bool>), Tally> = FastMap::default();
        let mut by_wait: Vec<(u32, &Piece)> = pieces.iter().map(|piece| (piece.wait, piece)).collect();
        by_wait.sort_by_key(|(wait, _)| *wait);
        for group in by_wait.chunk_by(|a, b| a.0 == b.0) {
            let &[(index, piece)] = group else {
                let group: Vec<Piece> = group.iter().map(|(_, piece)| **piece).collect();
                tally(model, track, &group, |piece| Some(piece.cause), &mut tallies.causes);
                tally(model, track, &group, sockets::key, &mut tallies.sockets);
                tally(model, track, &group, |piece| Some((piece.cause, piece.peer)), &mut tallies.stalls);
                continue;
            };
            let Some(wait) = track.waits.get(index as usize) else { continue };
            let writes = sockets::key(piece).map(|(_, writes)| writes);
            let is_whole = !is_part_of_a_call(model, track, index, piece.span.len());
            let tally = single.entry((piece.cause, piece.peer, writes)).or_default();
            tally.add(model, track, wait, &[(index, (), piece)], is_whole);
        }
        for ((cause, peer, writes), tally) in single {
            tallies.stalls.entry((cause, peer)).or_default().append(Tally { durations: Vec::new(), ..tally });
            if let Some(writes) = writes {
                tallies.sockets.entry((peer, writes)).or_default().append_ref(&tally);
            }
            tallies.causes.entry(cause).or_default().append(tally);
        }
        tallies.stalls.values_mut().for_each(|tally| tally.durations = Vec::new());
        tallies
    }
}

/// Hands each wait of one thread to `take` once for each key that has a part of it (`None`: not wanted), with these
/// parts, and whether it is a wait of its own or part of another one.
pub(super) fn for_each_wait<K: Ord + Copy>(
    model: &Model,
    track: &ThreadTrack,
    pieces: &[Piece],
    key: impl Fn(&Piece) -> Option<K>,
    mut take: impl FnMut(K, &WaitSpan, &[(u32, K, &Piece)], bool),
) {
    let mut by_wait: Vec<&Piece> = pieces.iter().collect();
    // They are so already, unless waits overlap.
    by_wait.sort_by_key(|piece| piece.wait);
    let mut keyed: Vec<(u32, K, &Piece)> = Vec::new();
    for pieces in by_wait.chunk_by(|a, b| a.wait == b.wait) {
        // Nearly all waits have one piece.
        keyed.clear();
        keyed.extend(pieces.iter().filter_map(|piece| Some((piece.wait, key(piece)?, *piece))));
        keyed.sort_by_key(|(_, key, _)| *key);
        for group in keyed.chunk_by(|a, b| a.1 == b.1) {
            let Some((index, key, _)) = group.first() else { continue };
            let Some(wait) = track.waits.get(*index as usize) else { continue };
            let held_ns = group.iter().map(|(_, _, piece)| piece.span.len()).fold(0, u64::saturating_add);
            take(*key, wait, group, !is_part_of_a_call(model, track, *index, held_ns));
        }
    }
}

/// Calls that are looked through for the one that a non-blocking wait is a part of.
const LOOK_AHEAD: usize = 64;

/// An event loop reads until there is nothing more, and then sleeps in `epoll_wait` until the same
/// descriptor has something. That is one wait and not two: the sleep, with what little the look before it
/// has outside of it.
fn is_part_of_a_call(model: &Model, track: &ThreadTrack, index: u32, held_ns: u64) -> bool {
    if super::cuda_wait::is_asleep(track, index) {
        return true;
    }
    let index = index as usize;
    let Some(wait) = track.waits.get(index).filter(|wait| wait.flags.nonblocking) else { return false };
    if held_ns.saturating_mul(2) >= clipped(track, wait).len() {
        return false;
    }
    let ino = |awaited: &Awaited| model.sockets.get(awaited.socket).map_or(0, |info| info.ino);
    let own = model.sets.get(wait.set);
    let has_own = |other: &WaitSpan| {
        model
            .sets
            .get(other.set)
            .iter()
            .any(|one| own.iter().any(|two| ino(one) != 0 && ino(one) == ino(two)))
    };
    let later = track.waits.iter().skip(index + 1).take_while(|other| other.start_ns < wait.end_ns);
    later.take(LOOK_AHEAD).any(|other| !other.flags.nonblocking && has_own(other))
}

/// Causes by stalled time, the largest first. `sched.runq` counts threads and has no single spans.
pub fn cause_rows(tallies: BTreeMap<Cause, Tally>, threads: &[ThreadRow]) -> Vec<CauseRow> {
    let mut rows: Vec<CauseRow> = tallies
        .into_iter()
        .map(|(cause, tally)| CauseRow {
            cause,
            domain: Domain::Thread,
            count: tally.waits,
            stalled_ns: tally.stalled_ns,
            in_flight: tally.in_flight,
            duration: Distribution::of(tally.durations),
            longest_ns: tally.longest.ns,
            began_earlier: tally.longest.began_earlier,
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
            longest_ns: 0,
            began_earlier: false,
        });
    }
    rows.sort_by_key(|row| (std::cmp::Reverse(row.stalled_ns), row.cause));
    rows
}

/// Rows of stalls that are kept.
const STALL_ROWS: usize = 1000;

/// Stalls by thread, cause and peer: adds those of one thread. Waits are counted as in the tables of causes and sockets.
pub(super) fn add_stall_rows(
    model: &Model,
    track: &ThreadTrack,
    tallies: BTreeMap<(Cause, NameId), Tally>,
    rows: &mut Vec<StallRow>,
) {
    rows.extend(tallies.into_iter().map(|((cause, peer), tally)| StallRow {
        cause,
        peer: model.names.name(peer).to_owned(),
        pid: track.pid,
        tid: track.tid,
        count: tally.waits,
        stalled_ns: tally.stalled_ns,
        in_flight: tally.in_flight,
        longest_ns: tally.longest.ns,
        began_earlier: tally.longest.began_earlier,
    }));
    if rows.len() > 2 * STALL_ROWS {
        keep_worst(rows);
    }
}

/// Most time first.
pub(super) fn keep_worst(rows: &mut Vec<StallRow>) {
    rows.sort_by(|a, b| {
        b.stalled_ns
            .cmp(&a.stalled_ns)
            .then_with(|| (a.cause, &a.peer, a.tid).cmp(&(b.cause, &b.peer, b.tid)))
    });
    rows.truncate(STALL_ROWS);
}

#[cfg(test)]
mod tests {
    use profiler_common::Call;

    use crate::analysis::report::ThreadRow;
    use crate::model::cause::Cause;
    use crate::model::fixture::{Trace, in_flight, spin, tcp, wait};
    use crate::trace::record::{LifeEvent, Record, ThreadTime, Wait, WaitFlags};

    fn read(start_ns: u64, end_ns: u64) -> Wait {
        wait(Call::Read, start_ns, end_ns, vec![tcp(1, "10.0.1.1:80")])
    }

    fn parts(row: &ThreadRow) -> [u64; 6] {
        [row.wall_ns, row.running_ns, row.runnable_ns, row.stalled_ns, row.idle_ns, row.other_ns]
    }

    #[test]
    fn a_thread_is_the_sum_of_its_parts() {
        let analysis = Trace::new()
            .wait(read(1100, 1400))
            .wait(wait(Call::Nanosleep, 1500, 1600, Vec::new()))
            .times(999, 5000, 700)
            .times(1500, 5100, 710)
            .times(2001, 5350, 730)
            .analyse();
        let row = &analysis.report.threads[0];
        assert_eq!(parts(row), [1000, 350, 30, 300, 100, 220]);
        assert_eq!((row.pid, row.tid, row.ns_pid, row.name.as_str()), (100, 100, 7, "t100"));
        let runq = analysis.cause(Cause::SchedRunq).unwrap();
        assert_eq!((runq.count, runq.stalled_ns), (1, 30));
        assert_eq!(analysis.report.totals.stalled_ns, 300);
    }

    #[test]
    fn spinning_is_stalled_and_not_running() {
        let analysis =
            Trace::new().wait(spin(read(1100, 1900))).times(1000, 0, 0).times(2000, 950, 20).analyse();
        assert_eq!(parts(&analysis.report.threads[0]), [1000, 150, 20, 800, 0, 30]);
    }

    #[test]
    fn cpu_times_give_way_where_they_overlap_the_waits() {
        let analysis = Trace::new().wait(read(1100, 1900)).times(1000, 0, 0).times(2000, 190, 30).analyse();
        assert_eq!(parts(&analysis.report.threads[0]), [1000, 170, 30, 800, 0, 0]);
        let analysis = Trace::new().wait(read(1100, 1900)).times(1000, 0, 0).times(2000, 10, 900).analyse();
        assert_eq!(parts(&analysis.report.threads[0]), [1000, 0, 200, 800, 0, 0]);
    }

    #[test]
    fn one_look_at_the_cpu_times_says_nothing_unless_the_thread_was_born_meanwhile() {
        let look = |tid| {
            Record::ThreadTime(ThreadTime { time_ns: 1900, pid: 100, tid, running_ns: 300, runnable_ns: 40 })
        };
        let analysis =
            Trace::new().add(look(100)).life(LifeEvent::Thread, 101, 1500).add(look(101)).analyse();
        assert_eq!(parts(&analysis.report.threads[0]), [1000, 0, 0, 0, 0, 1000]);
        assert_eq!(parts(&analysis.report.threads[1]), [500, 300, 40, 0, 0, 160]);
    }

    #[test]
    fn cpu_times_that_run_backwards_count_nothing() {
        let analysis = Trace::new().times(1000, 500, 50).times(2000, 100, 10).analyse();
        assert_eq!(parts(&analysis.report.threads[0]), [1000, 0, 0, 0, 0, 1000]);
    }

    #[test]
    fn presence_is_from_birth_to_exit() {
        let analysis = Trace::new()
            .life(LifeEvent::Thread, 101, 1200)
            .life(LifeEvent::Exit, 101, 1700)
            .wait(Wait { tid: 101, ..read(1300, 1900) })
            .analyse();
        let walls: Vec<u64> = analysis.report.threads.iter().map(|row| row.wall_ns).collect();
        assert_eq!(walls, [1000, 500]);
        assert_eq!(analysis.report.threads[1].stalled_ns, 400);
        assert_eq!(analysis.report.totals.thread_wall_ns, 1500);
    }

    #[test]
    fn a_thread_known_only_by_its_waits_is_there_from_the_first_one() {
        let analysis = Trace::new()
            .wait(Wait { tid: 105, ..read(1500, 1600) })
            .wait(Wait { tid: 105, ..read(1250, 1300) })
            .analyse();
        assert_eq!(parts(&analysis.report.threads[1]), [750, 0, 0, 150, 0, 600]);
    }

    #[test]
    fn causes_count_waits_and_those_in_flight() {
        let begun = WaitFlags { began_earlier: true, ..WaitFlags::default() };
        let analysis = Trace::new()
            .wait(read(1100, 1200))
            .wait(Wait { flags: begun, ..read(600, 1050) })
            .wait(in_flight(read(1800, 1999)))
            .analyse();
        let row = analysis.cause(Cause::SockRecv).unwrap();
        assert_eq!((row.count, row.stalled_ns, row.in_flight), (3, 349, 1));
        let d = row.duration;
        assert_eq!((d.count, d.min_ns, d.p50_ns, d.max_ns, d.sum_ns), (3, 50, 100, 199, 349));
        assert!(analysis.stalls[0].began_earlier && !analysis.stalls[1].began_earlier);
    }

    #[test]
    fn the_longest_wait_and_the_number_of_waits_are_the_same_in_every_table() {
        let begun = WaitFlags { began_earlier: true, ..WaitFlags::default() };
        let analysis = Trace::new()
            // A wait that another one cuts in two is one wait.
            .wait(Wait { flags: begun, ..read(300, 1900) })
            .wait(wait(Call::Read, 1200, 1300, vec![tcp(2, "10.0.1.2:80")]))
            .wait(read(1950, 1960))
            .analyse();
        let report = &analysis.report;
        let cause = analysis.cause(Cause::SockRecv).unwrap();
        assert_eq!((cause.count, cause.longest_ns, cause.began_earlier), (3, 1600, true));
        let socket = &report.sockets[0];
        assert_eq!((socket.waits, socket.longest_ns, socket.began_earlier), (2, 1600, true));
        let stall = &report.stalls[0];
        assert_eq!((stall.peer.as_str(), stall.count, stall.stalled_ns), ("10.0.1.1:80", 2, 810));
        assert_eq!((stall.longest_ns, stall.began_earlier), (1600, true));
        assert_eq!(report.stalls.iter().map(|row| row.count).sum::<u64>(), cause.count);
        assert_eq!((report.stalls[1].longest_ns, report.stalls[1].began_earlier), (100, false));
    }
}
