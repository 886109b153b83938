//! Attaching is quick where the kernel's verifier has little to look at: nearly all of the time is its.

use stallscope_tests::{Program, Recorder, require_root};

/// Instructions that the verifier looks at for all programs together. It was ten times as many when a count on the stack
/// made it look at everything behind a loop once for each count.
const MOST_VERIFIED: u64 = 100_000;

#[test]
fn the_verifier_looks_at_each_part_of_the_programs_a_few_times_only() {
    require_root();
    let program = Program::start(&["accept"]);
    let recording = Recorder::new().pid(program.pid()).start();
    let folder = format!("/proc/{}/fdinfo", recording.pid());
    let infos = std::fs::read_dir(folder).unwrap().flatten();
    let verified: Vec<u64> = infos
        .filter_map(|info| std::fs::read_to_string(info.path()).ok())
        .filter_map(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("verified_insns:"))?;
            line.trim().parse().ok()
        })
        .collect();
    assert!(verified.len() >= 10, "programs: {verified:?}");
    assert!(verified.iter().sum::<u64>() < MOST_VERIFIED, "{verified:?}");
    recording.finish();
}
