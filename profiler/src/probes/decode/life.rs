//! Births and ends of processes and threads, and what an ended thread had of the processors.

use profiler_common::record::{LIFE_EXEC, LIFE_EXIT, LIFE_FORK, LIFE_THREAD};

use super::DecodeError;
use crate::probes::event::Event;
use crate::probes::fields::Fields;
use crate::trace::record::{Life, LifeEvent, ThreadTime};

pub(super) fn decode(fields: &mut Fields<'_>, short: DecodeError) -> Result<Event, DecodeError> {
    let mut read = || {
        Some((fields.u64()?, fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?, fields.bytes(16)?))
    };
    let (time_ns, event, pid, tid, parent, comm) = read().ok_or(short)?;
    let event = match event {
        LIFE_FORK => LifeEvent::Fork,
        LIFE_THREAD => LifeEvent::Thread,
        LIFE_EXEC => LifeEvent::Exec,
        LIFE_EXIT => LifeEvent::Exit,
        other => return Err(DecodeError::Value { what: "life event", value: other.into() }),
    };
    let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
    let comm = String::from_utf8_lossy(comm.get(..end).unwrap_or_default()).into_owned();
    Ok(Event::Life(Life { time_ns, event, pid, tid, parent, comm }))
}

pub(super) fn decode_time(fields: &mut Fields<'_>) -> Option<Event> {
    let time_ns = fields.u64()?;
    let (pid, tid) = (fields.u32()?, fields.u32()?);
    let (running_ns, runnable_ns) = (fields.u64()?, fields.u64()?);
    Some(Event::ThreadTime(ThreadTime { time_ns, pid, tid, running_ns, runnable_ns }))
}
