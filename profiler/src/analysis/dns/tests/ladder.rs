use hickory_proto::op::ResponseCode::NoError;
use hickory_proto::rr::RecordType::{A, AAAA};
use profiler_common::Api;

use super::script::{MS, SEC, Script, row};
use crate::model::dns::query::Outcome;

/// One try as glibc makes it: both at once, A answered in a millisecond, AAAA lost.
fn first_try(script: &mut Script) {
    script.send(0, 1, "node01.", A);
    script.send(0, 2, "node01.", AAAA);
    script.wait(0, MS);
    script.receive(MS, 1, "node01.", A, NoError);
    script.wait(MS, 5 * SEC).ret = 0;
}

#[test]
fn an_unanswered_aaaa_owns_the_ladder_and_the_answered_a_next_to_nothing() {
    let mut script = Script::new(30 * SEC);
    script.call(0, Api::Getaddrinfo, "node01");
    first_try(&mut script);
    for (attempt, ino) in [(1, 7001), (2, 7002)] {
        let at = attempt * 5 * SEC;
        script.socket(ino);
        script.send(at, 1, "node01.", A);
        script.wait(at, at + MS);
        script.receive(at + MS, 1, "node01.", A, NoError);
        script.send(at + MS, 2, "node01.", AAAA);
        script.wait(at + MS, at + 5 * SEC).ret = 0;
    }
    let analysis = script.play();
    let a = row(&analysis, Some("node01"), Some("A"), "udp");
    assert_eq!((a.attempts, a.answered, a.lookups), (3, 3, 1));
    assert_eq!(a.stalled_ns, MS / 2 + 2 * MS);
    let aaaa = row(&analysis, Some("node01"), Some("AAAA"), "udp");
    assert_eq!((aaaa.attempts, aaaa.answered, aaaa.rcode.as_deref()), (3, 0, None));
    assert_eq!(aaaa.stalled_ns, 15 * SEC - a.stalled_ns);
    assert_eq!(analysis.labels[1], "node01 AAAA no answer");
    assert_eq!(analysis.lookups.len(), 1);
    let asked: Vec<u64> = analysis.lookups[0]
        .asked
        .iter()
        .filter(|asked| asked.qtype.as_deref() == Some("AAAA"))
        .flat_map(|asked| &asked.sends)
        .map(|send| (send - script.window.start_ns) / MS)
        .collect();
    assert_eq!(asked, [0, 5001, 10001]);
}

#[test]
fn retransmissions_on_the_same_socket_are_attempts_of_one_query() {
    let mut script = Script::new(30 * SEC);
    for at in [0, 5, 10] {
        script.send(at * SEC, 2, "node01.", AAAA);
        script.wait(at * SEC, at * SEC + if at == 10 { SEC } else { 5 * SEC });
    }
    script.receive(11 * SEC, 2, "node01.", AAAA, NoError);
    let analysis = script.play();
    let aaaa = row(&analysis, Some("node01"), Some("AAAA"), "udp");
    assert_eq!((aaaa.attempts, aaaa.answered, aaaa.lookups), (3, 1, 1));
    assert_eq!((aaaa.latency.max_ns, aaaa.stalled_ns), (11 * SEC, 11 * SEC));
    assert_eq!(analysis.labels[0], "node01 answered late");
}

#[test]
fn a_new_id_for_the_same_question_ends_the_wait_for_the_old_one() {
    let mut script = Script::new(30 * SEC);
    script.send(0, 1, "node01.", A);
    script.wait(0, 5 * SEC);
    script.send(5 * SEC, 9, "node01.", A);
    script.wait(5 * SEC, 6 * SEC);
    script.receive(6 * SEC, 9, "node01.", A, NoError);
    let analysis = script.play();
    let node = row(&analysis, Some("node01"), Some("A"), "udp");
    assert_eq!((node.attempts, node.answered, node.latency.max_ns), (2, 1, SEC));
    assert_eq!(node.lookups, 1, "an unanswered question that is repeated is no new lookup");
    assert_eq!(analysis.lookups[0].asked[0].outcome, Outcome::GivenUp);
    assert_eq!(analysis.labels, ["node01 A no answer", "node01 answered late"]);
}

#[test]
fn the_next_server_has_its_own_row_and_the_same_lookup() {
    let mut script = Script::new(30 * SEC);
    script.send(0, 1, "node01.", A);
    script.wait(0, 5 * SEC);
    script.server = "10.0.0.54:53".to_string();
    script.socket(7001);
    script.send(5 * SEC, 1, "node01.", A);
    script.wait(5 * SEC, 5 * SEC + MS);
    script.receive(5 * SEC + MS, 1, "node01.", A, NoError);
    let analysis = script.play();
    assert_eq!(analysis.rows.len(), 2);
    assert_eq!(analysis.rows[0].server, "10.0.0.53:53");
    assert_eq!((analysis.rows[0].attempts, analysis.rows[0].answered), (1, 0));
    assert_eq!((analysis.rows[1].attempts, analysis.rows[1].answered), (1, 1));
    assert_eq!((analysis.rows[0].stalled_ns, analysis.rows[1].stalled_ns), (5 * SEC, MS));
    assert_eq!(analysis.lookups.len(), 1);
}

#[test]
fn lookups_outside_of_known_calls_are_told_apart_by_their_ids() {
    let mut script = Script::new(30 * SEC);
    for round in 0..3 {
        let at = round * SEC;
        script.send(at, round as u16 * 2, "node01.", A);
        script.send(at, round as u16 * 2 + 1, "node01.", AAAA);
        script.receive(at + MS, round as u16 * 2, "node01.", A, NoError);
        script.receive(at + MS, round as u16 * 2 + 1, "node01.", AAAA, NoError);
    }
    let analysis = script.play();
    assert_eq!(row(&analysis, Some("node01"), Some("A"), "udp").lookups, 3);
    assert_eq!(row(&analysis, Some("node01"), Some("AAAA"), "udp").lookups, 3);
    assert_eq!(analysis.lookups.len(), 3);
}
