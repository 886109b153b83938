//! From the waits of a recording to its [`Profile`], thread by thread and piece by piece, so that no more of them
//! are in memory than are handed over at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use profiler_common::{Api, Call};

use super::profile::{Profile, Repeat, SocketWaits};
use super::series::{Durations, Places, SLICES, Series, slice_of, spread};
use crate::analysis::Analysis;
use crate::analysis::connects::Connects;
use crate::analysis::dns;
use crate::analysis::dns_wait::DnsWait;
use crate::analysis::hops;
use crate::analysis::partition::{Piece, ThreadPartition, clipped};
use crate::analysis::report::TraceState;
use crate::analysis::sockets;
use crate::analysis::stall::Stall;
use crate::analysis::stalls;
use crate::analysis::thread_rows::{cpu_times, for_each_wait};
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::intern::{Interner, NameId};
use crate::model::thread::{Interval, ThreadTrack};
use crate::model::wait::{Interest, WaitSpan, is_poll};

/// Call sites with their causes and peers that are told apart.
const SITES_MAX: usize = 1 << 17;
/// Call sites whose waits are counted by slice.
const REPEATS_MAX: usize = 1 << 13;
/// Peers whose waits are looked at one by one.
const SOCKETS_MAX: usize = 1 << 12;
/// Waits on resolvers that get the name of what was looked up.
const DNS_WAITS_MAX: usize = 1 << 17;

/// What tells the stalls of a recording apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Site {
    pid: u32,
    tid: u32,
    cause: Cause,
    peer: NameId,
    /// In [`Reducer::details`].
    detail: NameId,
    user_stack: u64,
    api: Api,
    call: Call,
}

/// Waits at one site.
#[derive(Debug)]
struct Counts {
    series: Box<Series>,
    /// When the last one ended.
    last_ns: u64,
}

/// Takes the partitioned waits of one recording.
#[derive(Debug, Default)]
pub struct Reducer {
    sites: HashMap<Site, u64>,
    details: Interner,
    /// By [`Site`] without its cause.
    repeats: HashMap<Site, Counts>,
    causes: BTreeMap<Cause, Series>,
    /// By peer and whether it is sent to.
    sockets: BTreeMap<(NameId, bool), Durations>,
    places: Places,
    dns_waits: Vec<(DnsWait, Site)>,
    dns_ids: HashMap<(u32, u32, u64, Call), u32>,
    stalled_ns: u64,
    merged_waits: u64,
}

impl Reducer {
    /// Takes in what one thread waited for. The waits of a thread may come in several portions, in order of time.
    pub fn take(&mut self, model: &Model, connects: &Connects, track: &ThreadTrack, part: &ThreadPartition) {
        let window = model.whole();
        let mut counted = vec![false; track.waits.len()];
        for piece in &part.pieces {
            let Some(wait) = track.waits.get(piece.wait as usize) else { continue };
            let span = clipped(track, wait);
            self.weigh(window, piece);
            let site = self.site(model, connects, track, wait, piece);
            if piece.cause == Cause::DnsResolve && self.dns_waits.len() < DNS_WAITS_MAX {
                let mut told = stalls::dns_wait(model, 0, track, wait, piece);
                told.wait.index = self.dns_id(track, wait);
                self.dns_waits.push((told, site));
            } else {
                self.add(site, piece.weight_ns);
            }
            let was_counted =
                counted.get_mut(piece.wait as usize).is_none_or(|known| std::mem::replace(known, true));
            if !was_counted && came_to_an_end(model, track, wait) {
                self.count(window, site, span);
            }
        }
        self.take_sockets(model, track, &part.pieces);
    }

    /// Adds a piece to its cause's course over time.
    fn weigh(&mut self, window: Interval, piece: &Piece) {
        self.stalled_ns = self.stalled_ns.saturating_add(piece.weight_ns);
        let series = self.causes.entry(piece.cause).or_insert([0.0; SLICES]);
        spread(series, window, piece.span, piece.weight_ns as f64);
    }

    fn site(
        &mut self,
        model: &Model,
        connects: &Connects,
        track: &ThreadTrack,
        wait: &WaitSpan,
        piece: &Piece,
    ) -> Site {
        let detail = match piece.cause {
            Cause::TcpConnect => self.details.intern(&connects.outcome(model, track, piece).detail()),
            Cause::TcpRetransmit if piece.interest == Interest::Write => self.details.intern("send"),
            Cause::TcpRetransmit => self.details.intern("recv"),
            _ => NameId::default(),
        };
        Site {
            pid: track.pid,
            tid: track.tid,
            cause: piece.cause,
            peer: piece.peer,
            detail,
            user_stack: wait.user_stack,
            api: wait.api,
            call: wait.call,
        }
    }

    /// A number that all pieces of a wait have in common, and no other wait.
    fn dns_id(&mut self, track: &ThreadTrack, wait: &WaitSpan) -> u32 {
        let next = u32::try_from(self.dns_ids.len()).unwrap_or(u32::MAX);
        *self.dns_ids.entry((track.pid, track.tid, wait.start_ns, wait.call)).or_insert(next)
    }

    fn add(&mut self, site: Site, weight_ns: u64) {
        let is_full = self.sites.len() >= SITES_MAX;
        let site = if is_full && !self.sites.contains_key(&site) {
            self.merged_waits += 1;
            Site { user_stack: 0, peer: NameId::default(), detail: NameId::default(), ..site }
        } else {
            site
        };
        let weight = self.sites.entry(site).or_default();
        *weight = weight.saturating_add(weight_ns);
    }

    fn count(&mut self, window: Interval, site: Site, wait: Interval) {
        let site = Site { cause: Cause::Other, detail: NameId::default(), ..site };
        let is_full = self.repeats.len() >= REPEATS_MAX;
        if is_full && !self.repeats.contains_key(&site) {
            return;
        }
        let first = || Counts { series: Box::new([0.0; SLICES]), last_ns: wait.start_ns };
        let counts = self.repeats.entry(site).or_insert_with(first);
        let turn = Interval { start_ns: counts.last_ns.min(wait.end_ns), end_ns: wait.end_ns };
        spread(&mut counts.series, window, turn, 1.0);
        counts.last_ns = wait.end_ns;
    }

    /// Waits on peers as the report's table of sockets counts them: one for each peer that had a part of it, with
    /// its whole duration.
    fn take_sockets(&mut self, model: &Model, track: &ThreadTrack, pieces: &[Piece]) {
        let window = model.whole();
        let Reducer { sockets: found, places, .. } = self;
        for_each_wait(model, track, pieces, sockets::key, |key, wait, _, is_whole| {
            if is_whole && (found.len() < SOCKETS_MAX || found.contains_key(&key)) {
                let span = clipped(track, wait);
                let slice = slice_of(window, span.end_ns.saturating_sub(1));
                found.entry(key).or_default().add(slice, span.len(), places);
            }
        });
    }

    /// What it all comes to. `model` may lack the waits that were taken in; `state` is what the reader said.
    pub fn finish(mut self, model: Model, state: TraceState) -> Profile {
        self.label_dns_waits(&model);
        let mut sites: Vec<(Site, u64)> = self.sites.iter().map(|(site, weight)| (*site, *weight)).collect();
        sites.sort_unstable();
        let sites = sites.into_iter().map(|(site, weight)| self.stall(&model, &site, weight)).collect();
        let mut repeats: Vec<(Site, Counts)> = std::mem::take(&mut self.repeats).into_iter().collect();
        repeats.sort_unstable_by_key(|(site, _)| *site);
        let repeat = |(site, counts): (Site, Counts)| Repeat {
            site: self.stall(&model, &site, 0),
            counts: counts.series,
        };
        let repeats = repeats.into_iter().map(repeat).collect();
        let sockets = self.sockets.into_iter().map(|((peer, writes), durations)| SocketWaits {
            peer: model.names.name(peer).to_owned(),
            direction: if writes { "send" } else { "recv" },
            durations,
        });
        let threads = model.threads.iter().map(|thread| &thread.track);
        Profile {
            duration_ns: model.whole().len(),
            stalled_ns: self.stalled_ns,
            state,
            lost_events: model.lost_events(),
            environment: environment(&model),
            causes: self.causes,
            sockets: sockets.collect(),
            hops: round_trips(&model, &mut self.places),
            sites,
            repeats,
            running: threads.map(|track| ((track.pid, track.tid), cpu_times(track).0)).collect(),
            merged_waits: self.merged_waits,
            names: Analysis {
                processes: model.processes.into_iter().map(|(pid, process)| (pid, process.comm)).collect(),
                stacks: model.stacks,
                threads: model.thread_names,
                ..Analysis::default()
            },
        }
    }

    /// Names what the waits on resolvers were for, which takes all of them together.
    fn label_dns_waits(&mut self, model: &Model) {
        let mut told = std::mem::take(&mut self.dns_waits);
        told.sort_by_key(|(wait, _)| (wait.pid, wait.tid, wait.start_ns));
        let (waits, sites): (Vec<DnsWait>, Vec<Site>) = told.into_iter().unzip();
        let labels = dns::rows(&model.dns_messages, &model.api_calls, &waits, model.window).labels;
        let labels = labels.iter().map(String::as_str).chain(std::iter::repeat(""));
        for ((wait, site), label) in waits.iter().zip(sites).zip(labels) {
            let detail = self.details.intern(label);
            self.add(Site { detail, ..site }, wait.weight_ns);
        }
    }

    /// A stall that stands for all of a site. Whether some of it was in flight when a recording stopped is
    /// chance, and not told.
    fn stall(&self, model: &Model, site: &Site, weight_ns: u64) -> Stall {
        Stall {
            pid: site.pid,
            tid: site.tid,
            cause: site.cause,
            peer: model.names.name(site.peer).to_owned(),
            detail: self.details.name(site.detail).to_owned(),
            start_ns: 0,
            end_ns: 0,
            weight_ns,
            in_flight: false,
            began_earlier: false,
            user_stack: site.user_stack,
            kernel_stack: 0,
            api: site.api.symbol(),
            call: site.call.name(),
        }
    }
}

/// Whether what was waited for came. A poll that timed out recurs by the clock, not by the work.
fn came_to_an_end(model: &Model, track: &ThreadTrack, wait: &WaitSpan) -> bool {
    let span = clipped(track, wait);
    let timed_out = is_poll(wait.call) && wait.ret == 0;
    !timed_out && !model.is_in_flight(track, wait, span)
}

/// The environment's values by name, with what the machine is.
fn environment(model: &Model) -> BTreeMap<String, BTreeSet<String>> {
    let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in &model.environment {
        values.entry(entry.what.clone()).or_default().insert(entry.value.clone());
    }
    let host = &model.host;
    let cpus = if host.cpus == 0 { String::new() } else { host.cpus.to_string() };
    let probes =
        model.coverage.iter().map(|probe| (format!("probes.{}", probe.family), format!("{:?}", probe.state)));
    let fixed = [
        ("host.name", host.name.clone()),
        ("host.kernel", host.kernel.clone()),
        ("host.arch", host.arch.clone()),
        ("host.cpus", cpus),
        ("stallscope", host.recorder.clone()),
        ("min_stall_ns", model.window.min_stall_ns.to_string()),
    ];
    let fixed = fixed.into_iter().map(|(what, value)| (what.to_owned(), value));
    for (what, value) in fixed.chain(probes.map(|(what, state)| (what, state.to_lowercase()))) {
        if !value.is_empty() {
            values.entry(what).or_default().insert(value);
        }
    }
    values
}

fn round_trips(model: &Model, places: &mut Places) -> BTreeMap<String, Durations> {
    let window = model.whole();
    let mut hops: BTreeMap<String, Durations> = BTreeMap::new();
    for sample in &model.samples {
        let Some(peer) = hops::sampled_peer(sample).filter(|_| sample.rtt_ns != 0) else { continue };
        let slice = slice_of(window, sample.time_ns);
        hops.entry(peer.to_string()).or_default().add(slice, sample.rtt_ns, places);
    }
    hops
}
