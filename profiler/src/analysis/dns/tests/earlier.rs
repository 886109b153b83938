//! Lookups that were under way when the recording began.

use hickory_proto::op::ResponseCode::NoError;
use hickory_proto::rr::RecordType::{A, AAAA};
use profiler_common::Api;

use super::script::{MS, SEC, Script, row};

#[test]
fn a_poll_that_began_earlier_and_never_ends_is_a_row_without_a_name() {
    let mut script = Script::new(3 * SEC);
    script.wait_from_before(SEC, 3 * SEC).in_flight = true;
    let analysis = script.play();
    let row = row(&analysis, None, None, "udp");
    assert_eq!((row.attempts, row.answered, row.in_flight, row.began_earlier), (0, 0, 1, true));
    assert_eq!((row.stalled_ns, row.server.as_str()), (3 * SEC, "10.0.0.53:53"));
    assert_eq!(analysis.labels, ["(unknown name) no answer"]);
    assert_eq!(analysis.lookups[0].longest_wait_ns, 4 * SEC);
}

#[test]
fn an_answer_to_a_query_from_before_gives_its_name() {
    let mut script = Script::new(10 * SEC);
    script.wait_from_before(SEC, 2 * SEC);
    script.receive(2 * SEC, 1, "node01.", A, NoError);
    script.wait(2 * SEC, 3 * SEC);
    script.receive(3 * SEC, 2, "node01.", AAAA, NoError);
    let analysis = script.play();
    assert_eq!(analysis.rows.len(), 2);
    let a = row(&analysis, Some("node01"), Some("A"), "udp");
    assert_eq!((a.attempts, a.answered, a.began_earlier, a.stalled_ns), (0, 1, true, SEC));
    assert_eq!(a.latency.count, 0, "the sending was not seen");
    let aaaa = row(&analysis, Some("node01"), Some("AAAA"), "udp");
    assert_eq!((aaaa.attempts, aaaa.answered, aaaa.stalled_ns), (0, 1, 2 * SEC));
}

#[test]
fn a_retransmission_through_a_new_socket_in_the_same_call_gives_the_name() {
    let mut script = Script::new(10 * SEC);
    // Some other thread's call, which shows that entries are seen.
    script.tid = 999;
    script.call(0, Api::Getaddrinfo, "other");
    (script.tid, script.api, script.api_start) = (101, Api::Getaddrinfo, 0);
    script.wait_from_before(2 * SEC, 3 * SEC).ret = 0;
    script.api = Api::None;
    script.socket(7001);
    script.send(3 * SEC, 1, "node01.", A);
    script.send(3 * SEC, 2, "node01.", AAAA);
    script.wait(3 * SEC, 8 * SEC).ret = 0;
    let analysis = script.play();
    assert_eq!(analysis.rows.len(), 2);
    for qtype in ["A", "AAAA"] {
        let row = row(&analysis, Some("node01"), Some(qtype), "udp");
        assert_eq!((row.attempts, row.answered, row.began_earlier), (1, 0, true), "only seen messages count");
        assert_eq!((row.stalled_ns, row.api.as_str()), (4 * SEC, "getaddrinfo"));
    }
    assert_eq!(analysis.labels[0], "node01 A+AAAA no answer");
    assert_eq!(analysis.lookups.len(), 1);
}

#[test]
fn without_entries_of_functions_the_next_query_may_be_another_lookup() {
    let mut script = Script::new(10 * SEC);
    script.wait_from_before(2 * SEC, 3 * SEC).ret = 0;
    script.socket(7001);
    script.send(3 * SEC, 1, "node02.", A);
    let analysis = script.play();
    assert_eq!(row(&analysis, None, None, "udp").stalled_ns, 3 * SEC);
}

#[test]
fn a_retransmission_on_the_same_socket_gives_the_name() {
    let mut script = Script::new(10 * SEC);
    script.wait_from_before(SEC, 2 * SEC).ret = 0;
    script.send(2 * SEC, 1, "node01.", A);
    script.send(2 * SEC, 2, "node01.", AAAA);
    script.wait(2 * SEC, 4 * SEC);
    let analysis = script.play();
    let a = row(&analysis, Some("node01"), Some("A"), "udp");
    assert_eq!((a.attempts, a.began_earlier, a.stalled_ns), (1, true, 2 * SEC));
}

#[test]
fn a_refusal_of_a_query_from_before_is_the_servers_answer() {
    let mut script = Script::new(10 * SEC);
    script.wait_from_before(SEC, SEC);
    script.receive_error(SEC, libc::ECONNREFUSED);
    let analysis = script.play();
    let row = row(&analysis, None, None, "udp");
    assert_eq!((row.attempts, row.answered, row.rcode.as_deref()), (0, 1, Some("icmp-refused")));
    assert_eq!((row.stalled_ns, row.began_earlier), (SEC, true));
}

#[test]
fn messages_after_the_window_are_left_out() {
    let mut script = Script::new(SEC);
    script.send(0, 1, "node01.", A);
    script.receive(2 * SEC, 1, "node01.", A, NoError);
    script.send(3 * SEC, 2, "node02.", A);
    let analysis = script.play();
    assert_eq!(analysis.rows.len(), 1);
    assert_eq!(analysis.rows[0].answered, 0);
}

#[test]
fn a_query_sent_just_before_the_window_is_known_and_not_counted() {
    let mut script = Script::new(10 * SEC);
    script.send(0, 1, "node01.", A);
    script.messages[0].time_ns -= 10 * MS;
    script.wait_from_before(10 * MS, SEC);
    script.receive(SEC, 1, "node01.", A, NoError);
    let analysis = script.play();
    let node = row(&analysis, Some("node01"), Some("A"), "udp");
    assert_eq!((node.attempts, node.answered, node.began_earlier), (0, 1, true));
    assert_eq!((node.latency.max_ns, node.stalled_ns), (SEC + 10 * MS, SEC));
}
