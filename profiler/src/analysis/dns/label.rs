//! What a flame graph says about one wait.

use std::collections::{BTreeMap, BTreeSet};

use super::share::{Share, Target};
use super::{Calls, LATE_NS};
use crate::analysis::dns_wait::DnsWait;
use crate::model::dns::exchange::Exchanges;
use crate::model::dns::message::rcode_name;
use crate::model::dns::query::{Outcome, Query};

/// How a wait ended, worst last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Answered,
    /// Over UDP, to be asked again over TCP.
    Truncated,
    Elsewhere,
    Late,
    Code(String),
    Unreachable,
    Refused,
    NotSent,
    NoAnswer,
}

impl Verdict {
    fn of(query: &Query) -> Verdict {
        match query.outcome {
            Outcome::NotSent { .. } => Verdict::NotSent,
            Outcome::Open | Outcome::GivenUp if query.sends.is_empty() && query.unsent > 0 => {
                Verdict::NotSent
            }
            Outcome::Open | Outcome::GivenUp => Verdict::NoAnswer,
            Outcome::Elsewhere => Verdict::Elsewhere,
            Outcome::Refused { errno: libc::ECONNREFUSED } => Verdict::Refused,
            Outcome::Refused { .. } => Verdict::Unreachable,
            Outcome::Answered { rcode, .. } if rcode != 0 => Verdict::Code(rcode_name(rcode)),
            Outcome::Answered { .. } if query.latency_ns().is_some_and(|latency| latency >= LATE_NS) => {
                Verdict::Late
            }
            Outcome::Answered { .. } if query.truncated => Verdict::Truncated,
            Outcome::Answered { .. } => Verdict::Answered,
        }
    }

    fn text(&self) -> &str {
        match self {
            Verdict::Answered => "answered",
            Verdict::Truncated => "truncated",
            Verdict::Elsewhere => "answered by another server",
            Verdict::Late => "answered late",
            Verdict::Code(code) => code,
            Verdict::Unreachable => "unreachable (ICMP)",
            Verdict::Refused => "refused (ICMP)",
            Verdict::NotSent => "not sent",
            Verdict::NoAnswer => "no answer",
        }
    }
}

/// `node01 A+AAAA no answer`: name and outcome that most of the wait went to.
pub(super) fn of_wait(exchanges: &Exchanges, wait: &DnsWait, shares: &[Share], calls: &Calls<'_>) -> String {
    let mut verdicts: BTreeMap<Verdict, u64> = BTreeMap::new();
    let mut parts = Vec::new();
    for share in shares {
        let (index, verdict) = match share.target {
            Target::Query(index) => {
                let verdict = exchanges.queries.get(index).map_or(Verdict::NoAnswer, Verdict::of);
                (index, verdict)
            }
            Target::SentAnewAs(index) => (index, Verdict::NoAnswer),
            Target::Unknown(_) => continue,
        };
        *verdicts.entry(verdict.clone()).or_default() += share.weight_ns;
        let question = exchanges.queries.get(index).and_then(|query| query.question.as_ref());
        parts.push((verdict, question, share.weight_ns));
    }
    // Of equals the last, which is the worst.
    let Some(verdict) = verdicts.into_iter().max_by_key(|(_, weight)| *weight).map(|(verdict, _)| verdict)
    else {
        return without_question(wait, calls);
    };
    let mut names: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, question, weight) in parts.iter().filter(|part| part.0 == verdict) {
        *names.entry(question.map_or("", |question| question.name.as_str())).or_default() += weight;
    }
    let name = names.into_iter().max_by_key(|(_, weight)| *weight).map_or("", |(name, _)| name);
    let mut words = vec![if name.is_empty() { "(unknown name)" } else { name }.to_string()];
    if verdict == Verdict::NoAnswer {
        let types: BTreeSet<(u16, String)> = parts
            .iter()
            .filter(|part| part.0 == verdict)
            .filter_map(|part| part.1)
            .filter(|question| question.name == name)
            .map(|question| (question.qtype, question.type_name()))
            .collect();
        let types: Vec<String> = types.into_iter().map(|(_, name)| name).collect();
        if !types.is_empty() {
            words.push(types.join("+"));
        }
    }
    words.push(verdict.text().to_string());
    words.join(" ")
}

/// No message of this socket was seen: a service behind a unix socket, or a query from before.
fn without_question(wait: &DnsWait, calls: &Calls<'_>) -> String {
    let name =
        calls.argument(wait.pid, wait.tid, wait.api_start_ns).unwrap_or_else(|| "(unknown name)".to_string());
    // A poll that returned 0 timed out.
    let unanswered = wait.in_flight || wait.ret <= 0;
    if unanswered { format!("{name} no answer") } else { name }
}
