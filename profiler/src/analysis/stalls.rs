//! Turns the pieces of all threads into stalls with names, and those on a resolver into DNS waits.

use super::connects::Connects;
use super::dns_wait::{DnsWait, WaitId};
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

fn dns_wait(model: &Model, thread: u32, track: &ThreadTrack, wait: &WaitSpan, piece: &Piece) -> DnsWait {
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
        api: wait.api,
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
