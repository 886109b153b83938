//! What tells stalls apart, and what the lookups need of those on a resolver.

use std::hash::{Hash, Hasher};

use profiler_common::rdma_kernel::SetupOp;
use profiler_common::{Api, Call};

use super::connects::{Connects, Outcome};
use super::dns_wait::{DnsWait, WaitId, api_of};
use super::partition::Piece;
use super::rdma_setup;
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::socket::Transport;
use crate::model::thread::ThreadTrack;
use crate::model::wait::{Interest, WaitSpan};

/// What is told behind cause and peer, before it is put into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Detail {
    None,
    /// What was looked up.
    Lookup,
    /// One of the lookups that were too many to be told apart.
    SomeLookup,
    Connect(Outcome),
    /// Of segments that were lost: in which direction.
    Send,
    Recv,
    /// The interpreter lock of CPython.
    Gil,
    /// The thread that has the lock.
    HeldBy(u32),
    /// A call that sets RDMA up, registered bytes rounded down to a power of two, and which part of it is pinning, in tenths.
    Setup {
        op: SetupOp,
        bytes_log2: Option<u8>,
        pin_tenths: Option<u8>,
    },
}

/// Everything of a stall that a view by stacks can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallKey {
    pub pid: u32,
    pub tid: u32,
    pub cause: Cause,
    pub peer: NameId,
    pub detail: Detail,
    pub in_flight: bool,
    pub began_earlier: bool,
    pub user_stack: u64,
    pub kernel_stack: u64,
    pub api: Api,
    pub call: Call,
}

impl Hash for StallKey {
    /// What nearly always tells stalls of one thread apart, so that the millions of them are sorted out in little time.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.user_stack);
        let flags = u64::from(self.in_flight) << 1 | u64::from(self.began_earlier);
        state.write_u64(
            u64::from(self.peer.0) << 32 | (self.cause as u64) << 16 | (self.call as u64) << 2 | flags,
        );
    }
}

/// What is told behind the stall's cause and peer.
pub(super) fn detail(
    model: &Model,
    connects: &Connects,
    track: &ThreadTrack,
    wait: &WaitSpan,
    piece: &Piece,
) -> Detail {
    match piece.cause {
        Cause::DnsResolve => Detail::Lookup,
        Cause::TcpConnect => Detail::Connect(connects.outcome(model, track, wait, piece)),
        Cause::TcpRetransmit if piece.interest == Interest::Write => Detail::Send,
        Cause::TcpRetransmit => Detail::Recv,
        Cause::Lock if model.python.gil.contains(&wait.user_stack) => Detail::Gil,
        Cause::Lock => Detail::HeldBy(wait.owner),
        Cause::RdmaSetup | Cause::DmaMap => setup(model, wait),
        _ => Detail::None,
    }
}

fn setup(model: &Model, wait: &WaitSpan) -> Detail {
    let Some(call) = model.setups.of_wait(wait.start_ns, wait.end_ns) else { return Detail::None };
    let bytes_log2 = call.bytes.checked_ilog2().and_then(|log2| u8::try_from(log2).ok());
    let lasted_ns = u128::from(call.end_ns.saturating_sub(call.start_ns));
    let tenths = (u128::from(call.pin_ns) * 10 + lasted_ns / 2).checked_div(lasted_ns);
    let pin_tenths = tenths.and_then(|tenths| u8::try_from(tenths.min(10)).ok());
    Detail::Setup { op: call.op, bytes_log2, pin_tenths: pin_tenths.filter(|_| call.pin_ns > 0) }
}

/// What tells this stall from others.
pub(super) fn key(
    model: &Model,
    connects: &Connects,
    track: &ThreadTrack,
    wait: &WaitSpan,
    piece: &Piece,
) -> StallKey {
    StallKey {
        pid: track.pid,
        tid: track.tid,
        cause: piece.cause,
        peer: piece.peer,
        detail: detail(model, connects, track, wait, piece),
        in_flight: model.is_in_flight(track, wait, piece.span),
        began_earlier: model.began_earlier(track, wait, piece.span),
        user_stack: wait.user_stack,
        kernel_stack: wait.kernel_stack,
        api: wait.api,
        call: wait.call,
    }
}

impl Detail {
    /// In words; empty for what was looked up, which is told elsewhere.
    pub(super) fn text(self, model: &Model) -> String {
        match self {
            Detail::None | Detail::Lookup => String::new(),
            Detail::SomeLookup => "(one of too many names)".to_owned(),
            Detail::Connect(outcome) => outcome.detail(),
            Detail::Send => "send".to_owned(),
            Detail::Recv => "recv".to_owned(),
            Detail::Gil => "GIL".to_owned(),
            Detail::Setup { op, bytes_log2, pin_tenths } => {
                let bytes = bytes_log2.map_or(0, |log2| 1_u64.checked_shl(log2.into()).unwrap_or(0));
                rdma_setup::label(op, bytes, pin_tenths.map(|tenths| tenths.saturating_mul(10)))
            }
            Detail::HeldBy(tid) => match model.thread_names.get(&tid) {
                Some(name) => format!("held by {name}"),
                None => format!("held by thread {tid}"),
            },
        }
    }
}

pub(super) fn dns_wait(
    model: &Model,
    thread: u32,
    track: &ThreadTrack,
    wait: &WaitSpan,
    piece: &Piece,
) -> DnsWait {
    let info = model.sockets.get(piece.socket);
    DnsWait {
        wait: WaitId { thread, index: track.first.saturating_add(piece.wait) },
        pid: track.pid,
        tid: track.tid,
        start_ns: piece.span.start_ns,
        end_ns: piece.span.end_ns,
        weight_ns: piece.weight_ns,
        began_ns: wait.start_ns,
        server: model.names.shared(piece.peer),
        transport: info.map_or(Transport::Other, |info| info.transport),
        socket_ino: info.map_or(0, |info| info.ino),
        api: api_of(model, wait),
        api_start_ns: wait.api_start_ns,
        call: wait.call,
        ret: i64::from(wait.ret),
        in_flight: model.is_in_flight(track, wait, piece.span),
        began_earlier: model.began_earlier(track, wait, piece.span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sums::sums_of;
    use crate::model::fixture::{Trace, in_flight, readable, tcp, udp, unix, wait};
    use crate::trace::record::Wait;

    fn trace() -> Trace {
        let mut trace = Trace::new();
        let two = vec![readable(udp(5, "10.0.0.53:53")), readable(udp(6, "10.0.0.54:53"))];
        let lookup = Wait {
            api: Api::Getaddrinfo,
            api_start_ns: 880,
            user_stack: 11,
            kernel_stack: 12,
            ..in_flight(wait(Call::Poll, 900, 1990, two))
        };
        let service = wait(Call::Recvmsg, 1100, 1200, vec![unix("/run/nscd/socket")]);
        trace
            .wait(wait(Call::Read, 1000, 1100, vec![tcp(1, "10.0.1.1:80")]))
            .wait(Wait { ret: 64, tid: 99, ..service })
            .wait(Wait { tid: 101, ..lookup });
        trace
    }

    #[test]
    fn every_share_of_a_resolver_wait_is_told() {
        let model = trace().model();
        let waits = sums_of(&model).dns_waits;
        assert_eq!(waits.len(), 3);

        let service = &waits[0];
        assert_eq!((service.tid, service.transport, service.ret), (99, Transport::Unix, 64));
        assert_eq!(
            (&*service.server, service.weight_ns, service.in_flight),
            ("/run/nscd/socket", 100, false)
        );

        let [first, second] = [&waits[1], &waits[2]];
        assert_eq!(first.wait, second.wait);
        assert_eq!((first.socket_ino, &*first.server), (5, "10.0.0.53:53"));
        assert_eq!((second.socket_ino, &*second.server), (6, "10.0.0.54:53"));
        assert_eq!((first.start_ns, first.end_ns, first.began_ns, first.weight_ns), (1000, 1990, 900, 495));
        assert_eq!((first.api, first.api_start_ns, first.transport), (Api::Getaddrinfo, 880, Transport::Udp));
        assert!(first.in_flight && first.began_earlier);
    }

    #[test]
    fn labels_go_to_the_resolver_stalls_in_their_order() {
        let model = trace().model();
        let mut sums = sums_of(&model);
        let labels = vec!["a no answer".to_owned(), "b NXDOMAIN".to_owned()];
        let stalls: Vec<_> = sums.take_stalls(&model, labels).map(|(stall, _)| stall).collect();
        let told: Vec<(u32, Cause, &str)> =
            stalls.iter().map(|stall| (stall.tid, stall.cause, stall.detail.as_str())).collect();
        assert_eq!(
            told,
            [
                (99, Cause::DnsResolve, "a no answer"),
                (100, Cause::SockRecv, ""),
                (101, Cause::DnsResolve, "b NXDOMAIN"),
                (101, Cause::DnsResolve, ""),
            ]
        );
        let last = &stalls[3];
        assert_eq!(
            (last.user_stack, last.kernel_stack, last.api, last.call),
            (11, 12, "getaddrinfo", "poll")
        );
    }
}
