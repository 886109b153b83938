//! The probe on the marker function.

use std::path::Path;

use aya::Ebpf;
use aya::maps::HashMap;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{ProgramError, UProbe};
use profiler_common::marker::MarkerState;

use super::error::one_line;
use super::event::Event;
use super::fields::Fields;
use crate::trace::marker::MarkerCalls;

const PROGRAM: &str = "marker_call";
const TABLE: &str = "MARKER_CALLS";

/// Counts calls at this offset of the file, in every process that maps it; those that are no targets are left out in the
/// kernel.
pub(super) fn attach(ebpf: &mut Ebpf, path: &Path, offset: u64) -> Result<(), String> {
    let program =
        ebpf.program_mut(PROGRAM).ok_or_else(|| format!("{PROGRAM} is missing in the eBPF object"))?;
    let program: &mut UProbe = program.try_into().map_err(|error| one_line(&error))?;
    match program.load() {
        Ok(()) | Err(ProgramError::AlreadyLoaded) => {}
        Err(error) => {
            log::debug!("{PROGRAM}: {error:?}");
            return Err(one_line(&error));
        }
    }
    let point = UProbeAttachPoint { location: UProbeAttachLocation::AbsoluteOffset(offset), cookie: None };
    program.attach(point, path, UProbeScope::AllProcesses).map(drop).map_err(|error| one_line(&error))
}

/// Takes the probes off.
pub(super) fn detach(ebpf: &mut Ebpf) {
    if let Some(program) = ebpf.program_mut(PROGRAM)
        && let Ok(program) = <&mut UProbe>::try_from(program)
    {
        // A program that never ran has nothing to unload.
        let _ = program.unload();
    }
}

/// Calls that were only counted since the last record of their thread.
pub(super) fn take_counted(ebpf: &mut Ebpf, sink: &mut dyn FnMut(Event)) {
    let Some(map) = ebpf.map(TABLE) else { return };
    let Ok(table) = HashMap::<_, u32, MarkerState>::try_from(map) else { return };
    for (tid, state) in table.iter().filter_map(Result::ok).filter(|(_, state)| state.counted > 0) {
        sink(Event::Marker(MarkerCalls {
            start_ns: state.start_ns,
            end_ns: state.end_ns,
            pid: state.tgid,
            tid,
            calls: state.counted,
        }));
    }
}

pub(super) fn decode(fields: &mut Fields<'_>) -> Option<Event> {
    let (start_ns, end_ns) = (fields.u64()?, fields.u64()?);
    let (pid, tid, calls) = (fields.u32()?, fields.u32()?, fields.u64()?);
    Some(Event::Marker(MarkerCalls { start_ns, end_ns, pid, tid, calls }))
}

#[cfg(test)]
mod tests {
    use profiler_common::marker::MarkerRecord;
    use profiler_common::record::{Header, RecordKind};

    use super::*;
    use crate::probes::decode as decode_record;

    #[test]
    fn calls_keep_their_fields_and_short_records_are_refused() {
        let len = size_of::<MarkerRecord>() as u32;
        let header = Header { kind: RecordKind::Marker as u32, len };
        let record = MarkerRecord { header, start_ns: 5, end_ns: 9, tgid: 3, tid: 4, calls: 77 };
        // SAFETY: a record of integers without padding.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const record).cast::<u8>(), len as usize) };
        let expected = MarkerCalls { start_ns: 5, end_ns: 9, pid: 3, tid: 4, calls: 77 };
        assert_eq!(decode_record(bytes), Ok(Event::Marker(expected)));
        assert!(decode_record(&bytes[..32]).is_err());
    }
}
