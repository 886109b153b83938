//! Samples of what runs, by a software clock on each processor: needs no performance counters, so that it works in virtual
//! machines too.

use aya::Ebpf;
use aya::maps::{HashMap, MapData};
use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::programs::{PerfEvent, ProgramError};
use aya::util::online_cpus;
use profiler_common::{SampleCounts, SampleKey};

use super::error::one_line;
use crate::trace::record::CpuSamples;

/// The program's name.
pub(super) const PROGRAM: &str = "cpu_sample";

/// Not a whole multiple of what programs do a hundred times a second.
const PER_SECOND: u64 = 99;
/// Between two samples of one processor.
const PERIOD_NS: u64 = 1_000_000_000 / PER_SECOND;

/// Samples every processor from now on.
pub(super) fn attach(ebpf: &mut Ebpf) -> Result<(), String> {
    let program = program(ebpf)?;
    let cpus = online_cpus().map_err(|(file, error)| format!("{file}: {error}"))?;
    for cpu in cpus {
        program
            .attach(
                PerfEventConfig::Software(SoftwareEvent::CpuClock),
                PerfEventScope::AllProcessesOneCpu { cpu },
                SamplePolicy::Period(PERIOD_NS),
                false,
            )
            .map_err(|error| format!("processor {cpu}: {}", one_line(&error)))?;
    }
    Ok(())
}

/// Takes the clocks off.
pub(super) fn detach(ebpf: &mut Ebpf) {
    if let Ok(program) = program(ebpf) {
        // Unloading closes the links too. A program that never ran has nothing to unload.
        let _ = program.unload();
    }
}

fn program(ebpf: &mut Ebpf) -> Result<&mut PerfEvent, String> {
    let program = ebpf.program_mut(PROGRAM).ok_or("missing in the eBPF object")?;
    program.try_into().map_err(|error: ProgramError| one_line(&error))
}

pub(super) fn samples(table: &HashMap<MapData, SampleKey, SampleCounts>, now_ns: u64) -> Vec<CpuSamples> {
    let taken = |(key, counts): (SampleKey, SampleCounts)| CpuSamples {
        time_ns: now_ns,
        pid: key.tgid,
        tid: key.tid,
        period_ns: PERIOD_NS,
        samples: counts.samples,
        looking: counts.looking,
        waiting: counts.waiting,
        working: counts.working,
    };
    table.iter().filter_map(Result::ok).map(taken).collect()
}
