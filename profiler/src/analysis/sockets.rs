//! The table of waits on connected peers.

use std::collections::BTreeMap;

use super::partition::{Piece, ThreadPartition};
use super::report::{Distribution, SocketRow};
use super::thread_rows::tally;
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::wait::Interest;

/// Rows by peer, direction and thread, the largest first. A wait in which segments were retransmitted is a
/// wait on that peer too, so the rows add up to `sock.recv`, `sock.send` and `tcp.retransmit`.
pub fn socket_rows(model: &Model, partitions: &[ThreadPartition]) -> Vec<SocketRow> {
    let mut rows = Vec::new();
    for (track, partition) in model.threads.iter().zip(partitions) {
        let mut tallies = BTreeMap::new();
        tally(model, track, &partition.pieces, key, &mut tallies);
        for ((peer, writes), tally) in tallies {
            rows.push(SocketRow {
                peer: model.names.name(peer).to_owned(),
                direction: if writes { "send" } else { "recv" }.to_owned(),
                waits: tally.waits,
                stalled_ns: tally.stalled_ns,
                in_flight: tally.in_flight,
                duration: Distribution::of(tally.durations),
                pid: track.pid,
                tid: track.tid,
                polls: tally.polls,
            });
        }
    }
    rows.sort_by(|a, b| {
        b.stalled_ns
            .cmp(&a.stalled_ns)
            .then_with(|| (&a.peer, &a.direction, a.pid, a.tid).cmp(&(&b.peer, &b.direction, b.pid, b.tid)))
    });
    rows
}

fn key(piece: &Piece) -> Option<(NameId, bool)> {
    matches!(piece.cause, Cause::SockRecv | Cause::SockSend | Cause::TcpRetransmit)
        .then_some((piece.peer, piece.interest == Interest::Write))
}
