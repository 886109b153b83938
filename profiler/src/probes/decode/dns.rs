//! DNS messages, and calls of resolver functions.

use profiler_common::call::ApiArgument;
use profiler_common::record::DNS_CAPTURE;

use super::{DecodeError, api_of};
use crate::probes::event::Event;
use crate::probes::fields::Fields;
use crate::probes::socket::{decode_socket, raw_ip, sockaddr_ip};
use crate::trace::record::{ApiCall, Direction, DnsMessage};

pub(super) fn decode(fields: &mut Fields<'_>, short: DecodeError) -> Result<Event, DecodeError> {
    let (mut message, captured) = head(fields)?.ok_or(short)?;
    if usize::from(captured) > DNS_CAPTURE {
        return Err(DecodeError::Value { what: "captured length", value: captured.into() });
    }
    message.data = fields.bytes(captured.into()).ok_or(short)?.to_vec();
    Ok(Event::Dns(message))
}

fn head(fields: &mut Fields<'_>) -> Result<Option<(DnsMessage, u16)>, DecodeError> {
    let mut read = || {
        Some((
            (fields.u64()?, fields.u32()?, fields.u32()?, fields.i64()?, fields.u64()?),
            (fields.u32()?, fields.u16()?, fields.u16()?, decode_socket(fields)?),
        ))
    };
    let Some(((time_ns, pid, tid, ret, api_start_ns), (api, direction, captured, socket))) = read() else {
        return Ok(None);
    };
    let direction = match direction {
        0 => Direction::Send,
        1 => Direction::Receive,
        other => return Err(DecodeError::Value { what: "direction", value: other.into() }),
    };
    let api = api_of(api);
    let message =
        DnsMessage { time_ns, pid, tid, direction, ret, api, api_start_ns, socket, data: Vec::new() };
    Ok(Some((message, captured)))
}

/// Decodes the entry of a resolver function.
pub(super) fn decode_call(fields: &mut Fields<'_>) -> Option<Event> {
    let time_ns = fields.u64()?;
    let pid = fields.u32()?;
    let tid = fields.u32()?;
    let api = api_of(fields.u32()?);
    let len = fields.u32()? as usize;
    let argument = fields.bytes(128)?;
    // A name longer than the field is cut, not refused.
    let raw = argument.get(..len).unwrap_or(argument);
    let address = match api.argument() {
        ApiArgument::SockaddrFirst => sockaddr_ip(raw),
        ApiArgument::AddressFirst => raw_ip(raw),
        _ => None,
    };
    let text = match (api.argument(), address) {
        (_, Some(address)) => address.to_string(),
        (ApiArgument::NameFirst | ApiArgument::NameSecond, None) => {
            let end = raw.iter().position(|byte| *byte == 0).unwrap_or(raw.len());
            String::from_utf8_lossy(raw.get(..end).unwrap_or_default()).into_owned()
        }
        _ => String::new(),
    };
    Some(Event::Api(ApiCall { time_ns, pid, tid, api, argument: text, address }))
}
