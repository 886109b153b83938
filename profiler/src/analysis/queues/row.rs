//! One row of the table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::rule::{Parts, Unloaded};
use crate::analysis::report::Distribution;
use crate::model::queue::{Class, QueueTrack, Unit};
use crate::model::thread::Interval;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueRow {
    /// Empty where the queue pair was not found in memory.
    pub device: String,
    /// Null where the device has several.
    pub port: Option<u32>,
    pub qp: u32,
    /// Null: where a queue pair that was made before the recording leads to is not known to this version.
    pub peer_gid: Option<String>,
    pub peer_qp: Option<u32>,
    pub rack: Option<String>,
    /// `unknown` without a peer.
    pub relation: String,
    pub posted: u64,
    /// Requests retired, unsignalled ones among them.
    pub completed: u64,
    pub in_flight: u64,
    pub oldest_in_flight_ns: u64,
    pub max_depth: u64,
    pub bytes: u64,
    /// Of requests that ended well; a group that one completion retires counts once, from its first post.
    pub post_to_completion: Distribution,
    /// All 0 where the split could not be made.
    pub queue: Distribution,
    pub transmit: Distribution,
    /// The unloaded latency; null where the split could not be made.
    pub wire_ns: Option<u64>,
    /// Share of the recording in which the queue pair was watched.
    pub sampled_share: f64,
    /// First failures by the name of their status.
    pub errors: BTreeMap<String, u64>,
    /// Requests thrown out since another one had failed.
    pub flushed: u64,
    /// The process (an addition to the contract).
    pub pid: u32,
    /// `RC`, `UC`, `UD` …, empty where unknown (an addition to the contract).
    #[serde(rename = "type")]
    pub kind: String,
    /// The same for reads and atomics, which are split apart (an addition to the contract).
    pub read_wire_ns: Option<u64>,
    /// Completions of requests that were posted before the watch (an addition to the contract).
    pub began_earlier: u64,
    /// Posts that the provider refused (an addition to the contract).
    pub refused: u64,
    /// Why there are no times, or no split, and how it was watched; empty where there is nothing to say (an
    /// addition to the contract).
    pub reason: String,
    /// Requests that were really seen to be posted: where the queue pair was watched in windows, `posted`, `completed` and `bytes`
    /// are scaled from those in them (an addition to the contract).
    #[serde(default)]
    pub posted_seen: u64,
    /// Half-width of the 95 % interval of the scaled `posted`, as a share of it; null where nothing is scaled or too
    /// few windows tell (an addition to the contract).
    #[serde(default)]
    pub scaled_error: Option<f64>,
}

pub(super) fn row(track: &QueueTrack, unloaded: &BTreeMap<Class, Unloaded>, window: Interval) -> QueueRow {
    let wire = |class| unloaded.get(&class).map(|known| known.latency_ns);
    let oldest = track.in_flight.iter().min();
    let whole = |seen| track.scale.map_or(seen, |scale| scaled(seen, scale.counts));
    let known = |seen| track.scale.map_or(seen, |scale| scaled(seen, scale.times));
    QueueRow {
        device: track.device.clone(),
        port: (track.port != 0).then_some(track.port),
        qp: track.number,
        relation: "unknown".to_owned(),
        posted: whole(track.posted),
        completed: known(track.completed),
        in_flight: track.in_flight.len() as u64,
        oldest_in_flight_ns: oldest.map_or(0, |post_ns| window.end_ns.saturating_sub(*post_ns)),
        max_depth: track.max_depth,
        bytes: whole(track.bytes),
        wire_ns: wire(Class::Out).or(wire(Class::Back)),
        sampled_share: share(track.watch_ns, window.len()),
        errors: track.errors.iter().map(|(code, count)| (status(*code), *count)).collect(),
        flushed: track.flushed,
        pid: track.pid,
        kind: kind(track.qp_type).to_owned(),
        read_wire_ns: wire(Class::Back),
        began_earlier: track.began_earlier,
        refused: track.refused,
        reason: reasons(track, unloaded.is_empty(), window),
        posted_seen: track.posted,
        scaled_error: track.scale.and_then(|scale| scale.error),
        ..QueueRow::default()
    }
}

/// Fills in the distributions.
pub(super) fn distribute(row: &mut QueueRow, units: &[Unit], split: &[Parts]) {
    let of = |value: fn(&Parts) -> u64| Distribution::of(split.iter().map(value).collect());
    let whole = units.iter().filter(|unit| !unit.lead).map(|unit| unit.done_ns.saturating_sub(unit.post_ns));
    row.post_to_completion = Distribution::of(whole.collect());
    row.queue = of(|parts| parts.queue_ns);
    row.transmit = of(|parts| parts.transmit_ns);
}

/// A count or a time of windows as it stands for the whole time.
pub(super) fn scaled(seen: u64, factor: f64) -> u64 {
    (seen as f64 * factor).round() as u64
}

fn reasons(track: &QueueTrack, no_latency: bool, window: Interval) -> String {
    let why = reason(track, no_latency);
    let Some(scale) = track.scale.filter(|_| track.posted > 0) else { return why.to_owned() };
    let part = 100.0 * share(track.watch_ns, window.len());
    let error = match scale.error {
        Some(error) => format!("\u{b1} {:.1} %", 100.0 * error),
        None => "with an error that is not known".to_owned(),
    };
    let windows = scale.windows;
    let how = format!("watched in {windows} windows, {part:.1} % of the time: totals are scaled, {error}");
    if why.is_empty() { how } else { format!("{why}; {how}") }
}

fn reason(track: &QueueTrack, no_latency: bool) -> &'static str {
    if track.posted == 0 && track.began_earlier + track.unmatched > 0 {
        "its posts were not seen"
    } else if track.watch_ns == 0 {
        "not watched, see the coverage"
    } else if track.posted == 0 {
        ""
    } else if !track.anchored {
        "too few posts to tell which completion belongs to which"
    } else if no_latency {
        "too few single requests to an idle queue pair to know the unloaded latency"
    } else {
        ""
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { (part as f64 / whole as f64).min(1.0) }
}

fn kind(number: u32) -> &'static str {
    match number {
        2 => "RC",
        3 => "UC",
        4 => "UD",
        8 => "RAW_PACKET",
        9 => "XRC_SEND",
        10 => "XRC_RECV",
        255 => "DRIVER",
        _ => "",
    }
}

/// `IBV_WC_*` without its beginning, by the adapter's syndrome; from 0x80 on by the status.
fn status(syndrome: u8) -> String {
    let name = match syndrome {
        0x01 => "LOC_LEN_ERR",
        0x02 => "LOC_QP_OP_ERR",
        0x04 => "LOC_PROT_ERR",
        0x05 => "WR_FLUSH_ERR",
        0x06 => "MW_BIND_ERR",
        0x10 => "BAD_RESP_ERR",
        0x11 => "LOC_ACCESS_ERR",
        0x12 => "REM_INV_REQ_ERR",
        0x13 => "REM_ACCESS_ERR",
        0x14 => "REM_OP_ERR",
        0x15 => "RETRY_EXC_ERR",
        0x16 => "RNR_RETRY_EXC_ERR",
        0x22 => "REM_ABORT_ERR",
        // Statuses that the adapter has no syndrome for.
        0x83 => "LOC_EEC_OP_ERR",
        0x8e => "LOC_RDD_VIOL_ERR",
        0x8f => "REM_INV_RD_REQ_ERR",
        0x91 => "INV_EECN_ERR",
        0x92 => "INV_EEC_STATE_ERR",
        0x93 => "FATAL_ERR",
        0x94 => "RESP_TIMEOUT_ERR",
        0x95 => "GENERAL_ERR",
        0x96 => "TM_ERR",
        0x97 => "TM_RNDV_INCOMPLETE",
        other => return format!("GENERAL_ERR_{other:#04x}"),
    };
    name.to_owned()
}
