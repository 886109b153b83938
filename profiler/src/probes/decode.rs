//! From the bytes of a kernel record to an [`Event`]. A pure function; the bytes are not trusted: a record that
//! is short, long or of an unknown kind is an error, never a panic. Each kind of record has a file of its own.

mod dns;
mod life;
mod stack;
mod tcp;
mod wait;

use profiler_common::Api;
use profiler_common::record::RecordKind;
use thiserror::Error;

use super::event::Event;
use super::fields::Fields;

pub(super) use wait::wait_flags;

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
        RecordKind::Wait => wait::decode(&mut fields, short),
        RecordKind::Dns => dns::decode(&mut fields, short),
        RecordKind::Api => dns::decode_call(&mut fields).ok_or(short),
        RecordKind::Handshake => tcp::decode_handshake(&mut fields).map(Event::Handshake).ok_or(short),
        RecordKind::Retransmit => tcp::decode_retransmit(&mut fields).ok_or(short),
        RecordKind::Life => life::decode(&mut fields, short),
        RecordKind::ThreadTime => life::decode_time(&mut fields).ok_or(short),
        RecordKind::Stack => stack::decode(&mut fields, short),
        RecordKind::VerbsPost => super::verbs::decode::post(&mut fields).ok_or(short),
        RecordKind::VerbsCompletion => super::verbs::decode::completion(&mut fields).ok_or(short),
        RecordKind::Marker => super::marker::decode(&mut fields).ok_or(short),
        RecordKind::VerbsEntry => super::verbs::decode::entry(&mut fields).ok_or(short),
        RecordKind::VerbsSetup => super::verbs::decode::setup(&mut fields).ok_or(short),
        RecordKind::Setup => super::rdma_kernel::decode::setup(&mut fields).ok_or(short),
        RecordKind::AsyncEvent => super::rdma_kernel::decode::device_event(&mut fields).ok_or(short),
        RecordKind::VerbsImage => super::verbs::decode::image(&mut fields).ok_or(short),
    }
}

fn api_of(number: u32) -> Api {
    u16::try_from(number).map_or(Api::None, Api::from_u16)
}

#[cfg(test)]
mod tests;
