use super::*;
use crate::analysis::places::Places;
use crate::analysis::report::RankRow;
use crate::model::Model;
use crate::model::fixture::{sample_of, tcp};
use crate::model::topology::Topology;
use crate::trace::record::{Frame, Space, Stack};

fn frame(function: &str, module: &str) -> Frame {
    Frame { function: function.to_owned(), module: module.to_owned(), offset: 0x1234 }
}

fn stack(id: u64, frames: Vec<Frame>) -> (u64, Stack) {
    (id, Stack { id, space: Space::User, frames, truncated: false })
}

fn stall(weight_ns: u64) -> Stall {
    Stall {
        pid: 10,
        tid: 10,
        cause: Cause::DnsResolve,
        peer: "127.0.0.53:53".to_owned(),
        detail: "node01 no answer".to_owned(),
        start_ns: 0,
        end_ns: weight_ns,
        weight_ns,
        in_flight: false,
        began_earlier: false,
        user_stack: 1,
        kernel_stack: 2,
        api: "getaddrinfo",
        call: "poll",
    }
}

fn analysis(frames: Vec<Frame>, stalls: Vec<Stall>) -> Analysis {
    let mut analysis = Analysis { stalls, ..Analysis::default() };
    analysis.stacks.extend([stack(1, frames)]);
    analysis.processes.insert(10, "python3".to_owned());
    analysis.threads.insert(10, "python3".to_owned());
    analysis
}

fn paths(analysis: &Analysis, options: &FlameOptions) -> Vec<String> {
    fold_stalls(analysis, options).unwrap().iter().map(WeightedStack::path).collect()
}

fn only_path(analysis: &Analysis, options: &FlameOptions) -> String {
    let paths = paths(analysis, options);
    assert_eq!(paths.len(), 1, "{paths:?}");
    paths[0].clone()
}

fn of_view(view: View) -> FlameOptions {
    FlameOptions { view, ..FlameOptions::default() }
}

#[test]
fn frames_go_from_the_outermost_to_the_leaf() {
    let frames = vec![
        frame("__GI___poll", "libc.so.6"),
        frame("getaddrinfo", "libc.so.6"),
        frame("resolve", "train"),
        frame("main", "train"),
    ];
    assert_eq!(
        only_path(&analysis(frames, vec![stall(5)]), &FlameOptions::default()),
        "python3;python3;main;resolve;getaddrinfo;poll;[dns.resolve] 127.0.0.53:53 node01 no answer"
    );
}

#[test]
fn a_missing_resolver_function_goes_outside_of_the_frames_of_libc() {
    let frames =
        vec![frame("", "libc.so.6"), frame("", "libresolv.so.2"), frame("resolve", "train"), frame("", "")];
    assert_eq!(
        only_path(&analysis(frames, vec![stall(5)]), &FlameOptions::default()),
        "python3;python3;[unknown];resolve;getaddrinfo;libresolv.so.2+0x1234;libc.so.6+0x1234;poll;\
         [dns.resolve] 127.0.0.53:53 node01 no answer"
    );
}

#[test]
fn a_static_program_gets_the_resolver_function_before_the_call_it_is_in() {
    let frames = vec![frame("poll", "train"), frame("main", "train")];
    assert_eq!(
        only_path(&analysis(frames, vec![stall(5)]), &FlameOptions::default()),
        "python3;python3;main;getaddrinfo;poll;[dns.resolve] 127.0.0.53:53 node01 no answer"
    );
}

#[test]
fn a_stall_without_a_stack_still_shows_what_was_called() {
    let stalls = vec![Stall { user_stack: 0, in_flight: true, ..stall(5) }];
    assert_eq!(
        only_path(&analysis(vec![], stalls), &FlameOptions::default()),
        "python3;python3;[no stack];getaddrinfo;poll;[dns.resolve] 127.0.0.53:53 node01 no answer (in flight)"
    );
}

#[test]
fn a_truncated_or_too_deep_stack_says_so() {
    let mut short = analysis(vec![frame("recv", "libc.so.6"), frame("f", "train")], vec![stall(5)]);
    short.stacks.get_mut(&1).unwrap().truncated = true;
    assert!(only_path(&short, &FlameOptions::default()).starts_with("python3;python3;[truncated];f;"));

    let deep: Vec<Frame> = (0..1000).map(|depth| frame(&format!("f{depth}"), "train")).collect();
    let path = only_path(&analysis(deep, vec![stall(5)]), &FlameOptions::default());
    assert!(path.starts_with("python3;python3;[truncated];f255;f254;"), "{path}");
}

#[test]
fn names_of_libc_wrappers_are_the_call_itself() {
    for symbol in ["connect", "__libc_connect", "__connect", "connect@@GLIBC_2.2.5", "__connect_nocancel"] {
        let stalls = vec![Stall { api: "", call: "connect", ..stall(1) }];
        let path = only_path(&analysis(vec![frame(symbol, "libc.so.6")], stalls), &FlameOptions::default());
        assert!(path.starts_with("python3;python3;connect;["), "{path}");
    }
    let stalls = vec![Stall { api: "", call: "connect", ..stall(1) }];
    let path = only_path(&analysis(vec![frame("reconnect", "train")], stalls), &FlameOptions::default());
    assert!(path.contains(";reconnect;connect;"), "{path}");
}

#[test]
fn kernel_frames_are_shown_when_asked_for() {
    let mut analysis = analysis(vec![frame("poll", "libc.so.6")], vec![Stall { api: "", ..stall(5) }]);
    let frames = vec![frame("schedule", "[kernel]"), frame("do_poll", "[kernel]")];
    analysis.stacks.insert(2, Stack { id: 2, space: Space::Kernel, frames, truncated: false });
    assert!(!only_path(&analysis, &FlameOptions::default()).contains("do_poll"));
    let options = FlameOptions { kernel: true, ..FlameOptions::default() };
    assert!(only_path(&analysis, &options).contains(";poll;do_poll_[k];schedule_[k];[dns.resolve]"));
}

#[test]
fn cause_and_peer_views_have_their_own_roots() {
    let analysis = analysis(vec![frame("main", "train")], vec![stall(5)]);
    assert_eq!(
        only_path(&analysis, &of_view(View::Cause)),
        "dns.resolve;127.0.0.53:53;python3;python3;getaddrinfo;poll"
    );
    assert_eq!(only_path(&analysis, &of_view(View::Peer)), "127.0.0.53:53;dns.resolve;python3;python3");
}

/// Process 10 sits in rack A.
fn in_racks(stalls: Vec<Stall>) -> Analysis {
    let topology = "[[rack]]\nname = \"A\"\ncidrs = [\"10.0.1.0/24\"]\n[[rack]]\nname = \"B\"\n\
        cidrs = [\"10.0.2.0/24\"]\naddresses = { node07 = [\"10.0.2.7\"] }\n";
    let samples = vec![sample_of(10, "10.0.1.1:4000", tcp(1, "10.0.2.7:40112"))];
    let model = Model { samples, ..Model::default() };
    let places = Places::new(&model, Some(Topology::parse(topology).unwrap()));
    Analysis { places, ..analysis(vec![], stalls) }
}

fn waiting(cause: Cause, peer: &str, detail: &str) -> Stall {
    Stall { cause, peer: peer.to_owned(), detail: detail.to_owned(), api: "", call: "recv", ..stall(5) }
}

#[test]
fn leaves_of_tcp_peers_say_rack_and_relation() {
    let leaf = |cause, peer: &str, detail: &str| {
        let path = only_path(&in_racks(vec![waiting(cause, peer, detail)]), &FlameOptions::default());
        path.rsplit(';').next().unwrap().to_owned()
    };
    assert_eq!(leaf(Cause::SockRecv, "10.0.2.7:40112", ""), "[sock.recv] 10.0.2.7:40112 rack B cross-rack");
    assert_eq!(
        leaf(Cause::TcpConnect, "10.0.1.9:29500", "SYN unanswered"),
        "[tcp.connect] 10.0.1.9:29500 rack A same-rack SYN unanswered"
    );
    assert_eq!(leaf(Cause::SockSend, "10.0.3.9:80", ""), "[sock.send] 10.0.3.9:80 rack unknown");
    assert_eq!(leaf(Cause::SockRecv, "127.0.0.1:80", ""), "[sock.recv] 127.0.0.1:80 rack A same-host");
    // Not a TCP peer, and a local socket.
    assert_eq!(leaf(Cause::DnsResolve, "10.0.2.7:53", "a"), "[dns.resolve] 10.0.2.7:53 a");
    assert_eq!(leaf(Cause::SockRecv, "/run/x", ""), "[sock.recv] /run/x");
}

#[test]
fn the_peer_view_goes_from_the_relation_to_the_connection() {
    let stalls = vec![
        waiting(Cause::SockRecv, "10.0.2.7:40112", ""),
        waiting(Cause::SockRecv, "10.0.1.9:80", ""),
        waiting(Cause::SockRecv, "[fd00::1]:80", ""),
        waiting(Cause::DnsResolve, "/run/nscd/socket", ""),
        waiting(Cause::Other, "", ""),
    ];
    assert_eq!(
        paths(&in_racks(stalls), &of_view(View::Peer)),
        [
            "cross-rack;rack B;node07;10.0.2.7:40112;sock.recv;python3;python3",
            "same-host;/run/nscd/socket;dns.resolve;python3;python3",
            "same-rack;rack A;10.0.1.9;10.0.1.9:80;sock.recv;python3;python3",
            "unknown;[unknown peer];other;python3;python3",
            "unknown;rack unknown;fd00::1;[fd00::1]:80;sock.recv;python3;python3",
        ]
    );
}

#[test]
fn equal_names_get_their_ids_and_only_those() {
    let stalls = vec![
        Stall { pid: 10, tid: 10, ..stall(1) },
        Stall { pid: 10, tid: 11, ..stall(1) },
        Stall { pid: 10, tid: 12, ..stall(1) },
        Stall { pid: 20, tid: 20, ..stall(1) },
        Stall { pid: 30, tid: 30, ..stall(1) },
    ];
    let mut analysis = analysis(vec![], stalls);
    analysis.processes.extend([(20, "python3".to_owned()), (30, "sshd".to_owned())]);
    analysis.threads.extend([(11, "w".to_owned()), (12, "w".to_owned()), (20, "python3".to_owned())]);
    let roots: Vec<String> = paths(&analysis, &FlameOptions::default())
        .iter()
        .map(|path| path.split(';').take(2).collect::<Vec<_>>().join(";"))
        .collect();
    assert_eq!(
        roots,
        [
            "python3 [10];python3",
            "python3 [10];w [11]",
            "python3 [10];w [12]",
            "python3 [20];python3",
            "sshd;[30]"
        ]
    );
}

#[test]
fn hostile_names_stay_one_frame_each() {
    let mut analysis = analysis(
        vec![frame("a;b\n1 2", "train"), frame("", "evil;\x1b[2J")],
        vec![Stall {
            peer: "/run/a;b".to_owned(),
            detail: "x\n;y 7".to_owned(),
            api: "",
            call: "",
            ..stall(5)
        }],
    );
    analysis.processes.insert(10, "# py;thon".to_owned());
    analysis.threads.insert(10, "\r\n".to_owned());
    assert_eq!(
        only_path(&analysis, &FlameOptions::default()),
        "#py:thon;[10];evil:\\u{1b}[2J+0x1234;a:b\\n1 2;[dns.resolve] /run/a:b x\\n:y_7"
    );
    let stalls = vec![Stall { peer: String::new(), ..stall(5) }];
    analysis.stalls = stalls;
    analysis.threads.insert(10, "worker 3".to_owned());
    assert_eq!(only_path(&analysis, &of_view(View::Peer)), "[unknown peer];dns.resolve;#py:thon;worker_3");
}

#[test]
fn an_in_flight_stall_says_so_however_long_its_name() {
    let stalls = vec![Stall { detail: "n".repeat(5000), in_flight: true, ..stall(5) }];
    assert!(only_path(&analysis(vec![], stalls), &FlameOptions::default()).ends_with("nn.. (in flight)"));
}

#[test]
fn equal_stacks_are_one_and_their_weights_add_up() {
    let mut analysis = analysis(vec![frame("main", "train")], vec![stall(5), stall(7), stall(0)]);
    analysis.stalls.push(Stall { user_stack: 3, ..stall(11) });
    analysis.stacks.extend([stack(3, vec![frame("main", "train")])]);
    let stacks = fold_stalls(&analysis, &FlameOptions::default()).unwrap();
    assert_eq!(stacks.len(), 1);
    assert_eq!(stacks[0].weight_ns, 23);
}

#[test]
fn filters_leave_only_what_they_name() {
    let mut analysis = analysis(vec![], vec![stall(5)]);
    analysis.stalls.push(Stall { cause: Cause::SockRecv, pid: 20, tid: 21, ..stall(7) });
    analysis.stalls.push(Stall { cause: Cause::SchedRunq, pid: 20, tid: 21, ..stall(100) });
    analysis.report.target.ranks.push(RankRow { pid: 20, rank: Some(3), ..RankRow::default() });
    let sum = |options: &FlameOptions| -> u64 {
        fold_stalls(&analysis, options).unwrap().iter().map(|stack| stack.weight_ns).sum()
    };
    let all = FlameOptions::default();
    assert_eq!(sum(&all), 12, "run queue time is no stalled time");
    assert_eq!(sum(&FlameOptions { cause: Some(Cause::DnsResolve), ..all.clone() }), 5);
    assert_eq!(sum(&FlameOptions { cause: Some(Cause::SchedRunq), ..all.clone() }), 100);
    assert_eq!(sum(&FlameOptions { tid: Some(21), ..all.clone() }), 7);
    assert_eq!(sum(&FlameOptions { rank: Some(3), ..all.clone() }), 7);
    assert_eq!(sum(&FlameOptions { rank: Some(3), tid: Some(10), ..all }), 0);
}

#[test]
fn an_unknown_rank_or_thread_is_an_error_that_names_it() {
    let mut analysis = analysis(vec![], vec![stall(5)]);
    let rank = FlameOptions { rank: Some(9), ..FlameOptions::default() };
    let text =
        |analysis: &Analysis, options: &FlameOptions| fold_stalls(analysis, options).unwrap_err().to_string();
    assert_eq!(text(&analysis, &rank), "no rank 9 in this trace (no rank is known)");
    analysis.report.target.ranks.push(RankRow { pid: 10, rank: Some(3), ..RankRow::default() });
    assert_eq!(text(&analysis, &rank), "no rank 9 in this trace (known: 3)");
    let thread = FlameOptions { tid: Some(99), ..FlameOptions::default() };
    assert_eq!(text(&analysis, &thread), "no thread 99 in this trace");
}

#[test]
fn weights_beyond_all_time_are_an_error() {
    let analysis = analysis(vec![], vec![stall(u64::MAX), Stall { tid: 11, ..stall(u64::MAX) }]);
    assert!(matches!(fold_stalls(&analysis, &FlameOptions::default()), Err(RenderError::TooLarge)));
}

#[test]
fn views_are_named_as_on_the_command_line() {
    for view in View::ALL {
        assert_eq!(view.to_string().parse::<View>(), Ok(view));
    }
    assert!("Stack".parse::<View>().is_err());
}
