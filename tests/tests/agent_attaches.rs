//! Many attaches to one process: it keeps nothing of them but the first, and its work comes out right.

use stallscope::agent::{self, Loaded};
use stallscope::symbols::Symbolizer;
use stallscope::target::ProcRoot;
use stallscope_tests::cuda_job::{ALL_WAITS, CudaJob, has_agent, wait_until};
use stallscope_tests::{Program, require_root};

/// `STALLSCOPE_ATTACHES` makes them more or fewer.
const ATTACHES: u64 = 500;
/// The agent's own buffers (8 MiB), whose pages come as they are used, and what the allocator of its thread keeps.
const RESIDENT_KB: u64 = 9 << 10;

fn attaches() -> u64 {
    let wanted = std::env::var("STALLSCOPE_ATTACHES");
    wanted.map_or(ATTACHES, |text| text.parse().expect("STALLSCOPE_ATTACHES is a number"))
}

/// Threads, descriptors, mappings.
fn size(pid: u32) -> (usize, usize, usize) {
    let count = |name: &str| std::fs::read_dir(format!("/proc/{pid}/{name}")).expect("it runs").count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs").lines().count();
    (count("task"), count("fd"), maps)
}

fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// A call at the right moment, as a recorder makes it; a machine in full use may have none for some seconds.
fn attach(pid: u32, symbolizer: &mut Symbolizer) -> Loaded {
    let mut refused = Vec::new();
    for _ in 0..5 {
        match agent::load(&ProcRoot::default(), pid, symbolizer) {
            Ok(loaded) => return loaded,
            Err(error) => refused.push(error.to_string()),
        }
    }
    panic!("{refused:?}");
}

fn check(program: &mut Program, turn: u64) {
    let values = program.run();
    let told = ["eintr", "wrong", "early", "active"].map(|what| values.get::<u64>(what));
    assert_eq!(told, [0; 4], "attach {turn}");
    assert_eq!(values.get::<u64>("finalized"), turn);
}

#[test]
fn five_hundred_attaches_leave_what_one_leaves() {
    require_root();
    let job = CudaJob::build();
    let mut program = job.start(ALL_WAITS, &[]);
    let pid = program.pid();
    let mut symbolizer = Symbolizer::new();
    let mut first = None;
    for turn in 1..=attaches() {
        let loaded = attach(pid, &mut symbolizer);
        let running = agent::State::Running;
        wait_until("the agent at work", || loaded.ring.state().expect("readable") == Some(running));
        drop(loaded);
        wait_until("the agent's end", || !has_agent(pid));
        check(&mut program, turn);
        let (size, resident) = (size(pid), resident_kb(pid));
        let (first_size, first_resident) = *first.get_or_insert((size, resident));
        assert_eq!(size, first_size, "threads, descriptors and mappings after attach {turn}");
        assert!(
            resident <= first_resident + RESIDENT_KB,
            "{resident} KB after attach {turn}, {first_resident} after the first"
        );
    }
    assert!(program.run().get::<u64>("turns") > 0);
    assert_eq!(program.end(), 0);
}
