//! Python functions in the place of the interpreter's frames, for every interpreter that this machine has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use stallscope_tests::{Peer, Program, RecordedTrace, Recorder, Values, record_run, require_root};

/// Long compared to the time between two looks.
const LATE: Duration = Duration::from_millis(400);
/// Where a busy machine leaves no time for a look in that.
const LATER: Duration = Duration::from_secs(3);

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/python")
}

/// The system's interpreter, and those of pyenv from 3.8 on, with their minor versions.
fn interpreters() -> BTreeMap<PathBuf, u32> {
    let mut paths = vec![PathBuf::from("/usr/bin/python3")];
    if let Some(home) = std::env::var_os("HOME")
        && let Ok(versions) = std::fs::read_dir(Path::new(&home).join(".pyenv/versions"))
    {
        paths.extend(versions.flatten().map(|version| version.path().join("bin/python3")));
    }
    let version = |path: &PathBuf| -> Option<u32> {
        let print = "import sys; print(sys.version_info[1])";
        let output = Command::new(path).args(["-c", print]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    let known = paths.into_iter().filter_map(|path| version(&path).map(|minor| (path, minor)));
    let found: BTreeMap<PathBuf, u32> = known.filter(|(_, minor)| *minor >= 8).collect();
    assert!(!found.is_empty(), "no python3");
    found
}

fn start(python: &Path, program: &str, arguments: &[String]) -> Program {
    let mut command = Command::new(python);
    command.arg(programs().join(program)).args(arguments);
    Program::start_command(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
}

fn is_python(frame: &str) -> bool {
    frame.ends_with(')') && frame.contains(".py:")
}

/// Python frames, and marks for native ones between them: `f > g > native > h`.
fn shape(frames: &[String]) -> String {
    let mut shape: Vec<&str> = Vec::new();
    for frame in frames {
        let name = if is_python(frame) { frame.as_str() } else { "native" };
        if name != "native" || shape.last() != Some(&"native") {
            shape.push(name);
        }
    }
    shape.join(" > ")
}

/// Weight of the stalls on the peer by the shape of their stacks, without process and thread.
fn shapes(trace: &RecordedTrace) -> BTreeMap<String, u64> {
    let mut shapes = BTreeMap::new();
    for (frames, ns) in trace.folded() {
        if frames.last().is_some_and(|leaf| leaf.starts_with("[sock.recv]")) {
            *shapes.entry(shape(&frames[2..])).or_default() += ns;
        }
    }
    shapes
}

/// What the stacks of `waits.py` read, by the name under which it tells its time.
fn wanted(minor: u32) -> BTreeMap<&'static str, String> {
    let receive = "receive (waits.py:11) > native";
    let main =
        |line: u32| format!("native > <module> (waits.py:83) > main (waits.py:{line}) > run (waits.py:59)");
    let qualified = |scope: &str, name: &str| {
        if minor >= 11 { format!("{scope}{name}") } else { name.to_owned() }
    };
    let (init, key, called) = (
        qualified("Client.", "__init__"),
        qualified("compare.<locals>.", "key"),
        qualified("call_back.<locals>.", "called"),
    );
    // Sorting and the library for foreign functions have frames of their own.
    BTreeMap::from([
        ("plain", format!("{} > {receive}", main(72))),
        (
            "deep",
            format!(
                "{} > recurse (waits.py:17) > recurse (waits.py:17) > recurse (waits.py:17) > \
                 recurse (waits.py:16) > {receive}",
                main(73)
            ),
        ),
        ("generator", format!("{} > pull (waits.py:26) > produce (waits.py:22) > {receive}", main(74))),
        ("construct", format!("{} > construct (waits.py:37) > {init} (waits.py:32) > {receive}", main(75))),
        (
            "sorted",
            format!("{} > compare (waits.py:44) > native > {key} (waits.py:42) > {receive}", main(76)),
        ),
        (
            "callback",
            format!("{} > call_back (waits.py:54) > native > {called} (waits.py:51) > {receive}", main(77)),
        ),
    ])
}

/// Without symbols it cannot be told what the interpreter itself does between two functions.
fn without_own_frames(shape: &str) -> String {
    shape.replace("(waits.py:44) > native > ", "(waits.py:44) > ")
}

/// Records `waits.py` until there was a look in each of its waits.
fn record_waits(python: &Path) -> (Values, RecordedTrace) {
    let record = |late| {
        let peer = Peer::late(late);
        let mut program = start(python, "waits.py", &[peer.address().port().to_string(), "1".to_owned()]);
        record_run(&mut program)
    };
    let (values, trace) = record(LATE);
    if shapes(&trace).keys().all(|shape| shape.contains(".py:")) { (values, trace) } else { record(LATER) }
}

#[test]
fn waits_show_the_functions_that_led_to_them() {
    require_root();
    for (python, minor) in interpreters() {
        let (values, trace) = record_waits(&python);
        let found: BTreeMap<String, u64> =
            shapes(&trace).into_iter().map(|(shape, ns)| (without_own_frames(&shape), ns)).collect();
        let mut left = found.clone();
        for (name, shape) in wanted(minor) {
            let shape = without_own_frames(&shape);
            let ns = left.remove(&shape).unwrap_or_else(|| panic!("3.{minor} {name}: {shape} of {found:#?}"));
            assert!(ns <= values.get(name), "3.{minor} {name}: {ns} ns of {}", values.get::<u64>(name));
        }
        // The thread's functions are those of its start, of `threading.py`.
        let (threads, others): (Vec<_>, Vec<_>) =
            left.keys().partition(|shape| shape.contains("_bootstrap_inner (threading.py:"));
        assert!(others.is_empty() && threads.len() == 1, "3.{minor}: {found:#?}");
        assert!(threads[0].ends_with("> run (waits.py:59) > receive (waits.py:11) > native"), "{threads:?}");

        let report = trace.report();
        let python = |which: &str, figure: &str| {
            let value = &report["coverage"]["python"][which][figure];
            value.as_u64().unwrap_or_else(|| panic!("3.{minor}: {which} {figure}: {value}"))
        };
        let seen: u64 = found.values().sum();
        assert_eq!(python("unmatched", "count"), 0);
        // Waits that were too short for a look are told as such.
        assert!(python("with", "count") >= 7 && python("with", "stalled_ns") >= seen);
        assert!(
            python("without", "stalled_ns") <= report["totals"]["stalled_ns"].as_u64().unwrap_or(0) - seen
        );
    }
}

#[test]
fn a_wait_that_began_earlier_and_one_in_flight_have_their_functions() {
    require_root();
    for (python, minor) in interpreters() {
        let peer = Peer::silent();
        let mut program = start(&python, "waits.py", &[peer.address().port().to_string(), "1".to_owned()]);
        program.go();
        await_receive(program.pid());
        let recording = Recorder::new().pid(program.pid()).duration("300ms").start();
        let trace = recording.wait();
        let shapes = shapes(&trace);
        assert!(shapes.contains_key(&wanted(minor)["plain"]), "3.{minor}: {shapes:#?}");
        assert_eq!(shapes.len(), 2, "3.{minor}: {shapes:#?}");
    }
}

/// Waits until both threads of the program are in `recvfrom`.
fn await_receive(pid: u32) {
    let receives = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
        let call = |path: PathBuf| std::fs::read_to_string(path.join("syscall")).unwrap_or_default();
        let number = format!("{} ", libc::SYS_recvfrom);
        tasks.filter(|task| call(task.path()).starts_with(&number)).count()
    };
    while receives() < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_interpreter_s_lock_is_a_lock_and_not_idle() {
    require_root();
    for (python, minor) in interpreters() {
        let mut program = start(&python, "gil.py", &["20".to_owned()]);
        let (values, trace) = record_run(&mut program);
        // Where the first thread's stacks begin.
        let is_first = |frames: &[String]| frames.iter().any(|frame| frame == "_start");
        let locks: Vec<(Vec<String>, u64)> = trace
            .folded()
            .into_iter()
            .filter(|(frames, _)| frames.last().is_some_and(|leaf| leaf == "[lock] GIL"))
            .filter(|(frames, _)| is_first(frames))
            .collect();
        let sum: u64 = locks.iter().map(|(_, ns)| ns).sum();
        let (waited, whole): (u64, u64) = (values.get("waited"), values.get("whole"));
        // The sleeps are short, so most of what the program measured is waiting for the lock.
        assert!(sum <= whole && sum > waited / 2, "3.{minor}: {sum} of {waited} ns: {locks:#?}");
        let slept =
            |(frames, _): &&(Vec<String>, u64)| frames.iter().any(|frame| frame == "main (gil.py:26)");
        assert!(locks.iter().any(|lock| slept(&lock)), "3.{minor}: {locks:#?}");
    }
}

fn hostile(folder: &Path) -> PathBuf {
    let program = folder.join("python-hostile");
    let source = programs().join("hostile.c");
    let mut compiler = Command::new("cc");
    let status = compiler.args(["-O1", "-rdynamic"]).arg(source).arg("-o").arg(&program).status();
    assert!(status.expect("starts cc").success());
    program
}

#[test]
fn a_process_that_only_looks_like_an_interpreter_does_no_harm() {
    require_root();
    let folder = tempfile::tempdir().expect("makes a temporary folder");
    let program = hostile(folder.path());
    for (kind, function) in [
        ("sane", Some("evil (evil)")),
        ("garbage", None),
        ("circle", None),
        ("huge", None),
        ("escape", Some(":\u{fffd}[\u{fffd} (")),
    ] {
        let peer = Peer::late(LATE);
        let mut command = Command::new(&program);
        command.args([peer.address().port().to_string(), kind.to_owned()]);
        let mut program = Program::start_command(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (_, trace) = record_run(&mut program);
        let folded = trace.folded();
        let received: Vec<&Vec<String>> = folded
            .iter()
            .map(|(frames, _)| frames)
            .filter(|frames| frames.last().is_some_and(|leaf| leaf.starts_with("[sock.recv]")))
            .collect();
        assert!(!received.is_empty(), "{kind}: {folded:#?}");
        for frames in &received {
            let clean = |frame: &String| !frame.chars().any(|c| c.is_control() || c == ';');
            assert!(frames.iter().all(clean), "{kind}: {frames:?}");
        }
        // Its frames have no place among the native ones, as no interpreter ran them.
        let reads =
            |name: &str| received.iter().any(|frames| frames.iter().any(|frame| frame.contains(name)));
        assert_eq!(reads("not matched with native frames"), function.is_some(), "{kind}: {received:#?}");
        assert!(function.is_none_or(reads), "{kind}: {received:#?}");
    }
}

#[test]
fn coverage_says_that_python_is_read_only_where_there_is_any() {
    require_root();
    let python = |report: &Value| -> Option<Value> {
        let probes = report["coverage"]["probes"].as_array()?;
        probes.iter().find(|row| row["family"] == "python").map(|row| row["state"].clone())
    };
    let (_, trace) = record_waits(Path::new("/usr/bin/python3"));
    assert_eq!(python(&trace.report()), Some("on".into()));
    let peer = Peer::late(LATE);
    let mut other = Program::start(&["recv", "blocking", &peer.name(), "1"]);
    let (_, trace) = record_run(&mut other);
    let report = trace.report();
    assert_eq!((python(&report), report["coverage"].get("python")), (None, None));
}
