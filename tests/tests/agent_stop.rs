//! How long a thread of a process stands still while the agent comes in: measured, not asserted (`bench/gpu.md`).

use std::time::Duration;

use stallscope::agent::{self, Loaded};
use stallscope::symbols::Symbolizer;
use stallscope::target::ProcRoot;
use stallscope_tests::cuda_job::{CudaJob, has_agent, wait_until};
use stallscope_tests::require_root;

/// Libraries that the process has beside those of every program.
const LIBRARIES: usize = 300;
const FIRST: usize = 15;
/// Times that a process is entered again.
const AGAIN: usize = 60;

fn enter(pid: u32, symbolizer: &mut Symbolizer) -> Duration {
    let loaded = (0..5).find_map(|_| agent::load(&ProcRoot::default(), pid, symbolizer).ok());
    let loaded: Loaded = loaded.expect("enters");
    let stopped = loaded.stopped;
    drop(loaded);
    wait_until("the agent's end", || !has_agent(pid));
    stopped
}

fn tell(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_micros();
    println!(
        "{what}: median {} us, 90 % {} us, longest {} us, {} times",
        at(50),
        at(90),
        at(100),
        times.len()
    );
}

#[test]
#[ignore = "a measurement: cargo test -p stallscope-tests --test agent_stop -- --ignored --nocapture"]
fn how_long_a_thread_stands_still() {
    require_root();
    let job = CudaJob::build();
    job.add_libraries(LIBRARIES);
    for words in [&["quiet", "many", "poll"][..], &["many", "poll", "futex", "busy"]] {
        let mut first = Vec::new();
        for _ in 0..FIRST {
            let program = job.start(words, &[]);
            first.push(enter(program.pid(), &mut Symbolizer::new()));
        }
        tell(&format!("{words:?} for the first time"), first);
        let program = job.start(words, &[]);
        let mut symbolizer = Symbolizer::new();
        enter(program.pid(), &mut symbolizer);
        tell(
            &format!("{words:?} again"),
            (0..AGAIN).map(|_| enter(program.pid(), &mut symbolizer)).collect(),
        );
    }
}
