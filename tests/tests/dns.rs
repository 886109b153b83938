//! Lookups: what the report says of them agrees with the scripted server.

use std::time::Duration;

use serde_json::{Value, json};
use stallscope::demo::{Action, Network, RecordType, Rule, monotonic_ns};
use stallscope_tests::{
    Measured, Program, Recorder, Resolver, assert_between, assert_close, finding, record_run, require_root,
    rows, sum,
};

const MS: u64 = 1_000_000;

fn dns_rows<'a>(report: &'a Value, name: &str, qtype: &str) -> Vec<&'a Value> {
    rows(report, "dns", &[("name", json!(name)), ("qtype", json!(qtype))])
}

/// The one row of a name and type.
#[track_caller]
fn dns_row<'a>(report: &'a Value, name: &str, qtype: &str) -> &'a Value {
    let found = dns_rows(report, name, qtype);
    assert_eq!(found.len(), 1, "rows of {name} {qtype}: {:#}", report["dns"]);
    found[0]
}

/// Attempts and answers are exactly what the server saw.
#[track_caller]
fn assert_counts(rig: &Resolver, report: &Value, name: &str, qtype: RecordType) {
    let found = dns_rows(report, name, &qtype.to_string());
    let (queries, answers) = rig.counts(name, qtype);
    assert_eq!(sum(&found, "attempts"), queries as u64, "attempts of {name} {qtype}: {:#}", report["dns"]);
    assert_eq!(sum(&found, "answered"), answers as u64, "answers of {name} {qtype}: {:#}", report["dns"]);
}

/// The stalled time of all lookups, by row and by cause.
#[track_caller]
fn stalled(report: &Value) -> u64 {
    let by_row = sum(&rows(report, "dns", &[]), "stalled_ns");
    let by_cause = sum(&rows(report, "causes", &[("cause", json!("dns.resolve"))]), "stalled_ns");
    assert_eq!(by_row, by_cause, "{:#}", report["dns"]);
    by_row
}

/// The stalled time is what the program waited, for lookups whose own work does not count beside their waits.
#[track_caller]
fn assert_stalled(report: &Value, measured: impl Into<Measured>) {
    assert_close("dns.resolve", stalled(report), measured);
}

/// The server's clock stops when it hands its answer over, the program's when the lookup returns: on a busy machine
/// the program wakes late, so the latency lies anywhere between the two.
#[track_caller]
fn assert_latency(row: &Value, served_ns: u64, measured_ns: u64) {
    let latency = sum(&[row], "latency.sum_ns");
    let bounds = served_ns.saturating_sub(2 * MS)..=measured_ns;
    assert!(served_ns > 0 && bounds.contains(&latency), "{served_ns} <= {latency} <= {measured_ns}");
}

/// Of many short lookups only a part is waiting; what the program measured around them also has their work,
/// the wait for a processor, and calls that wait less than `--min-stall`. The waits are at least as long as the
/// server held the answers back, and no longer than what the program measured; the rest is accounted for.
#[track_caller]
fn assert_stalled_and_worked(report: &Value, served_ns: u64, measured_ns: u64) {
    let stalled = stalled(report);
    let slack = measured_ns / 50;
    assert_between("stalled", stalled, served_ns, measured_ns);
    let threads = rows(report, "threads", &[]);
    let worked = sum(&threads, "running_ns") + sum(&threads, "runnable_ns");
    let short = report["coverage"]["below_min_stall"]["sum_ns"].as_u64().unwrap();
    assert!(
        stalled + worked + short + slack >= measured_ns,
        "of {measured_ns} ns: stalled {stalled}, worked {worked}, short waits {short}"
    );
}

#[test]
fn late_answers_are_as_late_as_the_server_was() {
    let rig = Resolver::start(vec![Rule::new("test", Action::Answer { delay: Duration::from_millis(120) })]);
    let mut program = rig.program(&["getaddrinfo", "a.late.test", "3", "10", "unspec"]);
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    assert_stalled(&report, values.measured());
    for qtype in [RecordType::A, RecordType::AAAA] {
        let row = dns_row(&report, "a.late.test", &qtype.to_string());
        assert_counts(&rig, &report, "a.late.test", qtype);
        assert_eq!(rig.counts("a.late.test", qtype), (3, 3));
        assert_eq!(row["rcode"], "NOERROR");
        assert_eq!(row["api"], "getaddrinfo");
        assert_eq!(row["server"], rig.server_name());
        assert_eq!(row["transport"], "udp");
        assert_eq!((&row["in_flight"], &row["began_earlier"]), (&json!(0), &json!(false)));
        assert_eq!((&row["pid"], &row["tid"]), (&json!(program.pid()), &json!(program.pid())));
        assert_eq!(row["malformed"], false);
        assert_latency(row, rig.served_ns("a.late.test", qtype), values.ns());
    }
    finding(&report, "dns.slow");
}

#[test]
fn a_server_that_never_answers_is_asked_as_often_as_it_saw() {
    let rig = Resolver::start(vec![Rule::new("test", Action::Never)]);
    let (values, trace) = record_run(&mut rig.program(&["getaddrinfo", "a.test", "1", "0", "inet"]));
    let report = trace.report();
    assert_counts(&rig, &report, "a.test", RecordType::A);
    let row = dns_row(&report, "a.test", "A");
    assert_eq!((&row["attempts"], &row["answered"], &row["rcode"]), (&json!(2), &json!(0), &json!(null)));
    assert_stalled(&report, values.measured());
    finding(&report, "dns.resolver_unreachable");
}

#[test]
fn response_codes_are_named() {
    let delay = Duration::from_millis(20);
    for (action, code, id) in [
        (Action::nxdomain(delay), "NXDOMAIN", Some("dns.nxdomain")),
        (Action::servfail(delay), "SERVFAIL", Some("dns.servfail")),
        (Action::refused(delay), "REFUSED", None),
    ] {
        let rig = Resolver::start(vec![Rule::new("test", action)]);
        let mut program = rig.program(&["getaddrinfo", "a.test", "10", "0", "inet"]);
        let (values, trace) = record_run(&mut program);
        let report = trace.report();
        assert_counts(&rig, &report, "a.test", RecordType::A);
        assert_eq!(dns_row(&report, "a.test", "A")["rcode"], code);
        assert_stalled(&report, values.measured());
        if let Some(id) = id {
            finding(&report, id);
        }
    }
}

#[test]
fn a_port_where_nobody_listens_answers_by_icmp() {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    let empty = network.add_host(2).unwrap();
    // By default a machine refuses six times and then once a second; queries in between get no answer.
    empty.namespace().sysctl("ipv4/icmp_ratelimit", "0").unwrap();
    let resolv_conf = format!("nameserver {}\n", empty.address());
    let arguments = ["getaddrinfo", "a.test", "20", "5", "inet"];
    let mut program = Program::start_resolving(&client, &resolv_conf, &arguments);
    let (_, trace) = record_run(&mut program);
    let report = trace.report();
    let row = dns_row(&report, "a.test", "A");
    assert_eq!(row["rcode"], "icmp-refused");
    assert_eq!(row["server"], format!("{}:53", empty.address()));
    // glibc asks twice in each lookup.
    assert_eq!((&row["attempts"], &row["answered"]), (&json!(40), &json!(40)));
    finding(&report, "dns.resolver_unreachable");
}

#[test]
fn a_server_that_cannot_be_reached_from_here_is_named_with_the_errno() {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    client.make_unreachable("10.77.0.98".parse().unwrap()).unwrap();
    client.namespace().ip("route add prohibit 10.77.0.99").unwrap();
    // To the second one there is no route at all; the third one the machine forbids its own programs.
    for (server, error) in
        [("10.77.0.98", "EHOSTUNREACH"), ("203.0.113.53", "ENETUNREACH"), ("10.77.0.99", "EACCES")]
    {
        let resolv_conf = format!("nameserver {server}\n");
        let arguments = ["getaddrinfo", "a.test", "3", "5", "inet"];
        let mut program = Program::start_resolving(&client, &resolv_conf, &arguments);
        let (values, trace) = record_run(&mut program);
        assert_ne!(values.get::<String>("code"), "ok");
        let report = trace.report();
        let found = rows(&report, "dns", &[("name", json!("a.test"))]);
        assert_eq!(found.len(), 1, "{:#}", report["dns"]);
        assert_eq!((&found[0]["rcode"], &found[0]["api"]), (&json!(error), &json!("getaddrinfo")));
        assert_eq!(found[0]["server"], format!("{server}:53"));
        // glibc tries twice in each lookup, and never gets as far as a message.
        assert_eq!((&found[0]["attempts"], &found[0]["unsent"]), (&json!(0), &json!(6)));
        assert_eq!(found[0]["lookups"], 3);
        let unreachable = finding(&report, "dns.resolver_unreachable");
        assert!(unreachable["summary"].as_str().unwrap().contains(error), "{unreachable:#}");
    }
}

#[test]
fn truncated_answers_are_followed_over_tcp() {
    let action = Action::TruncateThenTcp { segments: 4, gap: Duration::from_millis(25) };
    let rig = Resolver::start(vec![Rule::new("test", action)]);
    let (values, trace) = record_run(&mut rig.program(&["getaddrinfo", "a.test", "1", "0", "inet"]));
    let report = trace.report();
    assert_counts(&rig, &report, "a.test", RecordType::A);
    let found = dns_rows(&report, "a.test", "A");
    assert_eq!((sum(&found, "attempts"), sum(&found, "answered")), (2, 2));
    assert!(found.iter().all(|row| row["rcode"] == "NOERROR" && row["malformed"] == false), "{found:#?}");
    assert_stalled(&report, values.measured());
}

#[test]
fn messages_over_tcp_are_put_together_from_their_segments() {
    let action = Action::TruncateThenTcp { segments: 5, gap: Duration::from_millis(20) };
    let rig = Resolver::with_options(vec![Rule::new("test", action)], "options use-vc");
    let (values, trace) = record_run(&mut rig.program(&["getaddrinfo", "a.test", "2", "0", "inet"]));
    let report = trace.report();
    let row = dns_row(&report, "a.test", "A");
    assert_eq!(row["transport"], "tcp");
    assert_eq!((&row["attempts"], &row["answered"]), (&json!(2), &json!(2)));
    assert_eq!((&row["rcode"], &row["malformed"]), (&json!("NOERROR"), &json!(false)));
    assert_latency(row, rig.served_ns("a.test", RecordType::A), values.ns());
    assert_stalled(&report, values.measured());
}

#[test]
fn an_answer_with_another_id_is_no_answer() {
    let rig = Resolver::start(vec![
        Rule::new("right.test", Action::WrongId { then_right: Some(Duration::from_millis(80)) }),
        Rule::new("wrong.test", Action::WrongId { then_right: None }),
    ]);
    let (values, trace) = record_run(&mut rig.program(&["getaddrinfo", "a.right.test", "1", "0", "inet"]));
    let report = trace.report();
    assert_counts(&rig, &report, "a.right.test", RecordType::A);
    let row = dns_row(&report, "a.right.test", "A");
    assert_latency(row, rig.served_ns("a.right.test", RecordType::A), values.ns());
    assert_stalled(&report, values.measured());

    let (values, trace) = record_run(&mut rig.program(&["getaddrinfo", "a.wrong.test", "1", "0", "inet"]));
    let report = trace.report();
    assert_counts(&rig, &report, "a.wrong.test", RecordType::A);
    assert_eq!(dns_row(&report, "a.wrong.test", "A")["rcode"], json!(null));
    assert_stalled(&report, values.measured());
}

#[test]
fn a_lost_aaaa_query_shows_the_five_second_ladder() {
    let rig = Resolver::with_options(Rule::answers_a_but_not_aaaa("test"), "");
    let (values, trace) = record_run(&mut rig.program(&["getaddrinfo", "a.test", "1", "0", "unspec"]));
    assert!(values.ns() > 4900 * MS, "the resolver waits five seconds: {}", values.ns());
    let report = trace.report();
    for qtype in [RecordType::A, RecordType::AAAA] {
        assert_counts(&rig, &report, "a.test", qtype);
    }
    let lost = dns_row(&report, "a.test", "AAAA");
    assert_eq!((&lost["attempts"], &lost["answered"]), (&json!(2), &json!(1)));
    assert_stalled(&report, values.measured());
    finding(&report, "dns.retry_ladder");
}

#[test]
fn a_reverse_zone_that_times_out_is_named_with_its_api() {
    let rig = Resolver::start(vec![Rule::new("in-addr.arpa", Action::Never)]);
    let (values, trace) = record_run(&mut rig.program(&["getnameinfo", "10.77.0.9", "1"]));
    let report = trace.report();
    let name = "9.0.77.10.in-addr.arpa";
    assert_counts(&rig, &report, name, RecordType::PTR);
    let row = dns_row(&report, name, "PTR");
    assert_eq!(row["api"], "getnameinfo");
    assert_eq!((&row["attempts"], &row["answered"]), (&json!(2), &json!(0)));
    assert_stalled(&report, values.measured());
    finding(&report, "dns.reverse_lookup");
}

#[test]
fn a_quick_refusal_that_is_repeated_for_ten_seconds_comes_first() {
    let rig = Resolver::start(vec![Rule::new("test", Action::refused(Duration::from_millis(3)))]);
    let mut program = rig.program(&["getaddrinfo", "a.test", "400", "18", "inet"]);
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    assert_counts(&rig, &report, "a.test", RecordType::A);
    let row = dns_row(&report, "a.test", "A");
    assert_eq!((&row["rcode"], &row["lookups"]), (&json!("REFUSED"), &json!(400)));
    assert_stalled_and_worked(&report, rig.served_ns("a.test", RecordType::A), values.ns());
    assert_eq!(report["findings"][0]["cause"], "dns.resolve");
    assert_eq!(report["coverage"]["lost_events"], 0);
}

#[test]
fn a_malformed_answer_is_marked_and_the_others_are_read() {
    let rig = Resolver::start(vec![
        Rule::new("bad.test", Action::Malformed),
        Rule::new("test", Action::Answer { delay: Duration::from_millis(30) }),
    ]);
    let bad = record_run(&mut rig.program(&["getaddrinfo", "a.bad.test", "1", "0", "inet"])).1.report();
    let found = dns_rows(&bad, "a.bad.test", "A");
    assert!(found.iter().any(|row| row["malformed"] == true), "{:#}", bad["dns"]);
    assert_eq!(sum(&found, "attempts"), rig.counts("a.bad.test", RecordType::A).0 as u64);
    let good = record_run(&mut rig.program(&["getaddrinfo", "a.test", "1", "0", "inet"])).1.report();
    assert_eq!(dns_row(&good, "a.test", "A")["malformed"], false);
}

#[test]
fn a_lookup_that_still_waits_is_in_flight() {
    let rig = Resolver::with_options(vec![Rule::new("test", Action::Never)], "");
    let mut program = rig.program(&["getaddrinfo", "a.test", "1", "0", "inet"]);
    let recording = Recorder::new().pid(program.pid()).start();
    let began = monotonic_ns();
    program.go();
    let asked = rig.wait_asked();
    std::thread::sleep(Duration::from_millis(900));
    let closing = monotonic_ns();
    let trace = recording.finish();
    let waited = monotonic_ns() - began;
    let report = trace.report();
    let row = dns_row(&report, "a.test", "A");
    assert_eq!((&row["attempts"], &row["answered"], &row["in_flight"]), (&json!(1), &json!(0), &json!(1)));
    assert_eq!(row["began_earlier"], false);
    // The window closes somewhere between the end of the sleep and the return of `finish`.
    assert_between("waits", sum(&[row], "stalled_ns"), closing - asked, waited);
    finding(&report, "dns.still_waiting");
}

#[test]
fn attaching_in_the_middle_of_an_unanswered_query_reports_it() {
    let rig = Resolver::with_options(vec![Rule::new("test", Action::Never)], "options timeout:30");
    let mut program = rig.program(&["getaddrinfo", "a.test", "1", "0", "inet"]);
    program.go();
    rig.wait_asked();
    let recording = Recorder::new().pid(program.pid()).start();
    std::thread::sleep(Duration::from_millis(800));
    let trace = recording.finish();
    assert_eq!(rig.server.log().len(), 1, "the resolver was not to ask again yet");
    let report = trace.report();
    let found = rows(&report, "dns", &[("server", json!(rig.server_name()))]);
    assert_eq!(found.len(), 1, "{:#}", report["dns"]);
    assert_eq!((&found[0]["in_flight"], &found[0]["began_earlier"]), (&json!(1), &json!(true)));
    assert_eq!(found[0]["answered"], 0);
    // Its entry was before the probes: the stack of the wait has it.
    assert_eq!(found[0]["api"], "getaddrinfo");
    let window = report["target"]["duration_ns"].as_u64().unwrap();
    assert_close("the whole window", sum(&found, "stalled_ns"), window);
    finding(&report, "dns.still_waiting");
}

#[test]
fn attaching_in_the_middle_sees_the_answer_come() {
    let rig = Resolver::with_options(vec![Rule::new("test", Action::Held)], "options timeout:30");
    let mut program = rig.program(&["getaddrinfo", "a.test", "1", "0", "inet"]);
    program.go();
    rig.wait_asked();
    let attaching = monotonic_ns();
    let recording = Recorder::new().pid(program.pid()).start();
    let opened = recording.opened_ns;
    std::thread::sleep(Duration::from_millis(300));
    let released = rig.server.release();
    let end: u64 = program.done().get("end");
    let report = recording.finish().report();
    let found = rows(&report, "dns", &[("server", json!(rig.server_name()))]);
    assert_eq!(sum(&found, "in_flight"), 0, "{:#}", report["dns"]);
    let earlier: Vec<_> = found.iter().filter(|row| row["began_earlier"] == true).collect();
    assert!(
        !earlier.is_empty() && earlier.iter().all(|row| row["api"] == "getaddrinfo"),
        "{:#}",
        report["dns"]
    );
    // The window opened before the test saw that.
    assert_between("from the attach on", sum(&found, "stalled_ns"), released - opened, end - attaching);
}

#[test]
fn the_socket_of_a_name_cache_is_a_way_to_wait_for_a_name() {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    let arguments = ["nscd", "a.test", "150"];
    let mut program = Program::start_resolving(&client, "nameserver 127.0.0.1\n", &arguments);
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    let cache = rows(&report, "dns", &[("transport", json!("unix"))]);
    assert!(!cache.is_empty(), "{:#}", report["dns"]);
    for row in &cache {
        assert_eq!((&row["server"], &row["api"]), (&json!("/run/nscd/socket"), &json!("getaddrinfo")));
    }
    // The name server behind it refuses in microseconds.
    assert_close("cache", sum(&cache, "stalled_ns"), values.measured());
    assert_stalled(&report, values.measured());
}

#[test]
fn stacks_show_the_api_and_its_caller_and_end_in_server_and_name() {
    let rig = Resolver::start(vec![Rule::new("test", Action::Answer { delay: Duration::from_millis(100) })]);
    let (values, trace) = record_run(&mut rig.program(&["getaddrinfo", "a.test", "3", "0", "inet"]));
    let named: u64 = trace
        .folded()
        .iter()
        .filter(|(frames, _)| {
            let at = |name: &str| frames.iter().position(|frame| frame.contains(name));
            let leaf = frames.last().unwrap();
            at("lookup_outer").is_some_and(|caller| at("getaddrinfo").is_some_and(|api| caller < api))
                && leaf.starts_with("[dns.resolve] ")
                && leaf.contains("10.77.0.53")
                && leaf.contains("a.test")
        })
        .map(|(_, weight)| weight)
        .sum();
    assert_close("stacks with names", named, values.measured());
}
