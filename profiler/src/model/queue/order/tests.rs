use std::collections::BTreeMap;

use super::*;
use crate::model::queue::Rdma;
use crate::trace::rdma::{RdmaBirth, RdmaCompletion, RdmaWindow};

const QP: u32 = 17;

fn post(time_ns: u64, wr_id: u64) -> RdmaPost {
    RdmaPost { time_ns, pid: 1, tid: 2, qp: QP, wr_id, bytes: 100, flags: SIGNALLED, ..RdmaPost::default() }
}

fn unsignalled(time_ns: u64, wr_id: u64) -> RdmaPost {
    RdmaPost { flags: 0, ..post(time_ns, wr_id) }
}

fn done(time_ns: u64, wr_id: u64) -> RdmaEntry {
    RdmaEntry { time_ns, pid: 1, tid: 2, qp: QP, wr_id, ..RdmaEntry::default() }
}

fn failed(time_ns: u64, wr_id: u64, status: u32) -> RdmaEntry {
    RdmaEntry { status, ..done(time_ns, wr_id) }
}

fn born() -> Vec<RdmaBirth> {
    vec![RdmaBirth { time_ns: 1, pid: 1, qp: QP }]
}

fn rdma(posts: Vec<RdmaPost>, entries: Vec<RdmaEntry>) -> Rdma {
    Rdma { posts, entries, ..Rdma::default() }
}

fn track(rdma: &Rdma) -> QueueTrack {
    rdma.tracks(0, 100_000).remove(0)
}

/// Post, completion, requests of each unit.
fn units(track: &QueueTrack) -> Vec<(u64, u64, u32)> {
    track.units.iter().map(|unit| (unit.post_ns, unit.done_ns, unit.requests)).collect()
}

#[test]
fn requests_of_a_queue_pair_that_was_born_under_watch_complete_in_their_order() {
    let posts = vec![unsignalled(10, 0), unsignalled(12, 0), post(14, 0), post(20, 0)];
    let track = track(&Rdma { births: born(), ..rdma(posts, vec![done(30, 0), done(40, 0)]) });
    assert_eq!(units(&track), [(10, 30, 3), (20, 40, 1)]);
    assert_eq!((track.posted, track.completed, track.max_depth), (4, 4, 4));
    assert!(track.units[0].idle && !track.units[1].idle && track.anchored && track.known.is_empty());
}

#[test]
fn different_ids_tell_what_began_earlier() {
    let posts = vec![post(10, 8), post(20, 9), post(30, 10)];
    let entries = vec![done(5, 5), done(15, 6), done(25, 7), done(35, 8), done(45, 9), done(55, 10)];
    let track = track(&rdma(posts, entries));
    assert_eq!(units(&track), [(10, 35, 1), (20, 45, 1), (30, 55, 1)]);
    assert_eq!((track.began_earlier, track.completed, track.unmatched), (3, 3, 0));
    assert!(track.units.iter().all(|unit| !unit.idle), "the first completion tells that all before is done");
}

#[test]
fn with_one_id_a_queue_that_was_empty_for_long_tells_what_began_earlier() {
    // Two from before, then three at a time, and a long rest behind them.
    let posts = vec![post(10, 0), post(20, 0), post(30, 0)];
    let entries = vec![done(15, 0), done(25, 0), done(35, 0), done(45, 0), done(55, 0)];
    let track = track(&rdma(posts, entries));
    assert_eq!(units(&track), [(10, 35, 1), (20, 45, 1), (30, 55, 1)]);
    assert_eq!((track.began_earlier, track.completed), (2, 3));
}

#[test]
fn with_one_id_and_a_queue_that_never_rests_there_are_numbers_and_no_times() {
    let posts = (0..50).map(|turn| post(10 + 10 * turn, 0)).collect();
    let entries = (0..50).map(|turn| done(9 + 10 * turn, 0)).collect();
    let busy = rdma(posts, entries).tracks(0, 505).remove(0);
    assert_eq!((busy.units.len(), busy.anchored, busy.posted), (0, false, 50));
    assert_eq!(busy.completed + busy.in_flight.len() as u64, 50);
}

#[test]
fn receives_are_no_requests_and_neither_are_flushed_ones() {
    let receive = RdmaEntry { opcode: 128, ..done(20, 1) };
    let entries = vec![receive, done(30, 1), failed(40, 900, 5)];
    let track = track(&Rdma { births: born(), ..rdma(vec![post(10, 1)], entries) });
    assert_eq!(units(&track), [(10, 30, 1)]);
    assert_eq!((track.flushed, track.errors.len()), (0, 0));
}

#[test]
fn the_first_failure_counts_and_the_flood_is_counted_aside() {
    let posts = vec![post(10, 1), unsignalled(20, 2), post(30, 3), post(40, 4)];
    let entries = vec![failed(50, 1, 12), failed(51, 2, 5), failed(52, 3, 5), failed(53, 4, 5)];
    let track = track(&Rdma { births: born(), ..rdma(posts, entries) });
    assert_eq!(track.errors, BTreeMap::from([(0x15, 1)]));
    assert_eq!((track.flushed, track.completed, track.units.len()), (3, 4, 0));
}

#[test]
fn a_lost_completion_gives_no_time_to_its_request() {
    let posts = vec![post(10, 1), post(20, 2), post(30, 3)];
    let track = track(&Rdma { births: born(), ..rdma(posts, vec![done(40, 1), done(60, 3)]) });
    assert_eq!(units(&track), [(10, 40, 1), (30, 60, 1)]);
    assert_eq!(track.completed, 3);
}

#[test]
fn a_queue_pair_that_signals_everything_needs_no_flags() {
    let posts = vec![unsignalled(10, 0), unsignalled(20, 0)];
    let track = track(&Rdma { births: born(), ..rdma(posts, vec![done(40, 0), done(50, 0)]) });
    assert_eq!(units(&track), [(10, 40, 1), (20, 50, 1)]);
}

#[test]
fn an_adapter_s_own_completions_go_by_order_too_where_entries_are_not_known() {
    let completion =
        |time_ns, counter| RdmaCompletion { time_ns, pid: 1, qp: QP, counter, ..RdmaCompletion::default() };
    let posts = vec![unsignalled(10, 1), post(20, 2), post(30, 3)];
    let completions = vec![completion(40, 7), completion(50, 9)];
    let track = track(&Rdma { births: born(), posts, completions, ..Rdma::default() });
    assert_eq!(units(&track), [(10, 40, 2), (30, 50, 1)]);
}

#[test]
fn in_windows_what_is_outstanding_is_known_once_a_post_of_the_window_is_done() {
    let window = |start_ns, end_ns| RdmaWindow { pid: 1, start_ns, end_ns };
    let all = |turn: u64| (post(1000 + 10 * turn, turn), done(1025 + 10 * turn, turn));
    let inside = |time_ns: u64| (2000..=2100).contains(&time_ns) || (4000..=4200).contains(&time_ns);
    let (mut posts, mut entries) = (Vec::new(), Vec::new());
    for (post, done) in (0..900).map(all) {
        posts.extend(inside(post.time_ns).then_some(post));
        entries.extend(inside(done.time_ns).then_some(done));
    }
    let windows = vec![window(2000, 0), window(2000, 2100), window(4000, 0), window(4000, 4200)];
    let track = Rdma { windows, ..rdma(posts, entries) }.tracks(0, 10_000).remove(0);
    assert!(track.units.iter().all(|unit| unit.done_ns - unit.post_ns == 25), "nothing is shifted");
    assert_eq!(track.known.iter().map(|part| part.start_ns).collect::<Vec<_>>(), [2025, 4025]);
    assert_eq!((track.completed, track.unmatched), (7 + 17, 0), "those behind the first");
}

#[test]
fn any_order_of_anything_is_taken() {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    for turn in 0..300 {
        let posts: Vec<RdmaPost> = (0..20)
            .map(|_| RdmaPost { flags: next() % 4, ..post(u64::from(next() % 99), u64::from(next() % 5)) })
            .collect();
        let entries: Vec<RdmaEntry> = (0..20)
            .map(|_| RdmaEntry {
                status: [0, 0, 5, 12, 99][next() as usize % 5],
                opcode: [0, 1, 128][next() as usize % 3],
                ..done(u64::from(next() % 99), u64::from(next() % 5))
            })
            .collect();
        let births = if turn % 2 == 0 { born() } else { Vec::new() };
        let track = track(&Rdma { births, ..rdma(posts, entries) });
        assert_eq!(track.posted, track.completed + track.in_flight.len() as u64, "{track:?}");
    }
}
