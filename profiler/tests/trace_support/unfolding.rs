//! Small files that claim to hold as much as they can: a block of each kind, as full as it gets, again and again.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::BytesMut;
use profiler_common::rdma_kernel::SetupOp;
use profiler_common::{Api, Call};
use stallscope::trace::format::{
    BLOCK_MAX, BlockHeader, FLAG_ZSTD, MAJOR, MINOR, Version, encode_file_header,
};
use stallscope::trace::gpu::{GpuActivities, GpuName};
use stallscope::trace::gpu_sync::GpuSyncs;
use stallscope::trace::kind::Kind;
use stallscope::trace::marker::{MarkerCalls, MarkerFunction};
use stallscope::trace::place::{DeviceUse, Gid, PciDevice, PciRole, RdmaPort, ThreadPlace};
use stallscope::trace::rdma::{
    PortCounter, QueuePair, RdmaAnchor, RdmaBirth, RdmaCompletion, RdmaEntry, RdmaPeer, RdmaPost, RdmaWindow,
};
use stallscope::trace::rdma_setup::{RdmaCommandTotals, RdmaDeviceEvent, RdmaSetup, RdmaSetupTotals};
use stallscope::trace::record::{
    ApiCall, CallCount, Clock, Coverage, CpuSamples, Direction, DnsMessage, End, Ends, Environment,
    FamilyState, Frame, Handshake, Host, Life, LifeEvent, Loss, Process, PythonFrame, PythonStack, Record,
    Retransmit, Socket, SocketSample, Space, Stack, Thread, ThreadTime, TopologyFile, Window,
};

/// Blocks of a file at most: more of the same shows no more.
const BLOCKS: usize = 12;
/// Rows of a record that has rows.
const ROWS: u64 = 1 << 12;

/// What the records of a file have to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// They are all the same.
    Same,
    /// No two are of the same process, thread, name, peer or time.
    Apart,
    /// They are of one owner, at different times, and overlap where they can.
    OneOwner,
}

pub const PATTERNS: [Pattern; 3] = [Pattern::Same, Pattern::Apart, Pattern::OneOwner];

/// A file of no more than `len` bytes with blocks of these kinds by turns.
pub fn file(kinds: &[Kind], pattern: Pattern, len: usize) -> Vec<u8> {
    let mut out = encode_file_header(Version { major: MAJOR, minor: MINOR });
    let window = Record::Window(Window { start_ns: 1, end_ns: 1 << 40, min_stall_ns: 1 });
    out.extend(block(Kind::Window, 1, &payload_of(std::iter::once(window), BLOCK_MAX).1));
    // What differs does not shrink: smaller blocks, so that some of all kinds fit.
    let room = if pattern == Pattern::Same { BLOCK_MAX } else { BLOCK_MAX.min(2 * len / kinds.len()) };
    let mut packer = Packer { pattern, room, next: 0, known: BTreeMap::new() };
    for kind in kinds.iter().cycle().take(BLOCKS.max(kinds.len())) {
        let block = packer.block(*kind);
        if out.len() + block.len() > len {
            break;
        }
        out.extend(block);
    }
    out.to_vec()
}

struct Packer {
    pattern: Pattern,
    /// Payload of a block at most.
    room: usize,
    next: u64,
    /// Blocks by kind, where all are the same.
    known: BTreeMap<Kind, Vec<u8>>,
}

impl Packer {
    fn block(&mut self, kind: Kind) -> Vec<u8> {
        if let Some(known) = self.known.get(&kind) {
            return known.clone();
        }
        let (records, payload) = if kind == Kind::Wait { self.waits() } else { self.rows(kind) };
        let block = block(kind, records, &payload);
        if self.pattern == Pattern::Same {
            self.known.insert(kind, block.clone());
        }
        block
    }

    fn rows(&mut self, kind: Kind) -> (u32, Vec<u8>) {
        let pattern = self.pattern;
        let first = self.next;
        self.next += 1 << 22;
        payload_of((first..).map(|number| record(kind, pattern, number)), self.room)
    }

    /// A full block of waits, in the columns of `docs/trace-format.md`.
    fn waits(&mut self) -> (u32, Vec<u8>) {
        let waits = self.room / 16;
        let first = self.next;
        self.next += waits as u64;
        let zeros = || vec![0_u64; waits];
        let apart = self.pattern == Pattern::Apart;
        let step = i64::from(self.pattern != Pattern::Same);
        let [local, peer] = [addresses(1), addresses(2)];
        let ends = Ends::Inet { local, peer };
        let threads: Vec<(u64, u64)> =
            if apart { (0..3000).map(|at| (first + at, first + at)).collect() } else { vec![(7, 7)] };
        let mut end = vec![step; waits];
        end[0] = (1 << 30) + first as i64 * step;
        // Each reaches back to the first one.
        let duration: Vec<u64> = match self.pattern {
            Pattern::OneOwner => (0..waits as u64).map(|at| at + first).collect(),
            _ => zeros(),
        };
        let thread: Vec<u64> = (0..waits).map(|at| (at % threads.len()) as u64).collect();
        let fd: Vec<i64> = if apart { (0..waits as i64).collect() } else { vec![0; waits] };
        let shape = (Call::Recvfrom as u16, 0_u8, 1_u16, 0_i32, 0_u16);
        let tables = (threads, vec![(1_u64, 2_u64)], vec![shape], vec![(1_u64, 3_i32, 1_u8, 1_u8, ends)]);
        let lists = (vec![1_u32], vec![(0_u32, 1_u16, 1_u16)]);
        let columns = (end, duration, thread, zeros(), zeros(), zeros(), fd);
        let rest = (zeros(), zeros(), zeros(), zeros());
        let payload = postcard::to_stdvec(&(tables, lists, columns, rest)).unwrap();
        assert!(payload.len() <= BLOCK_MAX);
        (waits as u32, payload)
    }
}

/// As many records as fit.
fn payload_of(records: impl Iterator<Item = Record>, room: usize) -> (u32, Vec<u8>) {
    let (mut count, mut rows) = (0, Vec::new());
    for record in records {
        let before = rows.len();
        encode(&record, &mut rows);
        if rows.len() > room - 8 {
            rows.truncate(before);
            break;
        }
        count += 1;
    }
    let mut payload = postcard::to_stdvec(&count).unwrap();
    payload.extend(rows);
    (count, payload)
}

fn block(kind: Kind, records: u32, payload: &[u8]) -> Vec<u8> {
    let stored = zstd::bulk::compress(payload, 6).unwrap();
    let header = BlockHeader {
        kind: kind as u16,
        flags: FLAG_ZSTD,
        records,
        unpacked_len: payload.len() as u32,
        stored_len: stored.len() as u32,
        payload_crc: crc32fast::hash(&stored),
    };
    let mut out = BytesMut::new();
    header.encode(&mut out);
    out.extend(stored);
    out.to_vec()
}

macro_rules! encode_any {
    ($record:expr, $out:expr, $($name:ident)*) => {
        match $record {
            $(Record::$name(value) => $out.extend(postcard::to_stdvec(value).unwrap()),)*
            other => panic!("no encoding of {other:?}"),
        }
    };
}

fn encode(record: &Record, out: &mut Vec<u8>) {
    encode_any!(record, out, Host Clock Window Environment Coverage Process Thread Life Dns Api Handshake Retransmit
        Socket Stack PythonStack CpuSamples ThreadTime CallCount Loss End Topology QueuePair RdmaPost RdmaCompletion
        RdmaWindow PortCounter RdmaAnchor RdmaEntry RdmaBirth RdmaPeer GpuName GpuActivities GpuSyncs MarkerFunction
        MarkerCalls RdmaSetup RdmaSetupTotals RdmaCommandTotals RdmaDeviceEvent PciDevice RdmaPort DeviceUse
        ThreadPlace);
}

fn addresses(number: u64) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number as u32)), 80)
}

fn socket(key: u64) -> Socket {
    let ends = Ends::Inet { local: addresses(1), peer: addresses(key) };
    Socket { ino: key, fd: 3, kind: 1, state: 1, ends, events: 1, revents: 0 }
}

/// The record with this number.
fn record(kind: Kind, pattern: Pattern, number: u64) -> Record {
    let at = if pattern == Pattern::Same { 0 } else { number };
    let key = if pattern == Pattern::Apart { number } else { 0 };
    let id = key as u32;
    let (pid, tid) = (id, id);
    let name = if pattern == Pattern::Apart { key.to_string() } else { String::new() };
    // Each within the one before.
    let (start_ns, end_ns) = (at, (1 << 40) - at);
    let time_ns = at;
    let api = Api::Getaddrinfo;
    match kind {
        Kind::Host => Record::Host(Host { name, ..Host::default() }),
        Kind::Clock => Record::Clock(Clock { monotonic_ns: at, unix_ns: at }),
        Kind::Window => Record::Window(Window { start_ns, end_ns, min_stall_ns: 1 }),
        Kind::Environment => {
            let what = if pattern == Pattern::OneOwner { "NCCL_DEBUG".to_owned() } else { name };
            Record::Environment(Environment { what, value: at.to_string(), pid: 0 })
        }
        Kind::Coverage => {
            Record::Coverage(Coverage { family: name, state: FamilyState::On, reason: String::new() })
        }
        Kind::Process => Record::Process(Process { pid, comm: name, seen_ns: at, ..Process::default() }),
        Kind::Thread => Record::Thread(Thread { pid, tid, ns_tid: tid, name, seen_ns: at }),
        Kind::Life => Record::Life(Life { time_ns, event: LifeEvent::Fork, pid, tid, parent: 0, comm: name }),
        Kind::Dns => {
            let data = vec![id as u8, (id >> 8) as u8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];
            let socket = Socket { kind: 2, ..socket(key) };
            let ret = data.len() as i64;
            Record::Dns(DnsMessage {
                time_ns,
                pid,
                tid,
                direction: Direction::Send,
                ret,
                api,
                api_start_ns: at,
                socket,
                data,
            })
        }
        Kind::Api => Record::Api(ApiCall { time_ns, pid, tid, api, argument: name, address: None }),
        Kind::Handshake => Record::Handshake(Handshake {
            start_ns,
            end_ns,
            pid,
            tid,
            error: 110,
            began_earlier: false,
            in_flight: number.is_multiple_of(2),
            syn_retransmits: 1,
            socket: socket(key),
        }),
        Kind::Retransmit => Record::Retransmit(Retransmit { time_ns, pid, socket: socket(key) }),
        Kind::Socket => Record::Socket(SocketSample {
            time_ns,
            pid,
            socket: socket(key),
            rtt_ns: at,
            rtt_var_ns: 1,
            total_retransmits: id,
            current_retransmits: 0,
            bytes_acked: at,
            bytes_received: at,
            send_queue: 0,
            receive_queue: 0,
            last_receive_age_ns: 0,
            at_start: number.is_multiple_of(2),
        }),
        Kind::Stack => {
            let frames = if pattern == Pattern::Same { 1 << 19 } else { 3 };
            let frame = Frame { function: name, ..Frame::default() };
            Record::Stack(Stack { id: at, space: Space::User, frames: vec![frame; frames], truncated: false })
        }
        Kind::PythonStack => {
            let frames = if pattern == Pattern::Same { 1 << 19 } else { 3 };
            let frame = PythonFrame { function: name, entry: true, ..PythonFrame::default() };
            Record::PythonStack(PythonStack {
                id: at,
                native: 0,
                frames: vec![frame; frames],
                truncated: false,
            })
        }
        Kind::CpuSamples => Record::CpuSamples(CpuSamples { time_ns, pid, tid, ..CpuSamples::default() }),
        Kind::ThreadTime => Record::ThreadTime(ThreadTime { time_ns, pid, tid, ..ThreadTime::default() }),
        Kind::CallCount => Record::CallCount(CallCount {
            call: Call::from_u16((number % 30) as u16),
            seen: at,
            below: at,
            below_ns: at,
        }),
        Kind::Loss => Record::Loss(Loss { what: name, count: 1, events: true }),
        Kind::End => Record::End(End { time_ns, reason: name }),
        Kind::Topology => {
            let text = format!("SwitchName=s{key} Nodes=n1\n").repeat(40_000);
            Record::Topology(TopologyFile { path: name, text })
        }
        Kind::QueuePair => {
            Record::QueuePair(QueuePair { time_ns, pid, number: id, device: name, ..QueuePair::default() })
        }
        Kind::RdmaPost => Record::RdmaPost(RdmaPost {
            time_ns,
            pid,
            tid,
            qp: id,
            index: at as u32,
            counter: Some(at as u16),
            ..RdmaPost::default()
        }),
        Kind::RdmaCompletion => Record::RdmaCompletion(RdmaCompletion {
            time_ns,
            pid,
            tid,
            qp: id,
            counter: at as u16,
            ..RdmaCompletion::default()
        }),
        Kind::RdmaWindow => Record::RdmaWindow(RdmaWindow { pid, start_ns, end_ns }),
        Kind::PortCounter => {
            Record::PortCounter(PortCounter { time_ns, device: name.clone(), port: id, name, value: at })
        }
        Kind::RdmaAnchor => Record::RdmaAnchor(RdmaAnchor { time_ns, pid, qp: id, counter: at as u16 }),
        Kind::RdmaEntry => Record::RdmaEntry(RdmaEntry { time_ns, pid, tid, qp: id, ..RdmaEntry::default() }),
        Kind::RdmaBirth => Record::RdmaBirth(RdmaBirth { time_ns, pid, qp: id }),
        Kind::RdmaPeer => Record::RdmaPeer(RdmaPeer {
            time_ns,
            pid,
            qp: id,
            peer_qp: Some(id),
            peer_gid: Some(Ipv6Addr::from(u128::from(key))),
            local_gid: None,
        }),
        Kind::GpuName => {
            Record::GpuName(GpuName { id, name: format!("_Z{}ncclDevKernel_{name}", name.len()) })
        }
        Kind::GpuActivities => {
            let rows = ROWS as usize;
            Record::GpuActivities(GpuActivities {
                pid,
                lanes: vec![(id, id)],
                what: vec![0; rows],
                lane: vec![0; rows],
                start: vec![1; rows],
                duration: vec![if pattern == Pattern::OneOwner { 1 << 30 } else { 1 }; rows],
                queue: vec![2; rows],
                bytes: Vec::new(),
            })
        }
        Kind::GpuSyncs => {
            let rows = ROWS as usize;
            Record::GpuSyncs(GpuSyncs {
                pid,
                calls: vec![(id, 1)],
                call: vec![0; rows],
                start: vec![1; rows],
                duration: vec![if pattern == Pattern::OneOwner { 1 << 30 } else { 1 }; rows],
            })
        }
        Kind::MarkerFunction => {
            Record::MarkerFunction(MarkerFunction { function: name, time_ns, ..MarkerFunction::default() })
        }
        Kind::MarkerCalls => Record::MarkerCalls(MarkerCalls { start_ns, end_ns, pid, tid, calls: 1 }),
        Kind::RdmaSetup => {
            let op = SetupOp::from_u8(1 + (number % 4) as u8);
            Record::RdmaSetup(RdmaSetup { start_ns, end_ns, pid, tid, op, qp: id, ..RdmaSetup::default() })
        }
        Kind::RdmaSetupTotals => Record::RdmaSetupTotals(RdmaSetupTotals {
            pid,
            calls: 1,
            ns: at,
            histogram: vec![(1, at); if pattern == Pattern::Same { 1 << 20 } else { 1 }],
            ..RdmaSetupTotals::default()
        }),
        Kind::RdmaCommandTotals => {
            Record::RdmaCommandTotals(RdmaCommandTotals { opcode: id, commands: 1, ns: at, queued_ns: at })
        }
        Kind::RdmaDeviceEvent => {
            Record::RdmaDeviceEvent(RdmaDeviceEvent { time_ns: at * 1_000_000_000, event: id, port: id })
        }
        Kind::PciDevice => Record::PciDevice(PciDevice {
            address: name.clone(),
            name: name.clone(),
            role: [PciRole::Gpu, PciRole::Nic, PciRole::Bridge][(number % 3) as usize],
            parent: (key / 3).to_string(),
            root: "r".to_owned(),
            ..PciDevice::default()
        }),
        Kind::RdmaPort => Record::RdmaPort(RdmaPort {
            device: name,
            port: id,
            gids: vec![Gid::default(); if pattern == Pattern::Same { 1 << 18 } else { 1 }],
            ..RdmaPort::default()
        }),
        Kind::DeviceUse => Record::DeviceUse(DeviceUse { pid: id / 4, device: name }),
        Kind::ThreadPlace => {
            Record::ThreadPlace(ThreadPlace { time_ns, pid, tid, cpu: 0, node: (number % 4096) as i32 })
        }
        Kind::Wait => unreachable!("a block of columns"),
    }
}
