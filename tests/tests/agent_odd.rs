//! Processes that the agent must not enter, or not as others: each is recorded without GPU times or with them, the reason is
//! said, and none is harmed.

use std::process::Command;
use std::time::Duration;

use stallscope::random::Random;
use stallscope_tests::cuda_job::{ALL_WAITS, CudaJob, gpu_coverage, has_agent, record_launches, wait_until};
use stallscope_tests::{Program, Recorder, require_root, stallscope};

/// Records for a moment; why there are no GPU times.
fn reason(pid: u32) -> String {
    let trace = Recorder::new().pid(pid).duration("2s").start().wait();
    assert!(trace.status.success(), "{}", trace.stderr);
    let (state, reason) = gpu_coverage(&trace.report());
    assert_eq!(state, "off", "{reason}");
    assert!(trace.stderr.contains(&reason), "it is said while recording too: {}", trace.stderr);
    reason
}

/// What `doctor` says of GPU times of the process.
fn doctor(pid: u32) -> (String, String) {
    let output = stallscope(&["doctor", "--format", "json", "--pid", &pid.to_string()]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row =
        document["checks"].as_array().unwrap().iter().find(|row| row["name"] == "CUDA").unwrap().clone();
    (row["state"].as_str().unwrap().to_owned(), row["detail"].as_str().unwrap().to_owned())
}

fn assert_unharmed(program: &mut Program) {
    let values = program.run();
    for what in ["eintr", "wrong", "early"] {
        assert_eq!(values.get::<u64>(what), 0, "{what}");
    }
    assert!(values.get::<u64>("turns") > 0);
}

#[test]
fn a_program_with_musl_is_left_alone_and_that_is_said() {
    require_root();
    let job = CudaJob::build_with("musl-gcc");
    let mut program = job.start(&["poll", "sleep"], &[]);
    assert!(reason(program.pid()).contains("runs on musl"));
    assert_unharmed(&mut program);
    assert_eq!(program.end(), 0);
}

#[test]
fn a_filter_of_a_single_thread_that_kills_keeps_the_agent_out() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(&["sleep", "filtered"], &[]);
    assert!(reason(program.pid()).contains("different system-call filters (seccomp filter)"));
    assert_unharmed(&mut program);
    assert_eq!(program.end(), 0);
}

#[test]
fn without_cupti_it_is_said_what_to_install() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(&["poll", "nocupti"], &[]);
    let (state, detail) = doctor(program.pid());
    assert_eq!(state, "degraded");
    assert!(detail.contains("nvidia-cuda-cupti"), "{detail}");
    let reason = reason(program.pid());
    assert!(reason.contains("no libcupti") && reason.contains("nvidia-cuda-cupti"), "{reason}");
    assert_unharmed(&mut program);
}

/// Starts the job below `unshare`, in namespaces of its own, with its files where nobody else sees them.
fn in_a_container(job: &CudaJob, before: &str) -> Program {
    let folder = job.folder().display();
    let script = format!(
        "mount -t tmpfs none /mnt && cp {folder}/* /mnt && {before} exec /mnt/job /mnt {}",
        ALL_WAITS.join(" ")
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", &script]);
    Program::start_command(&mut command)
}

#[test]
fn a_process_in_a_container_is_entered_with_its_own_files() {
    require_root();
    let job = CudaJob::build();
    let mut program = in_a_container(&job, "");
    let pid = program.children()[0];
    let (state, detail) = doctor(pid);
    assert_eq!(state, "ok", "{detail}");
    assert!(detail.contains("libcupti"), "{detail}");
    for _ in 0..2 {
        let report = record_launches(&mut program, pid, &[]).report();
        assert_eq!(gpu_coverage(&report), ("on".to_owned(), String::new()));
        assert_eq!(report["collectives"][0]["op"], "AllReduce");
    }
    assert_unharmed(&mut program);
    assert_eq!(program.end(), 0);
}

#[test]
fn a_process_that_sees_no_proc_is_entered_all_the_same() {
    require_root();
    let job = CudaJob::build();
    let mut program = in_a_container(&job, "mount -t tmpfs none /proc &&");
    let pid = program.children()[0];
    let report = record_launches(&mut program, pid, &[]).report();
    assert_eq!(gpu_coverage(&report), ("on".to_owned(), String::new()));
    assert_unharmed(&mut program);
    assert_eq!(program.end(), 0);
}

#[test]
fn children_forked_while_the_agent_is_in_tell_it_nothing_and_are_unharmed() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(&["poll", "sleep", "fork"], &[]);
    let pid = program.pid();
    let recording = Recorder::new().pid(pid).start();
    wait_until("the agent", || has_agent(pid));
    let forked: u64 = program.run().get("forked");
    wait_until("more children", || program.run().get::<u64>("forked") > forked + 10);
    let trace = recording.finish();
    assert!(trace.status.success(), "{}", trace.stderr);
    let report = trace.report();
    assert_eq!(gpu_coverage(&report).0, "on", "{}", trace.stderr);
    assert_eq!(report["collectives"].as_array().map(Vec::len), Some(1));
    let svg = trace.folder().join("cause.svg");
    let (path, out) = (trace.path.to_string_lossy(), svg.to_string_lossy());
    assert!(stallscope_tests::stallscope(&["flame", &path, "--view", "cause", "-o", &out]).status.success());
    let drawn = std::fs::read_to_string(&svg).expect("drawn");
    assert!(drawn.contains("gemm_kernel") && !drawn.contains("kernel_of_a_child"));
    assert_unharmed(&mut program);
    assert_eq!(program.end(), 0);
}

#[test]
fn forks_that_have_their_parents_cuda_are_left_alone_and_that_is_said() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(&["poll", "sleep", "init", "workers"], &[]);
    let pid = program.pid();
    let workers = program.children();
    assert_eq!(workers.len(), 2);
    let report = record_launches(&mut program, pid, &[]).report();
    let (state, reason) = gpu_coverage(&report);
    assert_eq!(state, "on");
    assert!(reason.contains(&format!("forks of process {pid} are left alone")), "{reason}");
    // Recorded alone, one is left alone as well.
    let report = Recorder::new().pid(workers[0]).duration("1s").start().wait().report();
    let (state, reason) = gpu_coverage(&report);
    assert_eq!(state, "off");
    assert!(reason.contains(&format!("forks of process {pid} are left alone")), "{reason}");
    for worker in workers {
        let maps = std::fs::read_to_string(format!("/proc/{worker}/maps")).expect("it runs");
        assert!(!maps.contains("stallscope-agent"));
    }
    assert_unharmed(&mut program);
    assert_eq!(program.end(), 0);
}

#[test]
fn a_process_that_ends_while_the_agent_is_loaded_ends_the_recording_in_order() {
    require_root();
    let job = CudaJob::build();
    let mut random = Random(7);
    for _ in 0..6 {
        let program = job.start(&["futex"], &[]);
        let pid = program.pid();
        let recording = Recorder::new().pid(pid).start();
        // From before the agent comes until after it is there.
        std::thread::sleep(Duration::from_micros(random.below(30_000) as u64));
        program.kill();
        let trace = recording.wait();
        assert!(trace.status.success(), "{}", trace.stderr);
        let (_, reason) = gpu_coverage(&trace.report());
        assert!(!reason.contains("memory of process"), "{reason}");
    }
}

#[test]
fn signals_that_rain_on_the_stopped_thread_are_each_handled_once() {
    require_root();
    let job = CudaJob::build();
    // The thread in the rain and the one that makes it are all that can be stopped.
    let mut program = job.start(&["quiet", "storm"], &[]);
    let pid = program.pid();
    for _ in 0..5 {
        let recording = Recorder::new().pid(pid).start();
        wait_until("the agent", || has_agent(pid));
        assert!(recording.finish().status.success());
        wait_until("the agent's end", || !has_agent(pid));
    }
    assert!(program.run().get::<u64>("sent") > 0);
    // It ends once all that were sent were handled, and not with more.
    assert_eq!(program.end(), 0);
}
