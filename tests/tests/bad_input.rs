//! What goes wrong is said in one or a few lines, with help and the right exit status; nothing is lost.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use stallscope_tests::recorder::stallscope_binary;
use stallscope_tests::{
    Peer, Program, RecordedTrace, record_run, report, require_root, rows, stallscope, sum,
};

/// Exit status, and the form of the error: `error: …` with `help: …`, short, no debug output.
#[track_caller]
fn assert_fails(output: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.lines().any(|line| line.starts_with("error: ")), "no line begins with `error: `:\n{text}");
    assert!(text.lines().any(|line| line.trim_start().starts_with("help: ")), "no help:\n{text}");
    assert!(text.lines().count() <= 6, "too long:\n{text}");
    for word in ["panicked", "RUST_BACKTRACE", "Os {", "Error("] {
        assert!(!text.contains(word), "{word} in:\n{text}");
    }
    text
}

fn record_pid(pid: u32, output: &Path) -> Output {
    stallscope(&["record", "--pid", &pid.to_string(), "-d", "300ms", "-o", output.to_str().unwrap()])
}

/// A short real trace with waits in it.
fn real_trace() -> (Peer, RecordedTrace) {
    require_root();
    let peer = Peer::late(Duration::from_millis(20));
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "5"]);
    let (_, trace) = record_run(&mut program);
    (peer, trace)
}

#[test]
fn unknown_processes_are_named() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let mut gone = Command::new("true").spawn().unwrap();
    let pid = gone.id();
    gone.wait().unwrap();
    let text = assert_fails(&record_pid(pid, &folder.path().join("t.stall")), 1);
    assert!(text.contains(&pid.to_string()), "{text}");
    let none = stallscope(&["record", "--comm", "^no-such-process-name$", "-d", "300ms", "-o", "/dev/null"]);
    assert_fails(&none, 1);
}

#[test]
fn kernel_threads_and_zombies_cannot_be_recorded() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("t.stall");
    let kernel = std::fs::read_to_string("/proc/2/comm").expect("the first kernel thread");
    assert_eq!(kernel.trim(), "kthreadd");
    let text = assert_fails(&record_pid(2, &output), 1);
    assert!(text.contains("kernel thread"), "{text}");
    let program = Program::start(&["zombie"]);
    let text = assert_fails(&record_pid(program.ready.get("child"), &output), 1);
    assert!(text.contains("zombie") || text.contains("has ended") || text.contains("exited"), "{text}");
}

#[test]
fn stallscope_does_not_record_itself() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let script = "exec \"$0\" record --pid $$ -d 300ms -o \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(stallscope_binary()).arg(folder.path().join("t.stall"));
    let text = assert_fails(&command.stdin(Stdio::null()).output().unwrap(), 1);
    assert!(text.contains("itself"), "{text}");
}

#[test]
fn a_thread_id_leads_to_its_process() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let peer = Peer::silent();
    let program = Program::start(&["threads", "2", &peer.name()]);
    let task = format!("/proc/{}/task", program.pid());
    let tids =
        std::fs::read_dir(task).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let tid: u32 = tids.map(|tid| tid.parse().unwrap()).find(|&tid| tid != program.pid()).unwrap();
    let output = folder.path().join("t.stall");
    let result = record_pid(tid, &output);
    if result.status.success() {
        // A working run: the whole process was recorded.
        assert_eq!(report(&output)["target"]["pids"], json!([program.pid()]));
    } else {
        let text = assert_fails(&result, 1);
        assert!(text.contains(&program.pid().to_string()), "the help names the process: {text}");
    }
}

#[test]
fn without_privilege_the_error_says_what_is_needed() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let everyone = |path: &Path, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).unwrap();
    };
    everyone(folder.path(), 0o777);
    let binary = folder.path().join("stallscope");
    std::fs::copy(stallscope_binary(), &binary).unwrap();
    everyone(&binary, 0o755);
    let program = Program::start(&["hold"]);
    let mut command = Command::new(&binary);
    command.uid(65534).gid(65534).args(["record", "-d", "300ms", "--pid", &program.pid().to_string()]);
    command.arg("-o").arg(folder.path().join("t.stall")).stdin(Stdio::null());
    let text = assert_fails(&command.output().unwrap(), 1);
    assert!(text.contains("root") || text.contains("CAP_"), "{text}");
}

#[test]
fn without_tracefs_it_records_less_or_names_the_mount() {
    require_root();
    let peer = Peer::late(Duration::from_millis(20));
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("t.stall");
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "100000"]);
    program.go();
    let script = "for m in $(awk '$3 == \"tracefs\" { print $2 }' /proc/mounts | sort -r); do umount -l \"$m\"; done; \
                  test ! -e /sys/kernel/tracing/events || exit 77; \
                  exec \"$0\" record --pid \"$1\" -d 700ms -o \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(stallscope_binary());
    command.arg(program.pid().to_string()).arg(&output).stdin(Stdio::null());
    let result = command.output().unwrap();
    assert_ne!(result.status.code(), Some(77), "the test could not take tracefs away");
    if result.status.success() {
        let report = report(&output);
        let net = rows(&report, "sockets", &[("peer", json!(peer.name()))]);
        assert!(sum(&net, "waits") > 0, "a degraded run still sees the waits: {:#}", report["coverage"]);
    } else {
        assert!(assert_fails(&result, 1).contains("tracefs"));
    }
}

#[test]
fn outputs_that_cannot_be_written_fail_before_anything_is_recorded() {
    require_root();
    let program = Program::start(&["hold"]);
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no-such-folder/t.stall");
    for path in [missing.as_path(), folder.path(), Path::new("/proc/t.stall")] {
        let text = assert_fails(&record_pid(program.pid(), path), 1);
        assert!(text.contains(path.to_str().unwrap()), "the path is named: {text}");
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_keeps_what_is_written() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let peer = Peer::late(Duration::ZERO);
    // Every call becomes a span, for the disk to fill.
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "1000000"]);
    program.go();
    // Room for what is written at once several times over: the last of it is lost.
    let script = "mount -t tmpfs -o size=256k none \"$2\" && \
                  { \"$0\" record --pid \"$1\" --min-stall 1ns -d 30s -o \"$2/t.stall\"; echo $? > \"$2.code\"; \
                  cp \"$2/t.stall\" \"$2.stall\"; }";
    let inner = folder.path().join("disk");
    std::fs::create_dir(&inner).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(stallscope_binary());
    command.arg(program.pid().to_string()).arg(&inner).stdin(Stdio::null());
    let result = command.output().unwrap();
    let text = String::from_utf8_lossy(&result.stderr);
    let code = std::fs::read_to_string(folder.path().join("disk.code")).expect("the script ran");
    assert_eq!(code.trim(), "1", "{text}");
    assert!(text.contains("error: ") && text.to_lowercase().contains("space"), "{text}");
    let report = report(&folder.path().join("disk.stall"));
    assert_eq!(report["trace"]["complete"], false);
    assert!(sum(&rows(&report, "sockets", &[("peer", json!(peer.name()))]), "waits") > 0);
}

#[test]
fn files_that_are_no_traces_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let wrong = [
        file("empty.stall", b""),
        file("text.stall", b"this is no trace\n"),
        file("zeroes.stall", &[0; 4096]),
        folder.path().to_owned(),
        folder.path().join("missing.stall"),
    ];
    for path in &wrong {
        let path = path.to_str().unwrap();
        for arguments in [
            vec!["report", path, "--format", "json"],
            vec!["flame", path, "-o", "/dev/null"],
            vec!["export", path, "--format", "folded"],
        ] {
            let output = stallscope(&arguments);
            let text = assert_fails(&output, 1);
            assert!(text.contains(path), "the file is named: {text}");
            assert!(output.stdout.is_empty(), "no half document");
        }
    }
}

#[test]
fn a_trace_of_a_newer_version_is_refused() {
    let (_, trace) = real_trace();
    let mut bytes = std::fs::read(&trace.path).unwrap();
    // The file header: magic (8), major and minor version (2 each), its length (4), then its checksum.
    let major = u16::from_le_bytes([bytes[8], bytes[9]]) + 1;
    bytes[8..10].copy_from_slice(&major.to_le_bytes());
    let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let checksum = crc32(&bytes[..length - 4]);
    bytes[length - 4..length].copy_from_slice(&checksum.to_le_bytes());
    let newer = trace.folder().join("newer.stall");
    std::fs::write(&newer, bytes).unwrap();
    let text = assert_fails(&stallscope(&["report", newer.to_str().unwrap()]), 1);
    assert!(text.contains(&format!("{major}.")), "the version is named: {text}");
}

/// CRC-32 as in zip and PNG.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[test]
fn a_truncated_or_damaged_trace_is_read_as_far_as_it_goes() {
    let (peer, trace) = real_trace();
    let bytes = std::fs::read(&trace.path).unwrap();
    let whole = trace.report();
    assert_eq!((&whole["trace"]["complete"], &whole["trace"]["bytes_unread"]), (&json!(true), &json!(0)));
    // A send can take longer than the least stall on a busy machine.
    let received = [("peer", json!(peer.name())), ("direction", json!("recv"))];
    let waits = |report: &Value| sum(&rows(report, "sockets", &received), "waits");
    assert_eq!(waits(&whole), 5);

    let cut = trace.folder().join("cut.stall");
    std::fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
    let report_of_cut = report(&cut);
    assert_eq!(report_of_cut["trace"]["complete"], false);
    assert_ne!(report_of_cut["trace"]["damage"], json!([]));

    let mut flipped_bytes = bytes.clone();
    flipped_bytes[bytes.len() / 2] ^= 0x10;
    let flipped = trace.folder().join("flipped.stall");
    std::fs::write(&flipped, flipped_bytes).unwrap();
    let report_of_flipped = report(&flipped);
    assert_ne!(report_of_flipped["trace"]["damage"], json!([]));
    assert!(waits(&report_of_flipped) <= 5);
}

#[test]
fn wrong_usage_exits_with_two() {
    for arguments in [
        vec!["record"],
        vec!["record", "--pid", "not-a-number"],
        vec!["record", "--pid", "1", "-d", "soon"],
        vec!["record", "--pid", "1", "--min-stall", "-5us"],
        vec!["record", "--pid", "1", "--probes", "astrology"],
        vec!["record", "--comm", "("],
        vec!["flame"],
        vec!["report", "x.stall", "--format", "clay-tablet"],
        vec!["flame", "x.stall", "--cause", "weather"],
        vec!["no-such-command"],
    ] {
        let output = stallscope(&arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.starts_with("error: "), "{arguments:?}: {text}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let (_, trace) = real_trace();
    let script = "\"$0\" report \"$1\" --format json | head -c 1 > /dev/null";
    let output =
        Command::new("sh").args(["-c", script]).arg(stallscope_binary()).arg(&trace.path).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn too_few_open_files_are_named() {
    require_root();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$0\" record -o /dev/null -- true"])
        .arg(stallscope_binary())
        .output()
        .unwrap();
    let text = assert_fails(&output, 125);
    assert!(text.contains("RLIMIT_NOFILE") && text.contains("64"), "{text}");
}

#[test]
fn a_window_longer_than_the_clock_is_as_good_as_endless() {
    require_root();
    let output =
        stallscope(&["record", "-d", "18446744073709551615s", "-o", "/dev/null", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_command_that_outlives_its_recording_is_named() {
    require_root();
    let command = ["sh", "-c", "exec sleep 60 >/dev/null 2>&1"];
    let output = stallscope(&[&["record", "-d", "300ms", "-o", "/dev/null", "--"][..], &command].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.strip_prefix("the command runs on as process "));
    let pid: i32 = line.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert!(text.contains("(sh)"), "{text}");
    assert_eq!(output.status.code(), Some(0), "{text}");
}

#[test]
fn a_trace_is_not_overwritten_by_its_own_report() {
    let (_peer, trace) = real_trace();
    let path = trace.path.to_str().unwrap();
    let before = std::fs::read(path).unwrap();
    for command in [&["report"][..], &["flame"], &["export", "--format", "json"]] {
        let output = stallscope(&[command, &[path, "-o", path]].concat());
        assert_fails(&output, 2);
        assert_eq!(std::fs::read(path).unwrap(), before, "{command:?}");
    }
}

#[test]
fn a_topology_that_cannot_be_used_is_named_with_its_line_by_every_command() {
    let (_peer, trace) = real_trace();
    let path = trace.path.to_str().unwrap();
    let file = trace.folder().join("racks.conf");
    let racks = file.to_str().unwrap();
    std::fs::write(&file, "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[1-999999999]\n").unwrap();
    let out = trace.folder().join("out.svg");
    let out = out.to_str().unwrap();
    for arguments in [
        vec!["report", path, "--topology", racks],
        vec!["flame", path, "--topology", racks, "-o", out],
        vec!["record", "--pid", "1", "--topology", racks, "-o", out],
    ] {
        let text = assert_fails(&stallscope(&arguments), 1);
        assert!(text.contains("racks.conf: line 2, column 1: ") && text.contains("more than"), "{text}");
        assert!(!Path::new(out).exists(), "{arguments:?}");
    }
    // The topology is never overwritten.
    let text = assert_fails(&stallscope(&["flame", path, "--topology", racks, "-o", racks]), 2);
    assert!(text.contains("racks.conf"), "{text}");
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("SwitchName"));
}
