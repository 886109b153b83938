//! Turns the pieces of all threads into stalls with names, and those on a resolver into DNS waits.

use super::connects::Connects;
use super::dns_wait::{DnsWait, WaitId, api_of};
use super::partition::{Piece, ThreadPartition};
use super::stall::Stall;
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::socket::Transport;
use crate::model::thread::ThreadTrack;
use crate::model::wait::{Interest, WaitSpan};

/// Waits on a resolver by thread and start: the order in which [`stalls`] takes their labels.
pub fn dns_waits(model: &Model, partitions: &[ThreadPartition]) -> Vec<DnsWait> {
    let mut waits = Vec::new();
    each(model, partitions, |thread, track, wait, piece| {
        if piece.cause == Cause::DnsResolve {
            waits.push(dns_wait(model, thread, track, wait, piece));
        }
    });
    waits
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
        wait: WaitId { thread, index: piece.wait },
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

/// All stalls by thread and start. `dns_labels` are what the lookups say of each DNS wait, in the order of
/// [`dns_waits`]; a missing one is empty.
pub fn stalls(
    model: &Model,
    partitions: &[ThreadPartition],
    connects: &Connects,
    dns_labels: Vec<String>,
) -> Vec<Stall> {
    let mut labels = dns_labels.into_iter();
    let mut stalls = Vec::with_capacity(partitions.iter().map(|partition| partition.pieces.len()).sum());
    each(model, partitions, |_, track, wait, piece| {
        let detail = match piece.cause {
            Cause::DnsResolve => labels.next().unwrap_or_default(),
            Cause::TcpConnect => connects.outcome(model, track, piece).detail(),
            Cause::TcpRetransmit if piece.interest == Interest::Write => "send".to_owned(),
            Cause::TcpRetransmit => "recv".to_owned(),
            Cause::Lock if model.python.gil.contains(&wait.user_stack) => "GIL".to_owned(),
            Cause::Lock => match model.thread_names.get(&wait.owner) {
                Some(name) => format!("held by {name}"),
                None => format!("held by thread {}", wait.owner),
            },
            _ => String::new(),
        };
        stalls.push(Stall {
            pid: track.pid,
            tid: track.tid,
            cause: piece.cause,
            peer: model.names.name(piece.peer).to_owned(),
            detail,
            start_ns: piece.span.start_ns,
            end_ns: piece.span.end_ns,
            weight_ns: piece.weight_ns,
            in_flight: model.is_in_flight(track, wait, piece.span),
            began_earlier: model.began_earlier(track, wait, piece.span),
            user_stack: wait.user_stack,
            kernel_stack: wait.kernel_stack,
            api: wait.api.symbol(),
            call: wait.call.name(),
        });
    });
    stalls
}

fn each<'m>(
    model: &'m Model,
    partitions: &'m [ThreadPartition],
    mut visit: impl FnMut(u32, &'m ThreadTrack, &'m WaitSpan, &'m Piece),
) {
    for ((thread, track), partition) in (0..).zip(&model.threads).zip(partitions) {
        for piece in &partition.pieces {
            if let Some(wait) = track.waits.get(piece.wait as usize) {
                visit(thread, track, wait, piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::{Api, Call};

    use super::*;
    use crate::analysis::context::Context;
    use crate::analysis::partition::partition;
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
        let context = Context::new(&model);
        let parts: Vec<_> = model.threads.iter().map(|track| partition(&context, track)).collect();
        let waits = dns_waits(&model, &parts);
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
        let context = Context::new(&model);
        let parts: Vec<_> = model.threads.iter().map(|track| partition(&context, track)).collect();
        let labels = vec!["a no answer".to_owned(), "b NXDOMAIN".to_owned()];
        let stalls = stalls(&model, &parts, &Connects::new(&model), labels);
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
