use hickory_proto::op::ResponseCode::{NXDomain, NoError};
use hickory_proto::rr::RecordType::{A, AAAA, PTR};
use profiler_common::{Api, Call};

use super::{get, ids, number, of_script, strings};
use crate::analysis::dns::tests::script::{MS, SEC, Script};
use crate::analysis::report::{Finding, Severity};
use crate::model::dns::message::tests::{answer, query};
use crate::model::socket::Transport;
use crate::trace::record::Direction;

/// `getaddrinfo` at a server that never answers, as glibc tries it, stopped in the second try.
fn dead_server() -> Script {
    let mut script = Script::new(8 * SEC);
    script.server = "127.0.0.53:53".to_string();
    script.call(0, Api::Getaddrinfo, "node01");
    for (attempt, ino) in [(0, 7000), (1, 7001)] {
        let at = attempt * 5 * SEC;
        script.socket(ino);
        script.send(at, 1, "node01.", A);
        script.send(at, 2, "node01.", AAAA);
        let end = (at + 5 * SEC).min(8 * SEC);
        script.wait(at, end).in_flight = attempt == 1;
    }
    script
}

#[test]
fn a_server_that_never_answers_is_named_with_its_stall_and_its_ladder() {
    let findings = of_script(&dead_server());
    assert_eq!(ids(&findings), ["dns.resolver_unreachable", "dns.retry_ladder", "dns.still_waiting"]);
    let unreachable = get(&findings, "dns.resolver_unreachable");
    assert_eq!(unreachable.severity, Severity::Critical);
    assert_eq!(unreachable.stalled_ns, 8 * SEC);
    assert_eq!((number(unreachable, "attempts"), number(unreachable, "answered")), (4, 0));
    assert!(
        unreachable.summary.starts_with("127.0.0.53:53 never answered: 4 queries sent"),
        "{}",
        unreachable.summary
    );
    assert!(unreachable.summary.contains("node01 in getaddrinfo (pid 100)"));
    assert!(unreachable.advice.contains("systemctl restart systemd-resolved"));
    assert!(unreachable.advice.contains("dig @127.0.0.53 node01"));
    assert_eq!(unreachable.proof["in_resolv_conf"], false);
    let ladder = get(&findings, "dns.retry_ladder");
    assert_eq!(ladder.proof["steps_ns"], serde_json::json!([5 * SEC]));
    assert_eq!(strings(ladder, "unanswered_types"), ["A", "AAAA"]);
    let waiting = get(&findings, "dns.still_waiting");
    assert_eq!((number(waiting, "age_ns"), number(waiting, "in_flight")), (8 * SEC, 1));
    for follows in [ladder, waiting] {
        assert_eq!(follows.severity, Severity::Info, "the server is to blame once");
        assert!(follows.advice.starts_with("See dns.resolver_unreachable for 127.0.0.53:53."));
    }
}

#[test]
fn a_hanging_lookup_from_before_the_recording_is_enough() {
    let mut script = Script::new(3 * SEC);
    script.wait_from_before(20 * SEC, 3 * SEC).in_flight = true;
    let findings = of_script(&script);
    assert_eq!(ids(&findings), ["dns.resolver_unreachable", "dns.still_waiting"]);
    let unreachable = get(&findings, "dns.resolver_unreachable");
    assert!(unreachable.summary.contains("the query was sent before the recording"));
    let waiting = get(&findings, "dns.still_waiting");
    assert!(waiting.summary.contains("an unknown name"), "{}", waiting.summary);
    assert!(waiting.summary.contains("at least 23.0 s"), "{}", waiting.summary);
}

#[test]
fn a_first_query_that_may_still_be_answered_is_waiting_and_blames_nobody() {
    let mut script = Script::new(3 * SEC);
    script.send(1500 * MS, 1, "node01.", A);
    script.wait(1500 * MS, 3 * SEC).in_flight = true;
    let findings = of_script(&script);
    assert_eq!(ids(&findings), ["dns.still_waiting"]);
    assert_eq!(get(&findings, "dns.still_waiting").severity, Severity::Warning);
}

#[test]
fn a_server_that_was_asked_beside_a_faster_one_is_not_blamed() {
    let mut script = Script::new(10 * SEC);
    for round in 0..20 {
        let at = round * 100 * MS;
        script.socket(7000 + round);
        for server in ["10.0.0.53:53", "10.0.0.54:53"] {
            script.server = server.to_string();
            script.send(at, round as u16, "node01.", A);
        }
        script.wait(at, at + 90 * MS);
        script.receive(at + 90 * MS, round as u16, "node01.", A, NoError);
    }
    let findings = of_script(&script);
    assert_eq!(ids(&findings), Vec::<&str>::new());
}

#[test]
fn refusals_in_milliseconds_for_ten_seconds_are_critical() {
    let mut script = Script::new(10 * SEC);
    for round in 0..100 {
        let at = round * 100 * MS;
        script.call(at, Api::Getaddrinfo, "node01");
        script.socket(8000 + round);
        script.send(at, round as u16, "node01.", A);
        script.wait(at, at + 3 * MS);
        script.receive_error(at + 3 * MS, libc::ECONNREFUSED);
    }
    let findings = of_script(&script);
    assert_eq!(ids(&findings), ["dns.resolver_unreachable"]);
    let refused = get(&findings, "dns.resolver_unreachable");
    assert_eq!(refused.severity, Severity::Critical, "often beats long");
    assert_eq!((number(refused, "refused"), number(refused, "failed_lookups")), (100, 100));
    assert_eq!((refused.stalled_ns, number(refused, "span_ns")), (300 * MS, 9903 * MS));
    assert_eq!(refused.proof["in_resolv_conf"], true);
}

#[test]
fn a_server_without_a_route_is_unreachable_unless_another_one_answered() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getaddrinfo, "node01");
    script.message(MS, Direction::Send, -i64::from(libc::ENETUNREACH), &[]);
    script.server = "10.0.0.54:53".to_string();
    script.socket(7001);
    script.send(2 * MS, 1, "node01.", A);
    script.receive(3 * MS, 1, "node01.", A, NoError);
    assert_eq!(ids(&of_script(&script)), Vec::<&str>::new(), "the second server of the list does");

    script.call(SEC, Api::Getaddrinfo, "node01");
    script.server = "10.0.0.53:53".to_string();
    script.socket(7002);
    script.message(SEC, Direction::Send, -i64::from(libc::ENETUNREACH), &[]);
    let findings = of_script(&script);
    let unreachable = get(&findings, "dns.resolver_unreachable");
    assert_eq!((number(unreachable, "unsent"), number(unreachable, "failed_lookups")), (2, 1));
    assert!(unreachable.summary.contains("2 queries not sent (ENETUNREACH)"), "{}", unreachable.summary);
}

#[test]
fn one_refused_lookup_is_enough_and_refusals_that_were_not_sent_are_told() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getaddrinfo, "node01");
    script.send(0, 1, "node01.", A);
    script.receive_error(MS, libc::ECONNREFUSED);
    let findings = of_script(&script);
    assert_eq!(ids(&findings), ["dns.resolver_unreachable"]);
    assert_eq!(get(&findings, "dns.resolver_unreachable").severity, Severity::Warning, "every lookup failed");

    script.call(SEC, Api::Getaddrinfo, "node01");
    script.socket(7001);
    script.send(SEC, 2, "node01.", A);
    script.wait(SEC, 6 * SEC);
    let findings = of_script(&script);
    let refused = get(&findings, "dns.resolver_unreachable");
    assert_eq!((number(refused, "refused"), number(refused, "unanswered")), (1, 1));
    assert!(refused.summary.contains("1 refusal and 1 query without any answer"), "{}", refused.summary);
}

#[test]
fn a_refusing_server_with_a_working_one_behind_it_is_no_finding() {
    let mut script = Script::new(10 * SEC);
    for round in 0..100 {
        let at = round * 100 * MS;
        script.call(at, Api::Getaddrinfo, "node01");
        script.server = "10.0.0.53:53".to_string();
        script.socket(8000 + 2 * round);
        script.send(at, round as u16, "node01.", A);
        script.receive_error(at + MS, libc::ECONNREFUSED);
        script.server = "10.0.0.54:53".to_string();
        script.socket(8001 + 2 * round);
        script.send(at + MS, round as u16, "node01.", A);
        script.receive(at + 2 * MS, round as u16, "node01.", A, NoError);
    }
    assert_eq!(ids(&of_script(&script)), Vec::<&str>::new());
}

#[test]
fn a_quick_answer_to_a_question_that_was_sent_again_is_not_late() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getaddrinfo, "node01");
    script.send(0, 1, "node01.", AAAA);
    script.wait(0, 5 * SEC);
    script.send(5 * SEC, 1, "node01.", AAAA);
    script.wait(5 * SEC, 5 * SEC + MS);
    script.receive(5 * SEC + MS, 1, "node01.", AAAA, NoError);
    assert_eq!(ids(&of_script(&script)), ["dns.retry_ladder"], "a message was lost");
}

#[test]
fn foreign_answers_show_that_the_server_is_there() {
    let mut script = Script::new(10 * SEC);
    script.send(0, 1, "node01.", A);
    script.receive(MS, 99, "node01.", A, NoError);
    script.wait(0, 5 * SEC);
    assert_eq!(ids(&of_script(&script)), Vec::<&str>::new());
}

fn answers_after(latency: u64, rounds: u64, duration: u64) -> Script {
    let mut script = Script::new(duration);
    for round in 0..rounds {
        let at = round * (latency + 10 * MS);
        script.call(at, Api::Getaddrinfo, "node01");
        script.send(at, round as u16, "node01.", A);
        script.wait(at, at + latency);
        script.receive(at + latency, round as u16, "node01.", A, NoError);
    }
    script
}

#[test]
fn late_answers_are_slow_with_their_latencies() {
    let findings = of_script(&answers_after(400 * MS, 5, 10 * SEC));
    assert_eq!(ids(&findings), ["dns.slow"]);
    let slow = get(&findings, "dns.slow");
    assert_eq!((slow.severity, slow.stalled_ns), (Severity::Warning, 2 * SEC));
    assert_eq!(slow.proof["latency"]["p50_ns"], 400 * MS);
    assert!(slow.summary.contains("400.0 ms at the median"), "{}", slow.summary);
}

#[test]
fn the_name_that_was_waited_for_longest_comes_first() {
    let mut script = Script::new(10 * SEC);
    let names = [("a.", 10), ("b.", 20), ("c.", 30), ("d.", 15), ("slow.", 1200)];
    let mut at = 0;
    for round in 0..5 {
        for (name, latency) in names {
            let id = round * 10 + 1;
            script.call(at, Api::Getaddrinfo, name);
            script.send(at, id, name, A);
            script.wait(at, at + latency * MS);
            script.receive(at + latency * MS, id, name, A, NoError);
            at += latency * MS + MS;
        }
    }
    let findings = of_script(&script);
    let slow = get(&findings, "dns.slow");
    assert!(slow.summary.contains("for slow, c, b and 2 more"), "{}", slow.summary);
    assert_eq!(slow.proof["names"], serde_json::json!(["slow", "c", "b", "d", "a"]));
}

#[test]
fn quick_answers_that_add_up_are_slow_too() {
    let findings = of_script(&answers_after(40 * MS, 100, 10 * SEC));
    assert_eq!(ids(&findings), ["dns.slow"]);
    assert!(get(&findings, "dns.slow").summary.contains("add up"));
}

/// Four questions that are answered in a millisecond.
fn quick_answers(transport: Transport, wait: impl Fn(&mut Script, u64)) -> Vec<Finding> {
    let mut script = Script::new(60 * SEC);
    script.transport = transport;
    let framed = |message: Vec<u8>| match transport {
        Transport::Tcp => [&(message.len() as u16).to_be_bytes()[..], &message].concat(),
        _ => message,
    };
    for round in 0..4_u16 {
        let at = u64::from(round) * 10 * SEC + 6 * SEC;
        script.socket(7000 + u64::from(round));
        let question = framed(query(round, "node01.", A));
        script.message(at, Direction::Send, question.len() as i64, &question);
        let reply = framed(answer(round, "node01.", A, NoError, 1));
        script.message(at + MS, Direction::Receive, reply.len() as i64, &reply);
        wait(&mut script, at);
    }
    of_script(&script)
}

#[test]
fn waits_that_quick_answers_do_not_explain_are_not_added_to_them() {
    // For another message, which nobody saw leave.
    let lost = quick_answers(Transport::Udp, |script, at| {
        script.wait(at, at + 5 * SEC);
    });
    assert_eq!(ids(&lost), Vec::<&str>::new());
    // A connection that takes its time is the server's.
    let connecting = quick_answers(Transport::Tcp, |script, at| {
        script.wait(at - 5 * SEC, at).call = Call::Connect;
    });
    assert_eq!(ids(&connecting), ["dns.slow"]);
}

#[test]
fn a_late_answer_to_a_question_that_was_sent_again_counts_from_then_on() {
    let asked = |latency: u64| {
        let mut script = Script::new(60 * SEC);
        for round in 0..5 {
            let at = round * 10 * SEC;
            script.call(at, Api::Getaddrinfo, "node01");
            script.socket(7000 + round);
            let end = at + 5 * SEC + latency;
            for sent in [at, at + 5 * SEC] {
                script.send(sent, round as u16, "node01.", A);
            }
            script.receive(end, round as u16, "node01.", A, NoError);
            script.wait(at, end);
        }
        script.messages.sort_by_key(|message| message.time_ns);
        of_script(&script)
    };
    let findings = asked(400 * MS);
    assert_eq!(ids(&findings), ["dns.retry_ladder", "dns.slow"]);
    assert_eq!(get(&findings, "dns.slow").stalled_ns, 5 * 400 * MS);
    assert_eq!(ids(&asked(MS)), ["dns.retry_ladder"]);
}

#[test]
fn ordinary_lookups_and_single_late_ones_in_a_long_recording_are_no_findings() {
    assert_eq!(ids(&of_script(&answers_after(2 * MS, 50, 30 * SEC))), Vec::<&str>::new());
    assert_eq!(ids(&of_script(&answers_after(250 * MS, 1, 60 * SEC))), Vec::<&str>::new());
}

#[test]
fn a_lost_aaaa_is_a_ladder_with_its_steps_and_the_server_is_not_called_unreachable() {
    let mut script = Script::new(30 * SEC);
    script.call(0, Api::Getaddrinfo, "node01");
    for attempt in 0..3 {
        let at = attempt * 5 * SEC;
        script.socket(7000 + attempt);
        script.send(at, 1, "node01.", A);
        script.send(at, 2, "node01.", AAAA);
        script.receive(at + MS, 1, "node01.", A, NoError);
        script.wait(at + MS, at + 5 * SEC).ret = 0;
    }
    let findings = of_script(&script);
    assert_eq!(ids(&findings), ["dns.retry_ladder"]);
    let ladder = get(&findings, "dns.retry_ladder");
    assert_eq!(ladder.proof["steps_ns"], serde_json::json!([5 * SEC, 5 * SEC]));
    assert_eq!(
        (strings(ladder, "unanswered_types"), strings(ladder, "answered_types")),
        (vec!["AAAA"], vec!["A"])
    );
    assert!(ladder.summary.contains("5.0 s, 5.0 s: A is answered, AAAA is not"), "{}", ladder.summary);
    assert!(ladder.advice.contains("single-request-reopen"));
    assert_eq!(ladder.severity, Severity::Warning, "the lookup works in the end");
}

#[test]
fn questions_that_are_asked_again_by_the_program_are_no_ladder() {
    let mut script = Script::new(30 * SEC);
    for round in 0..10 {
        script.call(round * 2 * SEC, Api::Getaddrinfo, "node01");
        script.send(round * 2 * SEC, round as u16, "node01.", A);
        script.receive(round * 2 * SEC + MS, round as u16, "node01.", A, NoError);
    }
    assert_eq!(ids(&of_script(&script)), Vec::<&str>::new());
}

#[test]
fn reverse_lookups_that_time_out_give_calls_seconds_and_the_result() {
    let mut script = Script::new(40 * SEC);
    for round in 0..3 {
        let at = round * 12 * SEC;
        script.call(at, Api::Getnameinfo, "10.0.0.7");
        for attempt in 0..2 {
            let at = at + attempt * 5 * SEC;
            script.socket(8000 + at);
            script.send(at, round as u16, "7.0.0.10.in-addr.arpa.", PTR);
            script.wait(at, at + 5 * SEC).ret = 0;
        }
    }
    let findings = of_script(&script);
    // The server may be well, and the zone's own servers dead.
    assert_eq!(ids(&findings), ["dns.retry_ladder", "dns.reverse_lookup"]);
    let reverse = get(&findings, "dns.reverse_lookup");
    assert_eq!(reverse.severity, Severity::Critical);
    assert_eq!((number(reverse, "calls"), number(reverse, "failed")), (3, 3));
    assert_eq!(reverse.proof["call"]["p50_ns"], 10 * SEC);
    assert_eq!(strings(reverse, "results"), ["EAI_AGAIN"]);
    assert_eq!(strings(reverse, "addresses"), ["10.0.0.7"]);
    assert!(reverse.summary.starts_with("getnameinfo waits"), "{}", reverse.summary);
    assert!(reverse.advice.contains("dig @10.0.0.53 -x 10.0.0.7"));
}

#[test]
fn a_quick_reverse_lookup_that_fails_once_is_no_finding() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getnameinfo, "10.0.0.7");
    script.send(0, 1, "7.0.0.10.in-addr.arpa.", PTR);
    script.receive(MS, 1, "7.0.0.10.in-addr.arpa.", PTR, NXDomain);
    assert_eq!(ids(&of_script(&script)), Vec::<&str>::new());
}

#[test]
fn a_local_service_that_hangs_is_still_waiting_with_advice_for_it() {
    let mut script = Script::new(10 * SEC);
    script.call(0, Api::Getaddrinfo, "node01");
    script.transport = Transport::Unix;
    script.server = "/var/run/nscd/socket".to_string();
    script.wait(0, 10 * SEC).in_flight = true;
    let findings = of_script(&script);
    assert_eq!(ids(&findings), ["dns.still_waiting"]);
    let waiting = get(&findings, "dns.still_waiting");
    assert!(waiting.advice.contains("restart nscd"));
    assert_eq!(waiting.severity, Severity::Critical);
}

#[test]
fn names_from_packets_never_become_commands() {
    let mut script = dead_server();
    script.messages.clear();
    script.calls.clear();
    script.send(0, 1, "$(reboot)`halt`.", A);
    for finding in of_script(&script) {
        assert!(!finding.advice.contains("reboot"), "{}", finding.advice);
    }
}
