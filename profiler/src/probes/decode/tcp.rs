//! Handshakes and retransmits.

use super::wait_flags;
use crate::probes::event::Event;
use crate::probes::fields::Fields;
use crate::probes::socket::decode_socket;
use crate::trace::record::{Handshake, Retransmit};

/// Decodes a handshake from where its header ends.
pub(super) fn decode_handshake(fields: &mut Fields<'_>) -> Option<Handshake> {
    let start_ns = fields.u64()?;
    let end_ns = fields.u64()?.max(start_ns);
    let pid = fields.u32()?;
    let tid = fields.u32()?;
    let error = fields.i32()?;
    let flags = wait_flags(fields.u16()?);
    fields.u16()?;
    let syn_retransmits = fields.u32()?;
    fields.u32()?;
    let socket = decode_socket(fields)?;
    let (began_earlier, in_flight) = (flags.began_earlier, flags.in_flight);
    Some(Handshake { start_ns, end_ns, pid, tid, error, began_earlier, in_flight, syn_retransmits, socket })
}

pub(super) fn decode_retransmit(fields: &mut Fields<'_>) -> Option<Event> {
    let time_ns = fields.u64()?;
    let pid = fields.u32()?;
    fields.u32()?;
    Some(Event::Retransmit(Retransmit { time_ns, pid, socket: decode_socket(fields)? }))
}
