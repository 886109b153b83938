//! `sock_diag`: the TCP and UDP sockets of a network namespace as the kernel lists them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_packet_core::Emitable;
use netlink_packet_sock_diag::constants::{
    AF_INET, AF_INET6, INET_DIAG_INFO, IPPROTO_TCP, IPPROTO_UDP, SOCK_DIAG_BY_FAMILY,
};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use nix::errno::Errno;

use super::netlink::{Netlink, NetlinkError, attributes, u32_at, u64_at};

/// Length of the kernel's `struct inet_diag_msg`.
const MESSAGE: usize = 72;
/// Length of its `struct inet_diag_sockid`, and where that lies in a request (`inet_diag_req_v2`).
const SOCKET_ID: usize = 48;
const REQUEST_ID: usize = 8;

pub const SYN_SENT: u8 = 2;
pub const LISTEN: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// What the kernel finds a socket by: family, ports, addresses, interface and a cookie that no other socket
/// gets while the machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketKey {
    family: u8,
    id: [u8; SOCKET_ID],
}

impl Default for SocketKey {
    fn default() -> SocketKey {
        SocketKey { family: 0, id: [0; SOCKET_ID] }
    }
}

/// One socket as `sock_diag` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiagSocket {
    pub key: SocketKey,
    /// 0: no process has it (`TIME_WAIT`).
    pub inode: u32,
    /// `TCP_*`; UDP: 1 connected, 7 not.
    pub state: u8,
    /// IPv4 addresses in IPv6 form are given as IPv4 ones.
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Bytes not yet read; for a listening socket: connections not yet accepted.
    pub receive_queue: u32,
    /// Bytes not yet acknowledged; for a listening socket: its backlog.
    pub send_queue: u32,
    /// Of the segment that is being sent now.
    pub retransmits: u8,
    pub info: Option<TcpInfo>,
}

/// What is used of `struct tcp_info`; fields that an older kernel does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    pub retransmits: u8,
    pub last_data_recv_ms: u32,
    pub rtt_us: u32,
    pub rttvar_us: u32,
    pub total_retrans: u32,
    pub bytes_acked: u64,
    pub bytes_received: u64,
}

/// Lists all sockets of a protocol, both IP versions.
pub fn dump(
    netlink: &mut Netlink,
    protocol: Protocol,
    mut each: impl FnMut(DiagSocket),
) -> Result<(), NetlinkError> {
    for family in [AF_INET, AF_INET6] {
        let body = request(family, protocol);
        netlink.dump(SOCK_DIAG_BY_FAMILY, &body, |message| {
            if let Some(socket) = parse(message) {
                each(socket);
            }
        })?;
    }
    Ok(())
}

/// Looks at one socket again, which costs far less than a list; `None` where it is closed.
pub fn query(
    netlink: &mut Netlink,
    protocol: Protocol,
    key: &SocketKey,
) -> Result<Option<DiagSocket>, NetlinkError> {
    let mut body = request(key.family, protocol);
    if let Some(id) = body.get_mut(REQUEST_ID..REQUEST_ID + SOCKET_ID) {
        id.copy_from_slice(&key.id);
    }
    match netlink.get(SOCK_DIAG_BY_FAMILY, &body) {
        Ok(answer) => Ok(parse(&answer)),
        Err(NetlinkError::Refused(Errno::ENOENT | Errno::ESTALE)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The least time that a handshake has lasted after so many SYN retransmits, in nanoseconds: the kernel waits
/// one second before the first, the same again before each of the next `linear` ones (the setting
/// `net.ipv4.tcp_syn_linear_timeouts`, 0 before Linux 6.5), and then twice as long each time, two minutes at
/// most.
pub fn syn_age_ns(retransmits: u32, linear: u32) -> u64 {
    let mut wait = 1;
    let mut seconds = 0_u64;
    for sent in 0..retransmits.min(1000) {
        seconds += wait;
        if sent >= linear {
            wait = (wait * 2).min(120);
        }
    }
    seconds * 1_000_000_000
}

fn request(family: u8, protocol: Protocol) -> Vec<u8> {
    let (protocol, extensions) = match protocol {
        Protocol::Tcp => (IPPROTO_TCP, ExtensionFlags::INFO),
        Protocol::Udp => (IPPROTO_UDP, ExtensionFlags::empty()),
    };
    let socket_id = if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() };
    let request = InetRequest { family, protocol, extensions, states: StateFlags::all(), socket_id };
    let mut body = vec![0; request.buffer_len()];
    request.emit(&mut body);
    body
}

fn parse(message: &[u8]) -> Option<DiagSocket> {
    let (head, tail) = message.split_at_checked(MESSAGE)?;
    let [family, state, _, retransmits] = *head.first_chunk()?;
    let info = attributes(tail).find(|(kind, _)| *kind == INET_DIAG_INFO).map(|(_, value)| tcp_info(value));
    Some(DiagSocket {
        key: SocketKey { family, id: *head.get(4..)?.first_chunk()? },
        inode: u32_at(head, 68)?,
        state,
        local: SocketAddr::new(address(family, head.get(8..24)?)?, port(head.get(4..6)?)?),
        peer: SocketAddr::new(address(family, head.get(24..40)?)?, port(head.get(6..8)?)?),
        receive_queue: u32_at(head, 56)?,
        send_queue: u32_at(head, 60)?,
        retransmits,
        info,
    })
}

fn port(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

fn address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => Some(IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?))),
        AF_INET6 => Some(IpAddr::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?)).to_canonical()),
        _ => None,
    }
}

fn tcp_info(bytes: &[u8]) -> TcpInfo {
    TcpInfo {
        retransmits: bytes.get(2).copied().unwrap_or(0),
        last_data_recv_ms: u32_at(bytes, 52).unwrap_or(0),
        rtt_us: u32_at(bytes, 68).unwrap_or(0),
        rttvar_us: u32_at(bytes, 72).unwrap_or(0),
        total_retrans: u32_at(bytes, 100).unwrap_or(0),
        bytes_acked: u64_at(bytes, 120).unwrap_or(0),
        bytes_received: u64_at(bytes, 128).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use proptest::prelude::*;

    use super::super::netlink::attribute;
    use super::*;

    fn message(family: u8, tail: &[u8]) -> Vec<u8> {
        let mut head = vec![0; MESSAGE];
        head[..4].copy_from_slice(&[family, SYN_SENT, 1, 3]);
        head[4..8].copy_from_slice(&[0x9c, 0x40, 0x01, 0xbb]);
        head[8..12].copy_from_slice(&[10, 0, 0, 1]);
        head[24..28].copy_from_slice(&[10, 0, 0, 2]);
        head[56..60].copy_from_slice(&11_u32.to_ne_bytes());
        head[60..64].copy_from_slice(&12_u32.to_ne_bytes());
        head[68..72].copy_from_slice(&777_u32.to_ne_bytes());
        [&head, tail].concat()
    }

    #[test]
    fn reads_addresses_ports_queues_and_the_inode() {
        let socket = parse(&message(AF_INET, &[])).unwrap();
        assert_eq!(socket.local, "10.0.0.1:40000".parse().unwrap());
        assert_eq!(socket.peer, "10.0.0.2:443".parse().unwrap());
        assert_eq!((socket.inode, socket.receive_queue, socket.send_queue), (777, 11, 12));
        assert_eq!((socket.state, socket.retransmits, socket.info), (SYN_SENT, 3, None));
    }

    #[test]
    fn an_ipv4_address_in_ipv6_form_is_an_ipv4_address() {
        let mut bytes = message(AF_INET6, &[]);
        bytes[8..24].copy_from_slice(&Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped().octets());
        let socket = parse(&bytes).unwrap();
        assert_eq!(socket.local.ip(), IpAddr::from([10, 1, 2, 3]));
        assert!(socket.peer.is_ipv6());
    }

    #[test]
    fn a_socket_is_asked_for_by_what_the_kernel_called_it() {
        let bytes = message(AF_INET, &[]);
        let key = parse(&bytes).unwrap().key;
        assert_eq!((key.family, &key.id[..]), (AF_INET, &bytes[4..52]));
        assert_eq!(request(AF_INET, Protocol::Tcp).len(), REQUEST_ID + SOCKET_ID);
    }

    #[test]
    fn syn_retransmits_tell_how_long_a_handshake_has_lasted() {
        let seconds = |retransmits, linear| syn_age_ns(retransmits, linear) / 1_000_000_000;
        assert_eq!([0, 1, 2, 3, 6].map(|count| seconds(count, 0)), [0, 1, 3, 7, 63]);
        assert_eq!([0, 1, 3, 5, 6, 7].map(|count| seconds(count, 4)), [0, 1, 3, 5, 7, 11]);
        assert!(seconds(u32::MAX, 0) > 0);
    }

    #[test]
    fn the_fields_of_tcp_info_lie_where_the_kernel_has_them() {
        assert_eq!(offset_of!(libc::tcp_info, tcpi_retransmits), 2);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_last_data_recv), 52);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_rtt), 68);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_rttvar), 72);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_total_retrans), 100);
    }

    #[test]
    fn an_older_kernels_shorter_tcp_info_leaves_later_fields_at_zero() {
        let mut info = [0_u8; 104];
        info[2] = 4;
        info[68..72].copy_from_slice(&1500_u32.to_ne_bytes());
        info[100..104].copy_from_slice(&9_u32.to_ne_bytes());
        let socket = parse(&message(AF_INET, &attribute(INET_DIAG_INFO, &info))).unwrap();
        let expected = TcpInfo { retransmits: 4, rtt_us: 1500, total_retrans: 9, ..TcpInfo::default() };
        assert_eq!(socket.info, Some(expected));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes);
        }
    }
}
