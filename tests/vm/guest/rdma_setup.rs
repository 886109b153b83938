//! The kernel's side of RDMA set-up: what the probes count must be what the program did, and where its time went must lie within the
//! program's own.

use serde_json::Value;

use super::rig::{self, Checks};
use super::verbs_setup::{QUEUE_PAIRS, SIZES, TIMES};

/// Functions of each module that must be probed at least, on every kernel of the matrix.
const PROBED: [(&str, u64); 5] =
    [("ib_uverbs", 8), ("ib_core", 4), ("mlx5_ib", 6), ("mlx5_core", 4), ("rdma_cm", 4)];

pub fn check(checks: &mut Checks) {
    let command = ["/bin/vm-guest", "verbs-setup"];
    let Some((said, report)) = rig::record(checks, "setup", &["--min-stall", "0us"], &command) else {
        return;
    };
    let row = rig::coverage(&report, "rdma_kernel");
    println!("vm-guest: setup: coverage {row}");
    println!("vm-guest: setup: {}", report["rdma_setup"]);
    probed(checks, &report);
    let registrations = (SIZES.len() * TIMES) as u64;
    let pairs = QUEUE_PAIRS as u64;
    for (name, count) in [
        ("register", registrations),
        ("deregister", registrations),
        ("create qp", pairs),
        ("destroy qp", pairs),
        ("qp to INIT", pairs),
        ("qp to RTR", pairs),
        ("qp to RTS", pairs),
        ("create cq", 1),
    ] {
        let row = operation(&report, name);
        checks.equal(&format!("setup: {name}: calls"), &row["calls"], count);
        checks.equal(&format!("setup: {name}: failed"), &row["failed"], 0);
        checks.equal(&format!("setup: {name}: distribution"), &row["duration"]["count"], count);
    }
    times(checks, &said, &report);
    stalls(checks, &report);
}

/// How many functions of each module are probed, as the environment has it: `ib_core 4 fentry, mlx5_core 3 fentry + 1 kprobe`.
fn probed(checks: &mut Checks, report: &Value) {
    let rows = report["environment"].as_array().cloned().unwrap_or_default();
    let text = rows
        .iter()
        .find(|row| row["what"] == "rdma.kernel_probes")
        .and_then(|row| row["value"].as_str())
        .unwrap_or_default()
        .to_owned();
    println!("vm-guest: setup: probes {text}");
    for (module, least) in PROBED {
        let part = text.split(", ").find_map(|part| part.strip_prefix(module)?.strip_prefix(' '));
        let words = part.unwrap_or_default().split_whitespace();
        let count: u64 = words.filter_map(|word| word.parse::<u64>().ok()).sum();
        checks.that(&format!("setup: {module}: {least} functions probed"), count >= least, &text);
    }
}

fn operation(report: &Value, name: &str) -> Value {
    let rows = report["rdma_setup"]["operations"].as_array().cloned().unwrap_or_default();
    rows.into_iter().find(|row| row["op"] == name).unwrap_or_default()
}

fn times(checks: &mut Checks, said: &str, report: &Value) {
    let own = |name: &str| -> Option<u64> {
        said.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    let sum = |row: &Value, field: &str| row[field].as_u64().unwrap_or(u64::MAX);
    let register = operation(report, "register");
    checks.that("setup: bytes registered", register["bytes"].as_u64() == own("bytes"), &register);
    for (name, mine) in [("register", "register_ns"), ("deregister", "deregister_ns")] {
        let row = operation(report, name);
        let all = sum(&row, "total_ns");
        // The program measured around its calls.
        checks.that(
            &format!("setup: {name}: within the program's time"),
            own(mine).is_some_and(|most| all <= most && all > 0),
            &row,
        );
    }
    let pin = sum(&register, "pin_ns");
    checks.that(
        "setup: pinning is a part of registering",
        pin > 0 && pin <= sum(&register, "total_ns"),
        &register,
    );
    let ladder: u64 = ["qp to INIT", "qp to RTR", "qp to RTS"]
        .iter()
        .map(|name| sum(&operation(report, name), "total_ns"))
        .sum();
    checks.that(
        "setup: the ladder is within the program's time",
        own("modify_ns").is_some_and(|most| ladder <= most),
        &ladder,
    );
}

/// Time of the thread: pinning and the rest of all calls, nothing twice.
fn stalls(checks: &mut Checks, report: &Value) {
    let rows = report["rdma_setup"]["operations"].as_array().cloned().unwrap_or_default();
    let sum = |field: &str| rows.iter().filter_map(|row| row[field].as_u64()).sum::<u64>();
    let cause = |name: &str| -> u64 {
        let rows = report["causes"].as_array().cloned().unwrap_or_default();
        let of_cause = rows.iter().filter(|row| row["cause"] == name && row["domain"] == "thread");
        of_cause.filter_map(|row| row["stalled_ns"].as_u64()).sum()
    };
    let (setup, map) = (cause("rdma.setup"), cause("dma.map"));
    let seen = format!(
        "rdma.setup {setup}, dma.map {map}, operations {}, pinned {}, run queue {}",
        sum("total_ns"),
        sum("pin_ns"),
        sum("runq_ns")
    );
    // What a call waited for a processor is runnable time; where in the call that was is not known, so it is spread evenly.
    let (runq, rounding) = (sum("runq_ns"), 3 * sum("calls"));
    let off = (setup + map + runq).abs_diff(sum("total_ns"));
    checks.that(
        "setup: the causes are the calls' time without waits for a processor",
        off <= rounding,
        &seen,
    );
    let pin = sum("pin_ns");
    let rest = pin.saturating_sub(runq + rounding);
    checks.that("setup: dma.map is the time of pinning", map > 0 && (rest..=pin).contains(&map), &seen);
}
