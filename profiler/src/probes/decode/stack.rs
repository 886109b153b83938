//! Copies of stacks.

use profiler_common::record::{STACK_FRAMES, STACK_SNIPPET};

use super::DecodeError;
use crate::probes::event::{Event, RawStack, Registers};
use crate::probes::fields::Fields;

pub(super) fn decode(fields: &mut Fields<'_>, short: DecodeError) -> Result<Event, DecodeError> {
    let mut read = || {
        Some((
            (fields.u64()?, fields.u64()?, fields.u32()?, fields.u32()?),
            (fields.u16()?, fields.u16()?, fields.u32()?),
            Registers { ip: fields.u64()?, sp: fields.u64()?, bp: fields.u64()? },
        ))
    };
    let ((id, chain, pid, tid), (space, frames, snippet), regs) = read().ok_or(short)?;
    if usize::from(frames) > STACK_FRAMES || snippet as usize > STACK_SNIPPET || space > 1 {
        return Err(DecodeError::Value { what: "stack size or space", value: frames.into() });
    }
    let frames = (0..frames).map(|_| fields.u64()).collect::<Option<Vec<u64>>>().ok_or(short)?;
    let snippet = fields.bytes(snippet as usize).ok_or(short)?.to_vec();
    Ok(Event::Stack(RawStack { id, kernel: space == 1, pid, tid, frames, chain, regs, snippet }))
}
