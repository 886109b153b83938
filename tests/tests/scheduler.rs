//! What the scheduler's probes add: locks and their holders, waits that end with the wake-up, and threads whose time
//! adds up.

use std::time::Duration;

use perf_event::events::Software;
use serde_json::{Value, json};
use stallscope_tests::{
    Measured, Peer, Program, Recorder, assert_between, assert_close, record_run, require_root, rows, sum,
};

/// Checks that the parts of every thread are its wall time, within one part in a hundred.
#[track_caller]
fn assert_adds_up(report: &Value) {
    let threads = rows(report, "threads", &[]);
    assert!(!threads.is_empty());
    for thread in threads {
        let parts: u64 = ["running_ns", "runnable_ns", "stalled_ns", "idle_ns", "other_ns"]
            .iter()
            .map(|part| sum(&[thread], part))
            .sum();
        let wall = sum(&[thread], "wall_ns");
        assert!(parts.abs_diff(wall) <= wall / 100, "{parts} of {wall} ns: {thread}");
    }
}

#[test]
fn a_wait_for_a_mutex_is_a_lock_held_by_another_thread() {
    require_root();
    let mut program = Program::start(&["mutex", "30", "10"]);
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    assert_adds_up(&report);
    let locks = rows(&report, "causes", &[("cause", json!("lock"))]);
    assert_eq!(sum(&locks, "count"), 10, "{:#}", report["causes"]);
    let waited = Measured { ns: values.get("waited_ns"), busy_ns: values.get("other_ns") };
    assert_close("wait for the lock", sum(&locks, "stalled_ns"), waited);
    let leaves: Vec<String> =
        trace.folded().into_iter().filter_map(|(stack, _)| stack.last().cloned()).collect();
    assert!(leaves.iter().any(|leaf| leaf.contains("held by holder")), "{leaves:?}");
}

#[test]
fn a_thread_without_a_processor_is_runnable_as_long_as_the_kernel_says() {
    require_root();
    // Longer than the test: it ends when it is dropped.
    let mut hog = Program::start(&["work", "0", "60000"]);
    let mut program = Program::start(&["work", "0", "1000"]);
    hog.go();
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    assert_adds_up(&report);
    let thread = rows(&report, "threads", &[("tid", json!(program.pid()))]);
    let (running, runnable) = (values.get::<u64>("running_ns"), values.get::<u64>("runnable_ns"));
    assert!(runnable > 100_000_000, "the hog took nothing: {runnable} ns");
    // What the program did before and after its own two looks, and what the kernel had not yet added up, is no more than
    // the part of the recording outside of them.
    let slack = sum(&thread, "wall_ns").saturating_sub(running + runnable) + 20_000_000;
    let assert_near = |what: &str, recorded: u64, expected: u64| {
        assert_between(what, recorded, expected.saturating_sub(slack), expected + slack);
    };
    let recorded = sum(&thread, "running_ns") + sum(&thread, "runnable_ns");
    assert_near("on the run queue or running", recorded, running + runnable);
    assert_near("on the run queue", sum(&thread, "runnable_ns"), runnable);
    assert_eq!(sum(&thread, "stalled_ns"), 0, "{:#}", report["causes"]);
}

#[test]
fn pool_and_sleeping_threads_are_idle_and_run_as_long_as_the_kernel_says() {
    require_root();
    for arguments in [["pool", "4"], ["sleep", "5"]] {
        let mut program = Program::start(&arguments);
        let recording = Recorder::new().pid(program.pid()).start();
        program.go();
        std::thread::sleep(Duration::from_millis(700));
        let report = recording.finish().report();
        assert_adds_up(&report);
        assert_eq!(report["totals"]["stalled_ns"], 0, "{:#}", report["causes"]);
        let pid = program.pid();
        for thread in rows(&report, "threads", &[("pid", json!(pid))]) {
            let path = format!("/proc/{pid}/task/{}/schedstat", thread["tid"]);
            let text = std::fs::read_to_string(path).expect("the thread lives");
            let ever: u64 =
                text.split_whitespace().next().and_then(|field| field.parse().ok()).expect("a number");
            assert!(sum(&[thread], "running_ns") <= ever, "{thread}, ever {ever} ns");
        }
    }
}

#[test]
fn a_call_that_only_copies_is_no_stall_however_long_it_takes() {
    require_root();
    let (bytes, times) = (4 << 20, 20);
    let mut program = Program::start(&["copy", &bytes.to_string(), &times.to_string()]);
    let (values, trace) = record_run(&mut program);
    assert!(values.get::<u64>("long") > 0, "no call was long enough to be taken for a wait");
    let report = trace.report();
    assert_adds_up(&report);
    let seen = &report["coverage"]["syscalls_seen"]["recvfrom"];
    assert_eq!((seen, &report["coverage"]["lost_events"]), (&json!(times), &json!(0)));
    let received = rows(&report, "sockets", &[("direction", json!("recv"))]);
    assert!(received.is_empty(), "{received:?}");
    assert!(rows(&report, "causes", &[("cause", json!("sock.recv"))]).is_empty(), "{:#}", report["causes"]);
    let thread = rows(&report, "threads", &[("tid", json!(program.pid()))]);
    let busy = sum(&thread, "running_ns") + sum(&thread, "runnable_ns");
    assert_between("the copies are work", busy, values.get("ns"), sum(&thread, "wall_ns"));
}

/// What a recording of `recv HOW` says of its thread.
struct Looked {
    stalled_ns: u64,
    running_ns: u64,
    wall_ns: u64,
    samples: u64,
    looking: u64,
    period_ns: u64,
    /// By a counter of the kernel that nothing of stallscope reads.
    task_clock_ns: u64,
    /// Of the time of both processors, what a hypervisor took: the counter has it as time of the thread, the kernel's
    /// account, which the report goes by, does not.
    stolen_ns: u64,
    waited_ns: u64,
    worked_ns: u64,
    busy_ns: u64,
}

/// Steal time of all processors since the machine's start; the kernel tells it in hundredths of a second.
fn stolen_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").expect("is there");
    let ticks = text.lines().next().and_then(|line| line.split_whitespace().nth(8)).expect("a column of it");
    ticks.parse::<u64>().expect("a number") * 10_000_000
}

/// Processor time that the program takes in any case, so that there are samples on the busiest machine too.
const LEAST_MS: &str = "1000";

fn look(how: &str) -> Looked {
    let peer = Peer::late(Duration::from_millis(40));
    let mut program = Program::start(&["recv", how, &peer.name(), "40", LEAST_MS]);
    let tid = program.pid();
    let mut clock = perf_event::Builder::new()
        .kind(Software::TASK_CLOCK)
        .observe_pid(tid.cast_signed())
        .build()
        .expect("the kernel counts");
    clock.enable().expect("counts");
    let stolen_before_ns = stolen_ns();
    let (values, trace) = record_run(&mut program);
    let task_clock_ns = clock.read().expect("has counted");
    // What is not yet a whole tick is not told.
    let stolen_ns = stolen_ns() - stolen_before_ns + 10_000_000;
    let report = trace.report();
    assert_adds_up(&report);
    let thread = rows(&report, "threads", &[("tid", json!(tid))]);
    let of = |field: &str| sum(&thread, field);
    Looked {
        stalled_ns: of("stalled_ns"),
        running_ns: of("running_ns"),
        wall_ns: of("wall_ns"),
        samples: of("on_cpu.samples"),
        looking: of("on_cpu.looking_samples"),
        period_ns: of("on_cpu.period_ns"),
        task_clock_ns,
        stolen_ns,
        waited_ns: values.ns(),
        worked_ns: values.get("worked_ns"),
        busy_ns: values.get("busy"),
    }
}

impl Looked {
    /// Samples that may be wrong by chance: four standard deviations, and one at each end.
    fn chance(&self) -> u64 {
        4 * self.samples.isqrt() + 2
    }

    #[track_caller]
    fn assert_agrees_with_the_kernel(&self) {
        // All its stalls are looks, so it was on a processor then.
        let on_cpu = self.running_ns + self.stalled_ns;
        let tolerance = self.wall_ns / 100 + 5_000_000;
        assert!(
            on_cpu <= self.task_clock_ns + tolerance
                && on_cpu + self.stolen_ns + tolerance >= self.task_clock_ns,
            "{on_cpu} ns, by the kernel's counter {} ns, stolen {} ns, tolerance {tolerance} ns",
            self.task_clock_ns,
            self.stolen_ns
        );
        let sampled = self.samples * self.period_ns;
        let chance = self.chance() * self.period_ns;
        assert!(
            sampled.abs_diff(self.task_clock_ns) <= chance,
            "{sampled} ns sampled, by the kernel's counter {} ns, chance {chance} ns",
            self.task_clock_ns
        );
    }
}

#[test]
fn a_thread_that_only_looks_is_stalled_while_it_runs() {
    require_root();
    let looked = look("spin");
    looked.assert_agrees_with_the_kernel();
    assert!(looked.looking + looked.chance() >= looked.samples, "{} of {}", looked.looking, looked.samples);
    assert!(looked.samples > 10, "{} samples", looked.samples);
    assert!(looked.stalled_ns > looked.task_clock_ns / 2, "{} ns stalled", looked.stalled_ns);
}

#[test]
fn a_thread_that_works_between_its_looks_is_running_and_not_stalled() {
    require_root();
    let looked = look("work");
    looked.assert_agrees_with_the_kernel();
    let Looked { stalled_ns, running_ns, waited_ns, worked_ns, busy_ns, samples, .. } = looked;
    assert!(
        worked_ns <= waited_ns && worked_ns <= busy_ns,
        "{worked_ns} of {waited_ns} ns, {busy_ns} ns busy"
    );
    // Of few samples only a part is certain; of sixty that all say the same 94 %.
    let certain = worked_ns / 100 * [50, 70][usize::from(samples > 60)];
    assert!(samples > 10, "{samples} samples");
    assert!(running_ns >= certain, "{running_ns} ns running, {worked_ns} ns worked, {samples} samples");
    assert!(
        stalled_ns <= waited_ns - certain,
        "{stalled_ns} ns stalled of {waited_ns}, {worked_ns} ns worked"
    );
}
