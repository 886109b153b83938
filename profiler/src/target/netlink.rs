//! Requests to the kernel over netlink, with answers that are parsed by bounds, not by trust.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{NetlinkAddr, recvfrom, setsockopt, sockopt};
use nix::sys::time::TimeVal;

/// One datagram of the kernel; it fills less.
const BUFFER: usize = 64 * 1024;
/// Length of a message's header.
const HEADER: usize = 16;
/// A whole answer must arrive within this time.
const PATIENCE: Duration = Duration::from_secs(5);

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;

/// Why the kernel gave no (whole) answer.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("netlink {call}: {source}")]
    Call { call: &'static str, source: io::Error },
    #[error("the kernel refused the request: {0}")]
    Refused(Errno),
    #[error("the kernel's answer is malformed")]
    Malformed,
    #[error("the kernel's answer did not end in {PATIENCE:?}")]
    TooLong,
}

impl NetlinkError {
    fn call(call: &'static str, source: impl Into<io::Error>) -> NetlinkError {
        NetlinkError::Call { call, source: source.into() }
    }
}

/// A netlink socket. It serves the network namespace in which it was opened, for ever.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netlink").field("fd", &self.socket.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open(protocol: isize) -> Result<Netlink, NetlinkError> {
        let mut socket = Socket::new(protocol).map_err(|error| NetlinkError::call("socket", error))?;
        socket.bind_auto().map_err(|error| NetlinkError::call("bind", error))?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(1, 0))
            .map_err(|errno| NetlinkError::call("setsockopt", errno))?;
        Ok(Netlink { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Asks for a list and calls `each` with the body of every entry.
    pub fn dump(&mut self, kind: u16, body: &[u8], each: impl FnMut(&[u8])) -> Result<(), NetlinkError> {
        self.request(kind, NLM_F_REQUEST | NLM_F_DUMP, body)?;
        self.receive(true, each)
    }

    /// Asks for one thing and returns its body.
    pub fn get(&mut self, kind: u16, body: &[u8]) -> Result<Vec<u8>, NetlinkError> {
        self.request(kind, NLM_F_REQUEST, body)?;
        let mut answer = None;
        self.receive(false, |body| answer = Some(body.to_vec()))?;
        answer.ok_or(NetlinkError::Malformed)
    }

    fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let message = encode(kind, flags, self.sequence, body);
        self.socket
            .send_to(&message, &SocketAddr::new(0, 0), 0)
            .map(|_| ())
            .map_err(|error| NetlinkError::call("sendto", error))
    }

    fn receive(&mut self, dump: bool, mut each: impl FnMut(&[u8])) -> Result<(), NetlinkError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if Instant::now() > deadline {
                return Err(NetlinkError::TooLong);
            }
            let received = recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), &mut self.buffer);
            let (length, sender) = match received {
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Err(NetlinkError::TooLong),
                other => other.map_err(|errno| NetlinkError::call("recvfrom", errno))?,
            };
            // Port 0 is the kernel; anybody else has no business here.
            if sender.is_some_and(|sender| sender.pid() != 0) {
                continue;
            }
            let datagram = self.buffer.get(..length).unwrap_or_default();
            if decode(datagram, self.sequence, dump, &mut each)? {
                return Ok(());
            }
        }
    }
}

fn encode(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend(body);
    message
}

/// Goes through the messages of a datagram; `true` when the answer is complete.
fn decode(
    datagram: &[u8],
    sequence: u32,
    dump: bool,
    each: &mut impl FnMut(&[u8]),
) -> Result<bool, NetlinkError> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let length = u32_at(rest, 0).ok_or(NetlinkError::Malformed)? as usize;
        let body = rest.get(HEADER..length).ok_or(NetlinkError::Malformed)?;
        let kind = u16_at(rest, 4).ok_or(NetlinkError::Malformed)?;
        // Answers to an earlier request that was given up.
        let ours = u32_at(rest, 8) == Some(sequence);
        match kind {
            _ if !ours => {}
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => match u32_at(body, 0).ok_or(NetlinkError::Malformed)? as i32 {
                0 => return Ok(true),
                error => return Err(NetlinkError::Refused(Errno::from_raw(error.wrapping_neg()))),
            },
            _ => {
                each(body);
                if !dump {
                    return Ok(true);
                }
            }
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The attributes in the tail of a message: type without flag bits, and value.
pub fn attributes(tail: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = tail;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & 0x3fff;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// One attribute as it is appended to a request.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + value.len().next_multiple_of(4));
    bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    let field = bytes.get(offset..offset.checked_add(2)?)?;
    Some(u16::from_ne_bytes(field.try_into().ok()?))
}

pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let field = bytes.get(offset..offset.checked_add(8)?)?;
    Some(u64::from_ne_bytes(field.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries(datagram: &[u8], dump: bool) -> (Result<bool, NetlinkError>, Vec<Vec<u8>>) {
        let mut found = Vec::new();
        let result = decode(datagram, 7, dump, &mut |body: &[u8]| found.push(body.to_vec()));
        (result, found)
    }

    #[test]
    fn a_list_ends_with_its_last_message_and_not_before() {
        let list = [encode(20, 2, 7, b"one"), vec![0], encode(20, 2, 7, b"two!")].concat();
        let (result, found) = entries(&list, true);
        assert!(!result.unwrap());
        assert_eq!(found, [b"one".to_vec(), b"two!".to_vec()]);
        let ended = [encode(20, 2, 7, b"one!"), encode(NLMSG_DONE, 2, 7, &[0; 4])].concat();
        assert!(entries(&ended, true).0.unwrap());
        assert!(entries(&list, false).0.unwrap());
    }

    #[test]
    fn answers_to_an_earlier_request_are_passed_over() {
        let stale = [encode(20, 2, 6, b"old!"), encode(NLMSG_DONE, 2, 6, &[0; 4])].concat();
        let (result, found) = entries(&stale, true);
        assert!(!result.unwrap());
        assert!(found.is_empty());
    }

    #[test]
    fn a_refusal_carries_the_errno() {
        let refused = encode(NLMSG_ERROR, 0, 7, &(-libc::ENOENT).to_ne_bytes());
        assert!(matches!(entries(&refused, true).0, Err(NetlinkError::Refused(Errno::ENOENT))));
    }

    #[test]
    fn attributes_survive_a_round_trip_with_padding() {
        let tail = [attribute(1, b"eth0\0"), attribute(0x8002, &[1, 2, 3, 4])].concat();
        let found: Vec<_> = attributes(&tail).collect();
        assert_eq!(found, [(1, b"eth0\0".as_slice()), (2, [1, 2, 3, 4].as_slice())]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = entries(&bytes, true);
            let total: usize = attributes(&bytes).map(|(_, value)| value.len()).sum();
            prop_assert!(total <= bytes.len());
        }
    }

    #[test]
    fn a_length_of_zero_does_not_loop() {
        assert!(matches!(entries(&[0; 32], true).0, Err(NetlinkError::Malformed)));
        assert_eq!(attributes(&[0; 32]).count(), 0);
    }
}
