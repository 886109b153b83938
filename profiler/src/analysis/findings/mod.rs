//! Findings: what is wrong, on which figures that rests, and what to do about it. `docs/findings.md` says
//! what each means.
//!
//! A wrong blame is worse than none: every finding needs a failure that was seen, or a share of the
//! recording that was really waited, both above the limits of [`Thresholds`].

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::dns::DnsAnalysis;
use super::far_end::FarEnds;
use super::late::Late;
use super::places::Places;
use super::report::{Finding, Report, Severity};
use super::socket_queues::SocketQueues;
use crate::model::cause::Cause;
use crate::trace::record::Environment;

mod counters;
mod dns_failure;
mod dns_retry;
mod dns_reverse;
mod dns_server;
mod dns_waiting;
mod far_side;
mod gpu;
mod interface;
mod kept;
mod late_rank;
mod net;
mod net_hops;
mod net_hosts;
mod net_racks;
mod net_silent;
mod numa;
mod pcie;
mod rdma;
mod rdma_setup;
mod resolver;
mod tcp;
#[cfg(test)]
mod tests;
mod text;
pub mod thresholds;

pub use self::counters::needs_stalls;
use self::kept::Kept;
pub use self::thresholds::Thresholds;

/// What is known besides the tables of the report.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// With the process that each entry is of, which the report's table leaves out.
    pub environment: &'a [Environment],
    pub far_ends: &'a FarEnds,
    pub late: &'a Late,
    /// Processes whose stalls have the interpreter of Python in their stacks.
    pub python: &'a BTreeSet<u32>,
    /// The latest look at each connection.
    pub socket_queues: &'a SocketQueues,
    pub places: &'a Places,
    pub queues: &'a [super::queues::Queue],
    pub place: &'a crate::model::place::Place,
    /// Samples of the table `counters`.
    pub counters: &'a [crate::trace::rdma::PortCounter],
    /// One by one; empty where they were added up and nothing in `counters` asks for more.
    pub stalls: &'a [super::stall::Stall],
    pub window_start_ns: u64,
    pub gpu: &'a crate::model::gpu::Gpu,
    /// Collectives by the times of their kernels on all ranks.
    pub gpu_ranks: &'a super::gpu_ranks::Ranks,
}

/// All findings of a report whose tables are filled, worst first, then by stalled time.
pub fn find(
    report: &Report,
    dns: &DnsAnalysis,
    surroundings: Surroundings<'_>,
    thresholds: &Thresholds,
) -> Vec<Finding> {
    let scene = Scene { report, dns, surroundings, thresholds };
    let mut kept = Kept::default();
    kept.extend(dns_server::unreachable(&scene));
    kept.extend(dns_server::slow(&scene));
    kept.extend(dns_retry::ladder(&scene));
    kept.extend(dns_failure::nxdomain(&scene));
    kept.extend(dns_failure::servfail(&scene));
    kept.extend(dns_reverse::reverse(&scene));
    kept.extend(dns_waiting::still_waiting(&scene));
    tcp::find(&scene, &mut kept);
    kept.extend(net::find(&scene));
    kept.extend(rdma::find(&scene));
    kept.extend(rdma_setup::find(&scene));
    kept.extend(counters::find(&scene));
    kept.extend(pcie::find(&scene));
    kept.extend(numa::find(&scene));
    let gpu = gpu::find(&scene, kept.held());
    kept.extend(gpu);
    dns_server::subsume(kept.held());
    kept.finish()
}

/// What findings are drawn from.
struct Scene<'a> {
    report: &'a Report,
    dns: &'a DnsAnalysis,
    surroundings: Surroundings<'a>,
    thresholds: &'a Thresholds,
}

/// How bad it is, as [`Scene::severity`] weighs it.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    /// Time blocked, or the span over which failures were repeated.
    lost_ns: u64,
    /// Something did not work, as against worked slowly.
    failing: bool,
    /// Age of the oldest wait that had not ended when the recording stopped.
    in_flight_ns: u64,
}

impl Scene<'_> {
    fn window_ns(&self) -> u64 {
        self.report.target.duration_ns
    }

    /// Share of the recording; sums over threads can exceed 1.
    fn share(&self, ns: u64) -> f64 {
        match self.window_ns() {
            0 => 1.0,
            window => ns as f64 / window as f64,
        }
    }

    /// Whether a time is worth a finding: at least `least_ns`, and the general share of the recording.
    fn counts(&self, ns: u64, least: std::time::Duration) -> bool {
        ns >= nanos(least) && self.share(ns) >= self.thresholds.general.min_share
    }

    /// - critical: it fails, and that takes the critical share of the recording or something has been stuck for
    ///   longer than `stuck_for`;
    /// - warning: it fails repeatedly or for the warning share, or works and takes the warning share;
    /// - info: the rest.
    fn severity(&self, weight: Weight) -> Severity {
        let general = &self.thresholds.general;
        let share = self.share(weight.lost_ns);
        let stuck = weight.in_flight_ns >= nanos(general.stuck_for);
        if weight.failing && (stuck || share >= general.critical_share) {
            Severity::Critical
        } else if share >= general.warning_share {
            Severity::Warning
        } else {
            Severity::Info
        }
    }

    /// Failures that come again and again: as many as `dns.repeated` over `dns.repeated_span`.
    fn is_repeated(&self, count: u64, span_ns: u64) -> bool {
        let dns = &self.thresholds.dns;
        count >= dns.repeated && span_ns >= nanos(dns.repeated_span)
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A finding from its parts; `proof` is a JSON object.
fn finding(
    id: &str,
    severity: Severity,
    cause: Cause,
    stalled_ns: u64,
    summary: String,
    proof: Value,
    advice: &[String],
) -> Finding {
    let proof = match proof {
        Value::Object(proof) => proof,
        _ => Map::new(),
    };
    Finding { id: id.to_string(), severity, summary, cause, stalled_ns, proof, advice: advice.join("\n") }
}
