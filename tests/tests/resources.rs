//! Too little memory, too few open files, a file that may not grow, a signal at once: said in a line with help, and what was
//! recorded is there.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use stallscope_tests::recorder::stallscope_binary;
use stallscope_tests::{Peer, Program, report, require_root};

/// `record` of these arguments into `output`.
fn recorder(output: &Path, arguments: &[&str]) -> Command {
    require_root();
    let mut command = Command::new(stallscope_binary());
    command.arg("record").arg("-o").arg(output).args(arguments).stdin(Stdio::null());
    command
}

fn limit(command: &mut Command, resource: Resource, most: u64) -> Output {
    // SAFETY: one system call, which allocates nothing.
    unsafe {
        command.pre_exec(move || Ok(setrlimit(resource, most, most)?));
    }
    command.output().unwrap()
}

#[track_caller]
fn assert_said(output: &Output, code: i32, what: &str) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{:?}: {text}", output.status);
    let error = text.lines().find(|line| line.starts_with("error: "));
    assert!(error.is_some_and(|line| line.contains(what)), "no error with {what:?}:\n{text}");
    assert!(text.lines().any(|line| line.starts_with("help: ")), "no help:\n{text}");
    assert!(!text.contains("panicked") && !text.contains("backtrace"), "{text}");
    text
}

#[test]
fn a_trace_that_may_not_grow_ends_the_recording_and_is_readable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.stall");
    let peer = Peer::late(Duration::from_micros(200));
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "20000"]);
    program.go();
    let mut command = recorder(&path, &["-d", "1m", "--pid", &program.pid().to_string()]);
    let output = limit(&mut command, Resource::RLIMIT_FSIZE, 8192);
    let text = assert_said(&output, 1, "File too large");
    assert!(text.contains("ulimit -f"), "{text}");
    let report = report(&path);
    assert_eq!(report["trace"]["complete"], false);
}

#[test]
fn a_command_gets_the_signals_that_the_recorder_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.stall");
    let words = ["grep", "^Sig[BI]", "/proc/self/status"];
    let alone = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let output = recorder(&path, &["--", words[0], words[1], words[2]]).output().unwrap();
    assert_eq!(signals(&output), signals(&alone));
}

/// The signals that a `grep` of its own status saw blocked and ignored, but for those that the C library keeps to itself.
#[track_caller]
fn signals(output: &Output) -> [u64; 2] {
    let text = String::from_utf8_lossy(&output.stdout);
    ["SigBlk:\t", "SigIgn:\t"].map(|name| {
        let mask = text.lines().find_map(|line| line.strip_prefix(name));
        let mask = mask.unwrap_or_else(|| panic!("no {name:?}: {output:?}"));
        u64::from_str_radix(mask, 16).expect("a mask") & 0x7fff_ffff
    })
}

#[test]
fn without_memory_there_is_an_error_and_no_abort() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&["hold"]);
    let pid = program.pid().to_string();
    // From hardly enough for the program itself to enough for all of it.
    let mut failed = 0;
    for megabytes in [24, 28, 32, 40, 50, 60, 70] {
        let path = folder.path().join(format!("{megabytes}.stall"));
        let mut command = recorder(&path, &["-d", "200ms", "--pid", &pid]);
        let output = limit(&mut command, Resource::RLIMIT_AS, megabytes << 20);
        if output.status.code() == Some(127) {
            // The dynamic loader's own error: the program does not fit.
            continue;
        }
        if !output.status.success() {
            assert_said(&output, 1, "");
            failed += 1;
        }
    }
    assert!(failed > 0, "none of the limits was too small");
}

#[test]
fn too_few_open_files_are_an_error_with_help() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&["hold"]);
    let pid = program.pid().to_string();
    for most in [6, 8, 20, 100] {
        let path = folder.path().join("run.stall");
        let output =
            limit(&mut recorder(&path, &["-d", "200ms", "--pid", &pid]), Resource::RLIMIT_NOFILE, most);
        assert_said(&output, 1, "files may be open at once");
        let output = limit(&mut recorder(&path, &["--", "true"]), Resource::RLIMIT_NOFILE, most);
        assert_said(&output, 125, "files may be open at once");
    }
}

#[test]
fn a_folder_that_takes_no_files_is_there_all_the_same() {
    let program = Program::start(&["hold"]);
    let pid = program.pid().to_string();
    let output = recorder(Path::new("/proc/run.stall"), &["-d", "200ms", "--pid", &pid]).output().unwrap();
    let text = assert_said(&output, 1, "/proc/run.stall");
    assert!(!text.contains("does not exist:") && text.contains("another one with -o"), "{text}");
}

/// Waits until the program's own first line has run: it holds SIGTERM back.
fn wait_begun(child: &Child) {
    let give_up = Instant::now() + Duration::from_mins(1);
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t"));
        let blocked = blocked.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
        if blocked >> (Signal::SIGTERM as i32 - 1) & 1 != 0 {
            return;
        }
        assert!(Instant::now() < give_up, "it never holds signals back: {status}");
    }
}

#[test]
fn a_signal_at_once_leaves_a_trace_too() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(&["hold"]);
    // The recorder waits for its topology long before it listens to signals.
    let topology = folder.path().join("racks.txt");
    nix::unistd::mkfifo(&topology, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let path = folder.path().join(format!("{signal}.stall"));
        let pid = program.pid().to_string();
        let mut command = recorder(&path, &["-d", "1m", "--pid", &pid, "--topology"]);
        command.arg(&topology).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        wait_begun(&child);
        kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        std::fs::write(&topology, "somewhere A\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.status.signal()), (Some(0), None), "{signal}: {text}");
        assert_eq!(report(&path)["trace"]["complete"], true, "{signal}: {text}");
    }
}
