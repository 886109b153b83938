use hickory_proto::op::ResponseCode::{self, NXDomain, NoError, ServFail};
use hickory_proto::rr::RecordType::{A, AAAA};
use profiler_common::Api;

use super::{get, ids, number, of_script, strings};
use crate::analysis::dns::tests::script::{MS, SEC, Script};
use crate::analysis::report::Severity;

/// One lookup of A and AAAA that gets the same code for both.
fn ask(script: &mut Script, at: u64, name: &str, rcode: ResponseCode) {
    for (offset, qtype) in [(0, A), (1, AAAA)] {
        let id = (at / MS % 30000) as u16 * 2 + offset;
        script.send(at, id, name, qtype);
        script.receive(at + 2 * MS, id, name, qtype, rcode);
    }
    script.wait(at, at + 2 * MS);
}

#[test]
fn one_lookup_of_a_missing_name_is_worth_a_note() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getaddrinfo, "master");
    ask(&mut script, 0, "master.example.", NXDomain);
    ask(&mut script, 3 * MS, "master.", NXDomain);
    let findings = of_script(&script);
    assert_eq!(ids(&findings), ["dns.nxdomain"]);
    let missing = get(&findings, "dns.nxdomain");
    assert_eq!((missing.severity, missing.stalled_ns), (Severity::Info, 4 * MS));
    assert_eq!(strings(missing, "asked"), ["master", "master.example"]);
    assert_eq!(missing.proof["result"], "EAI_NONAME");
    assert_eq!(missing.summary, "master does not exist for 10.0.0.53:53");
}

#[test]
fn a_missing_name_that_is_asked_for_all_the_time_is_critical() {
    let mut script = Script::new(10 * SEC);
    for round in 0..19 {
        script.call(round * SEC / 2, Api::Getaddrinfo, "master");
        ask(&mut script, round * SEC / 2, "master.", NXDomain);
    }
    let missing = of_script(&script);
    let missing = get(&missing, "dns.nxdomain");
    assert_eq!(missing.severity, Severity::Critical);
    assert_eq!((number(missing, "lookups"), number(missing, "span_ns")), (19, 9 * SEC + 2 * MS));
    assert_eq!(missing.proof["per_second"], 2.0);
}

#[test]
fn a_name_that_appears_in_the_end_says_after_what_time() {
    let mut script = Script::new(10 * SEC);
    for round in 0..8 {
        script.call(round * SEC, Api::Getaddrinfo, "svc");
        ask(&mut script, round * SEC, "svc.", if round < 7 { NXDomain } else { NoError });
    }
    let findings = of_script(&script);
    let missing = get(&findings, "dns.nxdomain");
    assert_eq!(number(missing, "resolved_after_ns"), 7 * SEC + 2 * MS);
    assert_eq!(missing.severity, Severity::Warning, "it is over");
    assert!(missing.summary.contains("resolved 7.0 s after the first failure"), "{}", missing.summary);
}

#[test]
fn the_search_list_on_the_way_to_a_success_is_no_failure() {
    let mut script = Script::new(10 * SEC);
    for round in 0..9 {
        script.call(round * SEC, Api::Getaddrinfo, "db.prod");
        ask(&mut script, round * SEC, "db.prod.svc.cluster.local.", NXDomain);
        ask(&mut script, round * SEC + 3 * MS, "db.prod.", NoError);
    }
    assert_eq!(ids(&of_script(&script)), Vec::<&str>::new());
    // The same where the function is not known.
    let mut script = Script::new(10 * SEC);
    for round in 0..9 {
        ask(&mut script, round * SEC, "db.prod.svc.cluster.local.", NXDomain);
        ask(&mut script, round * SEC + 3 * MS, "db.prod.", NoError);
    }
    assert_eq!(ids(&of_script(&script)), Vec::<&str>::new());
}

#[test]
fn a_server_that_fails_is_named_with_its_code() {
    let mut script = Script::new(10 * SEC);
    for round in 0..10 {
        script.call(round * SEC, Api::Getaddrinfo, "node01");
        ask(&mut script, round * SEC, "node01.", ServFail);
    }
    let findings = of_script(&script);
    assert_eq!(ids(&findings), ["dns.servfail"]);
    let failing = get(&findings, "dns.servfail");
    assert_eq!(failing.severity, Severity::Critical);
    assert_eq!((number(failing, "answers"), number(failing, "failed_lookups")), (20, 10));
    assert_eq!(failing.proof["rcode"], "SERVFAIL");
    assert!(failing.advice.contains("+cd"), "{}", failing.advice);
}

#[test]
fn an_error_that_the_next_server_makes_good_is_no_finding() {
    let mut script = Script::new(10 * SEC);
    for round in 0..10 {
        script.call(round * SEC, Api::Getaddrinfo, "node01");
        script.server = "10.0.0.53:53".to_string();
        ask(&mut script, round * SEC, "node01.", ResponseCode::Refused);
        script.server = "10.0.0.54:53".to_string();
        ask(&mut script, round * SEC + 3 * MS, "node01.", NoError);
    }
    assert_eq!(ids(&of_script(&script)), Vec::<&str>::new());
}
