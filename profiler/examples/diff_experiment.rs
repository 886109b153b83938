//! What `cargo xtask bench diff` measures: how often a diff is right, on made-up recordings whose truth is known.

#[path = "../tests/diff_support/job.rs"]
mod job;

use std::path::Path;

use job::{Job, SLOW};
use stallscope::analysis::diff::compare;
use stallscope::analysis::diff::document::{Diff, Normaliser};
use stallscope::analysis::diff::profile::Profile;
use stallscope::cli::diff::load_profile;

const PAIRS: u64 = 100;
const SECONDS: u64 = 30;

/// Pairs in which something was called significant.
#[derive(Default)]
struct Found {
    anything: u64,
    total: u64,
    /// The peer that was made slower.
    peer: u64,
    /// Another peer, or a hop.
    others: u64,
    /// Sum of the peer's changes, per cent.
    change: f64,
}

impl Found {
    fn take(&mut self, diff: &Diff) {
        assert_eq!(diff.normalised_by, Normaliser::Waits);
        let peer = diff.sockets.iter().find(|row| row.peer == SLOW && row.direction == "recv");
        let peer = peer.expect("the peer is in every recording");
        let others = diff.sockets.iter().filter(|row| row.peer != SLOW).any(|row| row.significant)
            || diff.hops.iter().any(|row| row.significant);
        let causes = diff.causes.iter().any(|row| row.change.significant);
        self.total += u64::from(diff.total.significant);
        self.peer += u64::from(peer.significant);
        self.others += u64::from(others);
        self.anything += u64::from(diff.total.significant || peer.significant || others || causes);
        self.change += peer.delta_pct.unwrap_or(0.0);
    }
}

fn profile(folder: &Path, job: &Job) -> Profile {
    let path = folder.join("job.stall");
    job.write(&path);
    load_profile(&path).expect("a whole trace")
}

fn experiment(noise: f64, slow: f64) -> Found {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut found = Found::default();
    for pair in 0..PAIRS {
        let job = |seed| Job { seconds: SECONDS, noise, ..Job::steady(seed) };
        let before = profile(folder.path(), &job(1 + 2 * pair));
        let after = profile(folder.path(), &Job { slow, ..job(2 + 2 * pair) });
        found.take(&compare(&[before], &[after]));
    }
    found
}

fn table() {
    println!(
        "# How often a diff is right\n\n\
         Pairs of made-up recordings of one training loop, {SECONDS} s each, with fixed seeds: a turn computes for 8 ms,\n\
         waits 12 ms for one peer and 9 ms for another, and sends; beside it a thread serves a client and another looks\n\
         at a timer. Times vary log-normally by the deviation given, half of it kept from one turn to the next, and one\n\
         in 200 is up to four times as long. Of each pair's second recording the waits for one peer are longer by the\n\
         change given. Figures are pairs of {PAIRS} in which a row was significant; a single recording a side.\n\n\
         | deviation | change made | the peer found | total found | another peer or hop | anything | mean change shown |\n\
         |---|---|---|---|---|---|---|"
    );
    for (noise, slow) in [
        (0.08, 1.0),
        (0.08, 1.025),
        (0.08, 1.05),
        (0.08, 1.1),
        (0.15, 1.0),
        (0.15, 1.05),
        (0.15, 1.1),
        (0.3, 1.0),
    ] {
        let found = experiment(noise, slow);
        println!(
            "| {:.0} % | {:+.1} % | {} | {} | {} | {} | {:+.2} % |",
            noise * 100.0,
            (slow - 1.0) * 100.0,
            found.peer,
            found.total,
            found.others,
            found.anything,
            found.change / PAIRS as f64
        );
    }
    println!();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["table"] => table(),
        _ => panic!("table"),
    }
}
