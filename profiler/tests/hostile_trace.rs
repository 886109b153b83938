//! Traces with valid checksums that say impossible things: every view of them is written, and none of what
//! they say breaks its format.

#[path = "trace_support/strategies.rs"]
#[expect(dead_code, reason = "shared with the tests of the format")]
mod strategies;

use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use stallscope::analysis::diff::compare;
use stallscope::analysis::{Analysis, AnalysisOptions, analyse};
use stallscope::cli::diff::load_profile;
use stallscope::model::cause::Cause;
use stallscope::render::RenderError;
use stallscope::render::diff::{write_diff_html, write_diff_json, write_diff_svg, write_diff_text};
use stallscope::render::flame::write_svg;
use stallscope::render::folded::write_folded;
use stallscope::render::html::write_html;
use stallscope::render::json::write_json;
use stallscope::render::text::{TextOptions, write_report_with, write_summary_with};
use stallscope::render::tree::{FlameOptions, View};
use stallscope::trace::TraceReader;
use stallscope::trace::record::{Ends, Record, Socket, Window};

/// Times at which sums, differences and signs turn over, and some that lie in one ordinary window.
const TIMES: [u64; 16] = [
    0,
    1,
    999,
    1_000,
    1_500,
    1_000_000_000,
    5_000_000_000,
    5_100_000_000,
    10_000_000_000,
    1 << 32,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    1 << 63,
    (1 << 63) + 1_000,
    u64::MAX - 1,
    u64::MAX,
];
const IDS: [u32; 6] = [0, 1, 7, 8, i32::MAX as u32, u32::MAX];
const NAMES: [&str; 8] = [
    "",
    "python3",
    "\u{1b}[31mred\u{1b}]0;title\u{7}",
    "a;b\nc\rd\te",
    "\u{202e}\u{9b}31m\u{85}\u{fffe}\u{feff}\u{200b}",
    "<script>alert(1)</script>]]>&amp;\"'",
    "resolv.conf",
    "nameserver 127.0.0.53\noptions timeout:99999999999999 attempts:4294967296 ndots:-1",
];
const PEERS: [&str; 6] =
    ["127.0.0.53:53", "[::ffff:127.0.0.53]:53", "[fe80::1]:0", "0.0.0.0:0", "10.0.0.2:29500", "[::1]:65535"];

/// Draws everything that has to be the same in several records from small sets.
fn squeeze(mut record: Record) -> Record {
    match &mut record {
        Record::Host(host) => host.name = name(host.cpus),
        Record::Clock(clock) => {
            time(&mut clock.monotonic_ns);
            time(&mut clock.unix_ns);
        }
        Record::Window(window) => {
            time(&mut window.start_ns);
            time(&mut window.end_ns);
        }
        Record::Environment(environment) => {
            environment.what = name(environment.pid);
            environment.value = name(environment.pid / 8);
            id(&mut environment.pid);
        }
        Record::Process(process) => {
            process.comm = name(process.ppid);
            ids([&mut process.pid, &mut process.ppid, &mut process.ns_pid]);
            time(&mut process.seen_ns);
        }
        Record::Thread(thread) => {
            thread.name = name(thread.ns_tid);
            ids([&mut thread.pid, &mut thread.tid, &mut thread.ns_tid]);
            time(&mut thread.seen_ns);
        }
        Record::Life(life) => {
            life.comm = name(life.parent);
            ids([&mut life.pid, &mut life.tid, &mut life.parent]);
            time(&mut life.time_ns);
        }
        Record::Wait(wait) => {
            ids([&mut wait.pid, &mut wait.tid]);
            let times = [&mut wait.start_ns, &mut wait.end_ns, &mut wait.api_start_ns, &mut wait.off_cpu_ns];
            times.into_iter().for_each(time);
            wait.user_stack %= 4;
            wait.kernel_stack %= 4;
            wait.sockets.iter_mut().for_each(socket);
        }
        Record::Dns(message) => {
            ids([&mut message.pid, &mut message.tid]);
            time(&mut message.time_ns);
            time(&mut message.api_start_ns);
            message.data = dns_message(&message.data);
            message.ret = [message.data.len() as i64, -111, 0, i64::MAX, i64::MIN][message.ret as usize % 5];
            socket(&mut message.socket);
        }
        Record::Api(call) => {
            call.argument = name(call.tid);
            ids([&mut call.pid, &mut call.tid]);
            time(&mut call.time_ns);
        }
        Record::Handshake(handshake) => {
            ids([&mut handshake.pid, &mut handshake.tid]);
            time(&mut handshake.start_ns);
            time(&mut handshake.end_ns);
            socket(&mut handshake.socket);
        }
        Record::Retransmit(retransmit) => {
            id(&mut retransmit.pid);
            time(&mut retransmit.time_ns);
            socket(&mut retransmit.socket);
        }
        Record::Socket(sample) => {
            id(&mut sample.pid);
            time(&mut sample.time_ns);
            time(&mut sample.rtt_ns);
            socket(&mut sample.socket);
        }
        Record::Stack(stack) => {
            stack.id %= 4;
            for frame in &mut stack.frames {
                frame.function = name(frame.offset as u32);
                frame.module = name((frame.offset >> 32) as u32);
            }
        }
        Record::ThreadTime(times) => {
            ids([&mut times.pid, &mut times.tid]);
            let all = [&mut times.time_ns, &mut times.running_ns, &mut times.runnable_ns];
            all.into_iter().for_each(time);
        }
        Record::CpuSamples(samples) => {
            ids([&mut samples.pid, &mut samples.tid]);
            let all =
                [&mut samples.time_ns, &mut samples.period_ns, &mut samples.samples, &mut samples.working];
            all.into_iter().for_each(time);
        }
        _ => {}
    }
    record
}

fn time(time_ns: &mut u64) {
    *time_ns = TIMES[(*time_ns % TIMES.len() as u64) as usize];
}

fn id(id: &mut u32) {
    *id = IDS[*id as usize % IDS.len()];
}

fn ids<const N: usize>(all: [&mut u32; N]) {
    all.into_iter().for_each(id);
}

fn name(choice: u32) -> String {
    NAMES[choice as usize % NAMES.len()].to_owned()
}

fn socket(socket: &mut Socket) {
    let peer: SocketAddr = PEERS[socket.ino as usize % PEERS.len()].parse().unwrap();
    let local = SocketAddr::new(peer.ip(), 40_000);
    match &mut socket.ends {
        Ends::Inet { .. } => socket.ends = Ends::Inet { local, peer },
        Ends::Unix { path } => *path = name(u32::from(socket.events)),
        Ends::Other { .. } => {}
    }
    socket.ino %= 3;
    socket.fd = [-1, 0, 3, i32::MAX, i32::MIN][socket.fd.unsigned_abs() as usize % 5];
    socket.kind = 1 + socket.kind % 3;
    socket.state %= 13;
}

/// A query or an answer, whole or cut, with a byte of it wrong.
fn dns_message(random: &[u8]) -> Vec<u8> {
    let byte = |at: usize| random.get(at).copied().unwrap_or(0);
    let mut message = vec![0, byte(0) % 2, [0x01, 0x81][usize::from(byte(1) % 2)], byte(2) % 6];
    message.extend([0, 1, 0, 0, 0, 0, 0, 0]);
    message.extend(b"\x06node\x1b1\x07cluster\x00");
    message.extend([0, [1, 28, 12, 255][usize::from(byte(3) % 4)], 0, 1]);
    if byte(4) % 4 == 0 {
        let len = message.len();
        message[usize::from(byte(5)) % len] = byte(6);
        message.truncate(usize::from(byte(7)));
    }
    message
}

fn analysis_of(records: &[Record]) -> Analysis {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.stall");
    strategies::write_trace(&path, records, 50);
    let mut reader = TraceReader::open(&path).unwrap();
    let records: Vec<Record> = reader.by_ref().collect();
    analyse(records.into_iter(), reader.state(), &AnalysisOptions::default())
}

/// Neither a control character nor another that turns the direction of text around.
fn assert_plain(text: &str, what: &str) {
    let bad = text.chars().find(|char| char.is_control() && *char != '\n' || *char == '\u{202e}');
    assert_eq!(bad, None, "{what}: {text}");
}

fn render_all(analysis: &Analysis) {
    let mut text = Vec::new();
    write_report_with(analysis, TextOptions::default(), &mut text).unwrap();
    write_summary_with(analysis, TextOptions { columns: Some(40), ..TextOptions::default() }, &mut text)
        .unwrap();
    assert_plain(std::str::from_utf8(&text).unwrap(), "text");
    let mut json = Vec::new();
    write_json(&analysis.report, &mut json).unwrap();
    serde_json::from_slice::<serde_json::Value>(&json).unwrap();
    let mut html = Vec::new();
    ignore_too_large(&write_html(analysis, &mut html));
    let causes = [None, Some(Cause::SchedRunq), Some(Cause::DnsResolve)];
    for (view, cause) in View::ALL.into_iter().flat_map(|view| causes.map(|cause| (view, cause))) {
        let options = FlameOptions { view, cause, kernel: true, ..FlameOptions::default() };
        let mut svg = Vec::new();
        ignore_too_large(&write_svg(analysis, &options, &mut svg));
        let mut folded = Vec::new();
        ignore_too_large(&write_folded(analysis, &options, &mut folded).map_err(too_large));
        assert_plain(std::str::from_utf8(&folded).unwrap(), "folded");
        assert!(!String::from_utf8(svg).unwrap().contains('\u{1b}'));
    }
}

/// What the renderer says inside of an error of the output.
fn too_large(error: std::io::Error) -> RenderError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<RenderError>()) {
        Some(RenderError::TooLarge) => RenderError::TooLarge,
        _ => error.into(),
    }
}

/// Stalls of more than 2^63 ns are refused, and that is the only refusal.
fn ignore_too_large(result: &Result<(), RenderError>) {
    assert!(matches!(result, Ok(()) | Err(RenderError::TooLarge)), "{result:?}");
}

/// Both sides of a diff, in every form.
fn compare_all(before: &[Record], after: &[Record]) {
    let folder = tempfile::tempdir().unwrap();
    let load = |name: &str, records: &[Record]| {
        let path = folder.path().join(name);
        strategies::write_trace(&path, records, 50);
        [load_profile(&path).unwrap()]
    };
    let diff = compare(&load("before.stall", before), &load("after.stall", after));
    let mut text = Vec::new();
    write_diff_text(&diff, TextOptions::default(), &mut text).unwrap();
    assert_plain(std::str::from_utf8(&text).unwrap(), "text");
    let mut json = Vec::new();
    write_diff_json(&diff, &mut json).unwrap();
    serde_json::from_slice::<serde_json::Value>(&json).unwrap();
    let (mut svg, mut html) = (Vec::new(), Vec::new());
    ignore_too_large(&write_diff_svg(&diff, &mut svg));
    ignore_too_large(&write_diff_html(&diff, &mut html));
    assert!(!String::from_utf8(svg).unwrap().contains('\u{1b}'));
}

/// Many threads that wait for one peer in the longest window there can be: what is added up does not fit.
fn eternal(number: usize, record: Record) -> Option<Record> {
    let mut record = squeeze(record);
    let (pid, tid) = (7, 7 + number as u32 % 6);
    let (start, end) = (number as u64 % 3, u64::MAX - number as u64 % 2);
    match &mut record {
        Record::Wait(wait) => {
            (wait.pid, wait.tid, wait.start_ns, wait.end_ns) = (pid, tid, start, end);
            wait.sockets.iter_mut().for_each(same_peer);
        }
        Record::Handshake(handshake) => {
            (handshake.pid, handshake.tid) = (pid, tid);
            (handshake.start_ns, handshake.end_ns) = (start, end);
            handshake.error = [0, 110, 111, 113][number % 4];
            handshake.syn_retransmits = u32::MAX;
            same_peer(&mut handshake.socket);
        }
        Record::Dns(message) => {
            (message.pid, message.tid) = (pid, tid);
            message.time_ns = [start, end][number % 2];
            message.api_start_ns = start;
            same_peer(&mut message.socket);
        }
        Record::Socket(sample) => {
            (sample.pid, sample.rtt_ns, sample.rtt_var_ns) = (pid, u64::MAX, u64::MAX);
            (sample.bytes_acked, sample.bytes_received) = (u64::MAX, u64::MAX);
            sample.total_retransmits = u32::MAX * (number as u32 % 2);
            sample.at_start = number.is_multiple_of(4);
            sample.time_ns = [start, end][number % 2];
            sample.socket.ino = number as u64;
            same_peer(&mut sample.socket);
        }
        Record::Retransmit(retransmit) => {
            retransmit.pid = pid;
            same_peer(&mut retransmit.socket);
        }
        Record::ThreadTime(times) => {
            (times.pid, times.tid, times.time_ns) = (pid, tid, [start, end][number % 2]);
            (times.running_ns, times.runnable_ns) = (end, end);
        }
        Record::CpuSamples(samples) => {
            (samples.pid, samples.tid, samples.time_ns) = (pid, tid, [start, end][number % 2]);
        }
        Record::Stack(_) | Record::Thread(_) => {}
        _ => return None,
    }
    Some(record)
}

fn same_peer(socket: &mut Socket) {
    let [local, peer] = ["10.0.0.1:4000", "10.0.0.2:53"].map(|address| address.parse().unwrap());
    (socket.kind, socket.ends) = (1 + socket.kind % 2, Ends::Inet { local, peer });
}

/// These in a window without an end.
fn eternity(records: Vec<Record>) -> Vec<Record> {
    let window = Record::Window(Window { start_ns: 0, end_ns: u64::MAX, min_stall_ns: 1 });
    let records = records.into_iter().enumerate().filter_map(|(number, record)| eternal(number, record));
    [window.clone()].into_iter().chain(records).chain([window]).collect()
}

proptest! {
    // Each adds up much; few are enough.
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn waits_without_an_end_are_added_up_and_compared(records in vec(strategies::record(), 1..250)) {
        let records = eternity(records);
        let analysis = analysis_of(&records);
        render_all(&analysis);
        compare_all(&records, &records);
        let totals = analysis.report.totals;
        prop_assert!(totals.stalled_ns.checked_add(totals.idle_ns).is_some_and(|ns| ns <= totals.thread_wall_ns));
    }
}

proptest! {
    #[test]
    fn impossible_records_are_compared(
        before in vec(strategies::record().prop_map(squeeze), 1..80),
        after in vec(strategies::record().prop_map(squeeze), 1..80)
    ) {
        compare_all(&before, &after);
    }

    #[test]
    fn impossible_records_are_analysed_and_drawn(
        records in vec(strategies::record().prop_map(squeeze), 1..120)
    ) {
        let analysis = analysis_of(&records);
        render_all(&analysis);
        let report = &analysis.report;
        let of_threads = |row: &&stallscope::analysis::report::CauseRow| {
            row.domain == stallscope::analysis::report::Domain::Thread && row.cause != Cause::SchedRunq
        };
        let by_cause = report.causes.iter().filter(of_threads);
        let by_cause = by_cause.fold(0_u64, |sum, row| sum.saturating_add(row.stalled_ns));
        prop_assert_eq!(by_cause, report.totals.stalled_ns);
    }

    #[test]
    fn any_records_are_analysed_and_drawn(records in vec(strategies::record(), 1..60)) {
        render_all(&analysis_of(&records));
    }
}
