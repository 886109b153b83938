//! The agent in a job that was prepared for it: the same file, loaded by CUDA at its start and idle until a recorder comes.

use std::path::PathBuf;

use stallscope_tests::cuda_job::{ALL_WAITS, CudaJob, gpu_coverage, has_agent, record_launches, wait_until};
use stallscope_tests::{Program, Recorder, require_root, stallscope};

/// Writes the agent beside the job.
fn write_agent(job: &CudaJob) -> PathBuf {
    let path = job.path("idle.so");
    let output = stallscope(&["agent", "--write", &path.to_string_lossy()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

fn start(job: &CudaJob, words: &[&str]) -> Program {
    let path = write_agent(job);
    let words = [&["init"], words, ALL_WAITS].concat();
    job.start(&words, &[("CUDA_INJECTION64_PATH", &path.to_string_lossy())])
}

fn maps(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs")
}

/// Threads and descriptors.
fn size(pid: u32) -> (usize, usize) {
    let count = |name: &str| std::fs::read_dir(format!("/proc/{pid}/{name}")).expect("it runs").count();
    (count("task"), count("fd"))
}

#[test]
fn a_loaded_agent_is_idle_until_a_recorder_comes_and_after_it_left() {
    require_root();
    let job = CudaJob::build();
    let mut without = job.start(&[&["init"], ALL_WAITS].concat(), &[]);
    let mut program = start(&job, &[]);
    let pid = program.pid();
    assert!(maps(pid).contains("idle.so") && !maps(without.pid()).contains("idle.so"));
    // No thread, no descriptor, nothing turned on.
    assert_eq!(size(pid), size(without.pid()));
    assert_eq!(program.run().get::<u64>("active"), 0);
    for turn in 1..=3 {
        let report = record_launches(&mut program, pid, &[]).report();
        assert_eq!(gpu_coverage(&report), ("on".to_owned(), String::new()));
        assert_eq!(report["collectives"][0]["op"], "AllReduce");
        wait_until("the agent's end", || !has_agent(pid));
        let values = program.run();
        assert_eq!((values.get::<u64>("finalized"), values.get::<u64>("active")), (turn, 0));
    }
    // It was there already: nothing was mapped beside it.
    assert!(!maps(pid).contains("memfd:stallscope-agent"), "{}", maps(pid));
    assert_eq!(size(pid), size(without.pid()));
    for program in [&mut program, &mut without] {
        let values = program.run();
        for what in ["eintr", "wrong", "early"] {
            assert_eq!(values.get::<u64>(what), 0, "{what}");
        }
        assert_eq!(program.end(), 0);
    }
}

#[test]
fn children_of_a_prepared_job_have_an_idle_agent_and_are_unharmed() {
    require_root();
    let job = CudaJob::build();
    let mut program = start(&job, &["fork", "workers"]);
    let pid = program.pid();
    let recording = Recorder::new().pid(pid).start();
    wait_until("the agent", || has_agent(pid));
    let forked: u64 = program.run().get("forked");
    wait_until("more children", || program.run().get::<u64>("forked") > forked + 5);
    let trace = recording.finish();
    assert!(trace.status.success(), "{}", trace.stderr);
    assert_eq!(gpu_coverage(&trace.report()).0, "on", "{}", trace.stderr);
    for worker in program.children() {
        assert!(!has_agent(worker));
    }
    assert_eq!(program.run().get::<u64>("wrong"), 0);
    assert_eq!(program.end(), 0);
}

#[test]
fn another_file_at_that_place_is_no_agent_and_does_no_harm() {
    require_root();
    let job = CudaJob::build();
    let path = write_agent(&job);
    let mut bytes = std::fs::read(&path).expect("readable");
    // As an agent of another version: as long as ours, and not the same.
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&path, bytes).expect("written");
    let words = [&["init"], ALL_WAITS].concat();
    let mut program = job.start(&words, &[("CUDA_INJECTION64_PATH", &path.to_string_lossy())]);
    let pid = program.pid();
    let report = record_launches(&mut program, pid, &[]).report();
    assert_eq!(gpu_coverage(&report).0, "on");
    assert!(maps(pid).contains("idle.so") && maps(pid).contains("memfd:stallscope-agent"));
    assert_eq!(program.end(), 0);
}
