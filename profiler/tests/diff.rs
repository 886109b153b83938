//! Diffs of whole traces, against files and by what must hold of any. After a wanted change:
//! `STALLSCOPE_BLESS=1 cargo test -p stallscope --test diff`, then read the diff.

#[path = "diff_support/job.rs"]
mod job;

mod golden;

use std::path::{Path, PathBuf};

use job::{Job, OTHER, SLOW};
use serde_json::Value;
use stallscope::analysis::diff::compare;
use stallscope::analysis::diff::document::{Diff, Normaliser, StackState};
use stallscope::analysis::diff::profile::Profile;
use stallscope::analysis::diff::stacks::FrameChange;
use stallscope::cli::diff::load_profile;
use stallscope::render::diff::{write_diff_html, write_diff_json, write_diff_svg, write_diff_text};
use stallscope::render::text::TextOptions;

fn profile(job: &Job) -> Profile {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.stall");
    job.write(&path);
    load_profile(&path).unwrap()
}

fn before() -> Job {
    Job { has_old_peer: true, ..Job::steady(11) }
}

/// One peer is slower by a quarter, another came, a third went, and so did the interface.
fn after() -> Job {
    Job { slow: 1.25, interface: "eth1", has_new_peer: true, ..Job::steady(23) }
}

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces").join(name)
}

#[test]
fn all_forms_are_as_before() {
    let diff = compare(&[profile(&before())], &[profile(&after())]);
    let form = |ending: &str, write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        golden::assert_same(&format!("diff/job.{ending}"), &out);
    };
    form("txt", &|out| write_diff_text(&diff, TextOptions::default(), out).unwrap());
    form("colour.txt", &|out| {
        write_diff_text(&diff, TextOptions { colour: true, ..TextOptions::default() }, out).unwrap();
    });
    form("json", &|out| write_diff_json(&diff, out).unwrap());
    form("svg", &|out| write_diff_svg(&diff, out).unwrap());
    form("html", &|out| write_diff_html(&diff, out).unwrap());
}

#[test]
fn a_slower_peer_is_named_and_the_others_are_not() {
    let diff = compare(&[profile(&before())], &[profile(&after())]);
    assert_eq!(diff.normalised_by, Normaliser::Waits);
    assert!(diff.total.significant && diff.total.delta_ns > 0, "{:?}", diff.total);
    for row in &diff.sockets {
        let slow = row.peer == SLOW;
        assert_eq!(row.significant, slow, "{row:?}");
        if slow {
            let pct = row.delta_pct.unwrap();
            assert!((20.0..30.0).contains(&pct), "{row:?}");
        }
    }
    assert!(diff.hops.iter().all(|row| !row.significant), "{:?}", diff.hops);
    let told: Vec<_> = diff.environment.iter().map(|row| row.what.as_str()).collect();
    assert_eq!(told, ["NCCL_SOCKET_IFNAME"]);
}

#[test]
fn names_that_differ_by_nature_are_the_same_and_others_are_new_or_gone() {
    let diff = compare(&[profile(&before())], &[profile(&after())]);
    let leaves = |state| -> Vec<&str> {
        let rows = diff.stacks.iter().filter(|row| row.state == state);
        let mut leaves: Vec<&str> = rows.filter_map(|row| row.stack.last()).map(String::as_str).collect();
        leaves.sort_unstable();
        leaves
    };
    assert_eq!(leaves(StackState::New), ["[sock.recv] 10.0.1.9:29500"]);
    assert_eq!(leaves(StackState::Gone), ["[sock.send] 10.0.1.10:29500"]);
    assert!(leaves(StackState::Both).contains(&"[sock.recv] 10.0.2.4:*"));
    let worker = diff.stacks.iter().find(|row| row.stack[1].starts_with("worker")).unwrap();
    assert_eq!(worker.stack[..2], ["python3", "worker-#"]);
    // A timer's turns are no loop's.
    assert_eq!(diff.normalised_site[..2], ["python3", "python3"]);
}

fn assert_nothing_changed(diff: &Diff) {
    let changes = diff.causes.iter().map(|row| row.change).chain([diff.total]);
    for change in changes {
        assert_eq!((change.delta_ns, change.delta_pct, change.significant), (0, Some(0.0), false));
        assert_eq!(change.p.to_bits(), 1.0_f64.to_bits());
    }
    assert!(diff.stacks.iter().all(|row| row.delta_ns == 0 && row.state == StackState::Both));
    assert!(diff.sockets.iter().all(|row| row.delta_pct == Some(0.0) && !row.significant));
    assert!(diff.hops.iter().all(|row| row.delta_pct == Some(0.0) && !row.significant));
    assert!(diff.environment.is_empty(), "{:?}", diff.environment);
}

#[test]
fn a_recording_and_itself_differ_by_nothing() {
    for name in ["demo.stall", "nccl-hang-dns.stall", "nccl-late.stall", "nccl-train.stall"] {
        let profile = load_profile(&stored(name)).unwrap();
        assert_nothing_changed(&compare(std::slice::from_ref(&profile), std::slice::from_ref(&profile)));
    }
    for seed in 0..8 {
        let profile = profile(&Job { seconds: 5, ..Job::steady(seed) });
        assert_nothing_changed(&compare(std::slice::from_ref(&profile), std::slice::from_ref(&profile)));
    }
}

#[test]
fn the_total_is_what_stalled_and_all_sums_agree() {
    let (old, new) = (profile(&before()), profile(&after()));
    let diff = compare(std::slice::from_ref(&old), std::slice::from_ref(&new));
    let whole = diff.before.stalled_ns as f64 / diff.before.units;
    assert!((whole - diff.total.before_ns as f64).abs() <= 1.0);
    assert_eq!(diff.causes.iter().map(|row| row.change.delta_ns).sum::<i64>(), diff.total.delta_ns);
    assert_eq!(diff.stacks.iter().map(|row| row.delta_ns).sum::<i64>(), diff.total.delta_ns);
    assert_eq!(FrameChange::of(&diff.stacks).delta_ns(), diff.total.delta_ns);
}

#[test]
fn the_same_recordings_give_the_same_document() {
    let text = || {
        let mut out = Vec::new();
        let diff = compare(&[profile(&before())], &[profile(&after())]);
        write_diff_json(&diff, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(text(), text());
}

#[test]
fn several_recordings_a_side_show_how_much_runs_differ() {
    let side = |slow: [f64; 3], seed: u64| -> Vec<Profile> {
        (seed..)
            .zip(slow)
            .map(|(seed, slow)| profile(&Job { slow, seconds: 8, ..Job::steady(seed) }))
            .collect()
    };
    // Within each run 25 % would be seen; between these runs it is chance.
    let (wild, wilder) = (side([0.8, 1.0, 1.6], 100), side([1.0, 1.2, 1.8], 200));
    let diff = compare(&wild, &wilder);
    assert_eq!((diff.before.traces, diff.after.traces), (3, 3));
    assert!(!diff.total.significant, "{:?}", diff.total);
    assert!(diff.remarks.iter().all(|remark| !remark.contains("run to run")), "{:?}", diff.remarks);
    let diff = compare(&side([1.0; 3], 100), &side([2.0; 3], 200));
    assert!(diff.total.significant, "{:?}", diff.total);
    let one = compare(&wild[..1], &wilder[..1]);
    assert!(one.remarks.iter().any(|remark| remark.contains("run to run")));
}

#[test]
fn the_document_has_the_fields_of_the_contract() {
    let mut out = Vec::new();
    write_diff_json(&compare(&[profile(&before())], &[profile(&after())]), &mut out).unwrap();
    let document: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(document["schema"], "stallscope.diff/1");
    let has = |row: &Value, fields: &[&str]| {
        for field in fields {
            assert!(row.get(field).is_some(), "{field} in {row}");
        }
    };
    for side in ["before", "after"] {
        has(&document[side], &["duration_ns", "stalled_ns", "steps"]);
    }
    let change = ["before_ns", "after_ns", "delta_ns", "delta_pct", "ci95_pct", "significant"];
    has(&document["total"], &change);
    has(&document["causes"][0], &[&["cause"][..], &change].concat());
    let medians = ["peer", "before_p50_ns", "after_p50_ns", "delta_pct", "significant"];
    has(&document["sockets"][0], &[&["direction"][..], &medians].concat());
    has(&document["hops"][0], &[&["rack"][..], &medians].concat());
    has(&document["stacks"][0], &["stack", "before_ns", "after_ns", "delta_ns", "state"]);
    has(&document["environment"][0], &["what", "before", "after"]);
    assert_eq!(serde_json::from_value::<Diff>(document).unwrap().sockets[0].peer, SLOW);
}

/// Exit status of `stallscope ARGUMENTS…`.
fn run(arguments: &[&str]) -> u8 {
    stallscope::cli::run(std::iter::once("stallscope").chain(arguments.iter().copied()).map(Into::into))
}

#[test]
fn a_regression_above_the_limit_is_status_three() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (old, new, out) = (path("old.stall"), path("new.stall"), path("out"));
    before().write(Path::new(&old));
    after().write(Path::new(&new));
    let diff = |arguments: &[&str]| run(&[&["diff", "-o", &out][..], arguments].concat());
    assert_eq!(diff(&[&old, &new, "--fail-above", "2%"]), 3);
    assert!(std::fs::read_to_string(&out).unwrap().contains(OTHER));
    assert_eq!(diff(&[&old, &new, "--fail-above", "60%"]), 0);
    assert_eq!(diff(&[&new, &old, "--fail-above", "0%"]), 0);
    assert_eq!(diff(&[&old, &new]), 0);
    assert_eq!(diff(&["--before", &old, &old, "--after", &new, "--format", "json"]), 0);
    assert_eq!(diff(&[&old]), 2);
    assert_eq!(diff(&["--after", &old]), 2);
    assert_eq!(diff(&[&old, &path("none.stall")]), 1);
    assert_eq!(run(&["diff", &old, &new, "-o", &old]), 2);
    load_profile(Path::new(&old)).unwrap();
}
