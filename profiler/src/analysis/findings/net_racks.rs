//! `net.cross_rack_*`: what crossing racks costs.
//!
//! Crossing is blamed only where it is the crossing: the hosts across racks are slow, several of them and nearly all, and
//! those inside the rack are not. One slow host is [`super::net_hosts`]' business.

use serde_json::json;

use super::net_hops::{HostHops, Waited, hosts, is_slow, median, waited};
use super::text::{LISTED, list, time};
use super::{Scene, Weight, finding};
use crate::analysis::report::{Finding, HopRow};
use crate::model::cause::Cause;

pub(super) fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let limits = &scene.thresholds.net;
    let latency =
        Measure { id: "net.cross_rack_latency", what: "round-trip time", samples: limits.cross_rack_samples };
    let jitter =
        Measure { id: "net.cross_rack_jitter", what: "jitter", samples: limits.cross_rack_jitter_samples };
    let mut findings = Vec::new();
    findings.extend(cross_rack_time(scene, &latency, |hop| hop.rtt.p50_ns));
    findings.extend(cross_rack_time(scene, &jitter, |hop| hop.jitter_ns));
    findings.extend(cross_rack_share(scene));
    findings
}

struct Measure {
    id: &'static str,
    what: &'static str,
    /// Round-trip times that a hop needs.
    samples: u64,
}

/// Both sides of the comparison, where it comes out against the crossing.
struct Apart<'a> {
    far: Vec<HostHops<'a>>,
    near: Vec<HostHops<'a>>,
    far_slow: usize,
    near_slow: usize,
    far_ns: u64,
    near_ns: u64,
}

fn compare<'a>(
    scene: &Scene<'a>,
    measure: &Measure,
    value: impl Fn(&HopRow) -> u64 + Copy,
) -> Option<Apart<'a>> {
    let limits = &scene.thresholds.net;
    let far = hosts(scene, "cross-rack", measure.samples, value);
    let near = hosts(scene, "same-rack", measure.samples, value);
    let near_ns = median(near.iter().map(|host| host.value_ns));
    let far_ns = median(far.iter().map(|host| host.value_ns));
    let far_slow = far.iter().filter(|host| is_slow(scene, host.value_ns, near_ns)).count();
    // Against the crossing, not against its neighbours: hosts inside a rack differ too.
    let near_slow = near.iter().filter(|host| !is_slow(scene, far_ns, host.value_ns)).count();
    // One host across racks cannot tell the way from the host.
    let enough = far.len() as u64 >= limits.cross_rack_peers && !near.is_empty();
    let agree = far_slow as f64 >= limits.cross_rack_agree * far.len() as f64
        && near_slow as f64 <= (1.0 - limits.cross_rack_agree) * near.len() as f64;
    (enough && agree).then_some(Apart { far, near, far_slow, near_slow, far_ns, near_ns })
}

/// Hosts across racks against hosts inside the rack, where threads wait for the former and it can be for that.
fn cross_rack_time(
    scene: &Scene<'_>,
    measure: &Measure,
    value: impl Fn(&HopRow) -> u64 + Copy,
) -> Option<Finding> {
    let apart = compare(scene, measure, value)?;
    let hops: Vec<&HopRow> = apart.far.iter().flat_map(|host| host.hops.iter().copied()).collect();
    let Waited { total_ns, explained_ns } = waited(scene, &hops, apart.far_ns.saturating_sub(apart.near_ns));
    if !scene.counts(explained_ns, scene.thresholds.net.cross_rack_stall) {
        return None;
    }
    let peers: Vec<&str> = apart.far.iter().map(|host| host.name).collect();
    let summary = format!(
        "{} across racks is {} against {} inside the rack ({}; slow: {} of {} hosts across, {} of {} inside); that \
         explains up to {} of {} waited for those peers",
        measure.what,
        time(apart.far_ns),
        time(apart.near_ns),
        list(peers.iter().copied()),
        apart.far_slow,
        apart.far.len(),
        apart.near_slow,
        apart.near.len(),
        time(explained_ns),
        time(total_ns),
    );
    let evidence = hops.first().map_or("", |hop| hop.relation_evidence.as_str());
    let proof = json!({
        "cross_rack_ns": apart.far_ns,
        "same_rack_ns": apart.near_ns,
        "cross_rack_peers": peers.iter().take(LISTED).collect::<Vec<_>>(),
        "cross_rack_hops": apart.far.len(),
        "cross_rack_slow": apart.far_slow,
        "same_rack_hops": apart.near.len(),
        "same_rack_slow": apart.near_slow,
        "relation_evidence": evidence,
        "waited_ns": total_ns,
        "stalled_ns": explained_ns,
    });
    let example = hops.first().map_or("PEER", |hop| hop.peer.as_str());
    let advice = [
        format!("mtr -n -c 20 --report {example}    # at which hop it grows; the same for a peer of the own rack"),
        "Under load only: the uplinks between the racks are full or overflow (ECN, PFC and drop counters of the spine ports). Idle too: the way is long; check the routing.".to_string(),
        "Order the ranks so that neighbours in the ring share a rack (hostfile or Slurm topology), so that few links cross.".to_string(),
    ];
    let severity = scene.severity(Weight { lost_ns: explained_ns, ..Weight::default() });
    Some(finding(measure.id, severity, Cause::SockRecv, explained_ns, summary, proof, &advice))
}

/// Most bytes cross racks, and threads wait for those peers.
fn cross_rack_share(scene: &Scene<'_>) -> Option<Finding> {
    let limits = &scene.thresholds.net;
    let known: Vec<&HopRow> =
        scene.report.hops.iter().filter(|hop| hop.relation.ends_with("-rack")).collect();
    let far: Vec<&HopRow> = known.iter().copied().filter(|hop| hop.relation == "cross-rack").collect();
    let bytes = |hops: &[&HopRow]| hops.iter().map(|hop| hop.bytes).fold(0, u64::saturating_add);
    let (total, crossing) = (bytes(&known), bytes(&far));
    let share = if total == 0 { 0.0 } else { crossing as f64 / total as f64 };
    let stalled_ns = waited(scene, &far, 0).total_ns;
    // With no peer in the own rack there is no other way.
    let choice = known.len() > far.len();
    if !choice
        || crossing < limits.cross_rack_bytes
        || share < limits.cross_rack_share
        || !scene.counts(stalled_ns, limits.slow_peer_stall)
    {
        return None;
    }
    let summary = format!(
        "{:.0} % of the bytes to hosts in known racks cross racks ({} of {} peers); {} waited for those peers",
        share * 100.0,
        far.len(),
        known.len(),
        time(stalled_ns)
    );
    let proof = json!({
        "cross_rack_bytes": crossing,
        "bytes": total,
        "share": share,
        "cross_rack_hops": far.len(),
        "hops": known.len(),
        "stalled_ns": stalled_ns,
    });
    let advice = [
        "Order the ranks by rack (hostfile, Slurm --switches or topology plugin) and compare two recordings: stallscope diff BEFORE AFTER.".to_string(),
        "The share depends on the rings and trees that NCCL builds: NCCL_TOPO_DUMP_FILE and NCCL_DEBUG=INFO,GRAPH show them.".to_string(),
    ];
    let severity = scene.severity(Weight { lost_ns: stalled_ns, ..Weight::default() });
    Some(finding("net.cross_rack_share", severity, Cause::SockRecv, stalled_ns, summary, proof, &advice))
}
