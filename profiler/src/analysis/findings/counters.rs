//! Counters of adapters' ports that tell of errors, and links that went down.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::text::{count, in_command, time};
use super::{Scene, finding, nanos};
use crate::analysis::queues::counters::{CounterRow, moves};
use crate::analysis::report::{Finding, Severity};
use crate::model::cause::Cause;
use crate::model::thread::Interval;
use crate::trace::rdma::PortCounter;

/// What a counter means.
struct Meaning {
    name: &'static str,
    /// Bits or frames were damaged or thrown away: not a matter of load.
    hard: bool,
    what: &'static str,
    advice: Advice,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Advice {
    Cable,
    Losses,
    Receiver,
    Program,
}

impl Advice {
    fn text(self, device: &str) -> String {
        match self {
            Advice::Cable => format!(
                "Damaged frames: sudo mlxlink -d {device} -m -c   # optics, cable, errors before correction; swap the \
                 cable, clean the optics, look at the same counters of the switch port"
            ),
            Advice::Losses => "Packets get lost on the way: with RoCE see that PFC and ECN are on for the same priority at \
                 host and switches (mlnx_qos -i NETDEV; ethtool -S NETDEV | grep -E 'pause|discard'), that NCCL_IB_TC \
                 chooses that priority, and which switch port discards."
                .to_owned(),
            Advice::Receiver => "The receiver is late: its process posts receives too slowly or its host cannot keep up. \
                 Look at its threads (stallscope there), PCIe link and NUMA node."
                .to_owned(),
            Advice::Program => "Requests that the adapter refuses or cannot place: a peer that died, or memory that was \
                 freed under a transfer. Look at the job's log for the first error (NCCL_DEBUG=INFO: IBV_WC_…)."
                .to_owned(),
        }
    }
}

const fn meaning(name: &'static str, hard: bool, advice: Advice, what: &'static str) -> Meaning {
    Meaning { name, hard, what, advice }
}

/// Counters that rise only when something goes wrong. Requests that are flushed when a queue pair is closed
/// (`*_cqe_flush_error`) and marks of congestion (`*cnp*`, `*ecn*`, `port_xmit_wait`, pauses) are none.
const ERRORS: [Meaning; 33] = [
    meaning("symbol_error", true, Advice::Cable, "damaged symbols on the link"),
    meaning("link_error_recovery", true, Advice::Cable, "the link had to be trained again"),
    meaning("local_link_integrity_errors", true, Advice::Cable, "too many damaged packets in a row"),
    meaning("port_rcv_errors", true, Advice::Cable, "packets received damaged"),
    meaning(
        "port_rcv_remote_physical_errors",
        true,
        Advice::Cable,
        "packets that were damaged before the last switch",
    ),
    meaning("port_rcv_switch_relay_errors", true, Advice::Losses, "packets that could not be passed on"),
    meaning("port_xmit_discards", true, Advice::Losses, "packets thrown away at sending"),
    meaning(
        "port_rcv_constraint_errors",
        true,
        Advice::Program,
        "packets received against the partition's rules",
    ),
    meaning(
        "port_xmit_constraint_errors",
        true,
        Advice::Program,
        "packets not sent for the partition's rules",
    ),
    meaning("excessive_buffer_overrun_errors", true, Advice::Losses, "the port's buffer ran over"),
    meaning("VL15_dropped", false, Advice::Losses, "management packets dropped"),
    meaning("rx_icrc_encapsulated", true, Advice::Cable, "RoCE packets with a wrong checksum"),
    meaning("rx_crc_errors_phy", true, Advice::Cable, "frames with a wrong checksum"),
    meaning("rx_symbol_err_phy", true, Advice::Cable, "damaged symbols on the link"),
    meaning("rx_discards_phy", true, Advice::Losses, "frames dropped for want of buffer at the port"),
    meaning("tx_discards_phy", true, Advice::Losses, "frames dropped at sending"),
    meaning("out_of_buffer", false, Advice::Receiver, "packets dropped since no receive was posted"),
    meaning("rx_out_of_buffer", false, Advice::Receiver, "packets dropped since no receive was posted"),
    meaning("out_of_sequence", false, Advice::Losses, "packets that came out of order: one before was lost"),
    meaning(
        "out_of_seq_request",
        false,
        Advice::Losses,
        "packets that came out of order: one before was lost",
    ),
    meaning("rcvd_seq_err", false, Advice::Losses, "the peer says that packets are missing"),
    meaning("packet_seq_err", false, Advice::Losses, "the peer says that packets are missing"),
    meaning("implied_nak_seq_err", false, Advice::Losses, "the peer's answers show that packets are missing"),
    meaning("local_ack_timeout_err", false, Advice::Losses, "no answer in time, sent again"),
    meaning("completer_retry_err", false, Advice::Losses, "no answer in time, sent again"),
    meaning(
        "duplicate_request",
        false,
        Advice::Losses,
        "requests that came twice: the answer was lost or late",
    ),
    meaning("rnr_nak_retry_err", false, Advice::Receiver, "the peer had no receive posted, sent again"),
    meaning("rcvd_rnr_err", false, Advice::Receiver, "the peer had no receive posted, sent again"),
    meaning("retry_exceeded_err", true, Advice::Losses, "given up after all retries"),
    meaning("retry_rnr_exceeded_err", true, Advice::Receiver, "given up: the peer had no receive posted"),
    meaning("req_remote_access_errors", true, Advice::Program, "the peer refused access to its memory"),
    meaning(
        "resp_remote_access_errors",
        true,
        Advice::Program,
        "a peer asked for memory that it may not have",
    ),
    meaning("req_remote_invalid_request", true, Advice::Program, "the peer took a request for invalid"),
];

const LINK_DOWN: [&str; 2] = ["link_downed", "link_down_events_phy"];

/// Whether a counter moved that a finding sets beside the stalls of that time.
pub fn needs_stalls(samples: &[PortCounter]) -> bool {
    let told = |name: &str| LINK_DOWN.contains(&name) || ERRORS.iter().any(|meaning| meaning.name == name);
    let mut first: BTreeMap<(&str, u32, &str), u64> = BTreeMap::new();
    samples
        .iter()
        .filter(|one| told(&one.name))
        .any(|one| *first.entry((&one.device, one.port, &one.name)).or_insert(one.value) != one.value)
}

pub(super) fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let mut ports: BTreeMap<(&str, u32), Vec<(&Meaning, &CounterRow)>> = BTreeMap::new();
    let least = scene.thresholds.rdma.counter_errors.max(1);
    for row in scene.report.counters.iter().filter(|row| row.delta >= least) {
        if let Some(meaning) = ERRORS.iter().find(|meaning| meaning.name == row.name) {
            ports.entry((&row.device, row.port)).or_default().push((meaning, row));
        }
    }
    let mut findings: Vec<Finding> =
        ports.into_iter().map(|((device, port), rows)| errors(scene, device, port, &rows)).collect();
    let down =
        scene.report.counters.iter().filter(|row| row.delta > 0 && LINK_DOWN.contains(&row.name.as_str()));
    findings.extend(down.map(|row| port_event(scene, row)));
    findings
}

/// When a counter moved, by its samples: between which looks.
fn moved<'a>(scene: &'a Scene<'_>, row: &'a CounterRow) -> Vec<Interval> {
    moves(scene.surroundings.counters, &row.device, row.port, &row.name)
}

/// Stalled time of all threads between the looks between which something moved: what fell together, not what caused what.
fn stalled_meanwhile(scene: &Scene<'_>, moves: &[Interval]) -> u64 {
    let mut sum = 0_u64;
    for stall in scene.surroundings.stalls {
        let whole = stall.end_ns.saturating_sub(stall.start_ns).max(1);
        // The intervals are apart and in order.
        let first = moves.partition_point(|interval| interval.end_ns <= stall.start_ns);
        let meet = moves.iter().skip(first).take_while(|interval| interval.start_ns < stall.end_ns);
        let overlap: u64 = meet
            .map(|interval| {
                stall.end_ns.min(interval.end_ns).saturating_sub(stall.start_ns.max(interval.start_ns))
            })
            .fold(0, u64::saturating_add);
        let part = u128::from(overlap) * u128::from(stall.weight_ns) / u128::from(whole);
        sum = sum.saturating_add(u64::try_from(part).unwrap_or(u64::MAX));
    }
    sum
}

/// The looks that found something moved, from the window's start.
fn seen_by(scene: &Scene<'_>, moves: &[Interval]) -> Vec<u64> {
    let start_ns = scene.surroundings.window_start_ns;
    let times: BTreeSet<u64> = moves.iter().map(|one| one.end_ns.saturating_sub(start_ns)).collect();
    times.into_iter().collect()
}

/// Overlapping intervals as one.
fn union(mut intervals: Vec<Interval>) -> Vec<Interval> {
    intervals.sort_by_key(|interval| interval.start_ns);
    let mut all: Vec<Interval> = Vec::new();
    for interval in intervals {
        match all.last_mut() {
            Some(last) if interval.start_ns <= last.end_ns => last.end_ns = last.end_ns.max(interval.end_ns),
            _ => all.push(interval),
        }
    }
    all
}

fn errors(scene: &Scene<'_>, device: &str, port: u32, rows: &[(&Meaning, &CounterRow)]) -> Finding {
    let mut rows: Vec<&(&Meaning, &CounterRow)> = rows.iter().collect();
    rows.sort_by_key(|(meaning, row)| (!meaning.hard, std::cmp::Reverse(row.delta)));
    let shown: Vec<String> = rows
        .iter()
        .take(3)
        .map(|(meaning, row)| format!("{} +{} ({})", row.name, row.delta, meaning.what))
        .collect();
    let intervals: Vec<Interval> = rows.iter().flat_map(|(_, row)| moved(scene, row)).collect();
    let seen = seen_by(scene, &intervals);
    let meanwhile_ns = stalled_meanwhile(scene, &union(intervals));
    let more = rows.len().saturating_sub(shown.len());
    let more = if more == 0 { String::new() } else { format!("; {more} more counters") };
    let summary = format!("{device} port {port} counted errors: {}{more}.", shown.join(", "));
    let counters: Vec<_> = rows
        .iter()
        .take(32)
        .map(|(meaning, row)| json!({ "name": row.name, "delta": row.delta, "meaning": meaning.what, "hard": meaning.hard }))
        .collect();
    let proof = json!({
        "device": device, "port": port, "counters": counters, "moved_times": seen.len(),
        "first_moved_by_ns": seen.first(),
        "stalled_meanwhile_ns": meanwhile_ns, "evidence": "measured.kernel",
    });
    let mut kinds: Vec<Advice> = rows.iter().map(|(meaning, _)| meaning.advice).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let device = in_command(Some(device));
    let mut advice = vec![format!(
        "grep . /sys/class/infiniband/{device}/ports/{port}/{{counters,hw_counters}}/* 2>/dev/null   # twice: what still rises"
    )];
    advice.extend(kinds.into_iter().map(|kind| kind.text(device)));
    let hard = rows.iter().any(|(meaning, _)| meaning.hard);
    let sum: u64 = rows.iter().map(|(_, row)| row.delta).fold(0, u64::saturating_add);
    let often =
        sum as f64 * 1e9 >= scene.thresholds.rdma.counter_errors_per_second * scene.window_ns() as f64;
    let severity = if hard || often { Severity::Warning } else { Severity::Info };
    finding("rdma.counter_errors", severity, Cause::RdmaRetry, 0, summary, proof, &advice)
}

fn port_event(scene: &Scene<'_>, row: &CounterRow) -> Finding {
    let intervals = moved(scene, row);
    let seen = seen_by(scene, &intervals);
    let meanwhile_ns = stalled_meanwhile(scene, &union(intervals));
    let summary = format!(
        "The link of {} port {} went down {} during the recording; threads were stalled for {} around it.",
        row.device,
        row.port,
        count(row.delta, "time", "times"),
        time(meanwhile_ns)
    );
    let proof = json!({
        "device": row.device, "port": row.port, "counter": row.name, "count": row.delta, "seen_by_ns": seen.get(..seen.len().min(8)),
        "stalled_meanwhile_ns": meanwhile_ns, "evidence": "measured.kernel",
    });
    let device = in_command(Some(&row.device));
    let advice = [
        format!("sudo dmesg -T | grep -iE '{device}|link (up|down)'   # when, and whether the module or cable is named"),
        format!("ibstat {device}; sudo mlxlink -d {device} -m -c   # state, optics, cable; the switch port's log beside it"),
        "One port: its cable or optics. Several at once: the switch (restart, firmware). Drain the node if it goes on: \
         queue pairs break when the link stays away longer than their retries."
            .to_owned(),
    ];
    let stuck = meanwhile_ns >= nanos(scene.thresholds.general.stuck_for);
    let severity = if stuck { Severity::Critical } else { Severity::Warning };
    finding("rdma.port_event", severity, Cause::RdmaRetry, 0, summary, proof, &advice)
}
