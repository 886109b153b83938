use crate::analysis::rdma_setup::{EventRow, OperationRow, RdmaSetupSection, RegistrationRow};
use crate::analysis::report::{Finding, Report, Severity};
use crate::model::cause::Cause;

const MS: u64 = 1_000_000;

fn row(total_ns: u64, pin_share: f64, command_share: f64) -> OperationRow {
    OperationRow {
        op: "register".to_owned(),
        pid: 100,
        call: true,
        calls: 8,
        total_ns,
        bytes: 8 << 30,
        pin_ns: (total_ns as f64 * pin_share) as u64,
        command_ns: (total_ns as f64 * command_share) as u64,
        pin_share,
        command_share,
        ..OperationRow::default()
    }
}

fn found(operations: Vec<OperationRow>, events: Vec<EventRow>) -> Vec<Finding> {
    let slowest = vec![RegistrationRow { pid: 100, bytes: 4 << 30, ..RegistrationRow::default() }];
    let section = RdmaSetupSection { operations, events, slowest, ..RdmaSetupSection::default() };
    super::of_report(&Report { rdma_setup: Some(section), ..super::report(10_000 * MS) })
}

#[test]
fn registrations_that_pin_for_a_tenth_of_the_recording_are_slow() {
    let findings = found(vec![row(1000 * MS, 0.8, 0.1)], Vec::new());
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((finding.id.as_str(), finding.cause), ("rdma.registration_slow", Cause::DmaMap));
    assert_eq!((finding.severity, finding.stalled_ns), (Severity::Warning, 1000 * MS));
    assert!(finding.summary.contains("8 registrations of memory (8.00 GiB in all)"), "{}", finding.summary);
    assert!(finding.summary.contains("most is pinning pages"), "{}", finding.summary);
    assert_eq!(finding.proof["largest_bytes"], 4_u64 << 30);
}

#[test]
fn the_device_is_named_where_it_takes_the_time() {
    let findings = found(vec![row(1000 * MS, 0.2, 0.7)], Vec::new());
    assert_eq!(findings[0].cause, Cause::RdmaSetup);
    assert!(findings[0].summary.contains("most is the device's commands"), "{}", findings[0].summary);
}

#[test]
fn little_time_and_other_operations_are_no_finding() {
    assert_eq!(found(vec![row(90 * MS, 0.8, 0.1)], Vec::new()), []);
    let other = OperationRow { op: "create qp".to_owned(), ..row(5000 * MS, 0.8, 0.1) };
    assert_eq!(found(vec![other], Vec::new()), []);
}

#[test]
fn a_port_that_went_down_is_told_and_one_that_came_up_alone_is_not() {
    let event = |event: &str, time_ns| EventRow { time_ns, event: event.to_owned(), port: 1 };
    assert_eq!(found(Vec::new(), vec![event("PORT_ACTIVE", 5)]), []);
    let findings = found(Vec::new(), vec![event("PORT_ERR", 5), event("PORT_ACTIVE", 9)]);
    assert_eq!((findings[0].id.as_str(), findings[0].severity), ("rdma.port_event", Severity::Warning));
    let findings = found(Vec::new(), vec![event("PORT_ERR", 5)]);
    assert_eq!(findings[0].severity, Severity::Critical);
}
