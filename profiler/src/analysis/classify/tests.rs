use profiler_common::record::WAIT_SOCKS;
use profiler_common::{Api, Call};

use crate::model::cause::Cause;
use crate::model::fixture::{
    Trace, connecting, listener, no_socket, query, readable, shake, tcp, udp, unix, wait, writable,
};
use crate::trace::record::{Socket, Wait, WaitFlags};

/// Stalled time by cause and idle time of one wait.
fn of(wait: Wait) -> (Vec<(Cause, u64)>, u64) {
    let analysis = Trace::new().wait(wait).analyse();
    (analysis.by_cause(), analysis.report.totals.idle_ns)
}

fn call(call: Call, sockets: Vec<Socket>) -> Wait {
    wait(call, 1100, 1400, sockets)
}

fn stall(cause: Cause) -> (Vec<(Cause, u64)>, u64) {
    (vec![(cause, 300)], 0)
}

const IDLE: (Vec<(Cause, u64)>, u64) = (Vec::new(), 300);
const NEITHER: (Vec<(Cause, u64)>, u64) = (Vec::new(), 0);

#[test]
fn accept_and_sleep_are_idle() {
    for one in [Call::Accept, Call::Accept4] {
        assert_eq!(of(call(one, vec![listener(1)])), IDLE, "{one:?}");
    }
    for one in [Call::Nanosleep, Call::ClockNanosleep] {
        assert_eq!(of(call(one, Vec::new())), IDLE, "{one:?}");
    }
}

#[test]
fn a_futex_with_a_bit_set_is_idle_and_any_other_is_neither() {
    assert_eq!(of(Wait { arg: 9 | 128 | 256, ..call(Call::Futex, Vec::new()) }), IDLE);
    assert_eq!(of(Wait { arg: 128, ..call(Call::Futex, Vec::new()) }), NEITHER);
    assert_eq!(of(Wait { arg: 6, ..call(Call::Futex, Vec::new()) }), NEITHER);
}

#[test]
fn a_poll_set_with_a_listening_socket_is_idle_whatever_else_it_holds() {
    let peer = readable(tcp(2, "10.0.0.2:80"));
    let unix_listener = Socket { state: 10, ..unix("/run/app") };
    assert_eq!(of(call(Call::EpollWait, vec![peer.clone(), readable(listener(1))])), IDLE);
    assert_eq!(of(call(Call::Poll, vec![peer, readable(unix_listener)])), IDLE);
}

#[test]
fn an_empty_poll_set_is_a_timer_but_one_that_was_not_looked_at_is_not() {
    assert_eq!(of(call(Call::Select, Vec::new())), IDLE);
    assert_eq!(of(Wait { set_size: 3, ..call(Call::Poll, Vec::new()) }), NEITHER);
    assert_eq!(of(call(Call::IoUringEnter, Vec::new())), NEITHER);
}

#[test]
fn a_poll_set_of_pipes_is_idle_and_a_read_of_a_pipe_is_neither() {
    assert_eq!(of(call(Call::Ppoll, vec![readable(no_socket()), readable(no_socket())])), IDLE);
    assert_eq!(of(call(Call::Read, vec![no_socket()])), NEITHER);
    // The set is larger than what is described of it.
    assert_eq!(of(Wait { set_size: 40, ..call(Call::Poll, vec![readable(no_socket())]) }), IDLE);
}

/// `count` descriptors of distinct peers.
fn peers(count: u16) -> Vec<Socket> {
    (1..=count).map(|ino| readable(tcp(u64::from(ino), &format!("10.0.0.{ino}:80")))).collect()
}

#[test]
fn a_set_that_was_not_looked_at_to_its_end_is_blamed_on_nobody() {
    let cut = |sockets: Vec<Socket>| {
        let wait = Wait { set_size: 2000, ..call(Call::EpollWait, sockets) };
        Wait { flags: WaitFlags { set_cut: true, ..wait.flags }, ..wait }
    };
    assert_eq!(of(cut(peers(16))), NEITHER);
    assert_eq!(of(cut(vec![readable(no_socket())])), NEITHER);
    assert_eq!(of(cut(Vec::new())), NEITHER);
    // The probes do not mark such a set, but a trace may say so.
    assert_eq!(of(cut(vec![readable(listener(1))])), IDLE);
}

#[test]
fn a_large_set_is_shared_with_the_sockets_that_are_not_described() {
    let analysis =
        Trace::new().wait(Wait { set_size: 100, ..call(Call::Poll, peers(WAIT_SOCKS as u16)) }).analyse();
    assert_eq!(analysis.by_cause(), [(Cause::SockRecv, 300)]);
    let weights: Vec<(&str, u64)> =
        analysis.stalls.iter().map(|stall| (stall.peer.as_str(), stall.weight_ns)).collect();
    assert_eq!(weights.len(), 17);
    assert!(weights.contains(&("10.0.0.1:80", 3)) && weights.contains(&("", 252)), "{weights:?}");
    // Nothing is left out of a smaller one but what is no socket.
    let analysis = Trace::new().wait(Wait { set_size: 100, ..call(Call::Poll, peers(10)) }).analyse();
    assert!(analysis.stalls.iter().all(|stall| stall.weight_ns == 30));
}

#[test]
fn disarmed_items_of_an_epoll_set_are_not_awaited() {
    let disarmed = |socket: Socket| Socket { events: 0, ..socket };
    let set = vec![disarmed(listener(1)), disarmed(tcp(2, "10.0.0.2:80")), readable(tcp(3, "10.0.0.3:80"))];
    let analysis = Trace::new().wait(call(Call::EpollWait, set)).analyse();
    assert_eq!(analysis.stalls.len(), 1);
    assert_eq!((analysis.stalls[0].peer.as_str(), analysis.stalls[0].weight_ns), ("10.0.0.3:80", 300));
    // Where the events are unknown, all are.
    let set = vec![disarmed(tcp(2, "10.0.0.2:80")), disarmed(tcp(3, "10.0.0.3:80"))];
    assert_eq!(of(call(Call::EpollWait, set)), stall(Cause::SockRecv));
}

#[test]
fn a_unix_socket_inside_of_a_resolver_function_is_a_name_service_s() {
    let inside = |call: Call, ret| Wait {
        api: Api::Getaddrinfo,
        api_start_ns: 900,
        ret,
        ..wait(call, 1100, 1400, vec![unix("/run/sss/pipes/nss")])
    };
    assert_eq!(of(inside(Call::Read, 0)), stall(Cause::DnsResolve));
    // Nobody listens there, or it is over.
    assert_eq!(of(inside(Call::Connect, -2)), NEITHER);
    assert_eq!(of(inside(Call::Close, 0)), NEITHER);
}

#[test]
fn unix_sockets_and_netlink_are_left_alone() {
    let netlink = Socket { ends: crate::trace::record::Ends::Other { family: 16 }, ..no_socket() };
    assert_eq!(of(call(Call::Recvmsg, vec![unix("/run/app")])), NEITHER);
    assert_eq!(of(call(Call::Poll, vec![readable(unix("/run/app"))])), NEITHER);
    assert_eq!(of(call(Call::Poll, vec![readable(unix("/run/app")), readable(no_socket())])), NEITHER);
    assert_eq!(of(call(Call::Recvmsg, vec![netlink])), NEITHER);
    assert_eq!(of(call(Call::Connect, vec![unix("/run/app")])), NEITHER);
}

#[test]
fn receiving_and_sending_go_by_call_and_by_what_a_poll_asks_for() {
    let peer = || tcp(2, "10.0.0.2:80");
    for one in [Call::Recvfrom, Call::Recvmsg, Call::Recvmmsg, Call::Read, Call::Readv] {
        assert_eq!(of(call(one, vec![peer()])), stall(Cause::SockRecv), "{one:?}");
    }
    for one in [Call::Sendto, Call::Sendmsg, Call::Sendmmsg, Call::Write, Call::Writev, Call::Sendfile] {
        assert_eq!(of(call(one, vec![peer()])), stall(Cause::SockSend), "{one:?}");
    }
    for one in [Call::Poll, Call::Ppoll, Call::Select, Call::Pselect6, Call::EpollWait, Call::EpollPwait] {
        assert_eq!(of(call(one, vec![readable(peer())])), stall(Cause::SockRecv), "{one:?}");
        assert_eq!(of(call(one, vec![writable(peer())])), stall(Cause::SockSend), "{one:?}");
        let both = Socket { events: 5, ..peer() };
        assert_eq!(of(call(one, vec![both])), stall(Cause::SockRecv), "{one:?}");
    }
}

#[test]
fn a_transfer_that_its_time_limit_ended_is_a_stall() {
    for (one, cause) in [(Call::Recvfrom, Cause::SockRecv), (Call::Sendto, Cause::SockSend)] {
        let again = Wait { ret: -i64::from(libc::EAGAIN), ..call(one, vec![tcp(2, "10.0.0.2:80")]) };
        let slept = WaitFlags { slept: true, ..again.flags };
        assert_eq!(of(Wait { flags: slept, ..again }), stall(cause), "{one:?}");
    }
}

#[test]
fn splice_goes_by_the_end_that_is_the_socket() {
    let socket = || Socket { fd: 5, ..tcp(2, "10.0.0.2:80") };
    assert_eq!(of(Wait { fd: 5, ..call(Call::Splice, vec![socket()]) }), stall(Cause::SockRecv));
    assert_eq!(of(Wait { fd: 4, ..call(Call::Splice, vec![socket()]) }), stall(Cause::SockSend));
}

#[test]
fn closing_a_connected_socket_waits_for_what_was_sent() {
    let analysis =
        Trace::new().wait(call(Call::Close, vec![Socket { state: 4, ..tcp(2, "10.0.0.2:80") }])).analyse();
    assert_eq!(analysis.by_cause(), [(Cause::SockSend, 300)]);
    assert_eq!(analysis.stalls[0].peer, "10.0.0.2:80");
    assert_eq!(of(call(Call::Close, vec![listener(2)])), NEITHER);
    // Of a connection that is not being closed it waits for something else than the peer.
    assert_eq!(of(call(Call::Close, vec![tcp(2, "10.0.0.2:80")])), NEITHER);
}

#[test]
fn a_blocking_connect_and_waits_in_syn_sent_are_tcp_connect() {
    let peer = || tcp(2, "10.0.0.2:80");
    assert_eq!(of(call(Call::Connect, vec![peer()])), stall(Cause::TcpConnect));
    assert_eq!(of(call(Call::Poll, vec![writable(connecting(peer()))])), stall(Cause::TcpConnect));
    assert_eq!(of(call(Call::Recvfrom, vec![connecting(peer())])), stall(Cause::TcpConnect));
    assert_eq!(of(call(Call::Sendto, vec![connecting(peer())])), stall(Cause::TcpConnect));
    let begun = Wait { ret: -i64::from(libc::EINPROGRESS), ..call(Call::Connect, vec![peer()]) };
    assert_eq!(of(begun.clone()), NEITHER);
    // A time-out of its own, SO_SNDTIMEO.
    for error in [libc::EINPROGRESS, libc::EALREADY] {
        let slept = WaitFlags { slept: true, ..begun.flags };
        let timed_out = Wait { ret: -i64::from(error), flags: slept, ..begun.clone() };
        assert_eq!(of(timed_out), stall(Cause::TcpConnect), "{error}");
    }
    assert_eq!(of(call(Call::Connect, vec![udp(2, "10.0.0.2:80")])), NEITHER);
}

#[test]
fn a_poll_for_writing_that_saw_the_handshake_end_is_tcp_connect() {
    let done = tcp(2, "10.0.0.2:80");
    let analysis = Trace::new()
        .handshake(shake(1090, 1380, 0, done.clone()))
        .wait(call(Call::Poll, vec![writable(done)]))
        .analyse();
    assert_eq!(analysis.by_cause(), [(Cause::TcpConnect, 300)]);
}

#[test]
fn a_wait_for_data_is_cut_where_the_handshake_ends() {
    let done = tcp(2, "10.0.0.2:80");
    let analysis = Trace::new()
        .handshake(shake(1090, 1350, 0, done.clone()))
        .wait(call(Call::EpollWait, vec![readable(done)]))
        .analyse();
    assert_eq!(analysis.by_cause(), [(Cause::TcpConnect, 250), (Cause::SockRecv, 50)]);
}

#[test]
fn the_peer_of_a_failed_attempt_comes_from_its_handshake() {
    let lost = Socket { state: 7, ..tcp(2, "0.0.0.0:0") };
    let analysis = Trace::new()
        .handshake(shake(1090, 1390, libc::ECONNREFUSED, Socket { state: 7, ..tcp(2, "10.0.0.2:80") }))
        .wait(call(Call::Poll, vec![writable(lost)]))
        .analyse();
    assert_eq!(analysis.stalls.len(), 1);
    assert_eq!(analysis.stalls[0].peer, "10.0.0.2:80");
    assert_eq!(analysis.stalls[0].cause, Cause::TcpConnect);
    assert_eq!(analysis.stalls[0].detail, "refused");
}

#[test]
fn any_wait_on_port_53_is_dns_resolve() {
    for server in ["10.0.0.53:53", "[fd00::53]:53"] {
        assert_eq!(of(call(Call::Poll, vec![readable(udp(2, server))])), stall(Cause::DnsResolve));
        assert_eq!(of(call(Call::Recvfrom, vec![udp(2, server)])), stall(Cause::DnsResolve));
        assert_eq!(of(call(Call::Read, vec![tcp(2, server)])), stall(Cause::DnsResolve));
        assert_eq!(of(call(Call::Sendto, vec![udp(2, server)])), stall(Cause::DnsResolve));
        assert_eq!(of(call(Call::Connect, vec![connecting(tcp(2, server))])), stall(Cause::DnsResolve));
        assert_eq!(
            of(call(Call::Poll, vec![writable(connecting(tcp(2, server)))])),
            stall(Cause::DnsResolve)
        );
    }
    assert_eq!(of(call(Call::Recvfrom, vec![udp(2, "10.0.0.53:5353")])), stall(Cause::SockRecv));
}

#[test]
fn resolver_services_on_unix_sockets_are_dns_resolve() {
    for path in [
        "/var/run/nscd/socket",
        "/run/nscd/socket",
        "/run/systemd/resolve/io.systemd.Resolve",
        "/run/avahi-daemon/socket",
    ] {
        assert_eq!(of(call(Call::Recvmsg, vec![unix(path)])), stall(Cause::DnsResolve), "{path}");
        let set = vec![readable(no_socket()), readable(unix(path))];
        let analysis = Trace::new().wait(call(Call::Poll, set)).analyse();
        assert_eq!(analysis.by_cause(), [(Cause::DnsResolve, 300)], "{path}");
        assert_eq!(analysis.stalls[0].peer, path);
    }
}

#[test]
fn a_resolver_service_that_is_not_there_is_no_lookup() {
    for path in ["/var/run/nscd/socket", "/run/nscd/socket"] {
        let socket = || Socket { state: 7, ..unix(path) };
        let refused = Wait { ret: -i64::from(libc::ENOENT), ..call(Call::Connect, vec![socket()]) };
        let closed = Wait { start_ns: 1500, end_ns: 1700, ..call(Call::Close, vec![socket()]) };
        let analysis = Trace::new().wait(refused).wait(closed).analyse();
        assert_eq!(analysis.report.dns, [], "{path}");
        assert_eq!(analysis.by_cause(), [], "{path}");
    }
}

#[test]
fn an_unconnected_udp_socket_is_dns_resolve_where_a_query_went_out_over_it() {
    let open = || Socket { state: 7, ..udp(5, "0.0.0.0:0") };
    let analysis = Trace::new()
        .add(query(1050, Socket { state: 7, ..udp(5, "10.0.0.53:53") }))
        .add(query(1090, Socket { state: 7, ..udp(5, "10.0.0.54:53") }))
        .add(query(1500, Socket { state: 7, ..udp(5, "10.0.0.55:53") }))
        .wait(call(Call::Poll, vec![readable(open())]))
        .analyse();
    assert_eq!(analysis.by_cause(), [(Cause::DnsResolve, 300)]);
    assert_eq!(analysis.stalls[0].peer, "10.0.0.54:53");

    let inside = Wait { api: Api::Getaddrinfo, ..call(Call::Poll, vec![readable(open())]) };
    let analysis = Trace::new().wait(inside).analyse();
    assert_eq!(analysis.by_cause(), [(Cause::DnsResolve, 300)]);
    assert_eq!((analysis.stalls[0].peer.as_str(), analysis.stalls[0].api), ("", "getaddrinfo"));
}

#[test]
fn an_internet_socket_without_a_peer_is_other_only_where_nothing_better_is_awaited() {
    let open = || Socket { state: 7, ..udp(5, "0.0.0.0:0") };
    assert_eq!(of(call(Call::Recvfrom, vec![open()])), stall(Cause::Other));
    let set = vec![readable(open()), readable(tcp(2, "10.0.0.2:80")), readable(open())];
    assert_eq!(of(call(Call::Poll, set)), stall(Cause::SockRecv));
}

#[test]
fn a_wait_is_tcp_retransmit_while_segments_are_lost() {
    let peer = || tcp(2, "10.0.0.2:80");
    let retransmitted = |mut trace: Trace| trace.wait(call(Call::Recvfrom, vec![peer()])).analyse();
    let mut trace = Trace::new();
    trace.retransmit(1090, peer()).retransmit(1200, peer()).retransmit(1300, peer());
    let analysis = retransmitted(trace);
    assert_eq!(analysis.by_cause(), [(Cause::TcpRetransmit, 200), (Cause::SockRecv, 100)]);
    let spans: Vec<(u64, u64)> = analysis.stalls.iter().map(|stall| (stall.start_ns, stall.end_ns)).collect();
    assert_eq!(spans, [(1100, 1200), (1200, 1400)]);

    // Of another socket, outside of the wait, and by its ends alone.
    for (time, socket, lost) in [
        (1200, tcp(3, "10.0.0.3:80"), 0),
        (1090, peer(), 0),
        (1400, peer(), 0),
        (1380, tcp(0, "10.0.0.2:80"), 20),
    ] {
        let mut trace = Trace::new();
        trace.retransmit(time, socket.clone()).retransmit(time + 10, socket);
        let row = retransmitted(trace).cause(Cause::TcpRetransmit).map_or(0, |row| row.stalled_ns);
        assert_eq!(row, lost, "{time}");
    }
}

#[test]
fn a_loss_is_repaired_when_tcp_does_not_send_again() {
    const S: u64 = 1_000_000_000;
    let peer = || tcp(1, "10.0.1.1:80");
    let lost = |times: &[u64]| {
        let mut trace = Trace::with_window(0, 100 * S);
        for time in times {
            trace.retransmit(*time, peer());
        }
        let analysis = trace.wait(wait(Call::Write, S, 99 * S, vec![peer()])).analyse();
        let row = |cause| analysis.cause(cause).map_or(0, |row| row.stalled_ns);
        let socket = &analysis.report.sockets[0];
        assert_eq!((socket.waits, socket.stalled_ns, socket.duration.count), (1, 98 * S, 1));
        assert_eq!(row(Cause::SockSend) + row(Cause::TcpRetransmit), 98 * S);
        row(Cause::TcpRetransmit)
    };
    // One lost segment, also with the ones behind it; time-outs, each twice the one before; a loss that lasts on.
    assert_eq!(lost(&[2 * S]), 0);
    assert_eq!(lost(&[2 * S, 2 * S + 5, 2 * S + 10]), 20);
    assert_eq!(lost(&[2 * S, 3 * S, 5 * S, 9 * S]), 7 * S + 8 * S);
    assert_eq!(lost(&[36 * S, 37 * S, 39 * S, 43 * S, 51 * S, 67 * S]), 63 * S);
    // Two losses of their own: the longer one counts.
    assert_eq!(lost(&[2 * S, 2 * S + 5, 50 * S, 51 * S]), 3 * S);
}

#[test]
fn retransmitted_syns_stay_tcp_connect() {
    let peer = || connecting(tcp(2, "10.0.0.2:80"));
    let analysis = Trace::new().retransmit(1200, peer()).wait(call(Call::Connect, vec![peer()])).analyse();
    assert_eq!(analysis.by_cause(), [(Cause::TcpConnect, 300)]);
}

#[test]
fn peers_share_a_wait_equally_and_pipes_and_unix_sockets_have_no_part() {
    let set = vec![
        readable(no_socket()),
        readable(tcp(2, "10.0.0.2:80")),
        readable(unix("/run/app")),
        Socket { revents: 1, ..readable(tcp(3, "10.0.0.3:80")) },
        readable(udp(4, "10.0.0.53:53")),
    ];
    let analysis = Trace::new().wait(wait(Call::Poll, 1100, 1401, set)).analyse();
    let mut shares: Vec<(String, u64)> =
        analysis.stalls.iter().map(|stall| (stall.peer.clone(), stall.weight_ns)).collect();
    shares.sort();
    let expected = [("10.0.0.2:80", 101), ("10.0.0.3:80", 100), ("10.0.0.53:53", 100)];
    assert_eq!(shares, expected.map(|(peer, ns)| (peer.to_owned(), ns)));
    assert_eq!(analysis.report.totals.stalled_ns, 301);
}

#[test]
fn ipv4_mapped_into_ipv6_is_named_as_ipv4() {
    let mapped = Socket { ends: tcp(2, "[::ffff:10.0.0.2]:80").ends, ..tcp(2, "10.0.0.9:1") };
    let analysis = Trace::new().wait(call(Call::Read, vec![mapped])).analyse();
    assert_eq!(analysis.stalls[0].peer, "10.0.0.2:80");
    let analysis = Trace::new().wait(call(Call::Read, vec![tcp(2, "[fd00::2]:80")])).analyse();
    assert_eq!(analysis.stalls[0].peer, "[fd00::2]:80");
}
