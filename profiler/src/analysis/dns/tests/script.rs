//! A small language for scenes: what a thread sent, received and waited for.

use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use profiler_common::{Api, Call};

use crate::analysis::dns::{DnsAnalysis, rows};
use crate::analysis::dns_wait::{DnsWait, WaitId};
use crate::analysis::report::DnsRow;
use crate::model::dns::message::tests::{answer, query};
use crate::model::socket::Transport;
use crate::trace::record::{ApiCall, Direction, DnsMessage, Ends, Socket, Window};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SEC: u64 = 1000 * MS;

/// Times are relative to the begin of the window.
pub(crate) struct Script {
    pub window: Window,
    pub messages: Vec<DnsMessage>,
    pub calls: Vec<ApiCall>,
    pub waits: Vec<DnsWait>,
    pub pid: u32,
    pub tid: u32,
    pub server: String,
    pub transport: Transport,
    pub ino: u64,
    pub api: Api,
    pub api_start: u64,
}

/// Begin of the window.
pub(crate) const T0: u64 = 1_000 * SEC;

impl Script {
    pub(crate) fn new(duration: u64) -> Script {
        Script {
            window: Window { start_ns: T0, end_ns: T0 + duration, min_stall_ns: 100_000 },
            messages: Vec::new(),
            calls: Vec::new(),
            waits: Vec::new(),
            pid: 100,
            tid: 101,
            server: "10.0.0.53:53".to_string(),
            transport: Transport::Udp,
            ino: 7000,
            api: Api::None,
            api_start: 0,
        }
    }

    /// Enters a resolver function.
    pub(crate) fn call(&mut self, at: u64, api: Api, argument: &str) {
        self.api = api;
        self.api_start = T0 + at;
        let address = argument.parse().ok();
        let call = ApiCall {
            time_ns: T0 + at,
            pid: self.pid,
            tid: self.tid,
            api,
            argument: argument.to_string(),
            address,
        };
        self.calls.push(call);
    }

    /// Goes on with a fresh socket.
    pub(crate) fn socket(&mut self, ino: u64) {
        self.ino = ino;
    }

    pub(crate) fn message(&mut self, at: u64, direction: Direction, ret: i64, data: &[u8]) {
        let kind = if self.transport == Transport::Tcp { 1 } else { 2 };
        let local = if self.server.starts_with('[') { "[::]:40000" } else { "10.0.0.1:40000" };
        let ends = match self.server.as_str() {
            "" => Ends::Inet { local: local.parse().unwrap(), peer: "0.0.0.0:0".parse().unwrap() },
            server => Ends::Inet { local: local.parse().unwrap(), peer: server.parse().unwrap() },
        };
        self.messages.push(DnsMessage {
            time_ns: T0 + at,
            pid: self.pid,
            tid: self.tid,
            direction,
            ret,
            api: self.api,
            api_start_ns: self.api_start,
            socket: Socket { ino: self.ino, fd: 5, kind, state: 1, ends, events: 0, revents: 0 },
            data: data.get(..512).unwrap_or(data).to_vec(),
        });
    }

    pub(crate) fn send(&mut self, at: u64, id: u16, name: &str, qtype: RecordType) {
        let data = query(id, name, qtype);
        self.message(at, Direction::Send, data.len() as i64, &data);
    }

    pub(crate) fn receive(&mut self, at: u64, id: u16, name: &str, qtype: RecordType, rcode: ResponseCode) {
        let records = u8::from(rcode == ResponseCode::NoError && qtype == RecordType::A);
        let data = answer(id, name, qtype, rcode, records);
        self.message(at, Direction::Receive, data.len() as i64, &data);
    }

    pub(crate) fn receive_error(&mut self, at: u64, errno: i32) {
        self.message(at, Direction::Receive, -i64::from(errno), &[]);
    }

    /// A wait on the current socket.
    pub(crate) fn wait(&mut self, start: u64, end: u64) -> &mut DnsWait {
        let index = self.waits.len() as u32;
        self.waits.push(DnsWait {
            wait: WaitId { thread: 0, index },
            pid: self.pid,
            tid: self.tid,
            start_ns: T0 + start,
            end_ns: T0 + end,
            weight_ns: end - start,
            began_ns: T0 + start,
            server: Arc::from(self.server.as_str()),
            transport: self.transport,
            socket_ino: self.ino,
            api: self.api,
            api_start_ns: self.api_start,
            call: Call::Poll,
            ret: 1,
            in_flight: false,
            began_earlier: false,
        });
        self.waits.last_mut().unwrap()
    }

    /// A wait that began `age` before the window.
    pub(crate) fn wait_from_before(&mut self, age: u64, end: u64) -> &mut DnsWait {
        let wait = self.wait(0, end);
        wait.began_ns -= age;
        wait.began_earlier = true;
        wait
    }

    /// The analysis, with what must hold for every scene.
    pub(crate) fn play(&self) -> DnsAnalysis {
        let analysis = rows(&self.messages, &self.calls, &self.waits, self.window);
        let waited: u64 = self.waits.iter().map(|wait| wait.weight_ns).sum();
        assert_eq!(analysis.rows.iter().map(|row| row.stalled_ns).sum::<u64>(), waited, "rows sum to waits");
        let lookups: u64 = analysis.lookups.iter().map(|lookup| lookup.stalled_ns).sum();
        assert_eq!(lookups, waited, "lookups sum to waits");
        let asked = analysis.lookups.iter().flat_map(|lookup| &lookup.asked);
        assert_eq!(asked.map(|asked| asked.stalled_ns).sum::<u64>(), waited);
        assert_eq!(analysis.labels.len(), self.waits.len());
        analysis
    }
}

/// The one row with this name, type and transport.
pub(crate) fn row<'a>(
    analysis: &'a DnsAnalysis,
    name: Option<&str>,
    qtype: Option<&str>,
    transport: &str,
) -> &'a DnsRow {
    let mut found = analysis.rows.iter().filter(|row| {
        row.name.as_deref() == name && row.qtype.as_deref() == qtype && row.transport == transport
    });
    let row = found.next().expect("no such row");
    assert!(found.next().is_none(), "more than one such row");
    row
}
