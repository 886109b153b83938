//! What the recorded environment says about the resolver, and the commands that follow from it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use super::Scene;
use super::text::in_command;

/// Address of systemd-resolved's stub.
const RESOLVED_STUB: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53));

/// The `resolv.conf` of these processes as recorded, one entry for each that differs.
pub(super) fn configurations<'a>(scene: &Scene<'a>, pids: &BTreeSet<u32>) -> BTreeSet<&'a str> {
    let rows = scene.surroundings.environment.iter().filter(|row| row.what == "resolv.conf");
    rows.filter(|row| row.pid == 0 || pids.contains(&row.pid)).map(|row| row.value.as_str()).collect()
}

/// Servers that the `resolv.conf` of these processes names.
pub(super) fn nameservers(scene: &Scene<'_>, pids: &BTreeSet<u32>) -> BTreeSet<IpAddr> {
    let entries = configurations(scene, pids).into_iter().flat_map(|text| text.split([';', '\n']));
    entries
        .filter_map(|entry| entry.trim().strip_prefix("nameserver "))
        .filter_map(|rest| rest.split_whitespace().next()?.split('%').next()?.parse().ok())
        .collect()
}

/// Servers that answered in this recording, with a code that says that they work.
pub(super) fn working(scene: &Scene<'_>) -> BTreeSet<String> {
    let rows = scene.report.dns.iter();
    rows.filter(|row| matches!(row.rcode.as_deref(), Some("NOERROR" | "NXDOMAIN")))
        .map(|row| row.server.clone())
        .collect()
}

/// Where to look first: the file that the process itself sees.
pub(super) fn look_at_file(pid: u32) -> String {
    format!(
        "nsenter -t {pid} -m -r cat /etc/resolv.conf    # what the process itself sees; is the server right?"
    )
}

/// Asks the server by hand, from the process's own network.
pub(super) fn ask(pid: u32, server: Option<IpAddr>, name: Option<&str>, more: &str) -> String {
    let name = in_command(name);
    let of_address = if name.rsplit('.').next() == Some("arpa") { "PTR " } else { "" };
    dig(pid, server, &format!("{name} {of_address}{more}"))
}

/// The same for the name of an address.
pub(super) fn ask_reverse(pid: u32, server: Option<IpAddr>, address: Option<IpAddr>) -> String {
    let address = address.map_or_else(|| "ADDRESS".to_string(), |address| address.to_string());
    dig(pid, server, &format!("-x {address} "))
}

fn dig(pid: u32, server: Option<IpAddr>, what: &str) -> String {
    let at = server.map_or_else(String::new, |server| format!("@{server} "));
    format!("nsenter -t {pid} -n dig {at}{what}+time=2 +tries=1")
}

/// How to get a server that says nothing to answer.
pub(super) fn revive(pid: u32, server: IpAddr) -> Vec<String> {
    let mut lines = Vec::new();
    if server.is_loopback() {
        lines.push(format!("nsenter -t {pid} -n ss -lnup 'sport = :53'    # does anybody listen there?"));
    } else {
        lines.push(format!("nsenter -t {pid} -n ip route get {server}; nsenter -t {pid} -n ping -c 3 {server}    # the way to it, and firewalls for UDP and TCP 53"));
    }
    if server == RESOLVED_STUB {
        lines.push("systemctl status systemd-resolved; systemctl restart systemd-resolved    # 127.0.0.53 is its stub; inside a container nobody listens there".to_string());
    }
    lines
}

/// What helps until the server does.
pub(super) fn meanwhile(scene: &Scene<'_>, server: &str) -> String {
    let others = working(scene);
    match others.iter().find(|other| other.as_str() != server) {
        Some(other) => format!(
            "Until then: {other} answered in this recording; name it first in /etc/resolv.conf, or add the job's hosts to /etc/hosts."
        ),
        None => "Until then: add the job's hosts to /etc/hosts (and check `hosts: files dns` in /etc/nsswitch.conf), or name a server that answers in /etc/resolv.conf with `options timeout:1 attempts:2`.".to_string(),
    }
}
