//! Waits: calls, looks at non-blocking descriptors, threads that are still blocked.

use profiler_common::Call;
use profiler_common::record::{
    WAIT_BEGAN_EARLIER, WAIT_IN_FLIGHT, WAIT_NONBLOCKING, WAIT_PAUSED, WAIT_SET_CUT, WAIT_SLEPT, WAIT_SOCKS,
    WAIT_TIMED,
};

use super::{DecodeError, api_of};
use crate::probes::event::{Event, Registers};
use crate::probes::fields::Fields;
use crate::probes::socket::decode_socket;
use crate::trace::record::{Sched, Wait, WaitFlags};

pub(super) fn decode(fields: &mut Fields<'_>, short: DecodeError) -> Result<Event, DecodeError> {
    let (mut wait, regs, nsocks) = head(fields).ok_or(short)?;
    if usize::from(nsocks) > WAIT_SOCKS {
        return Err(DecodeError::Value { what: "number of sockets", value: nsocks.into() });
    }
    for _ in 0..nsocks {
        wait.sockets.push(decode_socket(fields).ok_or(short)?);
    }
    Ok(Event::Wait(wait, regs))
}

fn head(fields: &mut Fields<'_>) -> Option<(Wait, Registers, u16)> {
    let start_ns = fields.u64()?;
    let end_ns = fields.u64()?;
    let pid = fields.u32()?;
    let tid = fields.u32()?;
    let call = Call::from_u16(fields.u16()?);
    let flags = fields.u16()?;
    let nsocks = fields.u16()?;
    let set_size = fields.u16()?;
    let fd = fields.i32()?;
    let polls = fields.u32()?;
    let ret = fields.i64()?;
    let off_cpu_ns = fields.u64()?;
    let user_stack = fields.u64()?;
    let kernel_stack = fields.u64()?;
    let regs = Registers { ip: fields.u64()?, sp: fields.u64()?, bp: fields.u64()? };
    let api_start_ns = fields.u64()?;
    let api = api_of(fields.u32()?);
    let arg = fields.i32()?;
    let (sleep_ns, wake_ns, runq_ns) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let sched = Sched { sleep_ns, wake_ns, runq_ns, owner: fields.u32()? };
    fields.u32()?;
    let wait = Wait {
        start_ns,
        end_ns: end_ns.max(start_ns),
        pid,
        tid,
        call,
        flags: wait_flags(flags),
        fd,
        set_size,
        polls,
        ret,
        arg,
        off_cpu_ns,
        user_stack,
        kernel_stack,
        api,
        api_start_ns,
        sockets: Vec::with_capacity(usize::from(nsocks).min(WAIT_SOCKS)),
        sched,
    };
    Some((wait, regs, nsocks))
}

/// What the `WAIT_*` bits say.
pub(in crate::probes) fn wait_flags(bits: u16) -> WaitFlags {
    WaitFlags {
        began_earlier: bits & WAIT_BEGAN_EARLIER != 0,
        in_flight: bits & WAIT_IN_FLIGHT != 0,
        nonblocking: bits & WAIT_NONBLOCKING != 0,
        slept: bits & WAIT_SLEPT != 0,
        paused: bits & WAIT_PAUSED != 0,
        set_cut: bits & WAIT_SET_CUT != 0,
        timed: bits & WAIT_TIMED != 0,
    }
}
