//! Targets that must not notice that they are recorded, and targets that want to do harm. What they do themselves,
//! and which exit status tells that nothing disturbed it, is in `programs/hostile.c`.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use stallscope_tests::{Program, RecordedTrace, Recorder, Recording, require_root, stallscope};
use tempfile::TempDir;

/// A program out of `hostile.c`, under a name of its own.
struct Hostile {
    program: Program,
    _folder: TempDir,
}

impl Hostile {
    fn start(name: &str, what: &str) -> Hostile {
        require_root();
        let folder = tempfile::tempdir().expect("makes a temporary folder");
        let path = folder.path().join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/hostile.c");
        let compiled = Command::new("cc")
            .args(["-O1", "-rdynamic", "-pthread"])
            .arg(source)
            .arg("-o")
            .arg(&path)
            .output()
            .expect("cc is there");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let mut command = Command::new(&path);
        command.arg(what);
        for (name, value) in
            [("NCCL_DEBUG", "\u{1b}]0;x\u{7}<script>\n;\u{202e}\""), ("NCCL_\u{1b};\n<b>", "1")]
        {
            command.env(name, value.repeat(if name == "NCCL_DEBUG" { 500 } else { 1 }));
        }
        Hostile { program: Program::start_command(&mut command), _folder: folder }
    }

    fn recorder(&self) -> Recorder {
        Recorder::new().pid(self.program.pid())
    }
}

fn assert_good(trace: &RecordedTrace) {
    assert!(trace.status.success(), "{:?}: {}", trace.status, trace.stderr);
}

/// `VmRSS`, KiB, and the number of open descriptors.
fn size(recording: &Recording) -> (u64, usize) {
    let folder = format!("/proc/{}", recording.pid());
    let status = std::fs::read_to_string(format!("{folder}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    let kib = line.trim().trim_end_matches(" kB").parse().expect("a number");
    (kib, std::fs::read_dir(format!("{folder}/fd")).expect("it runs").count())
}

#[test]
fn a_program_that_checks_its_work_survives_recorders_that_come_and_go() {
    let mut target = Hostile::start("survive", "survive");
    for _ in 0..8 {
        assert_good(&target.recorder().duration("200ms").launch().wait());
    }
    assert_eq!(target.program.end(), 42);
}

#[test]
fn a_program_survives_recorders_that_are_killed_at_any_moment() {
    let mut target = Hostile::start("survive", "survive");
    // Before, while and after it attaches; while it records; while it detaches.
    for delay in (0..10).map(|step| Duration::from_millis(30 + 97 * step)) {
        let recording = target.recorder().duration("400ms").launch();
        std::thread::sleep(delay);
        let trace = recording.kill();
        if trace.path.metadata().is_ok_and(|file| file.len() > 0) {
            assert_eq!(trace.report()["schema"], "stallscope.report/1", "{delay:?}");
        }
    }
    let after = target.recorder().duration("300ms").launch().wait();
    assert_good(&after);
    assert_eq!(after.report()["trace"]["complete"], true);
    assert_eq!(target.program.end(), 42);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_that_dies_of_a_foreign_system_call_lives_and_its_lookups_are_seen() {
    let mut target = Hostile::start("confined", "confined");
    let recording = target.recorder().start();
    std::thread::sleep(Duration::from_secs(1));
    let trace = recording.finish();
    assert_good(&trace);
    assert_eq!(target.program.end(), 43);
    let calls = &trace.report()["coverage"]["syscalls_seen"];
    assert!(calls["openat"].is_null() && calls["poll"].as_u64() > Some(0), "{calls}");
}

/// Nothing in it steers a terminal or turns text around; as text.
fn assert_harmless(what: &str, bytes: Vec<u8>) -> String {
    let text = String::from_utf8(bytes).unwrap_or_else(|error| panic!("{what} is no UTF-8: {error}"));
    let bad = |c: &char| c.is_control() && *c != '\n' || ('\u{202a}'..='\u{202e}').contains(c);
    assert_eq!(text.chars().find(bad), None, "{what}");
    text
}

fn view(arguments: &[&str]) -> Vec<u8> {
    let Output { status, stdout, stderr } = stallscope(arguments);
    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    stdout
}

#[test]
fn names_that_attack_are_harmless_in_every_view() {
    let mut target = Hostile::start("e;\u{1b}[31m\n<&\"'\u{202e}", "evil-names");
    let recording = target.recorder().start();
    target.program.go();
    // What it asked lasts 42 times 30 ms at least; any part of it will do.
    std::thread::sleep(Duration::from_millis(1500));
    let trace = recording.finish();
    assert_good(&trace);
    assert_eq!(target.program.end(), 44);
    assert_harmless("record", trace.stderr.clone().into_bytes());
    let path = trace.path.to_str().expect("is UTF-8");
    let own = assert_harmless("an empty page", view(&["report", path, "--format", "html"]));
    let scripts = own.matches("<script").count();
    assert!(scripts <= 2 && !own.contains("<script>\\") && !own.contains("<&"), "{scripts} scripts");
    assert_harmless("report", view(&["report", path]));
    let json = assert_harmless("JSON", view(&["report", path, "--format", "json"]));
    let report: Value = serde_json::from_str(&json).expect("is JSON");
    assert!(report["dns"].as_array().is_some_and(|rows| rows.len() > 3), "{:#}", report["dns"]);
    for view_name in ["stack", "cause", "peer"] {
        let svg = trace.folder().join("flame.svg");
        view(&["flame", path, "--view", view_name, "-o", svg.to_str().expect("is UTF-8")]);
        let svg = assert_harmless(view_name, std::fs::read(svg).expect("was written"));
        assert!(!svg.contains("<&") && svg.matches("<script").count() <= 1, "{view_name}");
    }
    for form in ["text", "json", "html", "svg"] {
        assert_harmless(form, view(&["diff", path, path, "--format", form]));
    }
    assert_harmless("folded", view(&["export", path, "--format", "folded"]));
    assert!(!trace.folded().is_empty());
}

#[test]
fn a_process_that_pretends_to_be_python_costs_a_bounded_effort() {
    let mut target = Hostile::start("python3.12", "fake-python");
    let recording = target.recorder().start();
    std::thread::sleep(Duration::from_secs(3));
    let (kib, _) = size(&recording);
    assert!(kib < 128 << 10, "{kib} KiB");
    let trace = recording.finish();
    assert_good(&trace);
    assert_eq!(target.program.end(), 45);
    assert_eq!(trace.report()["trace"]["complete"], true);
}

#[test]
fn a_restless_program_makes_the_recorder_no_larger() {
    let mut target = Hostile::start("restless", "restless");
    let recording = target.recorder().start();
    std::thread::sleep(Duration::from_secs(2));
    let (early_kib, early_files) = size(&recording);
    std::thread::sleep(Duration::from_secs(5));
    let (kib, files) = size(&recording);
    assert!(kib < early_kib + (8 << 10), "grew from {early_kib} to {kib} KiB");
    assert!(files < early_files + 16, "{early_files} descriptors became {files}");
    let trace = recording.finish();
    assert_good(&trace);
    assert_eq!(target.program.end(), 46);
    let report = trace.report();
    // Thousands of peers refuse it, and the report stays readable.
    let findings = report["findings"].as_array().expect("an array");
    assert!(findings.len() < 500, "{} findings", findings.len());
    let connects = report["connects"].as_array().expect("an array").len();
    if connects > 1000 {
        let more = findings.iter().find(|finding| !finding["proof"]["left_out"].is_null());
        assert_eq!(more.expect("the others are counted")["id"], json!("tcp.connect_refused"));
    }
}
