//! Every wait has its own stack, however often it comes and whatever the frame pointer register holds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use stallscope_tests::{Peer, Program, assert_close_to, record_run, require_root, stallscope};

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

#[test]
fn callers_of_a_function_that_waits_are_told_apart_and_their_stacks_copied_seldom() {
    require_root();
    let folder = tempfile::tempdir().expect("makes a temporary folder");
    let peer = Peer::late(Duration::from_micros(400));
    let mut command = Command::new(compiled(folder.path()));
    command.args([peer.address().port().to_string(), ROUNDS.to_string()]);
    let mut program = Program::start_command(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let (values, trace) = record_run(&mut program);

    let output = stallscope(&["export", &trace.path.to_string_lossy(), "--format", "json"]);
    let export: Value = serde_json::from_slice(&output.stdout).expect("the export is one JSON document");
    let stacks: HashMap<u64, &Value> = records(&export, "stack")
        .into_iter()
        .filter(|stack| stack["space"] == "user")
        .map(|stack| (stack["id"].as_u64().expect("an id"), stack))
        .collect();
    let mut threads: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for wait in records(&export, "wait") {
        if wait["call"] == "recvfrom" {
            threads.entry(wait["tid"].as_u64().expect("an id")).or_default().push(wait);
        }
    }
    assert_eq!(threads.len(), THREADS);
    // On a busy machine a reply can be there before the program asks for it: such a wait is counted only.
    let counts = records(&export, "call_count").into_iter().rev();
    let last = counts.into_iter().find(|count| count["call"] == "recvfrom").expect("calls are counted");
    let below = last["below"].as_u64().expect("a count") as usize;
    let recorded: usize = threads.values().map(Vec::len).sum();
    assert_eq!(recorded + below, THREADS * ROUNDS * CALLERS.len());
    for waits in threads.values_mut() {
        waits.sort_by_key(|wait| wait["start_ns"].as_u64());
        let mut passed = 0;
        for (index, wait) in waits.iter().enumerate() {
            let stack = wait["user_stack"].as_u64().expect("an id");
            let stack = stacks.get(&stack).unwrap_or_else(|| panic!("wait {index} has no stack: {wait}"));
            let caller = caller(stack);
            while caller != Some((index + passed) % CALLERS.len()) {
                passed += 1;
                assert!(passed <= below, "wait {index}: {stack}");
            }
        }
    }
    assert!(stacks.len() < 40, "{} user stacks", stacks.len());
    // Those of the receives: another wait can have two places in one function, which read the same.
    let used: HashSet<u64> =
        threads.values().flatten().filter_map(|wait| wait["user_stack"].as_u64()).collect();
    let different: HashSet<String> = used.iter().map(|id| stacks[id]["frames"].to_string()).collect();
    assert_eq!(different.len(), used.len(), "stacks are in the trace twice");

    // What the program measured itself is the wait and a little more.
    for (name, key) in CALLERS.into_iter().zip(["first", "second", "third"]) {
        let folded = trace.folded();
        let weight = folded
            .iter()
            .filter(|(frames, _)| frames.iter().any(|frame| frame == name))
            .map(|(_, ns)| ns)
            .sum();
        let measured: u64 = values.get(key);
        assert_close_to(name, weight, measured, measured / 4);
    }
}
