//! `dns.resolver_unreachable` and `dns.slow`: what one server did.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::text::{LISTED, count, in_command, ip_of, list, some, time};
use super::{Scene, Weight, finding, nanos, resolver};
use crate::analysis::dns::{Asked, Lookup};
use crate::analysis::report::{Distribution, Finding, Severity};
use crate::model::cause::Cause;
use crate::model::dns::query::Outcome;
use crate::model::dns::unsent::errno_name;

const UNREACHABLE: &str = "dns.resolver_unreachable";

/// Everything that was asked of one server over UDP and TCP.
#[derive(Default)]
struct Server<'a> {
    /// Messages that the server owes an answer to, or that were refused.
    attempts: u64,
    answers: u64,
    refused: u64,
    /// Messages that this machine did not let out.
    unsent: u64,
    /// Messages that nothing came back for.
    unanswered: u64,
    /// Unreadable or foreign messages came from it: it is there.
    mismatched: u64,
    /// Questions that were given up without an answer.
    given_up: u64,
    /// Questions for anything but the name of an address.
    forward: u64,
    lookups: u64,
    failed: u64,
    in_flight: u64,
    oldest_ns: u64,
    stalled_ns: u64,
    stalled_for_answers_ns: u64,
    latencies: Vec<u64>,
    first_ns: Option<u64>,
    last_ns: u64,
    began_earlier: bool,
    errno: i32,
    /// What was waited for each name: for answers that came, and in all.
    names: BTreeMap<&'a str, (u64, u64)>,
    apis: BTreeSet<&'a str>,
    pids: BTreeSet<u32>,
    transports: BTreeSet<&'a str>,
}

/// Whether nobody gave this lookup what it wanted. What is in flight has not failed yet.
pub(super) fn has_failed(lookup: &Lookup) -> bool {
    let success = |asked: &Asked| matches!(asked.outcome, Outcome::Answered { rcode: 0, answers } if answers > 0 || asked.truncated);
    !lookup.in_flight && !lookup.asked.iter().any(success)
}

/// Latency and stalled time that the server is to answer for. Of a question that was sent again on the same socket, what
/// came before is the loss of a message, and `dns.retry_ladder`. What was waited on the socket when the answer had come,
/// or before the question is known to have been sent, was for another message that got lost; over TCP none gets lost.
fn since_last_sending(asked: &Asked) -> (Option<u64>, u64) {
    let last = asked.closed_ns.zip(asked.sends.last()).and_then(|(closed, sent)| closed.checked_sub(*sent));
    let Some(last) = last.filter(|_| asked.transport == "udp") else {
        return (asked.latency_ns, asked.stalled_ns);
    };
    let part = match asked.latency_ns {
        Some(whole) if last < whole => {
            let part = u128::from(asked.stalled_ns) * u128::from(last) / u128::from(whole);
            u64::try_from(part).unwrap_or(u64::MAX)
        }
        _ => asked.stalled_ns,
    };
    (Some(last), part.min(last))
}

fn by_server<'a>(scene: &Scene<'a>) -> BTreeMap<&'a str, Server<'a>> {
    let mut servers: BTreeMap<&str, Server<'a>> = BTreeMap::new();
    for lookup in &scene.dns.lookups {
        let mut seen = BTreeSet::new();
        for asked in &lookup.asked {
            if asked.transport == "unix" || asked.server.is_empty() {
                continue;
            }
            let server = servers.entry(&asked.server).or_default();
            server.take(asked);
            if seen.insert(asked.server.as_str()) {
                server.take_lookup(lookup);
            }
        }
    }
    for row in &scene.dns.rows {
        if let Some(server) = servers.get_mut(row.server.as_str()) {
            server.mismatched += row.mismatched;
        }
    }
    servers
}

impl<'a> Server<'a> {
    fn take(&mut self, asked: &'a Asked) {
        self.stalled_ns += asked.stalled_ns;
        self.transports.insert(asked.transport);
        self.forward += u64::from(asked.qtype.as_deref() != Some("PTR"));
        let sends = asked.sends.len() as u64;
        let mut for_answers_ns = 0;
        match asked.outcome {
            Outcome::Answered { .. } => {
                self.answers += 1;
                let (latency_ns, stalled_ns) = since_last_sending(asked);
                self.stalled_for_answers_ns += stalled_ns;
                for_answers_ns = stalled_ns;
                self.latencies.extend(latency_ns);
            }
            Outcome::Refused { errno } => {
                self.attempts += sends;
                self.refused += 1;
                self.errno = errno;
            }
            Outcome::NotSent { errno } => {
                self.unsent += asked.unsent;
                self.errno = errno;
            }
            // Another server was faster: nothing can be said of this one.
            Outcome::Elsewhere => {}
            Outcome::Open | Outcome::GivenUp => {
                self.attempts += sends;
                self.unanswered += sends;
                self.given_up += u64::from(!asked.in_flight && asked.stalled_ns > 0);
            }
        }
        if let Some(name) = asked.name.as_deref() {
            let waited = self.names.entry(name).or_default();
            waited.0 = waited.0.saturating_add(for_answers_ns);
            waited.1 = waited.1.saturating_add(asked.stalled_ns);
        }
    }

    /// The names that were asked for, the one that was waited for longest first.
    fn names(&self) -> Vec<&'a str> {
        let mut names: Vec<_> = self.names.iter().map(|(name, waited)| (Reverse(*waited), *name)).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// The first few of them, for a proof.
    fn some_names(&self) -> Vec<&'a str> {
        self.names().into_iter().take(LISTED).collect()
    }

    fn take_lookup(&mut self, lookup: &'a Lookup) {
        self.lookups += 1;
        self.failed += u64::from(has_failed(lookup));
        if lookup.in_flight {
            self.in_flight += 1;
            self.oldest_ns = self.oldest_ns.max(lookup.longest_wait_ns);
        }
        self.first_ns = Some(self.first_ns.map_or(lookup.start_ns, |first| first.min(lookup.start_ns)));
        self.last_ns = self.last_ns.max(lookup.end_ns);
        self.began_earlier |= lookup.began_earlier;
        self.pids.insert(lookup.pid);
        if !lookup.api.is_empty() {
            self.apis.insert(lookup.api);
        }
    }

    fn span_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns))
    }

    /// ` for node01, in getaddrinfo, pid 12`.
    fn context(&self) -> String {
        let mut text = String::new();
        if !self.names.is_empty() {
            text.push_str(&format!(" for {}", list(self.names())));
        }
        if !self.apis.is_empty() {
            text.push_str(&format!(" in {}", list(self.apis.iter().copied())));
        }
        let pids: Vec<String> = self.pids.iter().map(ToString::to_string).collect();
        text.push_str(&format!(" (pid {})", list(pids.iter().map(String::as_str))));
        text
    }
}

/// A server that answered nothing at all, or refuses everything.
pub(super) fn unreachable(scene: &Scene<'_>) -> Vec<Finding> {
    let servers = by_server(scene);
    servers.iter().filter_map(|(name, server)| unreachable_server(scene, name, server)).collect()
}

fn unreachable_server(scene: &Scene<'_>, name: &str, server: &Server<'_>) -> Option<Finding> {
    if server.answers > 0 || server.mismatched > 0 {
        return None;
    }
    let limits = &scene.thresholds.dns;
    let unsent = server.unsent > 0 && server.attempts == 0;
    let repeated = server.failed > 0 && scene.is_repeated(server.refused + server.unsent, server.span_ns());
    let refused = server.refused > 0 || unsent;
    // A reverse zone whose own servers are dead makes a healthy resolver look like this.
    if server.forward == 0 && !refused {
        return None;
    }
    // The first query may still be answered: only time tells.
    let in_vain = server.given_up > 0 || server.oldest_ns >= nanos(limits.unreachable_wait);
    let waited = scene.counts(server.stalled_ns, limits.unreachable_stall) && (in_vain || refused);
    // A refusal is certain at once, and a lookup that failed for it failed the program.
    let failed = refused && server.failed > 0;
    if !waited && !failed {
        return None;
    }
    let summary = if refused {
        let what = if unsent {
            "cannot be reached from here (no route, or a firewall of this machine)"
        } else if server.errno == libc::ECONNREFUSED {
            "refuses every query (ICMP: nobody listens on the port)"
        } else {
            "cannot be reached (ICMP)"
        };
        // Machines limit how many ICMP messages they send.
        let silent = match server.unanswered {
            0 => String::new(),
            queries => format!(" and {} without any answer", count(queries, "query", "queries")),
        };
        let how_often = if unsent {
            let error = errno_name(server.errno);
            format!("{} not sent ({error})", count(server.unsent, "query", "queries"))
        } else {
            count(server.refused, "refusal", "refusals")
        };
        format!(
            "{name} {what}: {how_often}{silent} in {}, {} waited{}",
            time(server.span_ns()),
            time(server.stalled_ns),
            server.context()
        )
    } else {
        let sent = match server.attempts {
            0 => "the query was sent before the recording".to_string(),
            attempts => format!("{} sent", count(attempts, "query", "queries")),
        };
        format!(
            "{name} never answered: {sent}, no answer, {} waited{}",
            time(server.stalled_ns),
            server.context()
        )
    };
    let lost_ns = if repeated { server.stalled_ns.max(server.span_ns()) } else { server.stalled_ns };
    let failing = server.failed > 0 || server.in_flight > 0;
    let mut severity = scene.severity(Weight { lost_ns, failing, in_flight_ns: server.oldest_ns });
    if failed && server.failed == server.lookups {
        severity = severity.min(Severity::Warning);
    }
    let pid = server.pids.first().copied().unwrap_or(0);
    let mut advice = vec![resolver::look_at_file(pid)];
    if let Some(ip) = ip_of(name) {
        advice.push(resolver::ask(pid, Some(ip), server.names().first().copied(), ""));
        advice.extend(resolver::revive(pid, ip));
    }
    advice.push(resolver::meanwhile(scene, name));
    let named = ip_of(name).is_some_and(|ip| resolver::nameservers(scene, &server.pids).contains(&ip));
    let proof = json!({
        "server": name,
        "transports": some(&server.transports),
        "attempts": server.attempts,
        "answered": 0,
        "refused": server.refused,
        "unsent": server.unsent,
        "unanswered": server.unanswered,
        "lookups": server.lookups,
        "failed_lookups": server.failed,
        "in_flight": server.in_flight,
        "longest_wait_ns": server.oldest_ns,
        "span_ns": server.span_ns(),
        "stalled_ns": server.stalled_ns,
        "names": server.some_names(),
        "pids": some(&server.pids),
        "began_earlier": server.began_earlier,
        "in_resolv_conf": named,
        "resolv_conf": resolver::configurations(scene, &server.pids),
    });
    Some(finding(UNREACHABLE, severity, Cause::DnsResolve, server.stalled_ns, summary, proof, &advice))
}

/// What else follows from a server that answers nothing stays as a fact, behind the finding that names the cause.
pub(super) fn subsume(findings: &mut [Finding]) {
    let of = |finding: &Finding| {
        finding.proof.get("server").and_then(|server| server.as_str()).map(str::to_string)
    };
    let unreachable = findings.iter().filter(|finding| finding.id == UNREACHABLE);
    let servers: BTreeSet<String> = unreachable.filter_map(of).collect();
    for finding in findings.iter_mut() {
        let follows = match finding.id.as_str() {
            "dns.retry_ladder" => {
                "The steps are those of `options timeout:… attempts:…` in /etc/resolv.conf: smaller values shorten each failure, but only a server that answers ends them."
            }
            "dns.still_waiting" => "It waits for the same server.",
            _ => continue,
        };
        if let Some(server) = of(finding).filter(|server| servers.contains(server)) {
            finding.severity = Severity::Info;
            finding.advice = format!("See {UNREACHABLE} for {server}. {follows}");
        }
    }
}

/// A server that answers, but late, or so often that it adds up.
pub(super) fn slow(scene: &Scene<'_>) -> Vec<Finding> {
    let servers = by_server(scene);
    servers.iter().filter_map(|(name, server)| slow_server(scene, name, server)).collect()
}

fn slow_server(scene: &Scene<'_>, name: &str, server: &Server<'_>) -> Option<Finding> {
    let limits = &scene.thresholds.dns;
    let latency = Distribution::of(server.latencies.clone());
    let stalled_ns = server.stalled_for_answers_ns;
    let late = latency.p50_ns >= nanos(limits.late) && scene.counts(stalled_ns, limits.slow_stall);
    let busy = scene.counts(stalled_ns, limits.busy_stall)
        && scene.share(stalled_ns) >= scene.thresholds.general.warning_share;
    if !late && !busy {
        return None;
    }
    let answers = count(server.answers, "answer", "answers");
    let summary = if late {
        format!(
            "{name} answers late: {answers}, {} at the median, {} at most; {} waited{}",
            time(latency.p50_ns),
            time(latency.max_ns),
            time(stalled_ns),
            server.context()
        )
    } else {
        format!(
            "lookups at {name} add up: {answers} in {}, {} waited{}",
            count(server.lookups, "lookup", "lookups"),
            time(stalled_ns),
            server.context()
        )
    };
    let pid = server.pids.first().copied().unwrap_or(0);
    let example = server.names().first().copied();
    let mut advice = vec![format!(
        "for i in 1 2 3; do {}; done | grep 'Query time'    # is the server slow, or its upstream (first query slow, next ones fast)?",
        resolver::ask(pid, ip_of(name), example, "")
    )];
    if ip_of(name).is_some_and(|ip| ip.is_loopback()) {
        advice.push(
            "resolvectl statistics; resolvectl status    # which upstream server the local resolver asks"
                .into(),
        );
    } else if let Some(ip) = ip_of(name) {
        advice.push(format!("ping -c 3 {ip}    # a slow way, or a slow server?"));
    }
    advice.push(format!(
        "A cache on the node (systemd-resolved, nscd, NodeLocal DNSCache) or an entry for {} in /etc/hosts takes the server out of the job's way; a trailing dot on names saves the tries with the search list.",
        in_command(example)
    ));
    let severity = scene.severity(Weight { lost_ns: stalled_ns, ..Weight::default() });
    let proof = json!({
        "server": name,
        "answers": server.answers,
        "lookups": server.lookups,
        "latency": latency,
        "stalled_ns": stalled_ns,
        "names": server.some_names(),
        "pids": some(&server.pids),
        "resolv_conf": resolver::configurations(scene, &server.pids),
    });
    Some(finding("dns.slow", severity, Cause::DnsResolve, stalled_ns, summary, proof, &advice))
}
