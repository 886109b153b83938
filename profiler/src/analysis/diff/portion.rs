//! What a [`Reducer`](super::reduce::Reducer) takes in of one portion of a thread's waits, made on another thread:
//! whatever needs no more than the portion.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use profiler_common::{Api, Call};

use super::course::Course;
use super::series::{SLICES, Series};
use crate::analysis::connects::Connects;
use crate::analysis::dns_wait::DnsWait;
use crate::analysis::partition::{Piece, ThreadPartition, clipped};
use crate::analysis::sockets;
use crate::analysis::stalls::{self, Detail};
use crate::analysis::thread_rows::for_each_wait;
use crate::hash::FastMap;
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::thread::{Interval, ThreadTrack};
use crate::model::wait::{WaitSpan, is_poll};

/// What tells the stalls of a thread apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) cause: Cause,
    pub(super) peer: NameId,
    pub(super) detail: Detail,
    pub(super) user_stack: u64,
    pub(super) api: Api,
    pub(super) call: Call,
}

impl Hash for Site {
    /// What nearly always tells sites apart, in two numbers: there are millions of waits.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.user_stack);
        state.write_u64(u64::from(self.peer.0) << 32 | (self.cause as u64) << 16 | self.call as u64);
    }
}

/// The pieces of one site.
#[derive(Clone, Copy, Debug)]
pub(super) struct SiteSum {
    pub(super) site: Site,
    pub(super) pieces: u64,
    pub(super) weight_ns: u64,
}

#[derive(Debug, Default)]
pub struct Portion {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) stalled_ns: u64,
    /// By cause and slice.
    pub(super) causes: BTreeMap<Cause, Series>,
    /// In the order in which they were first seen, without those of `dns_waits`.
    pub(super) sites: Vec<SiteSum>,
    /// Waits that came to an end, in order, with the index of their site in `recurring`.
    pub(super) counted: Vec<(u32, Interval)>,
    pub(super) recurring: Vec<Site>,
    /// Waits on resolvers, and when each began.
    pub(super) dns_waits: Vec<(DnsWait, Site)>,
    /// Whole waits on peers: slice and duration.
    pub(super) sockets: Vec<((NameId, bool), u8, u64)>,
}

impl Portion {
    pub(super) fn of(
        model: &Model,
        course: &Course,
        connects: &Connects,
        track: &ThreadTrack,
        part: &ThreadPartition,
    ) -> Portion {
        let mut portion = Portion { pid: track.pid, tid: track.tid, ..Portion::default() };
        let mut counted = vec![false; track.waits.len()];
        let (mut sites, mut recurring) = (FastMap::default(), FastMap::default());
        for piece in &part.pieces {
            let Some(wait) = track.waits.get(piece.wait as usize) else { continue };
            let site = site(model, connects, track, wait, piece);
            if piece.cause == Cause::DnsResolve {
                portion.dns_waits.push((stalls::dns_wait(model, 0, track, wait, piece), site));
            } else {
                let at = *sites.entry(site).or_insert_with(|| {
                    portion.sites.push(SiteSum { site, pieces: 0, weight_ns: 0 });
                    portion.sites.len() - 1
                });
                if let Some(sum) = portion.sites.get_mut(at) {
                    sum.pieces += 1;
                    sum.weight_ns = sum.weight_ns.saturating_add(piece.weight_ns);
                }
            }
            let was_counted =
                counted.get_mut(piece.wait as usize).is_none_or(|known| std::mem::replace(known, true));
            if !was_counted && came_to_an_end(model, track, wait) {
                let site = Site { cause: Cause::Other, detail: Detail::None, ..site };
                let at = *recurring.entry(site).or_insert_with(|| {
                    portion.recurring.push(site);
                    portion.recurring.len() as u32 - 1
                });
                portion.counted.push((at, clipped(track, wait)));
            }
        }
        portion.weigh(course, &part.pieces);
        portion.take_sockets(model, course, track, &part.pieces);
        portion
    }

    /// Adds the pieces to their causes' course over time.
    fn weigh(&mut self, course: &Course, pieces: &[Piece]) {
        for group in pieces.chunk_by(|a, b| a.cause == b.cause) {
            let Some(cause) = group.first().map(|piece| piece.cause) else { continue };
            let series = self.causes.entry(cause).or_insert([0.0; SLICES]);
            for piece in group {
                self.stalled_ns = self.stalled_ns.saturating_add(piece.weight_ns);
                course.spread(series, piece.span, piece.weight_ns as f64);
            }
        }
    }

    /// Waits on peers as the report's table of sockets counts them: one for each peer that had a part of it, with
    /// its whole duration.
    fn take_sockets(&mut self, model: &Model, course: &Course, track: &ThreadTrack, pieces: &[Piece]) {
        for_each_wait(model, track, pieces, sockets::key, |key, wait, _, is_whole| {
            if is_whole {
                let span = clipped(track, wait);
                let slice = course.slice_of(span.end_ns.saturating_sub(1));
                self.sockets.push((key, u8::try_from(slice).unwrap_or(u8::MAX), span.len()));
            }
        });
    }
}

fn site(model: &Model, connects: &Connects, track: &ThreadTrack, wait: &WaitSpan, piece: &Piece) -> Site {
    let detail = match piece.cause {
        Cause::TcpConnect | Cause::TcpRetransmit => stalls::detail(model, connects, track, wait, piece),
        _ => Detail::None,
    };
    Site {
        cause: piece.cause,
        peer: piece.peer,
        detail,
        user_stack: wait.user_stack,
        api: wait.api,
        call: wait.call,
    }
}

/// Whether what was waited for came. A poll that timed out recurs by the clock, not by the work.
fn came_to_an_end(model: &Model, track: &ThreadTrack, wait: &WaitSpan) -> bool {
    let span = clipped(track, wait);
    let timed_out = is_poll(wait.call) && wait.ret == 0;
    !timed_out && !model.is_in_flight(track, wait, span)
}
