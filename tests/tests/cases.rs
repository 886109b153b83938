//! Situations that people reported, and what a recording of each has to say.

use std::time::Duration;

use serde_json::{Value, json};
use stallscope::demo::{Action, Network, RecordType, Rule};
use stallscope_tests::{
    Measured, Program, Recorder, Resolver, assert_between, assert_close, finding, record_run, require_root,
    rows, sum,
};

const MS: u64 = 1_000_000;
const SEC: u64 = 1000 * MS;

#[track_caller]
fn number(finding: &Value, field: &str) -> u64 {
    let value = &finding["proof"][field];
    value.as_u64().unwrap_or_else(|| panic!("no number {field} in {:#}", finding["proof"]))
}

/// The resolver's own timer: glibc sends again within a few milliseconds of it.
#[track_caller]
fn assert_steps(finding: &Value, wanted_ns: &[u64]) {
    let steps: Vec<u64> =
        finding["proof"]["steps_ns"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert_eq!(steps.len(), wanted_ns.len(), "{steps:?}");
    for (step, wanted) in steps.iter().zip(wanted_ns) {
        // A busy machine asks again later, never before.
        assert!(
            (wanted - wanted / 50..wanted + wanted / 2).contains(step),
            "{steps:?} ns, not {wanted_ns:?}"
        );
    }
}

/// pytorch/pytorch#159007: every connection looks the client's name up, and each look-up fails slowly.
#[test]
fn reverse_lookups_that_fail_slowly_once_per_connection_pytorch_159007() {
    let rules = vec![Rule::new("in-addr.arpa", Action::Never)];
    let rig = Resolver::with_options(rules, "options timeout:1 attempts:1");
    let (values, trace) = record_run(&mut rig.program(&["getnameinfo", "10.77.0.9", "4"]));
    assert_eq!(values.get::<String>("code"), "EAI_AGAIN");
    let report = trace.report();
    let reverse = finding(&report, "dns.reverse_lookup");
    assert_eq!(reverse["proof"]["api"], "getnameinfo");
    assert_eq!((number(reverse, "calls"), number(reverse, "failed")), (4, 4));
    assert_eq!(reverse["proof"]["results"], json!(["EAI_AGAIN"]));
    assert_eq!(reverse["proof"]["addresses"], json!(["10.77.0.9"]));
    let each = &reverse["proof"]["call"];
    assert_eq!(each["count"], 4);
    assert_close(
        "each call",
        each["p50_ns"].as_u64().unwrap(),
        Measured { ns: values.ns() / 4, busy_ns: values.busy_ns() },
    );
    assert_close("all calls", each["sum_ns"].as_u64().unwrap(), values.measured());
    assert!(reverse["summary"].as_str().unwrap().contains("4 failed (EAI_AGAIN)"), "{reverse:#}");
}

/// pytorch/pytorch#154102: many seconds pass for each failed lookup.
#[test]
fn a_failed_lookup_shows_the_ladder_on_port_53_pytorch_154102() {
    let rules = vec![Rule::new("test", Action::Never)];
    let rig = Resolver::with_options(rules, "options timeout:1 attempts:4");
    let (values, trace) = record_run(&mut rig.program(&["getaddrinfo", "a.test", "1", "0", "inet"]));
    let report = trace.report();
    let waited = rows(&report, "dns", &[("server", json!(rig.server_name()))]);
    assert!(rig.server_name().ends_with(":53"));
    assert_close("on port 53", sum(&waited, "stalled_ns"), values.measured());
    assert_eq!((sum(&waited, "attempts"), sum(&waited, "answered")), (4, 0));
    assert_steps(finding(&report, "dns.retry_ladder"), &[SEC, SEC, SEC]);
    // The server that answers nothing is what it all comes from.
    assert_eq!(report["findings"][0]["id"], "dns.resolver_unreachable");
    let leaf = format!("[dns.resolve] {} a.test A no answer", rig.server_name());
    let named: u64 = trace
        .folded()
        .iter()
        .filter(|(frames, _)| frames.last().is_some_and(|frame| *frame == leaf))
        .map(|(_, weight)| weight)
        .sum();
    assert_close(&leaf, named, values.measured());
}

/// pytorch/pytorch#150532: peers cannot resolve the name that the master published.
#[test]
fn a_published_name_that_nobody_else_knows_pytorch_150532() {
    let name = "master-0.job.test";
    let rig = Resolver::start(vec![Rule::new("test", Action::nxdomain(Duration::from_millis(1)))]);
    let (values, trace) = record_run(&mut rig.program(&["getaddrinfo", name, "10", "200", "inet"]));
    assert_eq!(values.get::<String>("code"), "EAI_NONAME");
    let report = trace.report();
    let unknown = finding(&report, "dns.nxdomain");
    assert_eq!(unknown["proof"]["name"], name);
    assert_eq!(unknown["proof"]["apis"], json!(["getaddrinfo"]));
    assert_eq!(
        (&unknown["proof"]["result"], &unknown["proof"]["result_evidence"]),
        (&json!("EAI_NONAME"), &json!("derived"))
    );
    assert_eq!(number(unknown, "lookups"), 10);
    assert_eq!(unknown["severity"], "critical", "quick failures that go on for the whole recording");
    assert_eq!(report["findings"][0]["id"], "dns.nxdomain");
}

/// pytorch/pytorch#73682: the service's name is not in DNS yet when the job starts.
#[test]
fn a_name_that_is_registered_later_pytorch_73682() {
    let rig = Resolver::start(vec![Rule::new("test", Action::NxdomainFirst { count: 4 })]);
    let mut program = rig.program(&["getaddrinfo", "svc.test", "6", "300", "inet"]);
    let (values, trace) = record_run(&mut program);
    assert_eq!(values.get::<String>("code"), "ok");
    let report = trace.report();
    let late = finding(&report, "dns.nxdomain");
    assert_eq!((&late["proof"]["name"], number(late, "lookups")), (&json!("svc.test"), 4));
    assert_eq!(late["proof"]["result"], "EAI_NONAME");
    // From the first query to the first answer that had an address.
    let queries = rig.server.queries("svc.test", RecordType::A);
    assert_eq!(queries.len(), 6);
    let registered = queries[4].answered_ns.unwrap() - queries[0].received_ns;
    assert!(registered >= 1200 * MS);
    assert_between(
        "the first success",
        number(late, "resolved_after_ns"),
        registered,
        values.ns() + 5 * 300 * MS,
    );
    assert_ne!(late["severity"], "critical", "it came good");
    assert!(late["summary"].as_str().unwrap().contains("; resolved "), "{late:#}");
}

/// kubernetes/kubernetes#56903: the A and AAAA queries share a socket and one of them is lost.
#[test]
fn the_second_query_of_a_socket_is_lost_and_resent_after_five_seconds_kubernetes_56903() {
    let rig = Resolver::with_options(Rule::answers_a_but_not_aaaa("test"), "");
    let (values, trace) = record_run(&mut rig.program(&["getaddrinfo", "a.test", "1", "0", "unspec"]));
    assert_eq!(values.get::<String>("code"), "ok");
    let report = trace.report();
    let ladder = finding(&report, "dns.retry_ladder");
    assert_steps(ladder, &[5 * SEC]);
    let proof = &ladder["proof"];
    assert_eq!((&proof["unanswered_types"], &proof["answered_types"]), (&json!(["AAAA"]), &json!(["A"])));
    assert!(ladder["advice"].as_str().unwrap().contains("single-request-reopen"));
    // The server sees the resent query five seconds after the lost one.
    let queries = rig.server.queries("a.test", RecordType::AAAA);
    let seen = queries[1].received_ns - queries[0].received_ns;
    assert_between(
        "the step",
        proof["steps_ns"][0].as_u64().unwrap(),
        seen.saturating_sub(100 * MS),
        seen + 100 * MS,
    );
    assert_eq!(report["findings"][0]["id"], "dns.retry_ladder");
    assert!(
        !report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|finding| finding["id"] == "dns.resolver_unreachable")
    );
}

/// NVIDIA/nccl#913: a veth interface was picked, and the address does not answer through it.
#[test]
fn a_connect_through_a_veth_hangs_nccl_913() {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    client
        .namespace()
        .ip("link add veth9 type veth peer name peer9\nlink set veth9 up\nlink set peer9 up\n\
             addr add 10.78.0.1/24 dev veth9\n\
             neigh replace 10.78.0.2 lladdr 02:78:00:00:de:ad nud permanent dev veth9\n")
        .unwrap();
    let mut program = Program::start_on(&client, &["connect", "10.78.0.2:29500"]);
    let recording = Recorder::new().pid(program.pid()).start();
    program.go();
    std::thread::sleep(Duration::from_millis(3500));
    let report = recording.finish().report();
    let row = rows(&report, "connects", &[("peer", json!("10.78.0.2:29500"))])[0];
    assert_eq!((&row["result"], &row["count"]), (&json!("in_flight"), &json!(1)));
    let hangs = finding(&report, "tcp.peer_unreachable");
    assert_eq!(hangs["proof"]["interfaces"], json!(["veth9"]));
    assert!((3400 * MS..10 * SEC).contains(&number(hangs, "age_ns")), "{:#}", hangs["proof"]);
    let summary = hangs["summary"].as_str().unwrap();
    assert!(summary.contains("own address 10.78.0.1:") && summary.contains(" on veth9,"), "{summary}");
    let advice = hangs["advice"].as_str().unwrap();
    assert!(advice.contains("It goes out of veth9") && advice.contains("NCCL_SOCKET_IFNAME"), "{advice}");
    assert_eq!(report["findings"][0]["id"], "tcp.peer_unreachable");
}

/// An operator's note: `/etc/resolv.conf` names systemd-resolved's stub, and nobody listens there.
#[test]
fn a_stub_resolver_that_nobody_runs() {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    let arguments = ["getaddrinfo", "node01.test", "30", "100", "unspec"];
    let mut program = Program::start_resolving(&client, "nameserver 127.0.0.53\n", &arguments);
    let (values, trace) = record_run(&mut program);
    assert_eq!(values.get::<String>("code"), "EAI_AGAIN");
    let report = trace.report();
    let first = &report["findings"][0];
    assert_eq!((&first["id"], &first["severity"]), (&json!("dns.resolver_unreachable"), &json!("critical")));
    assert_eq!((&first["proof"]["server"], number(first, "failed_lookups")), (&json!("127.0.0.53:53"), 30));
    assert_eq!(first["proof"]["in_resolv_conf"], true);
    let summary = first["summary"].as_str().unwrap();
    assert!(
        summary.contains("nobody listens") && summary.contains("node01.test in getaddrinfo"),
        "{summary}"
    );
    assert!(first["advice"].as_str().unwrap().contains("systemctl restart systemd-resolved"));
    let named = rows(&report, "dns", &[("server", json!("127.0.0.53:53"))]);
    assert_eq!(sum(&named, "attempts"), sum(&named, "answered"), "each query was refused: {named:#?}");
}
