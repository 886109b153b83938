//! Every wait has its own stack, however often it comes and whatever the frame pointer register holds.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use stallscope_tests::{Peer, Program, record_run, require_root, stallscope};

const CALLERS: [&str; 3] = ["first_caller", "second_caller", "third_caller"];
const ROUNDS: usize = 700;
const THREADS: usize = 2;

fn compiled(folder: &Path) -> std::path::PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/callers.c");
    let program = folder.join("callers");
    let flags = ["-O2", "-fomit-frame-pointer", "-fno-ipa-icf", "-pthread"];
    let status =
        Command::new("cc").args(flags).arg(source).arg("-o").arg(&program).status().expect("starts cc");
    assert!(status.success(), "cc: {status}");
    program
}

/// The caller that a stack leads through.
fn caller(stack: &Value) -> Option<usize> {
    let frames = stack["frames"].as_array().expect("frames are an array");
    let is_there = |name: &&str| frames.iter().any(|frame| frame["function"] == **name);
    let found: Vec<usize> = (0..CALLERS.len()).filter(|index| is_there(&CALLERS[*index])).collect();
    match found.as_slice() {
        [one] => Some(*one),
        [] => None,
        _ => panic!("several callers: {stack}"),
    }
}

fn records<'a>(export: &'a Value, kind: &str) -> Vec<&'a Value> {
    let all = export["records"].as_array().expect("records are an array");
    all.iter().filter(|record| record["kind"] == kind).collect()
}

/// What the program says of one of its waits.
struct Call {
    tid: u64,
    caller: usize,
    begin_ns: u64,
    end_ns: u64,
}

fn calls(log: &Path) -> Vec<Call> {
    let text = std::fs::read_to_string(log).expect("the program wrote its log");
    let call = |line: &str| {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [tid, caller, begin_ns, end_ns] = numbers[..] else { panic!("{line}") };
        Call { tid, caller: usize::try_from(caller).expect("small"), begin_ns, end_ns }
    };
    text.lines().map(call).collect()
}

#[test]
fn callers_of_a_function_that_waits_are_told_apart_and_their_stacks_copied_seldom() {
    require_root();
    let folder = tempfile::tempdir().expect("makes a temporary folder");
    let log = folder.path().join("calls");
    let peer = Peer::late(Duration::from_micros(400));
    let mut command = Command::new(compiled(folder.path()));
    command.args([peer.address().port().to_string(), ROUNDS.to_string()]).arg(&log);
    let mut program = Program::start_command(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let (_, trace) = record_run(&mut program);

    let output = stallscope(&["export", &trace.path.to_string_lossy(), "--format", "json"]);
    let export: Value = serde_json::from_slice(&output.stdout).expect("the export is one JSON document");
    let stacks: HashMap<u64, &Value> = records(&export, "stack")
        .into_iter()
        .filter(|stack| stack["space"] == "user")
        .map(|stack| (stack["id"].as_u64().expect("an id"), stack))
        .collect();
    let calls = calls(&log);
    assert_eq!(calls.len(), THREADS * ROUNDS * CALLERS.len());
    let number = |wait: &Value, field: &str| wait[field].as_u64().unwrap_or_else(|| panic!("{wait}"));
    let mut waited = [0; CALLERS.len()];
    let mut waits: Vec<&Value> = records(&export, "wait");
    waits.retain(|wait| wait["call"] == "recvfrom");
    let mut without_stack = 0;
    for wait in &waits {
        let (start, end) = (number(wait, "start_ns"), number(wait, "end_ns"));
        // The one call of that thread that the wait is in.
        let inside =
            |call: &&Call| call.tid == number(wait, "tid") && call.begin_ns <= start && end <= call.end_ns;
        let call = calls.iter().find(inside).unwrap_or_else(|| panic!("outside of all calls: {wait}"));
        if wait["user_stack"] == 0 {
            without_stack += 1;
            continue;
        }
        let stack = stacks.get(&number(wait, "user_stack")).unwrap_or_else(|| panic!("no stack: {wait}"));
        assert_eq!(caller(stack), Some(call.caller), "{wait}: {stack}");
        // What it slept in the call: the rest is work, or waiting for a processor.
        assert_eq!(wait["flags"]["timed"], true, "{wait}");
        waited[call.caller] += number(wait, "off_cpu_ns").min(end - start);
    }
    // A call that the machine kept from starting until the reply was there, or nearly, is no wait.
    assert!(waits.len() <= calls.len() && waits.len() > calls.len() / 2, "{} waits", waits.len());
    // On a busy machine a stack can come again before the recorder has learned to know it; copies have a limit then.
    let losses = trace.report()["coverage"]["losses"].clone();
    let limited = ["stack_copies_limited", "stack_ring_full"].map(|loss| losses[loss].as_u64().unwrap_or(0));
    assert!(without_stack <= limited.iter().sum(), "{without_stack} without a stack: {losses}");
    assert!(without_stack < waits.len() as u64 / 2, "{without_stack} without a stack: {losses}");
    assert!(stacks.len() < 40, "{} user stacks", stacks.len());
    let used: HashSet<u64> =
        waits.iter().map(|wait| number(wait, "user_stack")).filter(|id| *id != 0).collect();
    let different: HashSet<String> = used.iter().map(|id| stacks[id]["frames"].to_string()).collect();
    assert_eq!(different.len(), used.len(), "stacks are in the trace twice");

    let folded = trace.folded();
    for (name, waited) in CALLERS.into_iter().zip(waited) {
        // The caller also sends, which can take its time.
        let is_receive =
            |frames: &[String]| frames.last().is_some_and(|leaf| leaf.starts_with("[sock.recv]"));
        let leads_through = |frames: &[String]| frames.iter().any(|frame| frame == name);
        let through = folded.iter().filter(|(frames, _)| is_receive(frames) && leads_through(frames));
        let weight: u64 = through.map(|(_, ns)| ns).sum();
        assert_eq!(weight, waited, "{name}");
    }
}
