//! A slow hop by script, and what a recording says of it.

use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use stallscope::demo::link::{Direction, Fate, PacketRecord, Segment, Shaper};
use stallscope::demo::{LinkScript, Namespace, Network, Role, SlowLink};
use stallscope_tests::process::workload;
use stallscope_tests::{Peer, Program, record_run, require_root, rows, stallscope, sum};

const A: &str = "10.78.0.1";
const B: &str = "10.78.0.2";

struct Rig {
    a: Namespace,
    b: Namespace,
    link: SlowLink,
}

impl Rig {
    fn start(script: LinkScript) -> Rig {
        require_root();
        let (a, b) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let link = SlowLink::between(&a, &b, script).unwrap();
        Rig { a, b, link }
    }

    /// A server behind the link that answers at once.
    fn peer(&self) -> Peer {
        Peer::late_in(&self.b, B.parse::<IpAddr>().unwrap(), Duration::ZERO)
    }

    /// Segments that A sent again, its SYN among them: the kernel counts them together.
    fn resent(&self) -> usize {
        let is_syn = |segment: Segment| segment.syn && segment.ack.is_none();
        let packets = self.link.packets();
        let syns = packets.iter().filter(|packet| packet.segment.is_some_and(is_syn)).count();
        self.link.retransmissions(Direction::AToB) + syns.saturating_sub(1)
    }

    fn program(&self, arguments: &[&str]) -> Program {
        let role = Role::new(workload(), self.a.clone()).args(arguments);
        Program::adopt(role.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }
}

fn script(text: &str) -> LinkScript {
    text.parse::<LinkScript>().unwrap()
}

/// The kernel's smoothed round-trip time after each of these samples, in microseconds, as it reckons: in eighths, the
/// first sample alone, then a seventh part old and one part new.
fn smoothed(samples_us: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut eighths = 0_u64;
    let next = |sample: u64| {
        eighths = if eighths == 0 { sample * 8 } else { eighths - eighths / 8 + sample };
        eighths / 8
    };
    samples_us.into_iter().map(next).collect()
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

fn hop<'a>(report: &'a Value, peer: &str) -> &'a Value {
    let found = rows(report, "hops", &[("peer", json!(peer))]);
    assert_eq!(found.len(), 1, "{:#}", report["hops"]);
    found[0]
}

/// The link sees less of a round trip than the kernel of the sender, and the program sees more; so do the same weighted
/// means of all of them, however busy the machine is.
#[test]
fn the_round_trip_time_of_a_hop_is_that_of_the_link() {
    let delay = Duration::from_millis(40);
    let rig = Rig::start(LinkScript::delay(delay));
    let peer = rig.peer();
    let (values, trace) = record_run(&mut rig.program(&["ask", &peer.name(), "40", "0"]));
    let report = trace.report();
    let hop = hop(&report, B);

    let trips = rig.link.round_trips(Direction::AToB);
    let is_first_syn_seen = trips.first().is_some_and(|trip| trip.syn);
    let trips: Vec<u64> = trips.iter().map(|trip| trip.ns).collect();
    let each: Vec<u64> = values.get::<String>("each").split(',').map(|ns| ns.parse().unwrap()).collect();
    let scripted = 2 * u64::try_from(delay.as_nanos()).unwrap();
    assert!(trips.iter().all(|trip| *trip >= scripted), "never earlier than scripted: {trips:?}");

    let (low, high) = if is_first_syn_seen && rig.resent() == 0 {
        // The connect and forty requests; what the link's log has beyond is the end of the connection.
        let trips = &trips[..each.len()];
        assert!(each.iter().zip(trips).all(|(program, link)| program >= link), "{each:?} {trips:?}");
        let low = smoothed(trips.iter().map(|ns| ns / 1000)).into_iter().min().unwrap() * 1000;
        let high = smoothed(each.iter().map(|ns| ns.div_ceil(1000))).into_iter().max().unwrap() * 1000;
        (low, high)
    } else {
        // The machine stood still for so long that something was sent twice, so that the two lists do not match.
        (scripted, each.iter().max().copied().unwrap())
    };
    println!(
        "scripted {scripted} ns, link's median {}, program's {}, hop {}",
        median(trips.clone()),
        median(each.clone()),
        hop["rtt"]
    );
    assert!(sum(&[hop], "rtt.count") >= 1, "{hop}");
    for quantile in ["rtt.min_ns", "rtt.p50_ns", "rtt.p99_ns", "rtt.max_ns"] {
        let rtt = sum(&[hop], quantile);
        assert!(rtt * 100 >= low * 95 && rtt * 100 <= high * 105, "{quantile} {rtt}, not in {low}..={high}");
    }
    assert_eq!((&hop["retransmits"], &hop["transport"]), (&json!(rig.resent()), &json!("tcp")));
    // The kernel counts the SYN as a byte that was acknowledged.
    assert_eq!(hop["bytes"], 1 + 40 * (1 + 8));
}

#[test]
fn segments_that_the_link_loses_are_the_hop_s_retransmissions() {
    let rig = Rig::start(script("0s both delay 1ms\n0s a->b delay 1ms loss 10%\n").seed(7));
    let peer = rig.peer();
    let (_, trace) = record_run(&mut rig.program(&["ask", &peer.name(), "60", "0"]));
    let report = trace.report();
    let packets = rig.link.packets();
    let lost =
        packets.iter().filter(|packet| packet.fate == Fate::Lost && packet.direction == Direction::AToB);
    let lost: Vec<_> = lost.filter(|packet| packet.segment.is_some_and(|segment| segment.len > 0)).collect();
    assert!(!lost.is_empty(), "the seed loses some of sixty");
    let again = rig.link.retransmissions(Direction::AToB);
    assert!(again >= lost.len(), "{again} sent again, {} lost", lost.len());
    let hop = hop(&report, B);
    assert_eq!(hop["retransmits"], rig.resent(), "{hop}");
}

#[test]
fn jitter_loss_order_and_rate_are_in_the_link_s_own_log() {
    let text = "0s a->b delay 3ms jitter 4ms loss 20% reorder 20%\n0s b->a rate 1mbit queue 4KiB\n";
    let rig = Rig::start(script(text).seed(3));
    let socket = |namespace: &Namespace, address: &str| {
        let socket = namespace.run(|| std::net::UdpSocket::bind((address, 7000)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket
    };
    let (a, b) = (socket(&rig.a, A), socket(&rig.b, B));
    for number in 0..200_u8 {
        a.send_to(&[number; 100], (B, 7000)).unwrap();
        b.send_to(&[number; 1000], (A, 7000)).unwrap();
    }
    // IPv6 of both sides talks too.
    let of = |packets: &[PacketRecord], direction| -> Vec<PacketRecord> {
        let size = if direction == Direction::AToB { 128 } else { 1028 };
        let ours = |packet: &&PacketRecord| packet.direction == direction && packet.bytes == size;
        packets.iter().filter(ours).cloned().collect()
    };
    let mut packets = rig.link.packets();
    while Direction::BOTH.iter().any(|direction| of(&packets, *direction).len() < 200) {
        std::thread::sleep(Duration::from_millis(1));
        packets = rig.link.packets();
    }
    // Whenever they came: what was done to them is what the script does to packets of these times.
    let mut shaper = Shaper::new(script(text).seed(3));
    for packet in &packets {
        let fate = shaper.take(0, packet.taken_ns, packet.direction, packet.bytes);
        assert_eq!(packet.fate, fate, "{packet:?}");
    }
    // A receiver gets those that are not lost, in the order in which they are due.
    let mut due: Vec<(u64, u8)> = Vec::new();
    for (number, packet) in (0..).zip(of(&packets, Direction::AToB)) {
        match packet.fate {
            Fate::Deliver { due_ns, .. } => due.push((due_ns, number)),
            other => assert_eq!(other, Fate::Lost),
        }
    }
    assert!((120..190).contains(&due.len()), "a fifth of 200 is lost: {} passed", due.len());
    due.sort_unstable();
    for (_, number) in due {
        let mut buffer = [0; 2000];
        assert_eq!((b.recv(&mut buffer).unwrap(), buffer[0]), (100, number));
    }
    for packet in of(&rig.link.packets(), Direction::AToB) {
        let Fate::Deliver { due_ns, .. } = packet.fate else { continue };
        assert!(packet.delivered_ns.unwrap() >= due_ns && due_ns >= packet.taken_ns, "{packet:?}");
    }
    // A thousand bytes and two headers take 8.2 ms at one megabit.
    let dues: Vec<u64> = of(&packets, Direction::BToA)
        .iter()
        .filter_map(|packet| match packet.fate {
            Fate::Deliver { due_ns, .. } => Some(due_ns),
            _ => None,
        })
        .collect();
    assert!(dues.windows(2).all(|pair| pair[1] - pair[0] >= 8_224_000), "{dues:?}");
}

/// Two bridges with a slow link between them are one network.
#[test]
fn racks_and_relations_are_on_hops_leaves_and_peers() {
    require_root();
    let (near, far) = (Network::new().unwrap(), Network::new().unwrap());
    let link = SlowLink::bridge(&near, &far, LinkScript::delay(Duration::from_millis(5))).unwrap();
    let (own, peer_host) = (near.add_host(1).unwrap(), far.add_host(2).unwrap());
    let peer = Peer::late_on(&peer_host, peer_host.address().into(), Duration::from_millis(2));
    let mut program = Program::start_on(&own, &["recv", "blocking", &peer.name(), "30"]);
    let folder = tempfile::tempdir().unwrap();
    let racks = folder.path().join("racks.txt");
    std::fs::write(&racks, "10.77.0.1 A\n10.77.0.2 B\n").unwrap();
    let recorder = stallscope_tests::Recorder::new().pid(program.pid());
    let recording = recorder.args(&["--topology", &racks.to_string_lossy()]).start();
    program.run();
    let trace = recording.finish();
    assert!(trace.status.success(), "{}", trace.stderr);
    // The trace has it from now on.
    std::fs::remove_file(&racks).unwrap();

    let report = trace.report();
    let row = hop(&report, "10.77.0.2");
    assert_eq!((&row["rack"], &row["relation"]), (&json!("B"), &json!("cross-rack")));
    assert_eq!((&row["host"], &row["relation_evidence"]), (&json!("10.77.0.2"), &json!("topology")));
    assert!(sum(&[row], "rtt.min_ns") >= 10_000_000, "{row}");
    let leaf = format!("[sock.recv] {} rack B cross-rack", peer.name());
    assert!(trace.folded().iter().any(|(frames, _)| frames.last() == Some(&leaf)), "{:?}", trace.folded());
    let path = trace.path.to_string_lossy().into_owned();
    let picture = |arguments: &[&str]| {
        let output = stallscope(&[&["flame", &path, "--view", "peer"], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let by_peer = picture(&[]);
    for frame in ["cross-rack", "rack B", "10.77.0.2", &peer.name()] {
        assert!(by_peer.contains(&format!("<title>{frame} (")), "{frame} in {by_peer}");
    }
    // Another topology at report time takes its place.
    std::fs::write(&racks, r#"{"n1": {"rack": "R"}}"#).unwrap();
    assert!(picture(&["--topology", &racks.to_string_lossy()]).contains("<title>rack unknown ("));
    drop(link);
}
