//! The agent under system-call filters: it comes where they let it live, and keeps out where one of its calls would be
//! the end of the process.

use std::path::{Path, PathBuf};

use stallscope_tests::cuda_job::{ALL_WAITS, CudaJob, gpu_coverage, record_launches};
use stallscope_tests::{Program, Recorder, require_root};

/// The filter of a container (`container.py`).
fn container() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/seccomp/container.bpf")
}

/// `struct sock_filter`.
fn op(code: u16, jt: u8, jf: u8, k: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&code.to_ne_bytes());
    bytes[2..4].copy_from_slice(&[jt, jf]);
    bytes[4..].copy_from_slice(&k.to_ne_bytes());
    bytes
}

const KILL_PROCESS: u32 = 0x8000_0000;
const TRAP: u32 = 0x0003_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

/// Writes a filter that answers one call in its own way and allows all others.
fn write_filter(path: &Path, call: i64, answer: u32) {
    let number = u32::try_from(call).expect("a number of a call");
    let filter = [op(0x20, 0, 0, 0), op(0x15, 0, 1, number), op(6, 0, 0, answer), op(6, 0, 0, ALLOW)];
    std::fs::write(path, filter.concat()).expect("written");
}

fn start(job: &CudaJob, filter: &Path, more: &[&str]) -> Program {
    let word = format!("filter={}", filter.display());
    job.start(&[&[word.as_str()], more, ALL_WAITS].concat(), &[])
}

fn has_filter(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    status.lines().any(|line| line == "Seccomp:\t2")
}

fn assert_unharmed(program: &mut Program) {
    let values = program.run();
    for what in ["eintr", "wrong", "early"] {
        assert_eq!(values.get::<u64>(what), 0, "{what}");
    }
    assert!(values.get::<u64>("turns") > 0);
    assert_eq!(program.end(), 0);
}

#[test]
fn a_process_with_the_filter_of_a_container_is_entered_again_and_again() {
    require_root();
    let job = CudaJob::build();
    let mut program = start(&job, &container(), &[]);
    let pid = program.pid();
    assert!(has_filter(pid));
    for _ in 0..3 {
        let report = record_launches(&mut program, pid, &[]).report();
        assert_eq!(gpu_coverage(&report), ("on".to_owned(), String::new()));
        assert_eq!(report["collectives"][0]["op"], "AllReduce");
    }
    assert_unharmed(&mut program);
}

#[test]
fn a_filter_that_kills_refuses_or_traps_what_the_agent_needs_keeps_it_out() {
    require_root();
    let job = CudaJob::build();
    let filter = job.path("filter.bpf");
    for (call, answer, expected) in [
        (libc::SYS_memfd_create, KILL_PROCESS, "kills for memfd_create"),
        (libc::SYS_sched_yield, ERRNO | 1, "refuses sched_yield"),
        (libc::SYS_eventfd2, TRAP, "sends a signal for eventfd2"),
    ] {
        write_filter(&filter, call, answer);
        let mut program = start(&job, &filter, &[]);
        let trace = Recorder::new().pid(program.pid()).duration("2s").start().wait();
        assert!(trace.status.success(), "{}", trace.stderr);
        let (state, reason) = gpu_coverage(&trace.report());
        assert_eq!(state, "off");
        assert!(reason.contains(expected), "{reason}");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("it runs");
        assert!(!maps.contains("stallscope"));
        assert_unharmed(&mut program);
    }
}

#[test]
fn of_several_filters_each_one_counts() {
    require_root();
    let job = CudaJob::build();
    let filter = job.path("filter.bpf");
    write_filter(&filter, libc::SYS_memfd_create, KILL_PROCESS);
    for (first, second) in [(&filter, &container()), (&container(), &filter)] {
        let more = format!("filter={}", second.display());
        let mut program = start(&job, first, &[&more]);
        let report = Recorder::new().pid(program.pid()).duration("2s").start().wait().report();
        let (state, reason) = gpu_coverage(&report);
        assert_eq!(state, "off");
        assert!(reason.contains("kills for memfd_create"), "{reason}");
        assert_unharmed(&mut program);
    }
}
