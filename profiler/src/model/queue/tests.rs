use super::builder::{FLUSHED, SIGNALLED};
use super::*;

const QP: u32 = 417;

fn post(time_ns: u64, counter: Option<u16>) -> RdmaPost {
    RdmaPost { time_ns, pid: 1, tid: 2, qp: QP, bytes: 100, flags: SIGNALLED, counter, ..RdmaPost::default() }
}

fn unsignalled(time_ns: u64, counter: u16) -> RdmaPost {
    RdmaPost { flags: 0, ..post(time_ns, Some(counter)) }
}

fn done(time_ns: u64, counter: u16) -> RdmaCompletion {
    RdmaCompletion { time_ns, pid: 1, tid: 2, qp: QP, counter, ..RdmaCompletion::default() }
}

fn failed(time_ns: u64, counter: u16, syndrome: u8) -> RdmaCompletion {
    RdmaCompletion { opcode: REQUEST_FAILED, syndrome, ..done(time_ns, counter) }
}

fn track(posts: Vec<RdmaPost>, completions: Vec<RdmaCompletion>) -> QueueTrack {
    let rdma = Rdma { posts, completions, ..Rdma::default() };
    let mut tracks = rdma.tracks(0, 1_000_000);
    assert_eq!(tracks.len(), 1);
    tracks.remove(0)
}

/// Post and completion of each unit.
fn times(track: &QueueTrack) -> Vec<(u64, u64)> {
    track.units.iter().map(|unit| (unit.post_ns, unit.done_ns)).collect()
}

#[test]
fn each_completion_retires_its_post() {
    let track = track(vec![post(10, Some(5)), post(20, Some(6))], vec![done(30, 5), done(45, 6)]);
    assert_eq!(times(&track), [(10, 30), (20, 45)]);
    assert_eq!((track.posted, track.completed, track.max_depth, track.bytes), (2, 2, 2, 200));
    assert!(track.units[0].idle && !track.units[1].idle && track.in_flight.is_empty());
}

#[test]
fn requests_under_way_at_the_beginning_do_not_shift_the_others() {
    // Three older ones were outstanding: their completions come first, and new posts are made meanwhile.
    let posts = vec![post(10, Some(8)), post(20, Some(9)), post(30, Some(10))];
    let completions = vec![done(5, 5), done(15, 6), done(25, 7), done(35, 8), done(45, 9), done(55, 10)];
    let track = track(posts, completions);
    assert_eq!(times(&track), [(10, 35), (20, 45), (30, 55)]);
    assert_eq!((track.began_earlier, track.completed, track.unmatched), (3, 3, 0));
}

#[test]
fn unsignalled_requests_are_one_unit_with_the_signalled_one_behind_them() {
    let posts = vec![unsignalled(10, 1), unsignalled(12, 2), post(14, Some(3)), post(20, Some(4))];
    let track = track(posts, vec![done(30, 3), done(40, 4)]);
    assert_eq!(times(&track), [(10, 30), (20, 40)]);
    assert_eq!((track.units[0].requests, track.units[0].bytes, track.completed), (3, 300, 4));
}

#[test]
fn lists_are_followed_through_their_signalled_requests() {
    let member = |index, flags| RdmaPost { index, flags, counter: None, ..post(10, None) };
    let posts = vec![post(10, Some(0)), member(1, 0), member(2, SIGNALLED), post(20, Some(5))];
    // The second request took three entries.
    let track = track(posts, vec![done(30, 0), done(40, 4), done(50, 5)]);
    assert_eq!(times(&track), [(10, 30), (10, 40), (20, 50)]);
    assert_eq!(track.units.iter().map(|unit| unit.requests).collect::<Vec<_>>(), [1, 2, 1]);
}

#[test]
fn a_refused_post_is_no_request() {
    let track =
        track(vec![post(10, Some(1)), post(20, Some(2)), post(30, Some(2))], vec![done(25, 1), done(40, 2)]);
    assert_eq!(times(&track), [(10, 25), (30, 40)]);
    assert_eq!((track.posted, track.refused, track.in_flight.len()), (2, 1, 0));
}

#[test]
fn a_lost_completion_gives_no_time_to_its_request() {
    let posts = vec![post(10, Some(1)), post(20, Some(2)), post(30, Some(3))];
    let track = track(posts, vec![done(40, 1), done(60, 3)]);
    assert_eq!(times(&track), [(10, 40), (30, 60)]);
    assert_eq!(track.completed, 3);
}

#[test]
fn entries_wrap_around() {
    let track = track(vec![post(10, Some(65535)), post(20, Some(0))], vec![done(30, 65535), done(40, 0)]);
    assert_eq!(times(&track), [(10, 30), (20, 40)]);
}

#[test]
fn a_queue_pair_that_signals_everything_needs_no_flags() {
    let posts = vec![unsignalled(10, 1), unsignalled(20, 2), unsignalled(30, 3)];
    let track = track(posts, vec![done(40, 1), done(50, 2), done(60, 3)]);
    assert_eq!(times(&track), [(10, 40), (20, 50), (30, 60)]);
}

#[test]
fn the_first_failure_counts_and_the_flood_is_counted_aside() {
    let posts = vec![post(10, Some(1)), unsignalled(20, 2), post(30, Some(3)), post(40, Some(4))];
    let completions =
        vec![failed(50, 1, 0x15), failed(51, 2, FLUSHED), failed(52, 3, FLUSHED), failed(53, 4, FLUSHED)];
    let track = track(posts, completions);
    assert_eq!(track.errors, BTreeMap::from([(0x15, 1)]));
    assert_eq!((track.flushed, track.completed, track.units.len()), (3, 4, 0));
}

#[test]
fn without_an_anchor_numbers_are_kept_and_no_times() {
    let track = track(vec![post(10, None), post(20, None)], vec![done(30, 77)]);
    assert_eq!((track.posted, track.completed, track.units.len()), (2, 1, 0));
    assert_eq!(track.in_flight, [20]);
    assert!(!track.anchored);
}

#[test]
fn posts_before_the_anchor_are_retired_and_have_no_times() {
    let posts = vec![post(10, None), post(20, None), post(30, Some(9))];
    let track = track(posts, vec![done(40, 7), done(50, 8), done(60, 9)]);
    assert_eq!(times(&track), [(30, 60)]);
    assert_eq!((track.posted, track.completed, track.in_flight.len()), (3, 3, 0));
}

#[test]
fn an_entry_that_was_learned_later_counts() {
    let anchor = |time_ns, counter| RdmaAnchor { time_ns, pid: 1, qp: QP, counter };
    let rdma = Rdma {
        posts: vec![post(10, None), post(20, None), post(30, Some(7))],
        completions: vec![done(40, 5), done(50, 6), done(60, 7)],
        anchors: vec![anchor(10, 5), anchor(20, 6)],
        ..Rdma::default()
    };
    assert_eq!(times(&rdma.tracks(0, 1000)[0]), [(10, 40), (20, 50), (30, 60)]);
}

#[test]
fn a_post_of_unknown_place_ends_what_was_known() {
    // The first two took three entries.
    let posts = vec![post(10, Some(1)), post(20, None), post(30, Some(4))];
    let track = track(posts, vec![done(40, 1), done(50, 2), done(60, 4)]);
    assert_eq!(times(&track), [(30, 60)]);
    assert_eq!((track.completed, track.in_flight.len()), (3, 0));
}

#[test]
fn a_post_between_two_known_ones_goes_where_there_is_room_for_it() {
    let posts = vec![post(10, Some(65535)), post(20, None), post(30, Some(1))];
    let track = track(posts, vec![done(40, 65535), done(50, 0), done(60, 1)]);
    assert_eq!(times(&track), [(10, 40), (20, 50), (30, 60)]);
}

#[test]
fn what_is_outstanding_at_the_end_is_in_flight() {
    let track = track(vec![post(10, Some(1)), post(20, Some(2))], vec![done(30, 1)]);
    assert_eq!(track.in_flight, [20]);
}

#[test]
fn receives_are_no_requests() {
    let receive = RdmaCompletion { opcode: 2, ..done(20, 1) };
    let track = track(vec![post(10, Some(1))], vec![receive, done(30, 1)]);
    assert_eq!(times(&track), [(10, 30)]);
}

#[test]
fn a_watch_that_ended_early_ends_the_figures() {
    let window = |end_ns| RdmaWindow { pid: 1, start_ns: 5, end_ns };
    let rdma = Rdma {
        posts: vec![post(10, Some(1)), post(200, Some(2))],
        completions: vec![done(30, 1), done(300, 2)],
        windows: vec![window(0), window(100)],
        ..Rdma::default()
    };
    let track = &rdma.tracks(0, 1000)[0];
    assert_eq!((track.posted, track.completed, track.watch_ns), (1, 1, 95));
}

#[test]
fn any_order_of_anything_is_taken() {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    for _ in 0..300 {
        let posts: Vec<RdmaPost> = (0..20)
            .map(|_| RdmaPost {
                counter: (next() % 3 != 0).then_some(next() as u16 % 12),
                index: next() % 3,
                flags: next() % 4,
                opcode: next() % 9,
                ..post(u64::from(next() % 99), None)
            })
            .collect();
        let completions: Vec<RdmaCompletion> = (0..20)
            .map(|_| RdmaCompletion {
                opcode: [0, 2, 13, 14][next() as usize % 4],
                syndrome: next() as u8,
                ..done(u64::from(next() % 99), next() as u16 % 12)
            })
            .collect();
        let track = track(posts, completions);
        let known = track.completed + track.in_flight.len() as u64;
        assert_eq!(track.posted, known, "{track:?}");
    }
}

fn window(start_ns: u64, end_ns: u64) -> RdmaWindow {
    RdmaWindow { pid: 1, start_ns, end_ns }
}

/// Two or three outstanding at any time, each 25 after its post, seen in two windows.
fn windowed() -> QueueTrack {
    let all = |entry: u64| (1000 + 10 * entry, 1025 + 10 * entry, entry as u16);
    let inside = |time_ns: &u64| (2000..=2100).contains(time_ns) || (4000..=4200).contains(time_ns);
    let (mut posts, mut completions) = (Vec::new(), Vec::new());
    for (post_ns, done_ns, entry) in (0..900).map(all) {
        posts.extend(inside(&post_ns).then(|| post(post_ns, Some(entry))));
        completions.extend(inside(&done_ns).then(|| done(done_ns, entry)));
    }
    let windows = vec![window(2000, 0), window(2000, 2100), window(4000, 0), window(4000, 4200)];
    let rdma = Rdma { posts, completions, windows, ..Rdma::default() };
    rdma.tracks(0, 10_000).remove(0)
}

#[test]
fn in_windows_requests_count_once_all_that_is_outstanding_is_known() {
    let track = windowed();
    assert!(track.units.iter().all(|unit| unit.done_ns - unit.post_ns == 25), "nothing is shifted");
    // The first completion of a post of the window comes 25 after its beginning.
    let leads: Vec<u64> = track.units.iter().filter(|unit| unit.lead).map(|unit| unit.post_ns).collect();
    assert_eq!(leads, [2000, 2010, 2020, 4000, 4010, 4020]);
    assert_eq!(
        track.known,
        [(2025, 2100), (4025, 4200)].map(|(start_ns, end_ns)| Interval { start_ns, end_ns })
    );
    assert_eq!((track.posted, track.unmatched, track.in_flight.len()), (11 + 21, 0, 0));
    assert_eq!(track.completed, 7 + 17, "those behind the first");
    let cut: Vec<u64> = track.cut.iter().map(|one| one.start_ns).collect();
    assert_eq!(cut, [2080, 2090, 2100, 4180, 4190, 4200]);
    assert!(track.units.iter().all(|unit| !unit.idle));
}

#[test]
fn what_windows_show_stands_for_the_whole_time() {
    let track = windowed();
    let scale = track.scale.unwrap();
    assert_eq!((scale.windows, track.watch_ns), (2, 300));
    // The first one ended for what was seen in it. A hit counts as longer than these windows are: the most that is taken for lost.
    let between = 21.0 / 200.0 * 7700.0;
    let wanted = (11.0 + 21.0 + between * (1.0 + 4.0 / 2.0)) / 32.0;
    assert!((scale.counts - wanted).abs() < 1e-9, "{scale:?}");
    assert_eq!((scale.times, scale.error), (8000.0 / 250.0, None));
    let whole = Rdma { windows: vec![window(10, 0)], posts: vec![post(20, Some(1))], ..Rdma::default() };
    let whole = whole.tracks(0, 1000).remove(0);
    assert_eq!((whole.scale, whole.watch_ns, whole.in_flight.len()), (None, 990, 1));
}

#[test]
fn an_idle_queue_pair_is_known_to_be_idle_only_after_it_drained_in_the_window() {
    let windows = vec![window(10, 0), window(10, 100), window(200, 0)];
    let posts = vec![post(210, Some(5)), post(250, Some(6)), post(270, Some(7))];
    let completions = vec![done(220, 5), done(260, 6), done(280, 7)];
    let rdma = Rdma { posts, completions, windows, ..Rdma::default() };
    let track = rdma.tracks(0, 300).remove(0);
    let units: Vec<(bool, bool)> = track.units.iter().map(|unit| (unit.lead, unit.idle)).collect();
    assert_eq!(units, [(true, false), (false, true), (false, true)]);
}
