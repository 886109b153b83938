use super::*;
use crate::trace::rdma::{QueuePair, RdmaCompletion, RdmaPost, RdmaWindow};
use crate::trace::record::{Record, Window};

fn queues(model: &Model) -> Queues {
    Queues::new(model, &Places::default())
}

/// Ten requests one at a time that take 100 ns, then four at once that come out 100 ns apart.
fn records() -> Vec<Record> {
    let post = |time_ns, counter| {
        Record::RdmaPost(RdmaPost {
            time_ns,
            pid: 1,
            qp: 417,
            bytes: 64,
            flags: 2,
            counter: Some(counter),
            ..RdmaPost::default()
        })
    };
    let done = |time_ns, counter| {
        Record::RdmaCompletion(RdmaCompletion {
            time_ns,
            pid: 1,
            qp: 417,
            counter,
            ..RdmaCompletion::default()
        })
    };
    let pair = QueuePair { pid: 1, number: 417, device: "mlx5_0".into(), qp_type: 2, ..QueuePair::default() };
    let mut records = vec![
        Record::Window(Window { start_ns: 1000, end_ns: 10_000, min_stall_ns: 0 }),
        Record::QueuePair(pair),
    ];
    for turn in 0..10 {
        records.push(post(2000 + 200 * turn, turn as u16));
        records.push(done(2100 + 200 * turn, turn as u16));
    }
    for turn in 0..4 {
        records.push(post(5000, 10 + turn as u16));
        records.push(done(5100 + 100 * turn, 10 + turn as u16));
    }
    records
}

#[test]
fn queueing_is_told_apart_from_the_wire() {
    let queues = queues(&Model::from_records(records()));
    let [row] = queues.rows().try_into().unwrap();
    assert_eq!((row.device.as_str(), row.qp, row.kind.as_str()), ("mlx5_0", 417, "RC"));
    assert_eq!((row.posted, row.completed, row.in_flight, row.max_depth, row.bytes), (14, 14, 0, 4, 14 * 64));
    assert_eq!(row.wire_ns, Some(100));
    // The last of four left the queue when the one before it had left: 5200.
    assert_eq!((row.queue.max_ns, row.post_to_completion.max_ns, row.transmit.max_ns), (200, 400, 100));
    assert_eq!(row.reason, "");
}

#[test]
fn the_causes_are_parts_of_the_queue_pairs_own_time() {
    let queues = queues(&Model::from_records(records()));
    let rows = queues.causes();
    let sums: Vec<(Cause, u64)> = rows.iter().map(|row| (row.cause, row.stalled_ns)).collect();
    // Busy for 10 * 100 + 400 ns; something waited from 5000 to 5200.
    assert_eq!(sums, [(Cause::RdmaQueue, 200), (Cause::RdmaWire, 1200)]);
    assert!(rows.iter().all(|row| row.domain == Domain::Qp));
}

#[test]
fn without_an_unloaded_latency_there_is_no_split() {
    let few = records().into_iter().filter(|record| match record {
        Record::RdmaPost(post) => post.time_ns >= 5000,
        Record::RdmaCompletion(one) => one.time_ns >= 5000,
        _ => true,
    });
    let queues = queues(&Model::from_records(few));
    let [row] = queues.rows().try_into().unwrap();
    assert_eq!((row.wire_ns, row.queue.count, row.post_to_completion.count), (None, 0, 4));
    assert!(row.reason.starts_with("too few single requests"));
    let causes: Vec<(Cause, u64)> = queues.causes().iter().map(|row| (row.cause, row.stalled_ns)).collect();
    assert_eq!(causes, [(Cause::Other, 400)]);
}

#[test]
fn requests_in_flight_have_their_age() {
    let last_lost = records().into_iter().filter(|record| match record {
        Record::RdmaCompletion(one) => one.counter != 13,
        _ => true,
    });
    let queues = queues(&Model::from_records(last_lost));
    let [row] = queues.rows().try_into().unwrap();
    assert_eq!((row.in_flight, row.oldest_in_flight_ns, row.completed), (1, 5000, 13));
    assert_eq!(queues.causes().iter().map(|row| row.in_flight).sum::<u64>(), 1);
}

#[test]
fn figures_of_windows_are_scaled_and_say_so() {
    let window = |start_ns, end_ns| Record::RdmaWindow(RdmaWindow { pid: 1, start_ns, end_ns });
    // The first window ends with a request under way; the second one has the last five single ones and four at once.
    let windows = [window(1000, 1000 + 1050), window(2990, 5990)];
    let inside = |time_ns: u64| (1000..=2050).contains(&time_ns) || (2990..=5990).contains(&time_ns);
    let seen = records().into_iter().filter(|record| match record {
        Record::RdmaPost(post) => inside(post.time_ns),
        Record::RdmaCompletion(one) => inside(one.time_ns),
        _ => true,
    });
    let queues = queues(&Model::from_records(seen.chain(windows)));
    let [row] = queues.rows().try_into().unwrap();
    // One post in the first window, which stands for itself, nine in the 3000 ns of the second one, which stands for the 4950
    // beside it. A hit counts as longer than these windows are, so the most is taken for lost, and half of that added.
    let between = 9.0 / 3000.0 * 4950.0 * (1.0 + 4.0 / 2.0);
    assert_eq!((row.posted_seen, row.posted), (10, (10.0_f64 + between).round() as u64));
    assert_eq!((row.sampled_share, row.bytes), (4050.0 / 9000.0, (64.0 * (10.0 + between)).round() as u64));
    // Four single requests, and the first of the four at once.
    assert_eq!((row.wire_ns, row.queue.max_ns), (Some(100), 200));
    let how = "watched in 2 windows, 45.0 % of the time: totals are scaled, with an error that is not known";
    assert_eq!(
        (row.reason.as_str(), row.scaled_error),
        (how, None),
        "one window that tells of the rest has no spread"
    );
    assert_eq!((row.in_flight, row.post_to_completion.count), (0, 8), "the first of the window leads only");
    // From 3100 on: four of 100 ns, and 400 ns; no request was seen to end in the first window.
    let busy: u64 = queues.causes().iter().map(|row| row.stalled_ns).sum();
    assert_eq!(busy, (800.0 * 9000.0 / (5990.0 - 3100.0_f64)).round() as u64);
}
