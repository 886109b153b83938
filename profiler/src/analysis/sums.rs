//! One pass over all waits, portion by portion and on several threads: what they add up to is kept, the waits are not.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};

use super::OnProgress;
use super::connects::{Connects, RowKey};
use super::context::Context;
use super::dns_rest::DnsRest;
use super::dns_wait::DnsWait;
use super::late::Collector;
use super::partition::{ThreadPartition, partition};
use super::report::{SocketRow, StallRow};
use super::sockets;
use super::stall::Stall;
use super::stalls::{self, Detail, StallKey};
use super::thread_rows::{self, Tallies, Tally};
use crate::hash::FastMap;
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::packed::Portion;
use crate::model::thread::ThreadTrack;
use crate::parallel::in_order;

/// What all waits of a recording add up to.
#[derive(Debug, Default)]
pub struct Sums {
    /// By thread, in the order of the model's; without their pieces.
    pub partitions: Vec<ThreadPartition>,
    pub causes: BTreeMap<Cause, Tally>,
    pub sockets: Vec<SocketRow>,
    /// By thread, cause and peer.
    pub rows: Vec<StallRow>,
    /// Stalled nanoseconds by row of the table of connection attempts.
    pub connects: BTreeMap<RowKey, u64>,
    /// Waits on resolvers, by thread and start.
    pub dns_waits: Vec<DnsWait>,
    /// Those that were too many.
    pub dns_rest: DnsRest,
    /// Waits that are in the trace twice.
    pub duplicates: u64,
    stalls: Vec<(StallKey, StallSum)>,
}

/// Stalls that differ in nothing that a view by stacks shows.
#[derive(Clone, Copy, Debug)]
struct StallSum {
    count: u64,
    weight_ns: u64,
    /// The longest of them, and of equally long ones the first.
    start_ns: u64,
    end_ns: u64,
    /// Its place among the stalls of its thread.
    place: u64,
}

/// What the waits of one portion add up to.
#[derive(Debug, Default)]
struct PortionSums {
    thread: usize,
    part: ThreadPartition,
    duplicates: u64,
    tallies: Tallies,
    connects: FastMap<RowKey, u64>,
    dns_waits: Vec<DnsWait>,
    /// In order; those on resolvers, which get names later, one by one.
    stalls: Vec<(StallKey, StallSum)>,
}

/// What the pass goes by.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'m> {
    pub model: &'m Model,
    pub context: &'m Context<'m>,
    pub connects: &'m Connects,
    /// Keeps all stalls apart.
    pub each: bool,
}

impl Pass<'_> {
    /// Adds up all waits. `progress` is told how many of the portions are done, and of how many.
    pub fn sum_up(self, late: &mut Collector<'_>, progress: OnProgress<'_>) -> Sums {
        let model = self.model;
        let partitions = vec![ThreadPartition::default(); model.threads.len()];
        let mut sums = Sums { partitions, ..Sums::default() };
        let mut open = OpenThread::default();
        // A thread without waits is there as well.
        model.threads.iter().for_each(|thread| late.take(model, &thread.track, &[]));
        let keeps_pieces = late.is_needed();
        let portions = model.portions();
        let (done, all) = (AtomicU64::new(0), portions.len() as u64);
        let work = |(thread, portion): (usize, Portion)| {
            let sums = self.of_portion(thread, &portion, keeps_pieces);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
            sums
        };
        in_order(portions.into_iter(), work, |portion| {
            if portion.thread != open.thread {
                std::mem::take(&mut open).close(self, &mut sums);
                open.thread = portion.thread;
            }
            if let Some(thread) = model.threads.get(portion.thread).filter(|_| keeps_pieces) {
                late.take(model, &thread.track, &portion.part.pieces);
            }
            sums.take(&mut open, portion, self.each, model.bounds.limits.dns_waits);
        });
        open.close(self, &mut sums);
        sums.sockets.sort_by(sockets::order);
        thread_rows::keep_worst(&mut sums.rows);
        sums
    }

    fn of_portion(self, thread: usize, portion: &Portion, keeps_pieces: bool) -> PortionSums {
        let model = self.model;
        let Some(stored) = model.threads.get(thread) else {
            return PortionSums { thread, ..PortionSums::default() };
        };
        let (track, duplicates) = model.portion(stored, portion);
        let mut part = partition(self.context, &track);
        let mut sums = PortionSums { thread, duplicates, ..PortionSums::default() };
        sums.tallies = Tallies::of(model, &track, &part.pieces);
        sums.take_stalls(self, thread, &track, &part);
        if !keeps_pieces {
            part.pieces = Vec::new();
        }
        sums.part = part;
        sums
    }
}

impl PortionSums {
    fn take_stalls(&mut self, pass: Pass<'_>, thread: usize, track: &ThreadTrack, part: &ThreadPartition) {
        let Pass { model, connects, each, .. } = pass;
        let mut places: FastMap<StallKey, usize> = FastMap::default();
        for (place, piece) in (0..).zip(&part.pieces) {
            let Some(wait) = track.waits.get(piece.wait as usize) else { continue };
            let key = stalls::key(model, connects, track, wait, piece);
            let (start_ns, end_ns) = (piece.span.start_ns, piece.span.end_ns);
            let sum = StallSum { count: 1, weight_ns: piece.weight_ns, start_ns, end_ns, place };
            if piece.cause == Cause::DnsResolve {
                let thread = u32::try_from(thread).unwrap_or(u32::MAX);
                self.dns_waits.push(stalls::dns_wait(model, thread, track, wait, piece));
            }
            if let Detail::Connect(outcome) = key.detail {
                let row = (piece.peer, outcome, track.pid, track.tid);
                let stalled_ns = self.connects.entry(row).or_default();
                *stalled_ns = stalled_ns.saturating_add(piece.weight_ns);
            }
            if each || piece.cause == Cause::DnsResolve {
                self.stalls.push((key, sum));
                continue;
            }
            match places.entry(key) {
                Entry::Vacant(new) => {
                    new.insert(self.stalls.len());
                    self.stalls.push((key, sum));
                }
                Entry::Occupied(known) => {
                    if let Some((_, all)) = self.stalls.get_mut(*known.get()) {
                        all.take_in(&sum);
                    }
                }
            }
        }
    }
}

impl StallSum {
    /// Takes in later ones.
    fn take_in(&mut self, later: &StallSum) {
        self.count += later.count;
        self.weight_ns = self.weight_ns.saturating_add(later.weight_ns);
        if later.end_ns.saturating_sub(later.start_ns) > self.end_ns.saturating_sub(self.start_ns) {
            (self.start_ns, self.end_ns, self.place) = (later.start_ns, later.end_ns, later.place);
        }
    }
}

/// What is added up of a thread until all its portions are there.
#[derive(Debug, Default)]
struct OpenThread {
    thread: usize,
    sockets: BTreeMap<(NameId, bool), Tally>,
    rows: BTreeMap<(Cause, NameId), Tally>,
    places: FastMap<StallKey, usize>,
    stalls: Vec<(StallKey, StallSum)>,
    /// Stalls before those of the next portion.
    stalls_before: u64,
}

impl OpenThread {
    fn close(mut self, pass: Pass<'_>, sums: &mut Sums) {
        let Pass { model, each, .. } = pass;
        if let Some(thread) = model.threads.get(self.thread) {
            sums.sockets.extend(sockets::rows(model, &thread.track, self.sockets));
            thread_rows::add_stall_rows(model, &thread.track, self.rows, &mut sums.rows);
        }
        if !each {
            // Where they are equally long, the one that came first counts as the longest.
            self.stalls.sort_by_key(|(_, sum)| sum.place);
        }
        sums.stalls.append(&mut self.stalls);
    }
}

impl Sums {
    fn take(&mut self, open: &mut OpenThread, portion: PortionSums, each: bool, dns_limit: usize) {
        if let Some(part) = self.partitions.get_mut(portion.thread) {
            part.stalled_ns += portion.part.stalled_ns;
            part.idle_ns += portion.part.idle_ns;
            part.spin_ns += portion.part.spin_ns;
        }
        self.duplicates += portion.duplicates;
        portion
            .tallies
            .causes
            .into_iter()
            .for_each(|(cause, tally)| self.causes.entry(cause).or_default().append(tally));
        for (row, stalled_ns) in portion.connects {
            let sum = self.connects.entry(row).or_default();
            *sum = sum.saturating_add(stalled_ns);
        }
        let mut told = self.dns_rest.divide(portion.dns_waits, &mut self.dns_waits, dns_limit).into_iter();
        portion
            .tallies
            .sockets
            .into_iter()
            .for_each(|(key, tally)| open.sockets.entry(key).or_default().append(tally));
        portion
            .tallies
            .stalls
            .into_iter()
            .for_each(|(key, tally)| open.rows.entry(key).or_default().append(tally));
        let mut count = 0;
        for (mut key, mut sum) in portion.stalls {
            count += sum.count;
            sum.place += open.stalls_before;
            let is_told = key.cause == Cause::DnsResolve && told.next().unwrap_or(true);
            if key.cause == Cause::DnsResolve && !is_told {
                key.detail = Detail::SomeLookup;
            }
            if each || is_told {
                open.stalls.push((key, sum));
                continue;
            }
            match open.places.entry(key) {
                Entry::Vacant(new) => {
                    new.insert(open.stalls.len());
                    open.stalls.push((key, sum));
                }
                Entry::Occupied(known) => {
                    if let Some((_, all)) = open.stalls.get_mut(*known.get()) {
                        all.take_in(&sum);
                    }
                }
            }
        }
        open.stalls_before += count;
    }

    /// The stalls with names, and how many each stands for. `dns_labels` are what the lookups say of each of
    /// `dns_waits`, in the same order; a missing one is empty.
    pub fn take_stalls<'m>(
        &mut self,
        model: &'m Model,
        dns_labels: Vec<String>,
    ) -> impl Iterator<Item = (Stall, u64)> + use<'m> {
        let mut labels = dns_labels.into_iter();
        std::mem::take(&mut self.stalls).into_iter().map(move |(key, sum)| {
            let detail = match key.detail {
                Detail::Lookup => labels.next().unwrap_or_default(),
                other => other.text(model),
            };
            let stall = Stall {
                pid: key.pid,
                tid: key.tid,
                cause: key.cause,
                peer: model.names.name(key.peer).to_owned(),
                detail,
                start_ns: sum.start_ns,
                end_ns: sum.end_ns,
                weight_ns: sum.weight_ns,
                in_flight: key.in_flight,
                began_earlier: key.began_earlier,
                user_stack: key.user_stack,
                kernel_stack: key.kernel_stack,
                api: key.api.symbol(),
                call: key.call.name(),
            };
            (stall, sum.count)
        })
    }
}

/// The sums of a model, with all stalls apart.
#[cfg(test)]
pub(super) fn sums_of(model: &Model) -> Sums {
    let (context, connects) = (Context::new(model), Connects::new(model));
    let ends = super::far_end::FarEnds::new(model);
    let pass = Pass { model, context: &context, connects: &connects, each: true };
    pass.sum_up(&mut Collector::new(&ends, model.whole()), &|_, _| ())
}

#[cfg(test)]
mod tests;
