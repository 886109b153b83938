//! From the bytes of a kernel record to an [`Event`]. A pure function; the bytes are not trusted: a record that
//! is short, long or of an unknown kind is an error, never a panic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use profiler_common::call::ApiArgument;
use profiler_common::record::{
    DNS_CAPTURE, LIFE_EXEC, LIFE_EXIT, LIFE_FORK, LIFE_THREAD, RecordKind, STACK_FRAMES, STACK_SNIPPET,
    WAIT_BEGAN_EARLIER, WAIT_IN_FLIGHT, WAIT_NONBLOCKING, WAIT_PAUSED, WAIT_SLEPT, WAIT_SOCKS,
};
use profiler_common::{Api, Call};
use thiserror::Error;

use super::event::{Event, RawStack, Registers};
use super::fields::Fields;
use crate::trace::record::{
    ApiCall, Direction, DnsMessage, Ends, Handshake, Life, LifeEvent, Retransmit, Socket, Wait, WaitFlags,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("a record of {len} bytes is too short")]
    Short { len: usize },
    #[error("a record says that it is {said} bytes long, and is {len}")]
    Length { said: u32, len: usize },
    #[error("unknown record kind {kind}")]
    Kind { kind: u32 },
    #[error("a record's {what} is {value}")]
    Value { what: &'static str, value: u64 },
}

/// Decodes one record of the ring buffer. Bytes after the length that the header names are padding.
pub fn decode(bytes: &[u8]) -> Result<Event, DecodeError> {
    let short = DecodeError::Short { len: bytes.len() };
    let mut head = Fields::new(bytes);
    let kind = head.u32().ok_or(short)?;
    let said = head.u32().ok_or(short)?;
    let record = bytes.get(8..said as usize).ok_or(DecodeError::Length { said, len: bytes.len() })?;
    let kind = RecordKind::from_u32(kind).ok_or(DecodeError::Kind { kind })?;
    let mut fields = Fields::new(record);
    match kind {
        RecordKind::Wait => wait(&mut fields, short),
        RecordKind::Dns => dns(&mut fields, short),
        RecordKind::Api => api(&mut fields).ok_or(short),
        RecordKind::Handshake => handshake(&mut fields).map(Event::Handshake).ok_or(short),
        RecordKind::Retransmit => retransmit(&mut fields).ok_or(short),
        RecordKind::Life => life(&mut fields, short),
        RecordKind::Stack => stack(&mut fields, short),
    }
}

fn wait(fields: &mut Fields<'_>, short: DecodeError) -> Result<Event, DecodeError> {
    let (mut wait, regs, nsocks) = wait_head(fields).ok_or(short)?;
    if usize::from(nsocks) > WAIT_SOCKS {
        return Err(DecodeError::Value { what: "number of sockets", value: nsocks.into() });
    }
    for _ in 0..nsocks {
        wait.sockets.push(socket(fields).ok_or(short)?);
    }
    Ok(Event::Wait(wait, regs))
}

fn wait_head(fields: &mut Fields<'_>) -> Option<(Wait, Registers, u16)> {
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
    };
    Some((wait, regs, nsocks))
}

/// What the `WAIT_*` bits say.
pub(super) fn wait_flags(bits: u16) -> WaitFlags {
    WaitFlags {
        began_earlier: bits & WAIT_BEGAN_EARLIER != 0,
        in_flight: bits & WAIT_IN_FLIGHT != 0,
        nonblocking: bits & WAIT_NONBLOCKING != 0,
        slept: bits & WAIT_SLEPT != 0,
        paused: bits & WAIT_PAUSED != 0,
    }
}

fn dns(fields: &mut Fields<'_>, short: DecodeError) -> Result<Event, DecodeError> {
    let (mut message, captured) = dns_head(fields)?.ok_or(short)?;
    if usize::from(captured) > DNS_CAPTURE {
        return Err(DecodeError::Value { what: "captured length", value: captured.into() });
    }
    message.data = fields.bytes(captured.into()).ok_or(short)?.to_vec();
    Ok(Event::Dns(message))
}

fn dns_head(fields: &mut Fields<'_>) -> Result<Option<(DnsMessage, u16)>, DecodeError> {
    let mut read = || {
        Some((
            (fields.u64()?, fields.u32()?, fields.u32()?, fields.i64()?, fields.u64()?),
            (fields.u32()?, fields.u16()?, fields.u16()?, socket(fields)?),
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

fn api(fields: &mut Fields<'_>) -> Option<Event> {
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

/// Decodes a handshake from where its header ends.
pub(super) fn handshake(fields: &mut Fields<'_>) -> Option<Handshake> {
    let start_ns = fields.u64()?;
    let end_ns = fields.u64()?.max(start_ns);
    let pid = fields.u32()?;
    let tid = fields.u32()?;
    let error = fields.i32()?;
    let flags = wait_flags(fields.u16()?);
    fields.u16()?;
    let syn_retransmits = fields.u32()?;
    fields.u32()?;
    let socket = socket(fields)?;
    let (began_earlier, in_flight) = (flags.began_earlier, flags.in_flight);
    Some(Handshake { start_ns, end_ns, pid, tid, error, began_earlier, in_flight, syn_retransmits, socket })
}

fn retransmit(fields: &mut Fields<'_>) -> Option<Event> {
    let time_ns = fields.u64()?;
    let pid = fields.u32()?;
    fields.u32()?;
    Some(Event::Retransmit(Retransmit { time_ns, pid, socket: socket(fields)? }))
}

fn life(fields: &mut Fields<'_>, short: DecodeError) -> Result<Event, DecodeError> {
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

fn stack(fields: &mut Fields<'_>, short: DecodeError) -> Result<Event, DecodeError> {
    let mut read = || {
        Some((
            (fields.u64()?, fields.u32()?, fields.u32()?, fields.u16()?, fields.u16()?, fields.u32()?),
            Registers { ip: fields.u64()?, sp: fields.u64()?, bp: fields.u64()? },
        ))
    };
    let ((id, pid, tid, space, frames, snippet), regs) = read().ok_or(short)?;
    if usize::from(frames) > STACK_FRAMES || snippet as usize > STACK_SNIPPET || space > 1 {
        return Err(DecodeError::Value { what: "stack size or space", value: frames.into() });
    }
    let frames = (0..frames).map(|_| fields.u64()).collect::<Option<Vec<u64>>>().ok_or(short)?;
    let snippet = fields.bytes(snippet as usize).ok_or(short)?.to_vec();
    Ok(Event::Stack(RawStack { id, kernel: space == 1, pid, tid, frames, regs, snippet }))
}

/// Decodes a `SockRecord`.
pub(super) fn socket(fields: &mut Fields<'_>) -> Option<Socket> {
    let ino = fields.u64()?;
    let fd = fields.i32()?;
    let family = fields.u16()?;
    let kind = fields.u8()?;
    let state = fields.u8()?;
    let local_port = fields.u16()?;
    let peer_port = fields.u16()?;
    let events = fields.u16()?;
    let revents = fields.u16()?;
    let addr: &[u8; 40] = fields.bytes(40)?.try_into().ok()?;
    let ends = match i32::from(family) {
        libc::AF_INET => Ends::Inet {
            local: SocketAddr::new(v4(addr, 0)?, local_port),
            peer: SocketAddr::new(v4(addr, 16)?, peer_port),
        },
        libc::AF_INET6 => Ends::Inet {
            local: SocketAddr::new(v6(addr, 0)?, local_port),
            peer: SocketAddr::new(v6(addr, 16)?, peer_port),
        },
        libc::AF_UNIX => Ends::Unix { path: unix_path(addr) },
        _ => Ends::Other { family },
    };
    Some(Socket { ino, fd, kind, state, ends, events, revents })
}

fn v4(addr: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 4] = addr.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets).into())
}

/// A mapped IPv4 address is shown as the IPv4 address that is meant.
fn v6(addr: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = addr.get(at..at + 16)?.try_into().ok()?;
    Some(IpAddr::from(Ipv6Addr::from(octets)).to_canonical())
}

fn unix_path(addr: &[u8; 40]) -> String {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
    };
    match addr {
        [0, abstract_name @ ..] => {
            let name = text(abstract_name);
            if name.is_empty() { name } else { format!("@{name}") }
        }
        path => text(path),
    }
}

fn sockaddr_ip(raw: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(raw.get(..2)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => v4(raw, 4),
        libc::AF_INET6 => v6(raw, 8),
        _ => None,
    }
}

fn raw_ip(raw: &[u8]) -> Option<IpAddr> {
    match raw.len() {
        4 => v4(raw, 0),
        16 => v6(raw, 0),
        _ => None,
    }
}

fn api_of(number: u32) -> Api {
    u16::try_from(number).map_or(Api::None, Api::from_u16)
}
