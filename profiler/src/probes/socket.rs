//! From a socket as the kernel describes it to its two ends, and addresses from their bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::fields::Fields;
use crate::trace::record::{Ends, Socket};

/// Decodes a `SockRecord`.
pub(super) fn decode_socket(fields: &mut Fields<'_>) -> Option<Socket> {
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

/// Address of a `struct sockaddr`, `None` where it is of another family or cut.
pub(super) fn sockaddr_ip(raw: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(raw.get(..2)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => v4(raw, 4),
        libc::AF_INET6 => v6(raw, 8),
        _ => None,
    }
}

/// An address without its family: its length tells.
pub(super) fn raw_ip(raw: &[u8]) -> Option<IpAddr> {
    match raw.len() {
        4 => v4(raw, 0),
        16 => v6(raw, 0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `SockRecord` with peer port 53.
    fn record(family: u16, addr: &[u8; 40]) -> Vec<u8> {
        let mut bytes = 77_u64.to_ne_bytes().to_vec();
        bytes.extend(9_i32.to_ne_bytes());
        bytes.extend(family.to_ne_bytes());
        bytes.extend([1, 1]);
        for field in [40000_u16, 53, 0, 0] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend(addr);
        assert_eq!(bytes.len(), size_of::<profiler_common::SockRecord>());
        bytes
    }

    #[test]
    fn unix_paths_are_shown_as_tools_show_them() {
        let path = |bytes: &[u8]| {
            let mut addr = [0; 40];
            addr[..bytes.len()].copy_from_slice(bytes);
            unix_path(&addr)
        };
        assert_eq!(path(b"/run/nscd/socket"), "/run/nscd/socket");
        assert_eq!(path(b"\0service"), "@service");
        assert_eq!(path(b""), "");
        assert_eq!(path(&[b'a'; 40]), "a".repeat(40));
    }

    #[test]
    fn a_mapped_address_is_shown_as_the_one_it_means() {
        let mut addr = [0; 40];
        addr[26..28].copy_from_slice(&[0xff, 0xff]);
        addr[28..32].copy_from_slice(&[10, 0, 0, 1]);
        let raw = record(10, &addr);
        let socket = decode_socket(&mut Fields::new(&raw)).unwrap();
        let Ends::Inet { peer, .. } = socket.ends else { panic!("no address") };
        assert_eq!(peer, "10.0.0.1:53".parse().unwrap());
    }

    #[test]
    fn a_descriptor_of_something_else_keeps_its_family() {
        let raw = record(16, &[0; 40]);
        let socket = decode_socket(&mut Fields::new(&raw)).unwrap();
        assert_eq!((socket.ino, socket.fd, socket.ends), (77, 9, Ends::Other { family: 16 }));
        assert_eq!(decode_socket(&mut Fields::new(&raw[..63])), None);
    }

    #[test]
    fn addresses_that_are_cut_are_none() {
        assert_eq!(sockaddr_ip(&[2]), None);
        assert_eq!(sockaddr_ip(&[2, 0, 0, 53, 10]), None);
        assert_eq!(raw_ip(&[1, 2, 3]), None);
        assert_eq!(raw_ip(&[10, 0, 0, 1]), Some("10.0.0.1".parse().unwrap()));
    }
}
