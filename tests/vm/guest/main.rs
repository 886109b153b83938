//! The tests of a guest that `cargo xtask vm` boots: what only another kernel, or RDMA devices in software, can show.
//!
//! Prints a line for each assertion and the number of those that passed last; runs as root in a guest without anything else.

mod rdma;
mod rdma_setup;
mod relay;
mod rig;
mod sockets;
mod verbs_setup;

use rig::Checks;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [name, peer, times] = arguments.as_slice()
        && name == "receive"
    {
        sockets::receive(peer, times.parse().expect("a number"));
        return;
    }
    if arguments.first().is_some_and(|name| name == "verbs-setup") {
        verbs_setup::run();
        return;
    }
    let mut checks = Checks::default();
    doctor(&mut checks);
    sockets::check(&mut checks);
    rdma::check(&mut checks);
    rdma_setup::check(&mut checks);
    checks.end();
}

/// What no kernel tells in full.
const IN_PART: [&str; 2] = ["lock", "io_uring"];

/// The programs are loaded and attached by `doctor`; nothing else is missing on these kernels.
fn doctor(checks: &mut Checks) {
    let Some(document) = rig::stallscope(checks, &["doctor", "--format", "json"]) else { return };
    let rows = document["checks"].as_array().cloned().unwrap_or_default();
    checks.that("doctor has rows", !rows.is_empty(), &document);
    for row in rows {
        if row["state"] != "info" {
            let name = row["name"].as_str().unwrap_or("?");
            let wanted = if IN_PART.contains(&name) { "degraded" } else { "ok" };
            checks.that(&format!("doctor: {name}"), row["state"] == wanted, &row);
        }
    }
    checks.that("doctor: can record", document["can_record"] == true, &document["can_record"]);
}
