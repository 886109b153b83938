//! `tcp.*`: connections that do not come about, and segments that get lost.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::json;

use super::kept::Kept;
use super::text::{count, ip_of, list, some, time};
use super::{Scene, Weight, finding, interface, nanos};
use crate::analysis::report::{ConnectRow, Finding};
use crate::model::cause::Cause;

pub(super) fn find(scene: &Scene<'_>, findings: &mut Kept) {
    let mut peers: BTreeMap<&str, Peer<'_>> = BTreeMap::new();
    for row in scene.report.connects.iter().filter(|row| ip_of(&row.peer).is_some()) {
        peers.entry(&row.peer).or_default().take(row);
    }
    // Threads by the ports that they got a connection to, and how many peers that were.
    let mut connected: BTreeMap<(&str, (u32, u32)), u64> = BTreeMap::new();
    for (name, peer) in peers.iter().filter(|(_, peer)| peer.ok > 0) {
        for thread in &peer.threads {
            *connected.entry((port(name), *thread)).or_default() += 1;
        }
    }
    for (name, peer) in &peers {
        findings.extend(unreachable(scene, name, peer));
        findings.extend(timeout(scene, name, peer));
        let own = u64::from(peer.ok > 0);
        let elsewhere = peer
            .threads
            .iter()
            .any(|thread| connected.get(&(port(name), *thread)).is_some_and(|peers| *peers > own));
        findings.extend(refused(scene, name, peer, elsewhere));
    }
    findings.extend(retransmits(scene));
}

fn port(peer: &str) -> &str {
    peer.rsplit(':').next().unwrap_or("")
}

/// Attempts with the same result.
#[derive(Clone, Default)]
struct Attempts {
    count: u64,
    syn_retransmits: u64,
    stalled_ns: u64,
    span_ns: u64,
    longest_ns: u64,
    began_earlier: bool,
}

impl Attempts {
    fn take(&mut self, row: &ConnectRow) {
        self.count += row.count;
        self.syn_retransmits += row.syn_retransmits;
        self.stalled_ns += row.stalled_ns;
        self.span_ns = self.span_ns.max(row.span_ns);
        self.longest_ns = self.longest_ns.max(row.handshake.max_ns);
        self.began_earlier |= row.began_earlier;
    }
}

/// All attempts to one peer.
#[derive(Default)]
struct Peer<'a> {
    ok: u64,
    in_flight: Attempts,
    timed_out: Attempts,
    /// EHOSTUNREACH, ENETUNREACH.
    no_route: Attempts,
    refused: Attempts,
    /// Closed by the program while SYNs were being repeated, or waited for up to the program's own time limit.
    given_up: Attempts,
    errors: BTreeSet<&'a str>,
    locals: BTreeSet<&'a str>,
    pids: BTreeSet<u32>,
    threads: BTreeSet<(u32, u32)>,
}

impl<'a> Peer<'a> {
    fn take(&mut self, row: &'a ConnectRow) {
        let attempts = match row.result.as_str() {
            "ok" => {
                self.ok += row.count;
                self.threads.insert((row.pid, row.tid));
                return;
            }
            "in_flight" => &mut self.in_flight,
            "ETIMEDOUT" => &mut self.timed_out,
            "EHOSTUNREACH" | "ENETUNREACH" => &mut self.no_route,
            "ECONNREFUSED" => &mut self.refused,
            "aborted" if row.syn_retransmits > 0 => &mut self.given_up,
            "timed_out" => &mut self.given_up,
            _ => return,
        };
        attempts.take(row);
        self.errors.insert(&row.result);
        self.threads.insert((row.pid, row.tid));
        self.pids.insert(row.pid);
        if !row.local.is_empty() {
            self.locals.insert(&row.local);
        }
    }

    fn pid(&self) -> u32 {
        self.pids.first().copied().unwrap_or(0)
    }

    /// The interfaces of the own addresses.
    fn interfaces<'s>(&self, scene: &Scene<'s>) -> BTreeSet<&'s str> {
        let addresses = self.locals.iter().filter_map(|local| ip_of(local));
        addresses.filter_map(|address| interface::of_address(scene, address, &self.pids)).collect()
    }

    /// ` (own address 10.0.0.1:4000 on eth0, pid 12)`.
    fn context(&self, scene: &Scene<'_>) -> String {
        let from = match self.locals.first() {
            Some(local) => {
                let address = ip_of(local);
                match address.and_then(|address| interface::of_address(scene, address, &self.pids)) {
                    Some(interface) => format!("own address {local} on {interface}, "),
                    None => format!("own address {local}, "),
                }
            }
            None => String::new(),
        };
        let pids: Vec<String> = self.pids.iter().map(ToString::to_string).collect();
        format!(" ({from}pid {})", list(pids.iter().map(String::as_str)))
    }
}

/// A peer that says nothing to a SYN, or that there is no way to.
fn unreachable(scene: &Scene<'_>, name: &str, peer: &Peer<'_>) -> Option<Finding> {
    // Whoever accepted a connection in this recording can be reached.
    if peer.ok > 0 {
        return None;
    }
    let least = nanos(scene.thresholds.tcp.connect_wait);
    let hangs = peer.in_flight.count > 0 && peer.in_flight.span_ns >= least && silent(scene, &peer.in_flight);
    let failed = [&peer.timed_out, &peer.given_up].into_iter().any(|attempts| {
        attempts.syn_retransmits > 0 && attempts.stalled_ns.max(attempts.longest_ns) >= least
    });
    let no_route = peer.no_route.count > 0;
    if !hangs && !failed && !no_route {
        return None;
    }
    let parts = [&peer.in_flight, &peer.timed_out, &peer.given_up, &peer.no_route];
    let stalled_ns: u64 = parts.iter().map(|attempts| attempts.stalled_ns).sum();
    let attempts: u64 = parts.iter().map(|attempts| attempts.count).sum();
    let syns: u64 = parts.iter().map(|attempts| attempts.syn_retransmits).sum();
    let age_ns = if hangs { peer.in_flight.span_ns } else { 0 };
    let how = if hangs {
        let at_least = if peer.in_flight.began_earlier { "at least " } else { "" };
        format!(
            "no answer to the SYN for {at_least}{}, sent again {}",
            time(age_ns),
            count(syns, "time", "times")
        )
    } else if no_route && !failed {
        let errors: Vec<&str> =
            peer.errors.iter().copied().filter(|error| error.ends_with("UNREACH")).collect();
        format!("no way there ({}), {}", errors.join(", "), count(attempts, "attempt", "attempts"))
    } else {
        format!(
            "no answer to {}, SYNs sent again {}",
            count(attempts, "attempt", "attempts"),
            count(syns, "time", "times")
        )
    };
    let summary =
        format!("{name} cannot be reached: {how}; {} waited{}", time(stalled_ns), peer.context(scene));
    let repeated = scene.is_repeated(peer.no_route.count, peer.no_route.span_ns);
    let lost_ns = if repeated { stalled_ns.max(peer.no_route.span_ns) } else { stalled_ns };
    let failing = hangs || failed || repeated;
    let severity = scene.severity(Weight { lost_ns, failing, in_flight_ns: age_ns });
    let proof = json!({
        "peer": name,
        "local": some(&peer.locals),
        "interfaces": peer.interfaces(scene),
        "results": some(&peer.errors),
        "attempts": attempts,
        "in_flight": peer.in_flight.count,
        "age_ns": age_ns,
        "began_earlier": peer.in_flight.began_earlier,
        "syn_retransmits": syns,
        "span_ns": parts.iter().map(|attempts| attempts.span_ns).max(),
        "stalled_ns": stalled_ns,
        "pids": some(&peer.pids),
        "NCCL_SOCKET_IFNAME": ifname(scene),
    });
    let advice = reach(scene, name, peer);
    Some(finding("tcp.peer_unreachable", severity, Cause::TcpConnect, stalled_ns, summary, proof, &advice))
}

/// Whether the attempts in flight are really without an answer. A first SYN is repeated after a second; where
/// repetitions are not known, only a long wait tells.
fn silent(scene: &Scene<'_>, attempts: &Attempts) -> bool {
    attempts.syn_retransmits > 0 || attempts.span_ns >= 3 * nanos(scene.thresholds.tcp.connect_wait)
}

fn reach(scene: &Scene<'_>, name: &str, peer: &Peer<'_>) -> Vec<String> {
    let pid = peer.pid();
    let mut lines = Vec::new();
    if let Some(ip) = ip_of(name) {
        let port = port(name);
        lines.push(format!(
            "nsenter -t {pid} -n ip route get {ip}    # which interface, which source address?"
        ));
        lines.push(format!("nsenter -t {pid} -n ss -tnpo dst {ip}    # SYN-SENT with its timer"));
        lines.push(format!("nsenter -t {pid} -n ping -c 3 {ip}; on the peer: ss -tlnp 'sport = :{port}' and iptables -nvL / nft list ruleset    # is it up, does it listen, is there a firewall?"));
    }
    let interfaces = peer.interfaces(scene);
    let local = peer.locals.first().and_then(|local| ip_of(local));
    if let Some(local) = local.filter(|_| interfaces.is_empty()) {
        lines.push(format!(
            "nsenter -t {pid} -n ip -br addr | grep -wF {local}    # the interface that it goes out of"
        ));
    }
    let virtual_net = ip_of(name)
        .into_iter()
        .chain(peer.locals.iter().filter_map(|local| ip_of(local)))
        .any(is_container_net);
    let ifname = ifname(scene);
    let loopback = ip_of(name).is_some_and(|ip| ip.is_loopback());
    let dead_end = interfaces.iter().find(|name| interface::is_local(name)).filter(|_| !loopback);
    if let Some(dead_end) = dead_end {
        lines.push(format!("It goes out of {dead_end}, an interface inside this host that other hosts can hardly be reached through: set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to the cluster's interface, e.g. NCCL_SOCKET_IFNAME=eth0, or exclude it: NCCL_SOCKET_IFNAME=^docker,lo,veth (nsenter -t {pid} -n ip -br addr    # shows them all)."));
    } else if virtual_net {
        lines.push("The address looks like that of a container bridge (docker0, veth), which other hosts cannot reach: set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to the cluster's interface, e.g. NCCL_SOCKET_IFNAME=eth0, or exclude it: NCCL_SOCKET_IFNAME=^docker,lo,veth.".to_string());
    } else if ifname.is_empty() {
        lines.push("If this is NCCL's or Gloo's connection: NCCL_SOCKET_IFNAME was not set, so an interface was picked; set it (and GLOO_SOCKET_IFNAME) to the one that the hosts share.".to_string());
    }
    lines
}

/// The ranges that Docker and libvirt give out by default.
fn is_container_net(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            (a == 172 && (17..=31).contains(&b)) || (a, b, c) == (192, 168, 122) || (a, b) == (169, 254)
        }
        IpAddr::V6(_) => false,
    }
}

fn ifname<'a>(scene: &Scene<'a>) -> BTreeSet<&'a str> {
    let rows = scene.surroundings.environment.iter();
    rows.filter(|row| row.what == "NCCL_SOCKET_IFNAME").map(|row| row.value.as_str()).collect()
}

/// Attempts that ended in a time-out, the kernel's or the program's own.
fn timeout(scene: &Scene<'_>, name: &str, peer: &Peer<'_>) -> Option<Finding> {
    let parts = [&peer.timed_out, &peer.given_up];
    let attempts: u64 = parts.iter().map(|attempts| attempts.count).sum();
    let stalled_ns: u64 = parts.iter().map(|attempts| attempts.stalled_ns).sum();
    let longest_ns = parts.iter().map(|attempts| attempts.longest_ns).max().unwrap_or(0);
    let syns: u64 = parts.iter().map(|attempts| attempts.syn_retransmits).sum();
    if attempts == 0 || stalled_ns.max(longest_ns) < nanos(scene.thresholds.tcp.connect_wait) {
        return None;
    }
    let mut how = Vec::new();
    if peer.timed_out.count > 0 {
        how.push(format!("{} timed out (ETIMEDOUT)", peer.timed_out.count));
    }
    if peer.given_up.count > 0 {
        how.push(format!("{} given up by the program", peer.given_up.count));
    }
    let summary = format!(
        "connecting to {name}: {}, after {} at most and {}; {} waited{}",
        how.join(", "),
        time(longest_ns),
        count(syns, "repeated SYN", "repeated SYNs"),
        time(stalled_ns),
        peer.context(scene)
    );
    let span_ns = parts.iter().map(|attempts| attempts.span_ns).max().unwrap_or(0);
    let severity = scene.severity(Weight { lost_ns: stalled_ns, failing: peer.ok == 0, in_flight_ns: 0 });
    let proof = json!({
        "peer": name,
        "local": some(&peer.locals),
        "interfaces": peer.interfaces(scene),
        "timed_out": peer.timed_out.count,
        "given_up": peer.given_up.count,
        "connected": peer.ok,
        "syn_retransmits": syns,
        "longest_ns": longest_ns,
        "span_ns": span_ns,
        "stalled_ns": stalled_ns,
        "pids": some(&peer.pids),
    });
    let mut advice = reach(scene, name, peer);
    advice.push("sysctl net.ipv4.tcp_syn_retries    # 6 means about two minutes until ETIMEDOUT; the program's own time-out can be shorter".into());
    Some(finding("tcp.connect_timeout", severity, Cause::TcpConnect, stalled_ns, summary, proof, &advice))
}

/// A peer on whose port nobody listens. One refusal with a connection to the same port elsewhere (IPv6 before
/// IPv4) is ordinary.
fn refused(scene: &Scene<'_>, name: &str, peer: &Peer<'_>, elsewhere: bool) -> Option<Finding> {
    let refused = &peer.refused;
    let repeated = scene.is_repeated(refused.count, refused.span_ns);
    if refused.count == 0 || (!repeated && (elsewhere || peer.ok > 0)) {
        return None;
    }
    let mut summary = format!("{name} refuses connections: {}", count(refused.count, "attempt", "attempts"));
    if refused.count > 1 {
        summary.push_str(&format!(" in {}", time(refused.span_ns)));
    }
    summary.push_str(&peer.context(scene));
    if peer.ok > 0 {
        summary.push_str(&format!("; {} came about", count(peer.ok, "connection", "connections")));
    }
    let stalled_ns = refused.stalled_ns;
    let lost_ns = if repeated { stalled_ns.max(refused.span_ns) } else { stalled_ns };
    let failing = repeated && peer.ok == 0 && !elsewhere;
    let severity = scene.severity(Weight { lost_ns, failing, in_flight_ns: 0 });
    let per_second = match refused.span_ns {
        0 => 0.0,
        span => (refused.count as f64 / (span as f64 / 1e9) * 100.0).round() / 100.0,
    };
    let port = port(name);
    let place = ip_of(name).map_or_else(|| name.to_string(), |ip| ip.to_string());
    let advice = [
        format!("on {place}: ss -tlnp 'sport = :{port}'    # does the program listen there, and on the right address?"),
        "The server's side is not up (yet), has crashed, or listens on another port or on 127.0.0.1 only: look at its log first; compare MASTER_ADDR and MASTER_PORT on both sides.".to_string(),
        format!("nsenter -t {} -n ss -tnp dst {place}    # what this side is trying", peer.pid()),
    ];
    let proof = json!({
        "peer": name,
        "local": some(&peer.locals),
        "interfaces": peer.interfaces(scene),
        "refused": refused.count,
        "connected": peer.ok,
        "per_second": per_second,
        "span_ns": refused.span_ns,
        "stalled_ns": stalled_ns,
        "pids": some(&peer.pids),
    });
    Some(finding("tcp.connect_refused", severity, Cause::TcpConnect, stalled_ns, summary, proof, &advice))
}

/// Waits in which segments were retransmitted, and peers to which many were.
fn retransmits(scene: &Scene<'_>) -> Option<Finding> {
    let limits = &scene.thresholds.tcp;
    let causes = scene.report.causes.iter();
    let stalled_ns: u64 =
        causes.filter(|row| row.cause == Cause::TcpRetransmit).map(|row| row.stalled_ns).sum();
    let mut hops: Vec<_> = scene.report.hops.iter().filter(|hop| hop.retransmits > 0).collect();
    hops.sort_by_key(|hop| (std::cmp::Reverse(hop.retransmits), &hop.peer));
    let most = hops.first().map_or(0, |hop| hop.retransmits);
    let seconds = scene.window_ns() as f64 / 1e9;
    let many = most >= limits.retransmits && most as f64 >= limits.retransmits_per_second * seconds;
    if !many && !scene.counts(stalled_ns, limits.retransmit_stall) {
        return None;
    }
    let named: Vec<String> = hops
        .iter()
        .map(|hop| format!("{} ({})", hop.peer, hop.retransmits))
        .take(super::text::LISTED)
        .collect();
    let total: u64 = hops.iter().map(|hop| hop.retransmits).sum();
    let to = if named.is_empty() {
        String::new()
    } else {
        format!(": {}", list(named.iter().map(String::as_str)))
    };
    let summary = format!(
        "{} retransmitted{to}; threads waited {} meanwhile",
        count(total, "TCP segment", "TCP segments"),
        time(stalled_ns)
    );
    let example = hops.first().map_or("PEER", |hop| hop.peer.as_str());
    let pid = scene.report.target.pids.first().copied().unwrap_or(0);
    let advice = [
        format!("nsenter -t {pid} -n ss -tnpi dst {example}    # retrans, rto, cwnd of each connection"),
        format!("nsenter -t {pid} -n ip route get {example}; then for the interface: ip -s -s link show dev IFACE; ethtool -S IFACE | grep -Ei 'drop|err|crc|discard|pause'"),
        "nstat -az TcpRetransSegs TcpExtTCPTimeouts TcpExtTCPLostRetransmit TcpExtTCPSpuriousRTOs    # twice, a few seconds apart".to_string(),
        "Only one peer: its cable, port or host. All peers: this host's own link. Many senders to one receiver: its switch port overflows (incast).".to_string(),
    ];
    let severity = scene.severity(Weight { lost_ns: stalled_ns, ..Weight::default() });
    let peers: Vec<_> = hops
        .iter()
        .take(super::text::LISTED)
        .map(|hop| json!({ "peer": hop.peer, "retransmits": hop.retransmits, "bytes": hop.bytes }))
        .collect();
    let proof = json!({ "retransmits": total, "peers": peers, "stalled_ns": stalled_ns });
    Some(finding("tcp.retransmits", severity, Cause::TcpRetransmit, stalled_ns, summary, proof, &advice))
}
