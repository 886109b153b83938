//! The recording and `strace` see the same calls with the same lengths.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use stallscope_tests::{Peer, Program, assert_between, record_run, require_root, rows, sum};

/// Lengths in nanoseconds of the calls in `log` that took at least a millisecond, and the number of all.
fn strace_calls(log: &str, call: &str) -> (Vec<u64>, usize) {
    let started = format!("{call}(");
    let resumed = format!("<... {call} resumed>");
    let lengths: Vec<u64> = log
        .lines()
        .filter(|line| line.contains(&started) || line.contains(&resumed))
        .filter_map(|line| line.rsplit_once('<')?.1.strip_suffix('>')?.parse::<f64>().ok())
        .map(|seconds| (seconds * 1e9) as u64)
        .collect();
    let all = lengths.len();
    (lengths.into_iter().filter(|&length| length >= 1_000_000).collect(), all)
}

/// Records `program` while strace traces it too; strace's log and the report.
fn traced_by_both(program: &mut Program) -> (String, serde_json::Value) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("strace.log");
    let mut strace = Command::new("strace")
        .args(["-f", "-T", "-ttt", "-e", "trace=connect,sendto,recvfrom,poll", "-o"])
        .arg(&log)
        .args(["-p", &program.pid().to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace is installed (cargo xtask setup)");
    let mut errors = BufReader::new(strace.stderr.take().unwrap()).lines();
    let attached = errors.any(|line| line.is_ok_and(|line| line.contains("attached")));
    assert!(attached, "strace attaches");
    let (_, trace) = record_run(program);
    let pid = nix::unistd::Pid::from_raw(strace.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    strace.wait().unwrap();
    (std::fs::read_to_string(&log).unwrap(), trace.report())
}

/// strace's figure has its own stops of the thread, which a busy machine makes long: it is never less than ours, and
/// most of it is the wait all the same.
#[track_caller]
fn assert_agrees(found: &[&serde_json::Value], strace: &[u64]) {
    let mut strace = strace.to_vec();
    strace.sort_unstable();
    let most_of = |ns: u64| ns - ns / 3;
    let total = strace.iter().sum();
    assert_between("sum", sum(found, "duration.sum_ns"), most_of(total), total);
    // Nearest rank.
    let median = strace[strace.len().div_ceil(2) - 1];
    assert_between("median", sum(found, "duration.p50_ns"), most_of(median), median);
    let longest = strace[strace.len() - 1];
    assert_between("longest", sum(found, "duration.max_ns"), most_of(longest), longest);
}

#[test]
fn blocking_receives_agree_with_strace() {
    require_root();
    let peer = Peer::late_by(&[40, 60, 50, 45, 80].map(Duration::from_millis));
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "10"]);
    let (log, report) = traced_by_both(&mut program);
    let (long, all) = strace_calls(&log, "recvfrom");
    let found = rows(&report, "sockets", &[("peer", json!(peer.name())), ("direction", json!("recv"))]);
    assert_eq!(sum(&found, "waits"), long.len() as u64, "{log}");
    assert_eq!(long.len(), 10);
    assert_agrees(&found, &long);
    assert_eq!(report["coverage"]["syscalls_seen"]["recvfrom"], all as u64, "{log}");
    let sends = strace_calls(&log, "sendto").1;
    assert_eq!(report["coverage"]["syscalls_seen"]["sendto"], sends as u64, "{log}");
}

#[test]
fn polls_and_threads_agree_with_strace() {
    require_root();
    let peer = Peer::late(Duration::from_millis(30));
    let mut program = Program::start(&["recv", "poll", &peer.name(), "8"]);
    let (log, report) = traced_by_both(&mut program);
    let (long, all) = strace_calls(&log, "poll");
    let found = rows(&report, "sockets", &[("peer", json!(peer.name())), ("direction", json!("recv"))]);
    assert_eq!(sum(&found, "waits"), long.len() as u64, "{log}");
    assert_agrees(&found, &long);
    assert_eq!(report["coverage"]["syscalls_seen"]["poll"], all as u64, "{log}");

    let mut program = Program::start(&["connect-parallel", &peer.name(), "6"]);
    let (log, report) = traced_by_both(&mut program);
    let (_, all) = strace_calls(&log, "connect");
    assert_eq!(all, 6, "{log}");
    assert_eq!(report["coverage"]["syscalls_seen"]["connect"], 6);
    let connects = rows(&report, "connects", &[("peer", json!(peer.name())), ("result", json!("ok"))]);
    assert_eq!(sum(&connects, "count"), 6);
}
