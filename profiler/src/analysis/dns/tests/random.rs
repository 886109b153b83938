use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use proptest::prelude::*;

use super::script::{MS, SEC, Script};
use crate::model::socket::Transport;
use crate::trace::record::Direction;

/// One thing that happens; all numbers are small so that ids, names and sockets collide.
#[derive(Clone, Debug)]
enum Step {
    Send { at: u64, id: u16, name: u8, ino: u64, server: u8 },
    Receive { at: u64, id: u16, name: u8, ino: u64, server: u8, rcode: u16 },
    Raw { at: u64, ino: u64, receive: bool, tcp: bool, ret: i64, data: Vec<u8> },
    Wait { from: u64, to: u64, weight: u64, ino: u64, server: u8, in_flight: bool, earlier: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..40u64;
    prop_oneof![
        (at.clone(), 0..3u16, 0..2u8, 0..3u64, 0..3u8).prop_map(|(at, id, name, ino, server)| Step::Send {
            at,
            id,
            name,
            ino,
            server
        }),
        (at.clone(), 0..3u16, 0..2u8, 0..3u64, 0..3u8, 0..6u16).prop_map(
            |(at, id, name, ino, server, rcode)| Step::Receive { at, id, name, ino, server, rcode }
        ),
        (
            at.clone(),
            0..3u64,
            any::<bool>(),
            any::<bool>(),
            -120..700i64,
            proptest::collection::vec(any::<u8>(), 0..40)
        )
            .prop_map(|(at, ino, receive, tcp, ret, data)| Step::Raw {
                at,
                ino,
                receive,
                tcp,
                ret,
                data
            }),
        (at.clone(), 0..10u64, 0..2_000_000_000u64, 0..3u64, 0..3u8, any::<bool>(), any::<bool>()).prop_map(
            |(from, length, weight, ino, server, in_flight, earlier)| Step::Wait {
                from,
                to: from + length,
                weight,
                ino,
                server,
                in_flight,
                earlier,
            }
        ),
    ]
}

fn server(number: u8) -> String {
    match number {
        0 => String::new(),
        number => format!("10.0.0.{number}:53"),
    }
}

fn apply(script: &mut Script, step: Step) {
    let names = ["a.", "b."];
    script.transport = Transport::Udp;
    match step {
        Step::Send { at, id, name, ino, server: number } => {
            (script.ino, script.server) = (ino, server(number));
            script.send(at * SEC, id, names[usize::from(name)], RecordType::A);
        }
        Step::Receive { at, id, name, ino, server: number, rcode } => {
            (script.ino, script.server) = (ino, server(number));
            let rcode = <ResponseCode as From<u16>>::from(rcode);
            script.receive(at * SEC, id, names[usize::from(name)], RecordType::A, rcode);
        }
        Step::Raw { at, ino, receive, tcp, ret, data } => {
            (script.ino, script.server) = (ino, server(1));
            script.transport = if tcp { Transport::Tcp } else { Transport::Udp };
            let direction = if receive { Direction::Receive } else { Direction::Send };
            script.message(at * SEC, direction, ret, &data);
        }
        Step::Wait { from, to, weight, ino, server: number, in_flight, earlier } => {
            script.ino = ino;
            let wait = script.wait(from * SEC, to * SEC);
            wait.server = Arc::from(server(number));
            wait.weight_ns = weight;
            wait.in_flight = in_flight;
            wait.began_earlier = earlier;
            wait.began_ns -= if earlier { 2000 * MS } else { 0 };
        }
    }
}

proptest! {
    /// `play` asserts that rows and lookups sum to the waits.
    #[test]
    fn whatever_happens_rows_sum_to_the_waits(steps in proptest::collection::vec(step(), 0..40)) {
        let mut script = Script::new(30 * SEC);
        let sent = steps.iter().filter(|step| matches!(step, Step::Send { at, .. } if *at <= 30)).count() as u64;
        let raw = steps.iter().filter(|step| matches!(step, Step::Raw { .. })).count() as u64;
        for step in steps {
            apply(&mut script, step);
        }
        let analysis = script.play();
        let attempts: u64 = analysis.rows.iter().map(|row| row.attempts).sum();
        prop_assert!(attempts >= sent && attempts <= sent + raw * 20);
        for lookup in &analysis.lookups {
            for asked in &lookup.asked {
                prop_assert!(asked.row < analysis.rows.len());
            }
        }
    }
}
