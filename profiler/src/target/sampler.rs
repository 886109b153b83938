//! The sockets of the targets in one network namespace.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::diag::{self, DiagSocket, LISTEN, Protocol, SYN_SENT, SocketKey};
use super::netlink::{Netlink, NetlinkError};
use super::owners::{Owner, Owners};
use super::root::{ProcRoot, monotonic_ns};
use crate::trace::record::{Ends, Socket, SocketSample};

/// Sockets reported in one look at most.
const SAMPLES: usize = 1 << 16;
/// Sockets of other processes that are listed with them, at most.
const LISTED: usize = 1 << 20;
/// New sockets appear at the latest after this time …
const LIST_AGE: Duration = Duration::from_secs(1);
/// … or later where lists would take more than one part in so many of the time.
const LIST_SHARE: u32 = 100;

/// What looks brought together.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) samples: Vec<SocketSample>,
    pub(super) listed: usize,
}

/// Whether a look lists all sockets of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// About every second, and less often where there are many; in between the known sockets are asked for.
    WhereCheap,
    /// In any case.
    Tcp,
    /// In any case, and the UDP ones too.
    WithUdp,
}

/// Processor time that this thread has used: what a look costs, however busy the machine is.
pub fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// A namespace, and the targets in it.
#[derive(Debug)]
pub(super) struct Namespace {
    diag: Netlink,
    pub(super) route: Netlink,
    pub(super) pids: BTreeSet<u32>,
    owners: Owners,
    /// TCP sockets of the targets at the last list.
    known: Vec<(SocketKey, Owner)>,
    listed: Option<Instant>,
    /// Processor time of the last list.
    list_cost: Duration,
    /// What asking for one socket took the last time.
    query_cost: Duration,
}

/// Sockets for `sock_diag` and for routes in the namespace of the calling thread.
pub(super) fn open_sockets() -> Result<(Netlink, Netlink), NetlinkError> {
    Ok((
        Netlink::open(netlink_sys::protocols::NETLINK_SOCK_DIAG)?,
        Netlink::open(netlink_sys::protocols::NETLINK_ROUTE)?,
    ))
}

impl Namespace {
    pub(super) fn new(root: &ProcRoot, diag: Netlink, route: Netlink, pid: u32) -> Namespace {
        Namespace {
            diag,
            route,
            pids: BTreeSet::from([pid]),
            owners: Owners::new(root.clone()),
            known: Vec::new(),
            listed: None,
            list_cost: Duration::ZERO,
            query_cost: Duration::ZERO,
        }
    }

    pub(super) fn add(&mut self, pid: u32) {
        self.pids.insert(pid);
        self.owners.expire();
        self.listed = None;
    }

    pub(super) fn look(
        &mut self,
        at_start: bool,
        full: Full,
        into: &mut Counted,
    ) -> Result<(), NetlinkError> {
        if full == Full::WhereCheap && self.is_listed_lately() && self.is_asking_cheaper() {
            return self.ask(into);
        }
        let begin = processor_time();
        let sockets = self.list(Protocol::Tcp, at_start, into)?;
        self.known = sockets;
        self.list_cost = processor_time().saturating_sub(begin);
        self.listed = Some(Instant::now());
        if full == Full::WithUdp {
            self.list(Protocol::Udp, at_start, into)?;
        }
        Ok(())
    }

    fn is_listed_lately(&self) -> bool {
        let age = LIST_AGE.max(self.list_cost * LIST_SHARE);
        self.listed.is_some_and(|listed| listed.elapsed() < age)
    }

    fn is_asking_cheaper(&self) -> bool {
        let count = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        self.query_cost.saturating_mul(count) <= self.list_cost
    }

    /// Lists all sockets of the namespace and keeps those of the targets.
    fn list(
        &mut self,
        protocol: Protocol,
        at_start: bool,
        into: &mut Counted,
    ) -> Result<Vec<(SocketKey, Owner)>, NetlinkError> {
        let time_ns = monotonic_ns();
        let mut sockets = Vec::new();
        let result = diag::dump(&mut self.diag, protocol, |socket| {
            into.listed += 1;
            if socket.inode != 0 && sockets.len() < LISTED {
                sockets.push(socket);
            }
        });
        self.owners.refresh(&self.pids, sockets.iter().map(|socket| socket.inode));
        let mut kept = Vec::new();
        for socket in sockets {
            if let Some(owner) = self.owners.of(socket.inode)
                && into.samples.len() < SAMPLES
            {
                into.samples.push(sample(&socket, owner, protocol, time_ns, at_start));
                kept.push((socket.key, owner));
            }
        }
        result.map(|()| kept)
    }

    /// Asks for the known TCP sockets, each by its key, and forgets those that are closed.
    fn ask(&mut self, into: &mut Counted) -> Result<(), NetlinkError> {
        let begin = processor_time();
        let count = u32::try_from(self.known.len()).unwrap_or(u32::MAX).max(1);
        let mut result = Ok(());
        self.known.retain(|(key, owner)| {
            let time_ns = monotonic_ns();
            match diag::query(&mut self.diag, Protocol::Tcp, key) {
                Ok(Some(socket)) => {
                    if into.samples.len() < SAMPLES {
                        into.samples.push(sample(&socket, *owner, Protocol::Tcp, time_ns, false));
                    }
                    true
                }
                Ok(None) => false,
                Err(error) => {
                    result = Err(error);
                    true
                }
            }
        });
        self.query_cost = processor_time().saturating_sub(begin) / count;
        result
    }
}

fn sample(
    socket: &DiagSocket,
    owner: Owner,
    protocol: Protocol,
    time_ns: u64,
    at_start: bool,
) -> SocketSample {
    let info = socket.info.unwrap_or_default();
    // Before the handshake the kernel shows its initial guesses, and a time since boot.
    let settled = socket.info.is_some() && !matches!(socket.state, SYN_SENT | LISTEN);
    let measured = settled && info.rtt_us > 0;
    let microseconds = |value: u32| if measured { u64::from(value) * 1000 } else { 0 };
    let (receive_queue, send_queue) =
        if socket.state == LISTEN { (0, 0) } else { (socket.receive_queue, socket.send_queue) };
    SocketSample {
        time_ns,
        pid: owner.pid,
        socket: Socket {
            ino: u64::from(socket.inode),
            fd: owner.fd,
            kind: if protocol == Protocol::Tcp { libc::SOCK_STREAM as u8 } else { libc::SOCK_DGRAM as u8 },
            state: socket.state,
            ends: Ends::Inet { local: socket.local, peer: socket.peer },
            events: 0,
            revents: 0,
        },
        rtt_ns: microseconds(info.rtt_us),
        rtt_var_ns: microseconds(info.rttvar_us),
        total_retransmits: info.total_retrans,
        current_retransmits: u32::from(info.retransmits.max(socket.retransmits)),
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        send_queue,
        receive_queue,
        // The kernel counts milliseconds; less than one is not the same as unknown.
        last_receive_age_ns: if settled { (u64::from(info.last_data_recv_ms) * 1_000_000).max(1) } else { 0 },
        at_start,
    }
}

#[cfg(test)]
mod tests {
    use super::super::diag::TcpInfo;
    use super::*;

    fn diag_socket(state: u8) -> DiagSocket {
        DiagSocket {
            key: SocketKey::default(),
            inode: 7,
            state,
            local: "10.0.0.1:1000".parse().unwrap(),
            peer: "10.0.0.2:2000".parse().unwrap(),
            receive_queue: 5,
            send_queue: 6,
            retransmits: 1,
            info: Some(TcpInfo {
                retransmits: 3,
                last_data_recv_ms: 40,
                rtt_us: 150,
                rttvar_us: 20,
                total_retrans: 9,
                bytes_acked: 1,
                bytes_received: 2,
            }),
        }
    }

    #[test]
    fn times_are_given_in_nanoseconds() {
        let sample = sample(&diag_socket(1), Owner { pid: 4, fd: 8 }, Protocol::Tcp, 99, true);
        assert_eq!((sample.rtt_ns, sample.rtt_var_ns), (150_000, 20_000));
        assert_eq!(sample.last_receive_age_ns, 40_000_000);
        assert_eq!((sample.total_retransmits, sample.current_retransmits), (9, 3));
        assert_eq!((sample.receive_queue, sample.send_queue), (5, 6));
        assert_eq!((sample.pid, sample.socket.fd, sample.time_ns, sample.at_start), (4, 8, 99, true));
    }

    #[test]
    fn a_socket_without_a_handshake_has_no_round_trip_time() {
        let sample = sample(&diag_socket(SYN_SENT), Owner { pid: 4, fd: 8 }, Protocol::Tcp, 99, false);
        assert_eq!((sample.rtt_ns, sample.rtt_var_ns, sample.last_receive_age_ns), (0, 0, 0));
        assert_eq!(sample.current_retransmits, 3);
    }
}
