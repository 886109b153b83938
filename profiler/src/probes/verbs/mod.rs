//! Probes on a provider's `post_send` and what else makes requests, where its `poll_cq` has found a completion or returns, and on
//! what sets up devices and queue pairs.

use std::num::NonZeroU32;

use aya::Ebpf;
use aya::maps::{Array, PerCpuArray};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLinkId, UProbeScope};
use aya::programs::{ProgramError, UProbe};
use profiler_common::verbs::PROVIDERS;

use super::error::one_line;
use super::event::{Event, QueueImage};
use crate::target::verbs::library::Library;
use crate::target::verbs::{Completions, Functions, Maker, MakerRole, Place};

pub(super) mod decode;
mod learn;

const POST: &str = "verbs_post";
const COMPLETE: &str = "verbs_complete";
const POLL: &str = "verbs_poll";
const POLLED: &str = "verbs_polled";
const POLL_RETURN: &str = "verbs_poll_ret";
const BEGIN: &str = "verbs_wr";
const SIZE: &str = "verbs_wr_size";
const END: &str = "verbs_wr_end";
const SETUP: &str = "verbs_setup";
/// All of them; that of the set-up aside they come and go together.
const PROGRAMS: [&str; 9] = [POST, COMPLETE, POLL, POLLED, POLL_RETURN, BEGIN, SIZE, END, SETUP];
/// Traps of which no record tells, counted by the programs.
const TRAPS: &str = "VERBS_TRAPS";
/// Probes of one recording, at most.
const POINTS_MAX: usize = 4096;

/// One probe of one process.
#[derive(Debug)]
struct Point {
    program: &'static str,
    pid: u32,
    /// Its file is held open: the probe sits on it.
    place: Place,
    offset: u64,
    cookie: u64,
    /// While it is attached.
    link: Option<UProbeLinkId>,
}

/// What is attached, or was and will be again.
#[derive(Debug, Default)]
pub(super) struct VerbsProbes {
    points: Vec<Point>,
    learner: learn::Learner,
}

impl VerbsProbes {
    /// The completions' place first: a completion whose post was not seen is told apart, the reverse is not.
    /// They are attached in any case, so that what does not work is known at once.
    pub(super) fn attach(
        &mut self,
        ebpf: &mut Ebpf,
        pid: u32,
        functions: &Functions,
        now: bool,
    ) -> Result<(), String> {
        let cookie: u64 = self.provider(&functions.post_send)?.into();
        let (poll, post) = (&functions.poll_cq, &functions.post_send);
        let point = |program, place: &Place, at: u64, cookie| {
            let offset = place.offset.checked_add(at).ok_or("an offset beyond the file")?;
            Ok::<Point, String>(Point { program, pid, place: place.clone(), offset, cookie, link: None })
        };
        let mut points = match &functions.completion {
            Completions::Found(found) => vec![point(COMPLETE, poll, found.offset, found.register.into())?],
            Completions::Returns(returns) => {
                let returns = returns.iter().map(|at| point(POLLED, poll, *at, 0));
                returns.chain([point(POLL, poll, 0, 0)]).collect::<Result<_, _>>()?
            }
            Completions::Return(reason) => {
                log::debug!("{}: {reason}: a return probe", poll.path_in_target);
                vec![point(POLL_RETURN, poll, 0, 0)?, point(POLL, poll, 0, 0)?]
            }
        };
        points.push(point(POST, post, 0, cookie)?);
        self.add(ebpf, points, now)
    }

    /// Watches requests that are made through the extended interface.
    pub(super) fn attach_makers(
        &mut self,
        ebpf: &mut Ebpf,
        pid: u32,
        makers: &[Maker],
        now: bool,
    ) -> Result<(), String> {
        let mut points = Vec::new();
        for maker in makers {
            let (program, cookie) = match maker.role {
                MakerRole::Begin(operation) => {
                    let provider = self.learner.provider_of(maker.place.file_id).unwrap_or(PROVIDERS);
                    (BEGIN, u64::from(provider) << 8 | u64::from(operation))
                }
                MakerRole::Size(which) => (SIZE, which),
                MakerRole::End(how) => (END, how),
            };
            let (place, offset) = (maker.place.clone(), maker.place.offset);
            points.push(Point { program, pid, place, offset, cookie, link: None });
        }
        // What ends a request comes first: one that is begun is then recorded.
        points
            .sort_by_key(|point| std::cmp::Reverse(PROGRAMS.iter().position(|name| *name == point.program)));
        self.add(ebpf, points, now)
    }

    fn add(&mut self, ebpf: &mut Ebpf, mut points: Vec<Point>, now: bool) -> Result<(), String> {
        if self.points.len() + points.len() > POINTS_MAX {
            return Err(format!("more than {POINTS_MAX} places to watch"));
        }
        let attached = points.iter_mut().try_for_each(|point| attach(ebpf, point));
        if attached.is_err() || !now {
            points.iter_mut().rev().for_each(|point| detach(ebpf, point));
        }
        attached?;
        self.points.extend(points);
        Ok(())
    }

    /// Tells of what is set up through this library, by whichever process.
    pub(super) fn attach_setup(ebpf: &mut Ebpf, library: &Library) -> Result<(), String> {
        let program = loaded(ebpf, SETUP)?;
        for (offset, what) in &library.functions {
            let location = UProbeAttachLocation::AbsoluteOffset(*offset);
            let at = UProbeAttachPoint { location, cookie: Some((*what).into()) };
            program
                .attach(at, &library.open_path, UProbeScope::AllProcesses)
                .map_err(|error| one_line(&error))?;
        }
        Ok(())
    }

    /// Traps so far of which no record tells.
    pub(super) fn traps(ebpf: &Ebpf) -> u64 {
        let Some(map) = ebpf.map(TRAPS) else { return 0 };
        let Ok(traps) = PerCpuArray::<_, u64>::try_from(map) else { return 0 };
        traps.get(&0, 0).map_or(0, |counts| counts.iter().fold(0, |sum: u64, one| sum.saturating_add(*one)))
    }

    /// Takes all of them off for a while.
    pub(super) fn pause(&mut self, ebpf: &mut Ebpf) {
        self.points.iter_mut().rev().for_each(|point| detach(ebpf, point));
    }

    /// Puts them on again. Processes for which that fails are given up: most often they have ended.
    pub(super) fn resume(&mut self, ebpf: &mut Ebpf) -> Vec<(u32, String)> {
        let mut failed = Vec::new();
        for point in self.points.iter_mut().filter(|point| point.link.is_none()) {
            if let Err(reason) = attach(ebpf, point) {
                failed.push((point.pid, reason));
            }
        }
        if !failed.is_empty() {
            let is_failed = |point: &Point| failed.iter().any(|(pid, _)| *pid == point.pid);
            self.points.iter_mut().filter(|point| is_failed(point)).for_each(|point| detach(ebpf, point));
            self.points.retain(|point| !is_failed(point));
        }
        failed
    }

    /// Takes all of them off.
    pub(super) fn detach(ebpf: &mut Ebpf) {
        for name in PROGRAMS {
            if let Some(program) = ebpf.program_mut(name)
                && let Ok(program) = <&mut UProbe>::try_from(program)
            {
                // A program that never ran has nothing to unload.
                let _ = program.unload();
            }
        }
    }

    /// Providers of one file share their structures, and so their number.
    fn provider(&mut self, post_send: &Place) -> Result<u32, String> {
        self.learner
            .provider((post_send.file_id, post_send.offset))
            .ok_or_else(|| format!("more than {PROVIDERS} providers"))
    }

    /// Tells the programs where the counter of a queue's entries is, as soon as that is known.
    /// Posts that were seen before come as anchors.
    pub(super) fn learn(&mut self, ebpf: &mut Ebpf, image: &QueueImage, sink: &mut dyn FnMut(Event)) {
        let learned = self.learner.take(image, &mut |anchor| sink(Event::RdmaAnchor(anchor)));
        let Some(offset) = learned else { return };
        log::debug!("provider {}: the counter of entries is at {offset} of a queue pair", image.provider);
        if let Some(map) = ebpf.map_mut("VERBS_LAYOUTS")
            && let Ok(mut layouts) = Array::<_, u32>::try_from(map)
        {
            // Without it posts stay without their counters.
            let _ = layouts.set(image.provider, offset, 0);
        }
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut UProbe, String> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("{name} is missing in the eBPF object"))?;
    program.try_into().map_err(|error: ProgramError| one_line(&error))
}

fn loaded<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut UProbe, String> {
    let program = program(ebpf, name)?;
    match program.load() {
        Ok(()) | Err(ProgramError::AlreadyLoaded) => Ok(program),
        Err(error) => {
            log::debug!("{name}: {error:?}");
            Err(one_line(&error))
        }
    }
}

fn attach(ebpf: &mut Ebpf, point: &mut Point) -> Result<(), String> {
    let program = loaded(ebpf, point.program)?;
    let pid = NonZeroU32::new(point.pid).ok_or("no process 0")?;
    let location = UProbeAttachLocation::AbsoluteOffset(point.offset);
    let at = UProbeAttachPoint { location, cookie: Some(point.cookie) };
    let link = program.attach(at, &point.place.open_path, UProbeScope::OneProcess(pid));
    point.link = Some(link.map_err(|error| one_line(&error))?);
    Ok(())
}

fn detach(ebpf: &mut Ebpf, point: &mut Point) {
    if let Some(link) = point.link.take()
        && let Ok(program) = program(ebpf, point.program)
        && let Err(error) = program.detach(link)
    {
        log::debug!("{} of process {}: {error:?}", point.program, point.pid);
    }
}
