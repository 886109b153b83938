//! Threads that wait for the GPU in a live process with stand-ins for libcuda and libcupti: they wait for what ran there.

use serde_json::Value;
use stallscope_tests::cuda_job::{CudaJob, record_launches};
use stallscope_tests::{RecordedTrace, require_root};

/// The job's steps: a millisecond until the GPU begins, this long computing, then this long in NCCL's kernel.
const COMPUTE_NS: u64 = 4_000_000;
const NCCL_NS: u64 = 15_000_000;

fn record(way: &str, environment: &[(&str, &str)], arguments: &[&str]) -> RecordedTrace {
    require_root();
    let job = CudaJob::build();
    // The agent comes in by the others.
    let mut program = job.start(&["quiet", way, "futex", "poll", "sleep"], environment);
    let pid = program.pid();
    record_launches(&mut program, pid, arguments)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The one row of waits for the GPU.
fn waits(report: &Value) -> &Value {
    let rows = report["cuda_waits"].as_array().unwrap_or_else(|| panic!("no waits: {report}"));
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0]["function"], "cudaStreamSynchronize");
    &rows[0]
}

/// Checks what holds however busy the machine is: the thread came late to its wait at most, when computing had begun, and the
/// recording may end before the last turn's collective.
fn check(report: &Value) {
    let row = waits(report);
    let part = |name: &str| number(&row[name]);
    let parts = ["compute_ns", "nccl_ns", "copy_ns", "queue_ns", "unknown_ns"].map(part);
    assert_eq!(parts.iter().sum::<u64>(), part("waited_ns"));
    let (compute, nccl) = (part("compute_ns"), part("nccl_ns"));
    assert!(nccl > 0 && (nccl + NCCL_NS) * COMPUTE_NS >= compute * NCCL_NS, "{row}");
    assert!(nccl <= part("count") * (NCCL_NS + COMPUTE_NS), "{row}");
    assert_eq!(part("copy_ns"), 0);
    let cause = |name: &str| {
        let rows = report["causes"].as_array().expect("a list").iter();
        let of_threads = rows.filter(|row| row["domain"] == "thread" && row["cause"] == name);
        of_threads.map(|row| number(&row["stalled_ns"])).sum::<u64>()
    };
    assert_eq!((cause("nccl.kernel"), cause("gpu.queue")), (nccl, part("queue_ns")));
    let thread =
        report["threads"].as_array().expect("a list").iter().find(|thread| thread["tid"] == row["tid"]);
    let thread = thread.expect("the thread is there");
    assert_eq!(number(&thread["stalled_ns"]), nccl + part("queue_ns"));
    for thread in report["threads"].as_array().expect("a list") {
        let parts = ["running_ns", "runnable_ns", "stalled_ns", "idle_ns", "other_ns"];
        let sum: u64 = parts.iter().map(|part| number(&thread[part])).sum();
        assert_eq!(sum, number(&thread["wall_ns"]), "{thread}");
    }
    let causes = report["causes"].as_array().expect("a list").iter();
    let of_threads = causes.filter(|row| row["domain"] == "thread" && row["cause"] != "sched.runq");
    let stalled: u64 = of_threads.map(|row| number(&row["stalled_ns"])).sum();
    assert_eq!(stalled, number(&report["totals"]["stalled_ns"]));
}

/// Checks that a stack has these as its innermost frames.
fn ends_in(trace: &RecordedTrace, frames: &[&str]) {
    let folded = trace.folded();
    let frames: Vec<String> = frames.iter().map(|frame| (*frame).to_owned()).collect();
    assert!(folded.iter().any(|(stack, _)| stack.ends_with(&frames)), "{folded:?}");
}

#[test]
fn a_thread_that_spins_in_a_synchronisation_waits_for_what_ran_on_the_gpu() {
    let trace = record("spinning", &[], &[]);
    let report = trace.report();
    check(&report);
    let row = waits(&report);
    assert_eq!(row["spin_ns"], row["waited_ns"], "it never sleeps");
    ends_in(&trace, &["[no stack]", "cudaStreamSynchronize", "[nccl.kernel] AllReduce Sum f32 RING_LL"]);
}

#[test]
fn a_thread_that_sleeps_in_a_synchronisation_waits_for_it_below_its_own_stack() {
    let trace = record("blocking", &[], &[]);
    let report = trace.report();
    check(&report);
    let row = waits(&report);
    // Between two sleeps, and at both ends, it is awake in the call.
    assert!(number(&row["spin_ns"]) < number(&row["waited_ns"]), "{row}");
    ends_in(&trace, &["cudaStreamSynchronize", "poll", "[nccl.kernel] AllReduce Sum f32 RING_LL"]);
}

#[test]
fn where_calls_are_not_recorded_a_sleep_is_known_by_its_stack() {
    let trace = record("blocking", &[("FAKE_CUPTI", "nosyncs")], &[]);
    let report = trace.report();
    check(&report);
    assert_eq!(waits(&report)["spin_ns"], 0);
}

#[test]
fn without_the_agent_a_synchronisation_is_what_it_was() {
    require_root();
    let job = CudaJob::build();
    let program = job.start(&["quiet", "blocking", "futex"], &[]);
    let recorder = stallscope_tests::Recorder::new().pid(program.pid()).duration("1s").args(&["--no-inject"]);
    let report = recorder.start().wait().report();
    assert_eq!(report["cuda_waits"], Value::Null);
    let causes = report["causes"].as_array().expect("a list");
    assert!(
        causes.iter().all(|row| row["cause"] != "nccl.kernel" && row["cause"] != "gpu.queue"),
        "{causes:?}"
    );
}
