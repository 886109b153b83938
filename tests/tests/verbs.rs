//! RDMA verbs: the real libibverbs and libmlx5, stripped as the distribution ships them, over a fake adapter. Times are
//! compared with what the program itself measured around its calls, request by request: from before the post to
//! after the poll, and from after the post to before the poll.

use std::path::Path;

use serde_json::Value;
use stallscope_tests::softhca::{SoftHca, Times};
use stallscope_tests::{Program, RecordedTrace, Recorder, Values, finding, require_root, stallscope};

/// However busy the machine: these tests are about what is seen.
const ANY_OVERHEAD: &[&str] = &["--max-overhead", "100000%"];

fn record(program: &mut Program) -> (Values, RecordedTrace) {
    require_root();
    let recording = Recorder::new().pid(program.pid()).args(ANY_OVERHEAD).start();
    let values = program.run();
    let trace = recording.finish();
    assert!(trace.status.success(), "record: {:?}: {}", trace.status, trace.stderr);
    (values, trace)
}

/// The one queue pair of the program.
#[track_caller]
fn queue(report: &Value) -> &Value {
    let rows = report["queues"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{rows:#?}; {:#}", report["coverage"]["probes"]);
    &rows[0]
}

#[track_caller]
fn ns(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// No tolerance: both bounds were measured around the very same requests.
#[track_caller]
fn assert_within(recorded_ns: u64, least_ns: u64, most_ns: u64) {
    assert!(
        (least_ns..=most_ns).contains(&recorded_ns),
        "recorded {recorded_ns} ns, not in {least_ns}..={most_ns} ns"
    );
}

/// Counts of the row, in this order: posted, completed, in flight.
fn counts(row: &Value) -> [u64; 3] {
    ["posted", "completed", "in_flight"].map(|name| ns(&row[name]))
}

/// Time of queue pairs with this cause, 0 where there is none.
fn cause(report: &Value, cause: &str) -> u64 {
    let rows = report["causes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["domain"] == "qp" && row["cause"] == cause);
    row.map_or(0, |row| ns(&row["stalled_ns"]))
}

#[test]
fn requests_are_counted_and_timed_in_a_process_that_already_runs() {
    let hca = SoftHca::new().service_ns(20_000);
    let mut program = hca.start(&["before:8x40", "1x300"]);
    let qp: u64 = program.ready.get("qp");
    let (values, trace) = record(&mut program);
    let report = trace.report();
    let row = queue(&report);
    assert_eq!(
        (ns(&row["qp"]), row["device"].as_str(), row["type"].as_str()),
        (qp, Some("mlx5_0"), Some("RC"))
    );
    assert_eq!(counts(row), [300, 300, 0]);
    assert_eq!((ns(&row["bytes"]), ns(&row["max_depth"])), (300 * 4096, 1));
    let times = &row["post_to_completion"];
    assert_eq!((ns(&times["count"]), values.get::<u64>("units")), (300, 300));
    // Each request lasted as long as the one measurement says at least, and as the other one says at most.
    assert_within(ns(&times["p50_ns"]), values.get("inner"), values.get("outer"));
    assert!(ns(&times["min_ns"]) >= 20_000, "nothing is faster than the script: {times}");
    assert_eq!(ns(&row["queue"]["sum_ns"]), 0, "one at a time waits behind nobody");
    assert_eq!((cause(&report, "rdma.queue"), ns(&report["coverage"]["unmatched_completions"])), (0, 0));
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["id"] != "rdma.queue_bound"), "{findings:#?}");
    // The queue pair's time is what it had something outstanding.
    assert_eq!(cause(&report, "rdma.wire"), ns(&times["sum_ns"]));
}

#[test]
fn waiting_behind_other_requests_is_told_apart_from_the_wire() {
    let hca = SoftHca::new().service_ns(50_000).latency_ns(50_000);
    let mut program = hca.start(&["1x100", "8x800"]);
    let (values, trace) = record(&mut program);
    let report = trace.report();
    let row = queue(&report);
    assert_eq!(counts(row), [900, 900, 0]);
    assert_eq!((ns(&row["max_depth"]), ns(&row["post_to_completion"]["count"])), (8, 900));
    // Median over all of them: one of the 800.
    assert_within(ns(&row["post_to_completion"]["p50_ns"]), values.get("inner"), values.get("outer"));
    let wire_ns = ns(&row["wire_ns"]);
    assert!(wire_ns >= 100_000, "a request alone takes its service and the latency: {wire_ns}");
    // The rule of the split, with the program's own times: each wait was this long at least, and that long at most.
    let (least, most) = queue_bounds(&hca.times(), wire_ns);
    let sum = |part: &str| ns(&row[part]["sum_ns"]);
    assert!(least > 0, "eight at a time do wait for each other");
    assert_within(sum("queue"), least, most);
    let rest = sum("post_to_completion") - sum("queue") - sum("transmit");
    assert!(rest > 0 && rest <= 900 * wire_ns, "{row:#}");
    let (queued, wire) = (cause(&report, "rdma.queue"), cause(&report, "rdma.wire"));
    assert!(queued > 0 && queued + wire <= values.get("elapsed"), "{queued} + {wire}: {row:#}");
    let limits =
        ns(&row["queue"]["p50_ns"]) >= wire_ns && queued >= ns(&report["target"]["duration_ns"]) / 100;
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().any(|finding| finding["id"] == "rdma.queue_bound");
    assert_eq!(found, limits && queued >= 20_000_000, "{findings:#?}");

    let text = stallscope(&["report", &trace.path.to_string_lossy()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("QUEUE PAIRS (RDMA)") && text.contains("mlx5_0"), "{text}");
    let root = flame(&trace, "cause");
    assert!(root.contains("queue pairs") && root.contains("[rdma.queue]"), "the second root is drawn");
}

/// Sum of the waits behind the request before, by rule 1.
fn queue_bounds(times: &[Times], wire_ns: u64) -> (u64, u64) {
    let (mut least, mut most) = (0, 0);
    for pair in times.windows(2) {
        let (before, this) = (pair[0], pair[1]);
        least += before.before_poll.saturating_sub(wire_ns).saturating_sub(this.after_post);
        most += before.after_poll.saturating_sub(wire_ns).saturating_sub(this.before_post);
    }
    (least, most)
}

fn flame(trace: &RecordedTrace, view: &str) -> String {
    let svg = trace.folder().join("flame.svg");
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let output = stallscope(&["flame", &path(&trace.path), "--view", view, "-o", &path(&svg)]);
    assert!(output.status.success(), "flame: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(svg).unwrap()
}

#[test]
fn a_group_that_one_completion_retires_is_one_unit() {
    let hca = SoftHca::new().service_ns(10_000);
    let mut program = hca.start(&["16x400x8"]);
    let (_, trace) = record(&mut program);
    let report = trace.report();
    let row = queue(&report);
    assert_eq!(counts(row), [400, 400, 0]);
    assert_eq!(ns(&row["post_to_completion"]["count"]), 50);
    assert!(row["wire_ns"].is_null(), "no request was alone: {row:#}");
    assert!(row["reason"].as_str().unwrap().starts_with("too few single requests"));
}

#[test]
fn requests_under_way_when_the_recording_begins_do_not_shift_the_others() {
    let hca = SoftHca::new().service_ns(100_000);
    // Three requests stay unpolled before the recording; all later ones wait behind them in the completion queue.
    let mut program = hca.start(&["before:leave", "4x200"]);
    let (_, trace) = record(&mut program);
    let report = trace.report();
    let row = queue(&report);
    assert_eq!(counts(row), [200, 200, 0]);
    assert_eq!((ns(&row["began_earlier"]), ns(&row["post_to_completion"]["count"])), (3, 200));
}

#[test]
fn the_older_completion_entries_are_understood_too() {
    let hca = SoftHca::new().service_ns(20_000).entry_version(0);
    let mut program = hca.start(&["1x50"]);
    let (values, trace) = record(&mut program);
    let report = trace.report();
    let row = queue(&report);
    assert_eq!(counts(row), [50, 50, 0]);
    assert_within(ns(&row["post_to_completion"]["p50_ns"]), values.get("inner"), values.get("outer"));
}

#[test]
fn the_first_failure_is_named_and_the_flood_counted_aside() {
    let hca = SoftHca::new().service_ns(20_000).fail_at(60);
    let mut program = hca.start(&["8x100"]);
    let (values, trace) = record(&mut program);
    let report = trace.report();
    let row = queue(&report);
    assert_eq!(row["errors"], serde_json::json!({ "RETRY_EXC_ERR": 1 }), "{row:#}");
    assert_eq!(ns(&row["flushed"]) + 1, values.get::<u64>("failed"));
    assert_eq!(counts(row), [100, 100, 0]);
    assert_eq!(finding(&report, "rdma.retry")["severity"], "critical");
}

#[test]
fn a_rate_that_costs_too_much_is_watched_in_windows() {
    require_root();
    let hca = SoftHca::new().service_ns(20_000);
    let mut program = hca.start(&["4x150000"]);
    let recording = Recorder::new().pid(program.pid()).args(&["--max-overhead", "1%"]).start();
    let values = program.run();
    let trace = recording.finish();
    let report = trace.report();
    let verbs = verbs_row(&report);
    if !costs_too_much(&hca.times(), 0.01) {
        // The machine was too busy for a rate that matters: all of it may be seen then.
        assert!(ns(&queue(&report)["posted_seen"]) <= values.get("posted"), "{report:#}");
        return;
    }
    assert_eq!(verbs["state"], "partial");
    assert!(verbs["reason"].as_str().unwrap().contains(" short windows: "), "{verbs}");
    let row = queue(&report);
    let seen = ns(&row["posted_seen"]);
    assert!(seen > 0 && seen < values.get("posted"), "{row:#}");
    let share = row["sampled_share"].as_f64().unwrap();
    assert!(share > 0.0 && share < 1.0, "{row:#}");
    assert!(ns(&row["posted"]) > seen && row["reason"].as_str().unwrap().contains("scaled"), "{row:#}");
    assert_eq!((ns(&row["in_flight"]), ns(&report["coverage"]["unmatched_completions"])), (0, 0));
    // Each time is one that the program measured itself: requests of one window are not mixed with those of another.
    let times = &row["post_to_completion"];
    assert!(ns(&times["count"]) > 0 && ns(&times["count"]) <= seen, "{row:#}");
    assert!(ns(&times["min_ns"]) >= 20_000, "nothing is faster than the script: {times}");
    let longest = hca.times().iter().map(|one| one.after_poll - one.before_post).max().unwrap();
    assert_eq!(values.get::<u64>("units"), values.get::<u64>("posted"), "the program measured each of them");
    assert!(ns(&times["max_ns"]) <= longest, "{times}: the program's longest took {longest} ns");
}

/// Whether watching the program would, by its own times, have cost so much more than the share `allowed` of a core that no
/// distribution of looks at it could miss that: twice what is saved up for such a time.
fn costs_too_much(times: &[Times], allowed: f64) -> bool {
    // A post and a completion.
    let cost = 2.0 * profiler_common::verbs::HIT_NS as f64;
    let (mut owed, mut most, mut before_ns) = (0.0_f64, 0.0_f64, None);
    for one in times {
        let passed_ns = before_ns.map_or(0, |before: u64| one.after_poll.saturating_sub(before));
        before_ns = Some(one.after_poll);
        owed = (owed - allowed * passed_ns as f64).max(0.0) + cost;
        most = most.max(owed);
    }
    most > 2.0 * allowed * SAVED_NS
}

/// For how long the recorder saves what it may cost.
const SAVED_NS: f64 = 300e6;

#[test]
fn what_is_allowed_decides_how_much_is_watched() {
    require_root();
    let hca = SoftHca::new().service_ns(2_000);
    let mut program = hca.start(&["4x300000"]);
    // So little that the first request seen is one too many, and that it is made up for in an hour.
    let recording = Recorder::new().pid(program.pid()).args(&["--max-overhead", "0.0000001%"]).start();
    let values = program.run();
    let trace = recording.finish();
    let report = trace.report();
    let verbs = verbs_row(&report);
    assert_eq!(verbs["state"], "partial");
    assert!(verbs["reason"].as_str().unwrap().starts_with("watched in 1 short window: "), "{verbs}");
    let row = queue(&report);
    assert!(row["sampled_share"].as_f64().unwrap() < 1.0, "{row:#}");
    assert!(ns(&row["posted"]) < values.get("posted") && row["scaled_error"].is_null(), "{row:#}");
}

#[track_caller]
fn verbs_row(report: &Value) -> &Value {
    let probes = report["coverage"]["probes"].as_array().unwrap();
    probes.iter().find(|row| row["family"] == "verbs").unwrap()
}

#[test]
fn a_process_without_devices_says_so() {
    require_root();
    let mut program = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let trace = Recorder::new().pid(program.id()).duration("300ms").start().wait();
    program.kill().unwrap();
    program.wait().unwrap();
    let report = trace.report();
    let probes = report["coverage"]["probes"].as_array().unwrap();
    let verbs = probes.iter().find(|row| row["family"] == "verbs").unwrap();
    assert_eq!(
        (verbs["state"].as_str(), verbs["reason"].as_str()),
        (Some("off"), Some("no target has an RDMA device open"))
    );
    assert_eq!(report["queues"], serde_json::json!([]));
}
