//! The rig does what the other tests rely on; none of these needs stallscope itself.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use stallscope::demo::{Action, Demo, Network, RecordType, Rule, SLOW_ANSWER};
use stallscope_tests::process::workload;
use stallscope_tests::{Peer, Program, Resolver, require_root};

const MS: u64 = 1_000_000;

/// At least as late as scripted, and not by far more; how much more is the machine's business.
#[track_caller]
fn assert_late(what: &str, measured_ns: u64, scripted_ns: u64) {
    // A time-out of the C library counts whole milliseconds and can end a fraction early; a program that is kept from
    // running between its request and its look at the clock misses a part of the wait.
    let range = scripted_ns - scripted_ns / 4..scripted_ns + 10_000 * MS;
    assert!(range.contains(&measured_ns), "{what}: {measured_ns} ns, scripted {scripted_ns} ns");
}

#[test]
fn late_answers_come_as_late_as_scripted() {
    let rig = Resolver::start(vec![Rule::new("test", Action::Answer { delay: Duration::from_millis(120) })]);
    let (code, ns) = rig.look_up("a.test", "inet");
    assert_eq!(code, "ok");
    assert_late("look-up", ns, 120 * MS);
    let query = &rig.server.queries("a.test", RecordType::A)[0];
    assert_late("server", query.answered_ns.unwrap() - query.received_ns, 120 * MS);
    assert_eq!(rig.counts("a.test", RecordType::A), (1, 1));
    assert_eq!(rig.counts("a.test", RecordType::AAAA), (0, 0));
}

#[test]
fn lookups_without_an_answer_are_repeated_and_given_up() {
    let rig = Resolver::start(vec![Rule::new("test", Action::Never)]);
    let (code, ns) = rig.look_up("a.test", "inet");
    assert_eq!(code, "EAI_AGAIN");
    assert_late("two time-outs of a second", ns, 2000 * MS);
    assert_eq!(rig.counts("a.test", RecordType::A), (2, 0));
}

#[test]
fn codes_reach_the_program() {
    let rig = Resolver::start(vec![
        Rule::new("nx.test", Action::nxdomain(Duration::from_millis(30))),
        Rule::new("fail.test", Action::servfail(Duration::ZERO)),
        Rule::new("no.test", Action::refused(Duration::ZERO)),
    ]);
    let (code, ns) = rig.look_up("a.nx.test", "inet");
    assert_eq!(code, "EAI_NONAME");
    assert_late("NXDOMAIN", ns, 30 * MS);
    assert_eq!(rig.look_up("a.fail.test", "inet").0, "EAI_AGAIN");
    assert_eq!(rig.look_up("a.no.test", "inet").0, "EAI_AGAIN");
    // glibc asks again after both.
    assert_eq!(rig.counts("a.fail.test", RecordType::A), (2, 2));
    assert_eq!(rig.counts("a.no.test", RecordType::A), (2, 2));
}

#[test]
fn truncated_answers_are_asked_for_again_over_tcp_in_pieces() {
    let action = Action::TruncateThenTcp { segments: 3, gap: Duration::from_millis(20) };
    let rig = Resolver::start(vec![Rule::new("test", action)]);
    let (code, ns) = rig.look_up("a.test", "inet");
    assert_eq!(code, "ok");
    assert_late("two gaps", ns, 40 * MS);
    let over: Vec<bool> =
        rig.server.queries("a.test", RecordType::A).iter().map(|query| query.over_tcp).collect();
    assert_eq!(over, [false, true]);
}

#[test]
fn answers_with_another_id_are_ignored_until_the_right_one() {
    let right = Action::WrongId { then_right: Some(Duration::from_millis(80)) };
    let rig = Resolver::start(vec![
        Rule::new("right.test", right),
        Rule::new("wrong.test", Action::WrongId { then_right: None }),
    ]);
    let (code, ns) = rig.look_up("a.right.test", "inet");
    assert_eq!(code, "ok");
    assert_late("the right answer", ns, 80 * MS);
    let (code, ns) = rig.look_up("a.wrong.test", "inet");
    assert_eq!(code, "EAI_AGAIN");
    assert_late("two time-outs", ns, 2000 * MS);
    assert_eq!(rig.counts("a.wrong.test", RecordType::A), (2, 0));
}

#[test]
fn a_lost_aaaa_query_costs_one_time_out() {
    let rig = Resolver::start(Rule::answers_a_but_not_aaaa("test"));
    let (code, ns) = rig.look_up("a.test", "unspec");
    assert_eq!(code, "ok");
    assert_late("one time-out", ns, 1000 * MS);
    // Both are asked again, one after the other.
    assert_eq!(rig.counts("a.test", RecordType::A), (2, 2));
    assert_eq!(rig.counts("a.test", RecordType::AAAA), (2, 1));
}

#[test]
fn reverse_lookups_time_out_where_their_zone_does() {
    let rig = Resolver::start(vec![Rule::new("77.10.in-addr.arpa", Action::Never)]);
    let arguments = ["getnameinfo", "10.77.0.9", "1"];
    let values = rig.program(&arguments).run();
    assert_eq!(values.get::<String>("code"), "EAI_AGAIN");
    assert_late("two time-outs", values.ns(), 2000 * MS);
    assert_eq!(rig.counts("9.0.77.10.in-addr.arpa", RecordType::PTR), (2, 0));
}

#[test]
fn a_host_without_a_server_refuses_at_once() {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    let empty = network.add_host(2).unwrap();
    let resolv_conf = format!("nameserver {}\n", empty.address());
    let arguments = ["getaddrinfo", "a.test", "1", "0", "inet"];
    let values = Program::start_resolving(&client, &resolv_conf, &arguments).run();
    assert_eq!(values.get::<String>("code"), "EAI_AGAIN");
    // The resolver waits for five seconds, twice.
    assert!(values.ns() < 5000 * MS, "an ICMP refusal, not a time-out: {} ns", values.ns());
}

#[test]
fn silent_addresses_swallow_syns_and_unreachable_ones_refuse_them() {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    let silent: IpAddr = "10.77.0.99".parse().unwrap();
    let unreachable: IpAddr = "10.77.0.98".parse().unwrap();
    client.make_silent(silent).unwrap();
    client.make_silent("fd77::99".parse().unwrap()).unwrap();
    client.make_unreachable(unreachable).unwrap();
    let connect = |address: IpAddr| {
        let limit = Duration::from_millis(1500);
        client.run(|| TcpStream::connect_timeout(&SocketAddr::new(address, 9), limit)).unwrap().unwrap_err()
    };
    assert_eq!(connect(silent).kind(), ErrorKind::TimedOut);
    assert_eq!(connect("fd77::99".parse().unwrap()).kind(), ErrorKind::TimedOut);
    assert_eq!(connect(unreachable).kind(), ErrorKind::HostUnreachable);
    // A host with nobody listening refuses.
    let other = network.add_host(2).unwrap();
    assert_eq!(connect(other.address().into()).kind(), ErrorKind::ConnectionRefused);
    assert_eq!(connect(other.address6().into()).kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_swallowed_syn_is_given_up_after_the_retries_that_are_set() {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    client.make_silent("10.77.0.99".parse().unwrap()).unwrap();
    client.namespace().sysctl("ipv4/tcp_syn_retries", "1").unwrap();
    let values = Program::start_on(&client, &["connect", "10.77.0.99:9"]).run();
    assert_eq!(values.get::<String>("result"), "ETIMEDOUT");
    assert!((1000 * MS..30_000 * MS).contains(&values.ns()), "{} ns", values.ns());
}

#[test]
fn late_peers_are_late_on_loopback_and_on_another_host() {
    require_root();
    let peer = Peer::late_by(&[Duration::from_millis(20), Duration::from_millis(60)]);
    for how in ["blocking", "read", "recvmsg", "poll", "ppoll", "select", "epoll", "spin", "yield"] {
        let values = Program::start(&["recv", how, &peer.name(), "2"]).run();
        assert_late(how, values.ns(), 80 * MS);
        let looks: u64 = values.get("looks");
        if how == "spin" {
            assert!(looks > 1000, "a spinning program looks often: {looks}");
        }
    }
    let network = Network::new().unwrap();
    let (client, server) = (network.add_host(1).unwrap(), network.add_host(2).unwrap());
    for address in [IpAddr::from(server.address()), server.address6().into()] {
        let peer = Peer::late_on(&server, address, Duration::from_millis(40));
        let values = Program::start_on(&client, &["recv", "blocking", &peer.name(), "2"]).run();
        assert_late("the other host", values.ns(), 80 * MS);
        assert_late("served", peer.served_ns().iter().sum(), 80 * MS);
    }
}

#[test]
fn an_unplugged_host_loses_packets_until_it_is_plugged_in() {
    require_root();
    let network = Network::new().unwrap();
    let (client, server) = (network.add_host(1).unwrap(), network.add_host(2).unwrap());
    let peer = Peer::late_on(&server, server.address().into(), Duration::ZERO);
    let mut program = Program::start_on(&client, &["recv", "blocking", &peer.name(), "1"]);
    server.unplug().unwrap();
    program.go();
    std::thread::sleep(Duration::from_millis(300));
    server.plug().unwrap();
    let ns = program.done().ns();
    assert!(ns > 300 * MS, "the request had to be sent again: {ns} ns");
}

#[test]
fn senders_block_until_the_peer_reads() {
    require_root();
    let peer = Peer::reads_late();
    let mut program = Program::start(&["send", &peer.name(), "33554432"]);
    program.go();
    std::thread::sleep(Duration::from_millis(400));
    peer.release();
    let values = program.done();
    assert_eq!(values.get::<u64>("sent"), 33_554_432);
    let unread = peer.began_reading_ns().unwrap() - values.get::<u64>("start");
    assert!(
        values.ns() >= unread,
        "blocked for {} ns, {unread} ns of them before the peer read",
        values.ns()
    );
}

#[test]
fn children_threads_and_exec_do_what_they_say() {
    require_root();
    let peer = Peer::late(Duration::from_millis(30));
    let mut fork = Program::start(&["fork-recv", &peer.name(), "2"]);
    let values = fork.run();
    assert_eq!(values.get::<i32>("status"), 0);
    let mut exec = Program::start(&["exec-recv", &peer.name(), "2"]);
    assert_late("exec", exec.run().ns(), 60 * MS);
    let silent = Peer::silent();
    let threads = Program::start(&["threads", "20", &silent.name()]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", threads.pid())).unwrap().count();
    assert_eq!(tasks, 21);
    let mut early = Program::start(&["exit-early", &silent.name(), "50"]);
    early.go();
    assert_eq!(early.wait(), 7);
    let zombie = Program::start(&["zombie"]);
    let child: u32 = zombie.ready.get("child");
    let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    assert!(stat.contains(") Z "), "{stat}");
}

#[test]
fn the_demo_runs_late_and_ends_with_all_its_processes() {
    require_root();
    let mut demo = Demo::start_program(workload()).unwrap();
    demo.wait_ready(Duration::from_secs(30)).unwrap();
    let pid = demo.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let children: Vec<u32> = children.split_whitespace().map(|child| child.parse().unwrap()).collect();
    let mut names: Vec<String> = children
        .iter()
        .map(|child| std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap().trim().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["lookup-dead", "lookup-slow", "rank0", "rank1", "rank2", "rank3"]);
    let give_up = Instant::now() + Duration::from_secs(30);
    let answered = loop {
        let log = demo.resolver().log();
        let answered: Vec<u64> =
            log.iter().filter_map(|query| Some(query.answered_ns? - query.received_ns)).collect();
        if answered.len() >= 2 {
            break answered;
        }
        assert!(Instant::now() < give_up, "{answered:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_late("the slow resolver", answered[0], u64::try_from(SLOW_ANSWER.as_nanos()).unwrap());
    demo.stop();
    for child in children {
        assert!(!std::path::Path::new(&format!("/proc/{child}")).exists(), "{child} is still there");
    }
}

#[test]
fn the_demo_ends_with_its_owner_however_that_ends() {
    require_root();
    let owner = Program::start(&["demo-owner"]);
    let job: u32 = owner.ready.get("job");
    let list = std::fs::read_to_string(format!("/proc/{job}/task/{job}/children")).unwrap();
    let mut pids: Vec<u32> = list.split_whitespace().map(|child| child.parse().unwrap()).collect();
    assert_eq!(pids.len(), 6);
    pids.push(job);
    owner.kill();
    let gone = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
    };
    let give_up = Instant::now() + Duration::from_secs(10);
    while !pids.iter().all(gone) {
        assert!(Instant::now() < give_up, "some of {pids:?} are still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_name_cache_of_the_rig_hangs_up_as_late_as_scripted() {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    let arguments = ["nscd", "a.test", "150"];
    let values = Program::start_resolving(&client, "nameserver 127.0.0.1\n", &arguments).run();
    assert_eq!(values.get::<String>("code"), "EAI_AGAIN");
    // The C library asks once, or once for the shared cache and once for the name.
    assert!((150 * MS..10_000 * MS).contains(&values.ns()), "{} ns", values.ns());
}
