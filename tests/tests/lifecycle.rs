//! Threads, children, exec, exit, namespaces, commands: who is recorded, under which ids.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use stallscope::demo::monotonic_ns;
use stallscope_tests::process::workload;
use stallscope_tests::recorder::stallscope_binary;
use stallscope_tests::{
    Peer, Program, Recorder, assert_between, assert_close, record_run, report, require_root, rows, sum,
};

const LATE: Duration = Duration::from_millis(40);

fn receives<'a>(report: &'a Value, peer: &Peer) -> Vec<&'a Value> {
    rows(report, "sockets", &[("peer", json!(peer.name())), ("direction", json!("recv"))])
}

#[test]
fn three_hundred_waiting_threads_are_all_reported() {
    require_root();
    let peer = Peer::silent();
    let program = Program::start(&["threads", "300", &peer.name()]);
    let recording = Recorder::new().pid(program.pid()).start();
    std::thread::sleep(Duration::from_millis(500));
    let report = recording.finish().report();
    let found = receives(&report, &peer);
    assert_eq!(found.len(), 300);
    assert!(found.iter().all(|row| row["in_flight"] == 1 && row["pid"] == program.pid()));
    let mut threads: Vec<u64> = found.iter().map(|row| row["tid"].as_u64().unwrap()).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads.len(), 300);
    let window = report["target"]["duration_ns"].as_u64().unwrap();
    assert_close("all threads", sum(&found, "stalled_ns"), 300 * window);
    let names = rows(&report, "threads", &[("name", json!("recv7"))]);
    assert_eq!(names.len(), 1, "threads have their names");
    assert_eq!(report["coverage"]["lost_events"], 0);
}

#[test]
fn children_that_are_born_during_the_recording_are_followed() {
    require_root();
    let peer = Peer::late(LATE);
    let mut program = Program::start(&["fork-recv", &peer.name(), "3"]);
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    let found = receives(&report, &peer);
    assert_eq!(found.len(), 1, "{:#}", report["sockets"]);
    assert_eq!(found[0]["pid"], values.get::<u32>("child"));
    assert_eq!((&found[0]["waits"], &found[0]["in_flight"]), (&json!(3), &json!(0)));
    assert_between("child", sum(&found, "stalled_ns"), peer.served_ns().iter().sum(), values.ns());
    assert!(report["target"]["pids"].as_array().unwrap().contains(&json!(program.pid())));
}

#[test]
fn no_children_means_no_children() {
    require_root();
    let peer = Peer::late(LATE);
    let mut program = Program::start(&["fork-recv", &peer.name(), "2"]);
    let recording = Recorder::new().pid(program.pid()).args(&["--no-children"]).start();
    program.run();
    let report = recording.finish().report();
    assert_eq!(receives(&report, &peer).len(), 0, "{:#}", report["sockets"]);
    assert_eq!(peer.served_ns().len(), 2, "the child did receive");
    assert_eq!(report["target"]["pids"], json!([program.pid()]));
}

#[test]
fn children_that_exist_already_are_followed() {
    require_root();
    let peer = Peer::late(LATE);
    // The shell waits for its child, which speaks the protocol.
    let script = "\"$0\" \"$@\"; exit 0";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(workload()).args(["recv", "blocking", &peer.name(), "3"]);
    let mut program = Program::start_command(&mut command);
    let child = program.children()[0];
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    let found = receives(&report, &peer);
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0]["pid"], &found[0]["waits"]), (&json!(child), &json!(3)));
    assert_close("child", sum(&found, "stalled_ns"), values.measured());
}

#[test]
fn a_program_that_becomes_another_is_followed() {
    require_root();
    let peer = Peer::late(LATE);
    let mut program = Program::start(&["exec-recv", &peer.name(), "3"]);
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    let found = receives(&report, &peer);
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0]["pid"], &found[0]["waits"]), (&json!(program.pid()), &json!(3)));
    assert_close("after exec", sum(&found, "stalled_ns"), values.measured());
    // Frames of the new program have names: its memory map was read after the exec.
    let folded = trace.folded();
    assert!(folded.iter().any(|(frames, _)| frames.iter().any(|frame| frame.contains("stall_outer"))));
}

#[test]
fn the_recording_ends_with_its_target_and_keeps_what_was_in_flight() {
    require_root();
    let peer = Peer::silent();
    let mut program = Program::start(&["exit-early", &peer.name(), "400"]);
    let recording = Recorder::new().pid(program.pid()).start();
    let began = monotonic_ns();
    program.go();
    assert_eq!(program.wait(), 7);
    let lived = monotonic_ns() - began;
    let trace = recording.wait();
    assert!(trace.status.success(), "{}", trace.stderr);
    let report = trace.report();
    assert_eq!(report["trace"]["complete"], true);
    let found = receives(&report, &peer);
    assert_eq!(found.len(), 1, "{:#}", report["sockets"]);
    assert_between("until the end", sum(&found, "stalled_ns"), 350_000_000, lived);
}

#[test]
fn a_process_in_other_namespaces_has_both_its_ids() {
    require_root();
    let peer = Peer::late(LATE);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--mount", "--fork", "--mount-proc"]).arg(workload());
    command.args(["recv", "blocking", &peer.name(), "3"]);
    let mut program = Program::start_command(&mut command);
    let inner = program.children()[0];
    let recording = Recorder::new().pid(inner).start();
    let values = program.run();
    let trace = recording.finish();
    let report = trace.report();
    let found = receives(&report, &peer);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (&found[0]["pid"], &found[0]["tid"], &found[0]["waits"]),
        (&json!(inner), &json!(inner), &json!(3))
    );
    assert_close("inside", sum(&found, "stalled_ns"), values.measured());
    let thread = rows(&report, "threads", &[("tid", json!(inner))]);
    assert_eq!(thread[0]["ns_pid"], 1);
    let folded = trace.folded();
    assert!(folded.iter().any(|(frames, _)| frames.iter().any(|frame| frame.contains("stall_outer"))));
}

#[test]
fn a_child_in_other_namespaces_is_followed_from_outside() {
    require_root();
    let peer = Peer::late(LATE);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--mount", "--fork"]).arg(workload());
    command.args(["recv", "poll", &peer.name(), "3"]);
    let mut program = Program::start_command(&mut command);
    let inner = program.children()[0];
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    let found = receives(&report, &peer);
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0]["pid"], &found[0]["waits"]), (&json!(inner), &json!(3)));
    assert_close("inside", sum(&found, "stalled_ns"), values.measured());
}

#[test]
fn a_file_that_only_the_targets_mount_namespace_has_gives_its_symbols() {
    require_root();
    let peer = Peer::late(LATE);
    let folder = tempfile::tempdir().unwrap();
    // The program is copied to a file system that the recorder cannot see.
    let script =
        "mount -t tmpfs none \"$1\" && cp \"$0\" \"$1/hidden\" && exec \"$1/hidden\" recv blocking \"$2\" 3";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(workload()).arg(folder.path()).arg(peer.name());
    let mut program = Program::start_command(&mut command);
    assert!(!folder.path().join("hidden").exists());
    let (values, trace) = record_run(&mut program);
    let named: u64 = trace
        .folded()
        .iter()
        .filter(|(frames, _)| frames.iter().any(|frame| frame.contains("stall_outer")))
        .map(|(_, weight)| weight)
        .sum();
    assert_close("stacks with names", named, values.measured());
}

#[test]
fn several_processes_are_recorded_together() {
    require_root();
    let peer = Peer::late(LATE);
    let start = || Program::start(&["recv", "blocking", &peer.name(), "3"]);
    let (mut one, mut two, mut other) = (start(), start(), start());
    let recording = Recorder::new().pid(one.pid()).pid(two.pid()).start();
    for program in [&mut one, &mut two, &mut other] {
        program.run();
    }
    let report = recording.finish().report();
    let mut pids: Vec<u64> =
        receives(&report, &peer).iter().map(|row| row["pid"].as_u64().unwrap()).collect();
    pids.sort_unstable();
    let mut wanted = [u64::from(one.pid()), u64::from(two.pid())];
    wanted.sort_unstable();
    assert_eq!(pids, wanted);
}

#[test]
fn processes_are_found_by_their_name() {
    require_root();
    let peer = Peer::late(LATE);
    let folder = tempfile::tempdir().unwrap();
    let name = format!("wl{}", std::process::id());
    let link = folder.path().join(&name);
    std::os::unix::fs::symlink(workload(), &link).unwrap();
    let mut program =
        Program::start_command(Command::new(link).args(["recv", "blocking", &peer.name(), "3"]));
    let recording = Recorder::new().args(&["--comm", &format!("^{name}$")]).start();
    program.run();
    let report = recording.finish().report();
    assert_eq!(report["target"]["pids"], json!([program.pid()]));
    assert_eq!(report["target"]["comm"], name);
    assert_eq!(sum(&receives(&report, &peer), "waits"), 3);
}

#[test]
fn a_command_is_recorded_from_its_first_instruction() {
    require_root();
    let peer = Peer::late(LATE);
    let program = workload();
    let command = [program.to_str().unwrap(), "recv-now", "blocking", &peer.name(), "4"];
    // It ends by itself: its standard input is empty.
    let trace = Recorder::new().command(&command).launch().wait();
    assert!(trace.status.success(), "{}", trace.stderr);
    let report = trace.report();
    assert_eq!(sum(&receives(&report, &peer), "waits"), 4);
    let stalled = sum(&receives(&report, &peer), "stalled_ns");
    let window = report["target"]["duration_ns"].as_u64().unwrap();
    assert_between("command", stalled, peer.served_ns().iter().sum(), window);
    let connects = rows(&report, "connects", &[("peer", json!(peer.name())), ("result", json!("ok"))]);
    assert_eq!(sum(&connects, "count"), 1);
}

#[test]
fn the_commands_exit_status_is_the_recordings() {
    require_root();
    let trace = Recorder::new().command(&["sh", "-c", "exit 9"]).launch().wait();
    assert_eq!(trace.status.code(), Some(9), "{}", trace.stderr);
    let report = trace.report();
    assert_eq!(report["trace"]["complete"], true);
}

#[test]
fn the_output_of_a_recorded_command_is_its_own() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(stallscope_binary())
        .args(["record", "-o"])
        .arg(folder.path().join("run.stall"))
        .args(["--", "echo", "hello"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n");
    assert!(said.contains("echo") && said.to_lowercase().contains("nothing stalled"), "{said}");
}

#[test]
fn a_command_that_cannot_run_leaves_an_older_recording_alone() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.stall");
    std::fs::write(&path, "older").unwrap();
    let mut command = Command::new(stallscope_binary());
    command.args(["record", "-o"]).arg(&path).args(["--", "no-such-command"]);
    assert_eq!(command.output().unwrap().status.code(), Some(125));
    assert_eq!(std::fs::read(&path).unwrap(), b"older");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn the_recording_lasts_as_long_as_asked() {
    require_root();
    let program = Program::start(&["hold"]);
    let trace = Recorder::new().pid(program.pid()).duration("700ms").start().wait();
    assert!(trace.status.success(), "{}", trace.stderr);
    let duration = trace.report()["target"]["duration_ns"].as_u64().unwrap();
    // A busy machine rings late.
    assert_between("window", duration, 700_000_000, 10_000_000_000);
}

#[test]
fn a_killed_recorder_leaves_a_readable_trace() {
    require_root();
    let peer = Peer::late(LATE);
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "60"]);
    let recording = Recorder::new().pid(program.pid()).start();
    program.run();
    let trace = recording.kill();
    let report = report(&trace.path);
    assert_eq!(report["trace"]["complete"], false);
    // 2.4 s of work: what was older than a second is on disk.
    let waits = sum(&receives(&report, &peer), "waits");
    assert!((30..=60).contains(&waits), "{waits} of 60 waits");
    assert!(report["trace"]["bytes_unread"].is_u64());
}
