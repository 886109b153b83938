//! From the waits of a recording to its [`Profile`], thread by thread and piece by piece, so that no more of them
//! are in memory than are handed over at a time.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use profiler_common::{Api, Call};

use super::course::Course;
use super::environment::PROGRAM;
use super::portion::{self, Portion, SiteSum};
use super::profile::{Profile, Repeat, SocketWaits};
use super::series::{Durations, Places, SLICES, Series};
use crate::analysis::Analysis;
use crate::analysis::dns;
use crate::analysis::dns_wait::DnsWait;
use crate::analysis::hops;
use crate::analysis::report::TraceState;
use crate::analysis::stall::Stall;
use crate::analysis::stalls::Detail;
use crate::analysis::thread_rows::cpu_times;
use crate::hash::FastMap;
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::intern::{Interner, NameId};
use crate::model::thread::Interval;
use crate::trace::record::Process;

/// Call sites with their causes and peers that are told apart.
const SITES_MAX: usize = 1 << 17;
/// Call sites whose waits are counted by slice.
const REPEATS_MAX: usize = 1 << 13;
/// Peers whose waits are looked at one by one.
const SOCKETS_MAX: usize = 1 << 12;
/// Waits on resolvers that get the name of what was looked up.
const DNS_WAITS_MAX: usize = 1 << 17;

/// What tells the stalls of a recording apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

impl Hash for Site {
    /// Two numbers in place of eight: there are millions of waits.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.user_stack ^ u64::from(self.detail.0).rotate_left(48));
        let what = (self.cause as u64) << 8 | self.call as u64;
        state.write_u64(u64::from(self.peer.0) << 32 ^ u64::from(self.tid) << 12 ^ what);
    }
}

/// Waits at one site.
#[derive(Debug)]
struct Counts {
    series: Box<Series>,
    /// When the last one ended.
    last_ns: Option<u64>,
}

/// Takes the partitioned waits of one recording.
#[derive(Debug, Default)]
pub struct Reducer {
    /// How the recording is cut into slices.
    course: Course,
    sites: FastMap<Site, u64>,
    details: Interner,
    /// By [`Site`] without its cause.
    repeats: FastMap<Site, Counts>,
    causes: BTreeMap<Cause, Series>,
    /// By peer and whether it is sent to.
    sockets: FastMap<(NameId, bool), Durations>,
    places: Places,
    dns_waits: Vec<(DnsWait, Site)>,
    dns_ids: FastMap<(u32, u32, u64, Call), u32>,
    stalled_ns: u64,
    merged_waits: u64,
}

impl Reducer {
    pub fn new(course: Course) -> Reducer {
        Reducer { course, ..Reducer::default() }
    }

    /// Takes in what one thread waited for. The waits of a thread may come in several portions, in order of time.
    pub fn take(&mut self, model: &Model, portion: &Portion) {
        self.stalled_ns = self.stalled_ns.saturating_add(portion.stalled_ns);
        for (cause, series) in &portion.causes {
            let sums = self.causes.entry(*cause).or_insert([0.0; SLICES]);
            sums.iter_mut().zip(series).for_each(|(sum, part)| *sum += part);
        }
        for (told, site) in &portion.dns_waits {
            let site = self.site(model, portion, site);
            if self.dns_waits.len() < DNS_WAITS_MAX {
                let mut told = told.clone();
                told.wait.index = self.dns_id(&told);
                self.dns_waits.push((told, site));
            } else {
                self.add(site, 1, told.weight_ns);
            }
        }
        for SiteSum { site, pieces, weight_ns } in &portion.sites {
            let site = self.site(model, portion, site);
            self.add(site, *pieces, *weight_ns);
        }
        self.count(model, portion);
        for (key, slice, duration_ns) in &portion.sockets {
            let is_full = self.sockets.len() >= SOCKETS_MAX;
            let durations = match self.sockets.entry(*key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(_) if is_full => continue,
                Entry::Vacant(new) => new.insert(Durations::default()),
            };
            durations.add(*slice, *duration_ns, &mut self.places);
        }
    }

    fn site(&mut self, model: &Model, portion: &Portion, site: &portion::Site) -> Site {
        let portion::Site { cause, peer, detail, user_stack, api, call } = *site;
        let detail = match detail {
            Detail::None => NameId::default(),
            told => self.details.intern(&told.text(model)),
        };
        Site { pid: portion.pid, tid: portion.tid, cause, peer, detail, user_stack, api, call }
    }

    /// A number that all pieces of a wait have in common, and no other wait.
    fn dns_id(&mut self, wait: &DnsWait) -> u32 {
        let next = u32::try_from(self.dns_ids.len()).unwrap_or(u32::MAX);
        *self.dns_ids.entry((wait.pid, wait.tid, wait.began_ns, wait.call)).or_insert(next)
    }

    fn add(&mut self, site: Site, pieces: u64, weight_ns: u64) {
        let is_full = self.sites.len() >= SITES_MAX;
        let site = if is_full && !self.sites.contains_key(&site) {
            self.merged_waits += pieces;
            Site { user_stack: 0, peer: NameId::default(), detail: NameId::default(), ..site }
        } else {
            site
        };
        let weight = self.sites.entry(site).or_default();
        *weight = weight.saturating_add(weight_ns);
    }

    fn count(&mut self, model: &Model, portion: &Portion) {
        let mut known: Vec<Option<(Site, Counts)>> = Vec::with_capacity(portion.recurring.len());
        let mut new = self.repeats.len();
        for site in &portion.recurring {
            let site = self.site(model, portion, site);
            // Taken out for as long as the portion lasts, so that nothing is looked up for a wait.
            let counts = self.repeats.remove(&site).or_else(|| {
                let first = Counts { series: Box::new([0.0; SLICES]), last_ns: None };
                (new < REPEATS_MAX).then(|| {
                    new += 1;
                    first
                })
            });
            known.push(counts.map(|counts| (site, counts)));
        }
        for (at, wait) in &portion.counted {
            let Some(Some((_, counts))) = known.get_mut(*at as usize) else { continue };
            let last_ns = counts.last_ns.unwrap_or(wait.start_ns);
            let turn = Interval { start_ns: last_ns.min(wait.end_ns), end_ns: wait.end_ns };
            self.course.spread(&mut counts.series, turn, 1.0);
            counts.last_ns = Some(wait.end_ns);
        }
        self.repeats.extend(known.into_iter().flatten());
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
        let mut sockets: Vec<_> = self.sockets.into_iter().collect();
        sockets.sort_unstable_by_key(|(key, _)| *key);
        let sockets = sockets.into_iter().map(|((peer, writes), mut durations)| {
            durations.finish(&mut self.places);
            let direction = if writes { "send" } else { "recv" };
            SocketWaits { peer: model.names.name(peer).to_owned(), direction, durations }
        });
        let sockets = sockets.collect();
        let hops = round_trips(&model, &self.course, &mut self.places);
        let threads = model.threads.iter().map(|thread| &thread.track);
        Profile {
            duration_ns: model.whole().len(),
            iterations: self.course.iterations(&model.marker),
            stalled_ns: self.stalled_ns,
            state,
            lost_events: model.lost_events(),
            environment: environment(&model),
            causes: self.causes,
            sockets,
            hops,
            course: self.course,
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
        let labels = dns::rows(&model.dns_messages, &model.api_calls, &waits, model.dns_window()).labels;
        let labels = labels.iter().map(String::as_str).chain(std::iter::repeat(""));
        for ((wait, site), label) in waits.iter().zip(sites).zip(labels) {
            let detail = self.details.intern(label);
            self.add(Site { detail, ..site }, 1, wait.weight_ns);
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
    values.extend(Some((PROGRAM.to_owned(), programs(model))).filter(|(_, names)| !names.is_empty()));
    let fixed = fixed.into_iter().map(|(what, value)| (what.to_owned(), value));
    for (what, value) in fixed.chain(probes.map(|(what, state)| (what, state.to_lowercase()))) {
        if !value.is_empty() {
            values.entry(what).or_default().insert(value);
        }
    }
    values
}

/// File names of the programs that the user asked for; of all that were recorded where that is not known.
fn programs(model: &Model) -> BTreeSet<String> {
    let any_asked_for = model.processes.values().any(|process| process.asked_for);
    let of = model.processes.values().filter(|process| process.asked_for || !any_asked_for);
    let name = |process: &Process| {
        let file = process.exe.rsplit('/').next().unwrap_or_default();
        if file.is_empty() { process.comm.clone() } else { file.to_owned() }
    };
    of.map(name).filter(|name| !name.is_empty()).collect()
}

fn round_trips(model: &Model, course: &Course, places: &mut Places) -> BTreeMap<String, Durations> {
    let mut hops: BTreeMap<String, Durations> = BTreeMap::new();
    for sample in &model.samples {
        let Some(peer) = hops::sampled_peer(sample).filter(|_| sample.rtt_ns != 0) else { continue };
        let slice = course.slice_of(sample.time_ns);
        hops.entry(peer.to_string()).or_default().add(
            u8::try_from(slice).unwrap_or(u8::MAX),
            sample.rtt_ns,
            places,
        );
    }
    for durations in hops.values_mut() {
        durations.finish(places);
    }
    hops
}
