//! Probes on a provider's `post_send`, and where its `poll_cq` has found a completion.

use std::num::NonZeroU32;
use std::path::Path;

use aya::Ebpf;
use aya::maps::Array;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{ProgramError, UProbe};
use profiler_common::verbs::PROVIDERS;

use super::error::one_line;
use super::event::{Event, QueueImage};
use crate::target::verbs::{Functions, Place};

pub(super) mod decode;
mod learn;

const POST: &str = "verbs_post";
const COMPLETE: &str = "verbs_complete";
/// Places that are probed in one recording, at most.
const PLACES_MAX: usize = 4096;

/// What is attached.
#[derive(Debug, Default)]
pub(super) struct VerbsProbes {
    /// Held open: the probes sit on these files.
    places: Vec<Place>,
    learner: learn::Learner,
}

impl VerbsProbes {
    /// The completions' place first: a completion whose post was not seen is told apart, the reverse is not.
    pub(super) fn attach(&mut self, ebpf: &mut Ebpf, pid: u32, functions: &Functions) -> Result<(), String> {
        if self.places.len() + 2 > PLACES_MAX {
            return Err(format!("more than {PLACES_MAX} places to watch"));
        }
        let point = functions.completion.map_err(|error| error.to_string())?;
        let provider = self.provider(&functions.post_send)?;
        let offset = functions.poll_cq.offset.checked_add(point.offset).ok_or("an offset beyond the file")?;
        attach(ebpf, COMPLETE, pid, &functions.poll_cq.open_path, offset, point.register.into())?;
        let post = &functions.post_send;
        attach(ebpf, POST, pid, &post.open_path, post.offset, provider.into())?;
        self.places.push(functions.post_send.clone());
        self.places.push(functions.poll_cq.clone());
        Ok(())
    }

    /// Takes all of them off.
    pub(super) fn detach(ebpf: &mut Ebpf) {
        for name in [POST, COMPLETE] {
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

fn attach(
    ebpf: &mut Ebpf,
    name: &str,
    pid: u32,
    path: &Path,
    offset: u64,
    cookie: u64,
) -> Result<(), String> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("{name} is missing in the eBPF object"))?;
    let program: &mut UProbe = program.try_into().map_err(|error| one_line(&error))?;
    match program.load() {
        Ok(()) | Err(ProgramError::AlreadyLoaded) => {}
        Err(error) => {
            log::debug!("{name}: {error:?}");
            return Err(one_line(&error));
        }
    }
    let pid = NonZeroU32::new(pid).ok_or("no process 0")?;
    let point =
        UProbeAttachPoint { location: UProbeAttachLocation::AbsoluteOffset(offset), cookie: Some(cookie) };
    program.attach(point, path, UProbeScope::OneProcess(pid)).map(drop).map_err(|error| one_line(&error))
}
