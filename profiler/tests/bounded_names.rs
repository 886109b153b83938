//! A recording of ever new names and peers: memory has a bound, the report a size, and no time is missing.
//!
//! One test, since it counts what the whole process allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use profiler_common::{Api, Call};
use stallscope::analysis::report::{Report, TraceState};
use stallscope::analysis::{AnalysisOptions, analyse_model};
use stallscope::model::Model;
use stallscope::model::bounds::{DNS_LEFT_OUT, HANDSHAKES_LEFT_OUT, Limits, SOCKETS_LEFT_OUT};
use stallscope::model::cause::Cause;
use stallscope::render::json::write_json;
use stallscope::render::text::write_report;
use stallscope::trace::record::{
    ApiCall, Direction, DnsMessage, Ends, Handshake, Record, Sched, Socket, Thread, Wait, WaitFlags, Window,
};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator unchanged; the counters decide nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and all pointers come from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const STEP_NS: u64 = 1_000_000;
const PID: u32 = 100;

/// What a name and two peers beyond the bounds may take: their three waits, which take as much as any others. Kept apart
/// they would take thousands.
const BYTES_EACH: usize = 3 * 80;

fn limits() -> Limits {
    Limits { messages: 1000, calls: 1000, handshakes: 1000, sockets: 1000, dns_waits: 1000, rows: 100 }
}

fn address(number: u32, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number)), port)
}

fn socket(kind: u8, number: u32, port: u16) -> Socket {
    let ends = Ends::Inet { local: address(1, 40_000), peer: address(number, port) };
    Socket {
        ino: u64::from(number) * 8 + u64::from(port % 7) + 1,
        fd: 3,
        kind,
        state: 1,
        ends,
        events: 0,
        revents: 0,
    }
}

fn wait(call: Call, number: u32, ret: i64, socket: Socket) -> Wait {
    let start_ns = u64::from(number) * STEP_NS;
    Wait {
        start_ns,
        end_ns: start_ns + STEP_NS / 2,
        pid: PID,
        tid: PID,
        call,
        flags: WaitFlags::default(),
        fd: 3,
        set_size: 1,
        polls: 0,
        ret,
        arg: -1,
        off_cpu_ns: 0,
        user_stack: 0,
        kernel_stack: 0,
        api: Api::None,
        api_start_ns: 0,
        sockets: vec![socket],
        sched: Sched::default(),
    }
}

/// A query for `name` of type A.
fn question(name: &str) -> Vec<u8> {
    let mut data = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        data.push(u8::try_from(label.len()).unwrap());
        data.extend(label.bytes());
    }
    data.extend([0, 0, 1, 0, 1]);
    data
}

/// A lookup that is not answered, of a new name through a new socket.
fn lookup(number: u32) -> [Record; 3] {
    let poll = Wait {
        api: Api::Getaddrinfo,
        api_start_ns: u64::from(number) * STEP_NS,
        ..wait(Call::Poll, number, 0, Socket { events: 1, ..socket(2, 9, 53) })
    };
    let poll =
        Wait { sockets: vec![Socket { ino: u64::from(number) + 1, ..poll.sockets[0].clone() }], ..poll };
    let name = format!("host-{number}.example.org");
    let data = question(&name);
    [
        Record::Api(ApiCall {
            time_ns: poll.api_start_ns,
            pid: PID,
            tid: PID,
            api: Api::Getaddrinfo,
            argument: name,
            address: None,
        }),
        Record::Dns(DnsMessage {
            time_ns: poll.start_ns,
            pid: PID,
            tid: PID,
            direction: Direction::Send,
            ret: data.len() as i64,
            api: Api::Getaddrinfo,
            api_start_ns: poll.api_start_ns,
            socket: poll.sockets[0].clone(),
            data,
        }),
        Record::Wait(poll),
    ]
}

/// A refused connection to a new peer, and one to another that is waited for.
fn connection(number: u32) -> [Record; 3] {
    let connect = wait(Call::Connect, number, -111, socket(1, number, 80));
    let handshake = Handshake {
        start_ns: connect.start_ns,
        end_ns: connect.end_ns,
        pid: PID,
        tid: PID,
        error: 111,
        began_earlier: false,
        in_flight: false,
        syn_retransmits: 0,
        socket: Socket { state: 7, ..connect.sockets[0].clone() },
    };
    let receive = Wait { tid: PID + 1, ..wait(Call::Recvfrom, number, 1, socket(1, number, 7000)) };
    [Record::Handshake(handshake), Record::Wait(connect), Record::Wait(receive)]
}

/// The report of `count` names and peers, and the most memory that it took.
fn report(count: u32) -> (Report, usize) {
    let end_ns = u64::from(count + 10) * STEP_NS;
    let window = Record::Window(Window { start_ns: 0, end_ns, min_stall_ns: 0 });
    let thread = |tid| {
        let name = format!("t{tid}");
        Record::Thread(Thread { pid: PID, tid, ns_tid: tid, name, seen_ns: 0 })
    };
    // The last lookup hangs.
    let hangs = lookup(count).map(|record| match record {
        Record::Wait(wait) => {
            let flags = WaitFlags { in_flight: true, ..wait.flags };
            Record::Wait(Wait { end_ns, flags, ..wait })
        }
        other => other,
    });
    let some = [window, thread(PID), thread(PID + 1)].into_iter();
    let records = some.chain((0..count).flat_map(|number| {
        // A thread waits for one thing at a time.
        let other = connection(number).map(|record| match record {
            Record::Wait(wait) if wait.call == Call::Connect => Record::Wait(Wait { tid: PID + 2, ..wait }),
            Record::Handshake(handshake) => Record::Handshake(Handshake { tid: PID + 2, ..handshake }),
            other => other,
        });
        lookup(number).into_iter().chain(other)
    }));
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let model = Model::from_records_within(records.chain(hangs), limits());
    let options = AnalysisOptions { merge_stalls: true, ..AnalysisOptions::default() };
    let analysis = analyse_model(model, TraceState::default(), &options);
    let mut text = Vec::new();
    write_report(&analysis, &mut text).unwrap();
    write_json(&analysis.report, &mut text).unwrap();
    (analysis.report, PEAK.load(Ordering::Relaxed) - before)
}

fn stalled(report: &Report, cause: Cause) -> u64 {
    report.causes.iter().filter(|row| row.cause == cause).map(|row| row.stalled_ns).sum()
}

#[test]
fn millions_of_names_take_no_more_memory_and_no_time_is_missing() {
    let (few, many) = (40_000_u32, 90_000_u32);
    let (_, less) = report(few);
    let (report, more) = report(many);
    let each = more.saturating_sub(less) / (many - few) as usize;
    assert!(each < BYTES_EACH, "{each} bytes for each further name: {less} of {few}, {more} of {many}");

    let limits = limits();
    let sizes = [report.dns.len(), report.connects.len(), report.sockets.len()];
    assert_eq!(sizes, [limits.rows + 1; 3]);
    let folded = [report.dns.last().unwrap().folded, report.connects.last().unwrap().folded];
    assert!(folded.iter().all(|rows| *rows > 0), "{folded:?}");
    let dns: u64 = report.dns.iter().map(|row| row.stalled_ns).sum();
    assert_eq!(dns, stalled(&report, Cause::DnsResolve));
    assert_eq!(dns, u64::from(many) * STEP_NS / 2 + 10 * STEP_NS, "each half a step, and the one that hangs");
    let connects: u64 = report.connects.iter().map(|row| row.stalled_ns).sum();
    assert_eq!(connects, stalled(&report, Cause::TcpConnect));
    let sockets: u64 = report.sockets.iter().map(|row| row.stalled_ns).sum();
    assert_eq!(sockets, stalled(&report, Cause::SockRecv));
    assert_eq!(sockets, u64::from(many) * STEP_NS / 2);

    let lost = &report.coverage.losses;
    assert_eq!(lost[DNS_LEFT_OUT], u64::from(many + 1) - 1000);
    assert_eq!(lost[HANDSHAKES_LEFT_OUT], u64::from(many) - 1000);
    assert!(lost[SOCKETS_LEFT_OUT] > 0 && report.coverage.lost_events >= lost[DNS_LEFT_OUT]);

    // The lookup that hangs is told by its name, although its question was too late to be kept.
    let hangs = report.dns.iter().find(|row| row.in_flight > 0).unwrap();
    assert_eq!(hangs.name.as_deref(), Some("host-90000.example.org"));
    assert_eq!((hangs.server.as_str(), hangs.stalled_ns), ("10.0.0.9:53", 10 * STEP_NS));
    // What is not known is not said to be in flight, and no name gets the time of another.
    assert!(report.connects.iter().all(|row| row.result == "ECONNREFUSED" || row.folded > 0), "{report:?}");
    let named = report.dns.iter().filter(|row| row.name.is_some() && row.in_flight == 0);
    assert!(named.map(|row| row.stalled_ns).all(|ns| ns <= STEP_NS / 2), "{:?}", report.dns);
}
