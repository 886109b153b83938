//! From records to the report.

use hickory_proto::op::ResponseCode::NoError;
use hickory_proto::rr::RecordType::{A, AAAA};
use profiler_common::Call;

use super::script::{MS, SEC, Script, T0};
use crate::model::cause::Cause;
use crate::model::fixture::{Trace, in_flight, readable, udp, wait};
use crate::trace::record::Record;

#[test]
fn records_become_rows_labels_and_findings_that_agree_with_the_causes() {
    let mut script = Script::new(8 * SEC);
    (script.pid, script.tid) = (100, 100);
    script.send(0, 1, "node01.", A);
    script.send(0, 2, "node01.", AAAA);
    script.receive(MS, 1, "node01.", A, NoError);
    script.socket(7001);
    script.send(5 * SEC, 2, "node01.", AAAA);

    let mut trace = Trace::with_window(T0, T0 + 8 * SEC);
    for message in script.messages {
        trace.add(Record::Dns(message));
    }
    let server = |ino| readable(udp(ino, "10.0.0.53:53"));
    trace.wait(wait(Call::Poll, T0, T0 + MS, vec![server(7000)]));
    trace.wait(wait(Call::Poll, T0 + MS, T0 + 5 * SEC, vec![server(7000)]));
    trace.wait(in_flight(wait(Call::Poll, T0 + 5 * SEC, T0 + 8 * SEC, vec![server(7001)])));
    let analysis = trace.analyse();

    let stalled: u64 = analysis.report.dns.iter().map(|row| row.stalled_ns).sum();
    assert_eq!(Some(stalled), analysis.cause(Cause::DnsResolve).map(|row| row.stalled_ns));
    assert_eq!(stalled, 8 * SEC);
    let lost = &analysis.report.dns[0];
    assert_eq!(
        (lost.qtype.as_deref(), lost.attempts, lost.answered, lost.in_flight),
        (Some("AAAA"), 2, 0, 1)
    );
    assert_eq!(lost.stalled_ns, 8 * SEC - MS / 2);
    let details: Vec<&str> = analysis.stalls.iter().map(|stall| stall.detail.as_str()).collect();
    assert_eq!(details[1..], ["node01 AAAA no answer", "node01 AAAA no answer"]);
    let ids: Vec<&str> = analysis.report.findings.iter().map(|finding| finding.id.as_str()).collect();
    assert_eq!(ids, ["dns.still_waiting", "dns.retry_ladder"]);
}
