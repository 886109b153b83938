//! The agent in a live process with stand-ins for libcuda and libcupti: what it tells, and that its host feels nothing.

use std::time::{Duration, Instant};

use stallscope::random::Random;
use stallscope_tests::cuda_job::{
    ALL_WAITS, CudaJob, PATIENCE, gpu_coverage as coverage, has_agent, record_launches, wait_until,
};
use stallscope_tests::{Program, RecordedTrace, Recorder, require_root};

/// Kernels that the job launches: name for people, nanoseconds, nanoseconds of queueing.
const NCCL: &str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
const NCCL_NS: u64 = 300_000;
const NCCL_QUEUE_NS: u64 = 50_000;
const COPY_NS: u64 = 100_000;

fn record(program: &mut Program, arguments: &[&str]) -> RecordedTrace {
    let pid = program.pid();
    record_launches(program, pid, arguments)
}

#[test]
fn kernels_arrive_with_their_names_durations_and_queueing() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(ALL_WAITS, &[]);
    let trace = record(&mut program, &[]);
    let report = trace.report();
    assert_eq!(coverage(&report), ("on".to_owned(), String::new()));
    let rows = report["collectives"].as_array().expect("a list");
    assert_eq!(rows.len(), 1, "{rows:?}");
    let row = &rows[0];
    assert_eq!(row["kernel_name"], NCCL);
    let words =
        ["op", "reduction", "data_type", "algorithm", "protocol", "evidence"].map(|key| row[key].as_str());
    assert_eq!(words, ["AllReduce", "Sum", "f32", "RING", "LL", "measured.gpu"].map(Some));
    // The script is exact; only what the window cuts is shorter.
    assert_eq!(row["kernel"]["p50_ns"], NCCL_NS);
    assert_eq!(row["kernel"]["max_ns"], NCCL_NS);
    assert_eq!(row["launch_queue"]["min_ns"], NCCL_QUEUE_NS);
    assert_eq!(row["launch_queue"]["max_ns"], NCCL_QUEUE_NS);
    let count = row["count"].as_u64().expect("a number");
    assert!(count >= 20, "{count}");
    let gpu = &report["gpus"][0];
    // Three launches a round, one of each; the first and the last round may be cut.
    let kernels = gpu["kernels"].as_u64().expect("a number");
    assert!(kernels.abs_diff(2 * count) <= 2, "{kernels} of {count}");
    let cause = |name: &str| {
        let causes = report["causes"].as_array().expect("a list");
        let row = causes.iter().find(|row| row["cause"] == name && row["domain"] == "gpu");
        row.unwrap_or_else(|| panic!("no {name}: {causes:?}")).clone()
    };
    assert_eq!(cause("nccl.kernel")["count"], count);
    assert_eq!(cause("gpu.copy")["duration"]["p50_ns"], COPY_NS);
    assert_eq!(cause("gpu.queue")["duration"]["max_ns"], NCCL_QUEUE_NS);
    assert_eq!(report["coverage"]["losses"], serde_json::json!({}));
    let environment = report["environment"].as_array().expect("a list");
    let ms = |what: &str| -> f64 {
        let row = environment.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no {what}"));
        let value = row["value"].as_str().expect("text").strip_suffix(" ms").expect("milliseconds");
        value.parse().expect("a number")
    };
    let (running, first) = (ms("agent.running_after"), ms("agent.first_record_after"));
    assert!(0.0 < running && running <= first, "{running} {first}");
    let folder = trace.folder().join("cause.svg");
    let (path, svg) = (trace.path.to_string_lossy(), folder.to_string_lossy());
    assert!(stallscope_tests::stallscope(&["flame", &path, "--view", "cause", "-o", &svg]).status.success());
    let drawn = std::fs::read_to_string(&folder).expect("drawn");
    for frame in [
        "GPU (GPU time, apart from that of threads) (",
        "device 0 (",
        "[nccl.kernel] AllReduce Sum f32 RING_LL (",
        "gemm_kernel (",
    ] {
        assert!(drawn.contains(frame), "{frame}");
    }
}

#[test]
fn a_process_can_be_entered_again_and_again_and_feels_and_keeps_nothing() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(ALL_WAITS, &[]);
    let pid = program.pid();
    let size = || {
        let count = |name: &str| std::fs::read_dir(format!("/proc/{pid}/{name}")).expect("it runs").count();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs").lines().count();
        (count("task"), count("fd"), maps)
    };
    let mut sizes = Vec::new();
    for turn in 1..=ATTACHES {
        let trace = record(&mut program, &[]);
        let report = trace.report();
        assert_eq!(coverage(&report).0, "on", "turn {turn}: {}", trace.stderr);
        wait_until("the agent's end", || !has_agent(pid));
        sizes.push(size());
        let values = program.run();
        assert_eq!(values.get::<u64>("finalized"), turn, "CUPTI is given back each time");
        assert_eq!(values.get::<u64>("active"), 0);
    }
    assert_eq!(sizes.first(), sizes.last(), "{sizes:?}");
    let values = program.run();
    assert!(values.get::<u64>("turns") > 0);
    for what in ["eintr", "wrong", "early"] {
        assert_eq!(values.get::<u64>(what), 0, "{what}");
    }
    assert_eq!(program.end(), 0);
}

/// Recordings of one process.
const ATTACHES: u64 = 12;

#[test]
fn an_agent_whose_recorder_is_killed_leaves_by_itself_and_another_one_may_come() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(ALL_WAITS, &[]);
    let pid = program.pid();
    let recording = Recorder::new().pid(pid).start();
    wait_until("the agent", || has_agent(pid));
    recording.kill();
    wait_until("the agent's end", || !has_agent(pid));
    assert_eq!(program.run().get::<u64>("active"), 0);
    let report = record(&mut program, &[]).report();
    assert_eq!(coverage(&report).0, "on");
    assert_eq!(program.run().get::<u64>("wrong"), 0);
}

/// Whether a thread of the process is stopped by a tracer.
fn is_entered(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the job runs");
    tasks.flatten().any(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    })
}

/// Recorders that are killed while they have a thread of the program in their hands.
const KILLED: u64 = 40;

#[test]
fn a_recorder_killed_while_it_enters_leaves_the_program_unharmed() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(ALL_WAITS, &[]);
    let pid = program.pid();
    let mut random = Random(1);
    let mut inside = 0;
    for round in 0..KILLED {
        let recording = Recorder::new().pid(pid).launch();
        let give_up = Instant::now() + PATIENCE;
        // Without a pause: the stop lasts for milliseconds.
        while !is_entered(pid) && !has_agent(pid) {
            assert!(Instant::now() < give_up, "the recorder does not enter");
        }
        let moment = Instant::now() + Duration::from_micros(random.below(6000) as u64);
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        inside += u64::from(is_entered(pid));
        recording.kill();
        wait_until("the agent's end", || !has_agent(pid) && !is_entered(pid));
        let values = program.run();
        let seen = [values.get::<u64>("eintr"), values.get("wrong")];
        assert_eq!(seen, [0, 0], "round {round}, {inside} of them inside of the stop");
    }
    println!("{inside} of {KILLED} recorders were killed inside of the stop");
    assert!(inside > 0, "none was killed inside of the stop");
    let report = record(&mut program, &[]).report();
    assert_eq!(coverage(&report).0, "on");
    assert_eq!(program.end(), 0);
}

#[test]
fn where_another_client_has_cupti_that_is_said_and_the_rest_is_recorded() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(ALL_WAITS, &[("FAKE_CUPTI", "taken")]);
    let recording = Recorder::new().pid(program.pid()).duration("2s").start();
    let trace = recording.wait();
    assert!(trace.status.success(), "{}", trace.stderr);
    let report = trace.report();
    let (state, reason) = coverage(&report);
    assert_eq!(state, "off");
    assert!(reason.contains("another profiler has CUPTI"), "{reason}");
    assert_eq!(report["collectives"], serde_json::json!([]));
    assert!(report["coverage"]["syscalls_seen"]["poll"].as_u64().is_some_and(|polls| polls > 0));
    assert_eq!(program.run().get::<u64>("eintr"), 0);
}

#[test]
fn a_cupti_whose_records_are_not_known_is_left_alone() {
    require_root();
    let job = CudaJob::build();
    let program = job.start(&["futex"], &[("FAKE_CUPTI", "old")]);
    let report = Recorder::new().pid(program.pid()).duration("2s").start().wait().report();
    let (state, reason) = coverage(&report);
    assert_eq!(state, "off");
    assert!(reason.contains("older than CUDA 12.0"), "{reason}");
}

#[test]
fn before_cuda_12_6_cupti_is_turned_off_and_not_finalised() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(&["futex"], &[("FAKE_CUPTI", "12.4")]);
    for _ in 0..2 {
        let report = record(&mut program, &[]).report();
        let (state, reason) = coverage(&report);
        assert_eq!(state, "partial");
        assert!(reason.contains("stays loaded"), "{reason}");
        let values = program.run();
        assert_eq!((values.get::<u64>("finalized"), values.get::<u64>("active")), (0, 0));
    }
}

#[test]
fn nothing_is_loaded_where_that_is_not_wanted_or_of_no_use() {
    require_root();
    let job = CudaJob::build();
    let program = job.start(&["futex"], &[]);
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("it runs");
    let trace = Recorder::new().pid(program.pid()).duration("1s").args(&["--no-inject"]).start().wait();
    assert_eq!(coverage(&trace.report()), ("off".to_owned(), "not wanted (--no-inject)".to_owned()));
    assert!(!maps().contains("stallscope-agent"));
    let other = Program::start(&["sleep", "100"]);
    let trace = Recorder::new().pid(other.pid()).duration("1s").start().wait();
    assert_eq!(
        coverage(&trace.report()),
        ("off".to_owned(), "no process that was recorded uses CUDA".to_owned())
    );
}

#[test]
fn a_process_under_a_debugger_is_left_alone_and_that_is_said() {
    require_root();
    let job = CudaJob::build();
    let program = job.start(&["futex"], &[]);
    let pid = program.pid();
    nix::sys::ptrace::seize(
        nix::unistd::Pid::from_raw(pid.cast_signed()),
        nix::sys::ptrace::Options::empty(),
    )
    .expect("may be traced");
    let report = Recorder::new().pid(pid).duration("1s").start().wait().report();
    let (state, reason) = coverage(&report);
    assert_eq!(state, "off");
    assert!(reason.contains("is traced by process"), "{reason}");
}

#[test]
fn a_process_whose_threads_all_sit_in_epoll_is_not_stopped() {
    require_root();
    let job = CudaJob::build();
    // The main thread reads from a pipe, which is not taken back either.
    let mut program = job.start(&["quiet", "epoll"], &[]);
    let report = Recorder::new().pid(program.pid()).duration("5s").start().wait().report();
    let (state, reason) = coverage(&report);
    assert_eq!(state, "off");
    assert!(reason.contains("no thread of process"), "{reason}");
    let values = program.run();
    assert_eq!((values.get::<u64>("eintr"), values.get::<u64>("early")), (0, 0));
}
