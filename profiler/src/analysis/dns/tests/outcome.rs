use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType::{A, AAAA, PTR};
use profiler_common::Api;

use super::script::{MS, SEC, Script, row};
use crate::model::dns::message::tests::answer;
use crate::model::socket::Transport;
use crate::trace::record::Direction;

/// A and AAAA, sent as one.
fn both(script: &mut Script, at: u64, name: &str) {
    script.send(at, 1, name, A);
    script.send(at, 2, name, AAAA);
}

#[test]
fn a_late_answer_has_its_latency_and_half_of_the_common_wait() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getaddrinfo, "node01");
    both(&mut script, MS, "node01.example.");
    script.wait(MS, 801 * MS);
    script.receive(801 * MS, 1, "node01.example.", A, ResponseCode::NoError);
    script.wait(801 * MS, 901 * MS);
    script.receive(901 * MS, 2, "node01.example.", AAAA, ResponseCode::NoError);
    let analysis = script.play();
    let a = row(&analysis, Some("node01.example"), Some("A"), "udp");
    assert_eq!((a.attempts, a.answered, a.rcode.as_deref()), (1, 1, Some("NOERROR")));
    assert_eq!((a.stalled_ns, a.latency.max_ns, a.lookups), (400 * MS, 800 * MS, 1));
    assert_eq!((a.server.as_str(), a.api.as_str(), a.pid, a.tid), ("10.0.0.53:53", "getaddrinfo", 100, 101));
    let aaaa = row(&analysis, Some("node01.example"), Some("AAAA"), "udp");
    assert_eq!((aaaa.stalled_ns, aaaa.latency.p50_ns), (500 * MS, 900 * MS));
    assert_eq!(analysis.labels, ["node01.example answered late", "node01.example answered late"]);
    assert_eq!(analysis.lookups.len(), 1);
    assert_eq!(analysis.lookups[0].argument.as_deref(), Some("node01"));
}

#[test]
fn a_server_that_never_answers_has_no_answer_code() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getaddrinfo, "node01");
    both(&mut script, 0, "node01.");
    script.wait(0, 5 * SEC).ret = 0;
    script.socket(7001);
    both(&mut script, 5 * SEC, "node01.");
    script.wait(5 * SEC, 10 * SEC).in_flight = true;
    let analysis = script.play();
    let a = row(&analysis, Some("node01"), Some("A"), "udp");
    assert_eq!((a.attempts, a.answered, a.rcode.as_deref(), a.in_flight), (2, 0, None, 1));
    assert_eq!((a.stalled_ns, a.lookups, a.began_earlier), (5 * SEC, 1, false));
    assert_eq!(analysis.labels, ["node01 A+AAAA no answer", "node01 A+AAAA no answer"]);
    assert!(analysis.lookups[0].in_flight);
    assert_eq!(analysis.lookups[0].longest_wait_ns, 5 * SEC);
}

#[test]
fn an_icmp_error_answers_all_open_queries_of_the_socket() {
    let mut script = Script::new(10 * SEC);
    both(&mut script, 0, "node01.");
    script.wait(0, 3 * MS);
    script.receive_error(3 * MS, libc::ECONNREFUSED);
    // Another socket's query is not touched.
    script.socket(7001);
    script.send(4 * MS, 9, "other.", A);
    let analysis = script.play();
    for qtype in ["A", "AAAA"] {
        let row = row(&analysis, Some("node01"), Some(qtype), "udp");
        assert_eq!((row.attempts, row.answered, row.rcode.as_deref()), (1, 1, Some("icmp-refused")));
        assert_eq!((row.latency.max_ns, row.stalled_ns), (3 * MS, 3 * MS / 2));
    }
    let other = row(&analysis, Some("other"), Some("A"), "udp");
    assert_eq!((other.answered, other.rcode.as_deref()), (0, None));
    assert_eq!(analysis.labels, ["node01 refused (ICMP)"]);
}

#[test]
fn a_refusal_that_a_later_send_reports_counts_for_what_was_sent_before() {
    let mut script = Script::new(10 * SEC);
    script.send(0, 1, "node01.", A);
    let data = crate::model::dns::message::tests::query(2, "node01.", AAAA);
    script.message(MS, Direction::Send, -i64::from(libc::ECONNREFUSED), &data);
    let analysis = script.play();
    let a = row(&analysis, Some("node01"), Some("A"), "udp");
    assert_eq!((a.attempts, a.answered, a.unsent), (1, 1, 0));
    let aaaa = row(&analysis, Some("node01"), Some("AAAA"), "udp");
    assert_eq!((aaaa.attempts, aaaa.answered, aaaa.unsent, aaaa.rcode.as_deref()), (0, 0, 1, None));
}

#[test]
fn a_question_that_the_own_machine_does_not_let_out_has_its_errno_as_result() {
    for (errno, result) in
        [(libc::ENETUNREACH, "ENETUNREACH"), (libc::EHOSTUNREACH, "EHOSTUNREACH"), (libc::EPERM, "EPERM")]
    {
        let mut script = Script::new(10 * SEC);
        let data = crate::model::dns::message::tests::query(1, "node01.", A);
        script.message(MS, Direction::Send, -i64::from(errno), &data);
        let analysis = script.play();
        let row = row(&analysis, Some("node01"), Some("A"), "udp");
        assert_eq!((row.attempts, row.answered, row.unsent, row.rcode.as_deref()), (0, 0, 1, Some(result)));
    }
}

#[test]
fn a_socket_that_cannot_be_connected_stands_for_the_question_of_the_call() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getaddrinfo, "node01");
    for attempt in 1..=2 {
        script.socket(7000 + attempt);
        script.message(attempt * MS, Direction::Send, -i64::from(libc::ENETUNREACH), &[]);
    }
    let analysis = script.play();
    let row = row(&analysis, Some("node01"), None, "udp");
    assert_eq!((row.attempts, row.unsent, row.rcode.as_deref()), (0, 2, Some("ENETUNREACH")));
    assert_eq!((row.api.as_str(), row.server.as_str()), ("getaddrinfo", "10.0.0.53:53"));
}

#[test]
fn calls_that_found_nothing_are_no_answers() {
    let mut script = Script::new(10 * SEC);
    script.send(0, 1, "node01.", A);
    script.receive_error(MS, libc::EAGAIN);
    script.receive_error(2 * MS, libc::EINTR);
    let analysis = script.play();
    assert_eq!(analysis.rows[0].answered, 0);
}

#[test]
fn nxdomain_and_servfail_are_told_apart() {
    let mut script = Script::new(10 * SEC);
    script.send(0, 1, "gone.", A);
    script.wait(0, 2 * MS);
    script.receive(2 * MS, 1, "gone.", A, ResponseCode::NXDomain);
    script.send(3 * MS, 2, "broken.", A);
    script.wait(3 * MS, 5 * MS);
    script.receive(5 * MS, 2, "broken.", A, ResponseCode::ServFail);
    let analysis = script.play();
    assert_eq!(row(&analysis, Some("gone"), Some("A"), "udp").rcode.as_deref(), Some("NXDOMAIN"));
    assert_eq!(row(&analysis, Some("broken"), Some("A"), "udp").rcode.as_deref(), Some("SERVFAIL"));
    assert_eq!(analysis.labels, ["gone NXDOMAIN", "broken SERVFAIL"]);
}

#[test]
fn a_truncated_answer_leads_to_a_row_of_its_own_over_tcp() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getaddrinfo, "big");
    script.send(0, 1, "big.", A);
    script.wait(0, MS);
    let mut cut = answer(1, "big.", A, ResponseCode::NoError, 0);
    cut[2] |= 0x02;
    script.message(MS, Direction::Receive, cut.len() as i64, &cut);
    script.transport = Transport::Tcp;
    script.socket(7001);
    // The handshake.
    script.wait(2 * MS, 4 * MS).call = profiler_common::Call::Connect;
    let question = crate::model::dns::message::tests::query(1, "big.", A);
    let length = (question.len() as u16).to_be_bytes();
    script.message(4 * MS, Direction::Send, 2, &length);
    script.message(4 * MS, Direction::Send, question.len() as i64, &question);
    script.wait(4 * MS, 10 * MS);
    let whole = answer(1, "big.", A, ResponseCode::NoError, 100);
    let mut stream = (whole.len() as u16).to_be_bytes().to_vec();
    stream.extend(&whole);
    script.message(10 * MS, Direction::Receive, 1, &stream[..1]);
    script.message(10 * MS, Direction::Receive, 599, &stream[1..600]);
    script.wait(10 * MS, 12 * MS);
    script.message(12 * MS, Direction::Receive, stream.len() as i64 - 600, &stream[600..]);
    let analysis = script.play();
    let udp = row(&analysis, Some("big"), Some("A"), "udp");
    assert_eq!((udp.attempts, udp.answered, udp.truncated, udp.stalled_ns), (1, 1, 1, MS));
    assert_eq!(udp.rcode.as_deref(), Some("NOERROR"));
    let tcp = row(&analysis, Some("big"), Some("A"), "tcp");
    assert_eq!((tcp.attempts, tcp.answered, tcp.truncated, tcp.stalled_ns), (1, 1, 0, 10 * MS));
    assert_eq!((tcp.malformed, tcp.latency.max_ns), (false, 8 * MS));
    assert_eq!(analysis.labels[0], "big truncated");
    assert_eq!(analysis.lookups.len(), 1, "one call, two transports");
}

#[test]
fn answers_with_another_id_or_question_are_counted_apart() {
    let mut script = Script::new(10 * SEC);
    script.send(0, 1, "node01.", A);
    script.wait(0, SEC);
    script.receive(SEC, 4711, "node01.", A, ResponseCode::NoError);
    script.receive(SEC, 1, "evil.", A, ResponseCode::NoError);
    script.wait(SEC, 2 * SEC);
    let analysis = script.play();
    assert_eq!(analysis.rows.len(), 1);
    let node = row(&analysis, Some("node01"), Some("A"), "udp");
    assert_eq!((node.attempts, node.answered, node.mismatched), (1, 0, 2));
    assert_eq!((node.rcode.as_deref(), node.malformed), (None, false));
    assert_eq!(analysis.labels[1], "node01 A no answer");
}

#[test]
fn unreadable_messages_mark_the_row_and_do_no_harm() {
    let mut script = Script::new(10 * SEC);
    script.send(0, 1, "node01.", A);
    script.message(MS, Direction::Receive, 5, &[1, 2, 3, 4, 5]);
    script.receive(2 * MS, 1, "NODE01.", A, ResponseCode::NoError);
    let analysis = script.play();
    let node = row(&analysis, Some("node01"), Some("A"), "udp");
    assert!(node.malformed);
    assert_eq!((node.answered, node.mismatched), (1, 1));
}

#[test]
fn a_second_answer_to_the_same_question_counts_for_nothing() {
    let mut script = Script::new(10 * SEC);
    script.send(0, 1, "node01.", A);
    script.receive(MS, 1, "node01.", A, ResponseCode::NoError);
    script.receive(2 * MS, 1, "node01.", A, ResponseCode::ServFail);
    let analysis = script.play();
    let node = row(&analysis, Some("node01"), Some("A"), "udp");
    assert_eq!((node.answered, node.mismatched, node.rcode.as_deref()), (1, 0, Some("NOERROR")));
}

#[test]
fn one_question_to_two_servers_through_one_socket_has_two_rows() {
    let mut script = Script::new(10 * SEC);
    script.send(0, 1, "node01.", A);
    script.server = "10.0.0.54:53".to_string();
    script.send(0, 1, "node01.", A);
    script.wait(0, 10 * MS);
    script.receive(10 * MS, 1, "node01.", A, ResponseCode::NoError);
    script.wait(10 * MS, 11 * MS);
    let analysis = script.play();
    let of = |server: &str| analysis.rows.iter().find(|row| row.server == server).unwrap();
    assert_eq!((of("10.0.0.53:53").attempts, of("10.0.0.53:53").answered), (1, 0));
    assert_eq!((of("10.0.0.54:53").attempts, of("10.0.0.54:53").answered), (1, 1));
    // Common wait in halves; what follows the answer goes to the last query.
    assert_eq!(of("10.0.0.53:53").stalled_ns, 5 * MS);
    assert_eq!(of("10.0.0.54:53").stalled_ns, 6 * MS);
}

#[test]
fn refusals_in_milliseconds_repeated_for_ten_seconds_are_all_counted() {
    let mut script = Script::new(10 * SEC);
    for round in 0..100 {
        let at = round * 100 * MS;
        script.call(at, Api::Getaddrinfo, "node01");
        script.socket(8000 + round);
        script.send(at + MS, round as u16, "node01.", A);
        script.wait(at + MS, at + 4 * MS);
        script.receive_error(at + 4 * MS, libc::ECONNREFUSED);
    }
    let analysis = script.play();
    let node = row(&analysis, Some("node01"), Some("A"), "udp");
    assert_eq!((node.attempts, node.answered, node.lookups), (100, 100, 100));
    assert_eq!((node.stalled_ns, node.rcode.as_deref()), (300 * MS, Some("icmp-refused")));
    assert_eq!(analysis.lookups.len(), 100);
}

#[test]
fn a_service_behind_a_unix_socket_is_a_row_with_the_name_from_the_call() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getaddrinfo, "node\x1b01");
    script.transport = Transport::Unix;
    script.server = "/var/run/nscd/socket".to_string();
    script.wait(MS, 2 * MS);
    script.wait(2 * MS, 10 * SEC).in_flight = true;
    let analysis = script.play();
    let row = row(&analysis, Some("node\\u{1b}01"), None, "unix");
    assert_eq!((row.server.as_str(), row.api.as_str()), ("/var/run/nscd/socket", "getaddrinfo"));
    assert_eq!((row.attempts, row.answered, row.in_flight, row.lookups), (0, 0, 1, 1));
    assert_eq!(analysis.labels, ["node\\u{1b}01", "node\\u{1b}01 no answer"]);
}

#[test]
fn reverse_lookups_that_time_out_show_the_function_and_the_address() {
    let mut script = Script::new(60 * SEC);
    let name = "7.0.0.10.in-addr.arpa.";
    for round in 0..2 {
        let at = round * 10 * SEC;
        script.call(at, Api::Getnameinfo, "10.0.0.7");
        for attempt in 0..2 {
            let at = at + attempt * 5 * SEC;
            script.socket(8000 + at);
            script.send(at, round as u16, name, PTR);
            script.wait(at, at + 5 * SEC).ret = 0;
        }
    }
    let analysis = script.play();
    let row = row(&analysis, Some("7.0.0.10.in-addr.arpa"), Some("PTR"), "udp");
    assert_eq!((row.attempts, row.answered, row.lookups), (4, 0, 2));
    assert_eq!((row.api.as_str(), row.stalled_ns), ("getnameinfo", 20 * SEC));
    assert_eq!(analysis.lookups.len(), 2);
    assert_eq!(analysis.lookups[0].argument.as_deref(), Some("10.0.0.7"));
    assert_eq!(analysis.lookups[1].stalled_ns, 10 * SEC);
}

#[test]
fn shares_of_a_set_keep_their_weight_to_the_nanosecond() {
    let mut script = Script::new(10 * SEC);
    both(&mut script, 0, "node01.");
    script.send(0, 3, "node02.", A);
    script.wait(0, 1001).weight_ns = 500;
    script.receive(400, 1, "node01.", A, ResponseCode::NoError);
    let analysis = script.play();
    // 199 ns for three until 400 ns, then 301 ns for two; earlier queries get the odd ones.
    assert_eq!(row(&analysis, Some("node01"), Some("A"), "udp").stalled_ns, 67);
    assert_eq!(row(&analysis, Some("node01"), Some("AAAA"), "udp").stalled_ns, 66 + 151);
    assert_eq!(row(&analysis, Some("node02"), Some("A"), "udp").stalled_ns, 66 + 150);
}

#[test]
fn a_wait_of_another_thread_is_a_row_of_that_thread() {
    let mut script = Script::new(10 * SEC);
    script.send(0, 1, "node01.", A);
    script.tid = 102;
    script.wait(0, SEC);
    script.receive(SEC, 1, "node01.", A, ResponseCode::NoError);
    let analysis = script.play();
    let of = |tid: u32| analysis.rows.iter().find(|row| row.tid == tid).unwrap();
    assert_eq!((of(101).attempts, of(101).answered, of(101).stalled_ns), (1, 1, 0));
    assert_eq!((of(102).attempts, of(102).stalled_ns), (0, SEC));
}

#[test]
fn ipv6_servers_are_written_in_brackets() {
    let mut script = Script::new(10 * SEC);
    script.server = "[fd00::53]:53".to_string();
    script.send(0, 1, "node01.", A);
    assert_eq!(script.play().rows[0].server, "[fd00::53]:53");
}
