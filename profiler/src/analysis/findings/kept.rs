//! How many findings are kept. A job that asks a hundred thousand peers in vain has one trouble, not a hundred
//! thousand of which nobody sees the others.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::json;

use super::finding;
use super::text::{count, time};
use crate::analysis::report::{Finding, Severity};
use crate::model::cause::Cause;

/// Findings of one id, the worst; the others are told as one more.
pub(super) const ALIKE: usize = 100;
/// Findings that are held before those of least weight go.
const ROOM: usize = 4096;

struct LeftOut {
    count: u64,
    stalled_ns: u64,
    severity: Severity,
    cause: Cause,
}

#[derive(Default)]
pub(super) struct Kept {
    findings: Vec<Finding>,
    left_out: BTreeMap<String, LeftOut>,
}

impl Kept {
    pub(super) fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            self.findings.push(finding);
            if self.findings.len() >= ROOM {
                self.prune();
            }
        }
    }

    /// To change what is held before the rest goes.
    pub(super) fn held(&mut self) -> &mut [Finding] {
        &mut self.findings
    }

    /// The worst first, then by stalled time.
    pub(super) fn finish(mut self) -> Vec<Finding> {
        self.prune();
        let Kept { mut findings, left_out } = self;
        findings.extend(left_out.into_iter().map(|(id, left_out)| more(&id, &left_out)));
        sort(&mut findings);
        findings
    }

    fn prune(&mut self) {
        sort(&mut self.findings);
        let mut kept: BTreeMap<String, usize> = BTreeMap::new();
        let left_out = &mut self.left_out;
        self.findings.retain(|finding| {
            let alike = kept.entry(finding.id.clone()).or_default();
            *alike += 1;
            if *alike > ALIKE {
                leave_out(left_out, finding);
            }
            *alike <= ALIKE
        });
    }
}

fn leave_out(all: &mut BTreeMap<String, LeftOut>, finding: &Finding) {
    let none = || LeftOut { count: 0, stalled_ns: 0, severity: finding.severity, cause: finding.cause };
    let left_out = all.entry(finding.id.clone()).or_insert_with(none);
    left_out.count += 1;
    left_out.stalled_ns = left_out.stalled_ns.saturating_add(finding.stalled_ns);
    left_out.severity = left_out.severity.min(finding.severity);
}

fn more(id: &str, left_out: &LeftOut) -> Finding {
    let LeftOut { count: number, stalled_ns, severity, cause } = *left_out;
    let summary = format!(
        "{} of this kind, {} waited in them all; the worst {ALIKE} are told one by one",
        count(number, "more finding", "more findings"),
        time(stalled_ns)
    );
    let proof = json!({ "left_out": number, "stalled_ns": stalled_ns });
    finding(id, severity, cause, stalled_ns, summary, proof, &[])
}

fn sort(findings: &mut [Finding]) {
    findings.sort_by(|a, b| {
        let order = |finding: &Finding| (finding.severity, Reverse(finding.stalled_ns));
        order(a).cmp(&order(b)).then_with(|| (&a.id, &a.summary).cmp(&(&b.id, &b.summary)))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(number: u64) -> Finding {
        let severity = if number == 7 { Severity::Critical } else { Severity::Info };
        let summary = format!("peer {number}");
        finding("tcp.connect_refused", severity, Cause::TcpConnect, number, summary, json!({}), &[])
    }

    #[test]
    fn the_worst_are_told_and_the_others_counted() {
        let mut kept = Kept::default();
        kept.extend((0..100_000).map(refused));
        kept.extend([finding(
            "dns.slow",
            Severity::Warning,
            Cause::DnsResolve,
            1,
            "s".into(),
            json!({}),
            &[],
        )]);
        assert!(kept.held().len() < ROOM);
        let findings = kept.finish();
        assert_eq!(findings.len(), ALIKE + 2);
        assert_eq!((findings[0].summary.as_str(), findings[1].id.as_str()), ("peer 7", "dns.slow"));
        let more = &findings[2];
        assert_eq!(
            (more.id.as_str(), &more.proof["left_out"]),
            ("tcp.connect_refused", &json!(100_000 - 100))
        );
        let told: u64 = findings.iter().filter(|finding| finding.id == more.id).map(|f| f.stalled_ns).sum();
        assert_eq!(told, (0..100_000).sum::<u64>(), "no time is lost");
        assert_eq!(findings[3].summary, "peer 99999");
    }

    #[test]
    fn a_few_findings_stay_as_they_are() {
        let mut kept = Kept::default();
        kept.extend((0..ALIKE as u64).map(refused));
        assert!(kept.finish().iter().all(|finding| finding.summary.starts_with("peer ")));
    }

    #[test]
    fn impossible_times_do_not_overflow() {
        let mut kept = Kept::default();
        kept.extend((0..300).map(|_| Finding { stalled_ns: u64::MAX, ..refused(1) }));
        assert!(kept.finish().iter().all(|finding| finding.stalled_ns == u64::MAX));
    }
}
