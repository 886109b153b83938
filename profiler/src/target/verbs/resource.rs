//! What the kernel tells of queue pairs that were made before anybody looked: where they lead to, over netlink as
//! `rdma resource show` asks for it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::target::netlink::{Netlink, NetlinkError, attribute, attributes, u16_at, u32_at};

const NETLINK_RDMA: isize = 20;
/// Kinds of requests: the client `RDMA_NL_NLDEV` and its command.
const NLDEV: u16 = 5 << 10;
const GET_DEVICES: u16 = NLDEV + 1;
const GET_QUEUE_PAIRS: u16 = NLDEV + 10;
const GET_CONNECTIONS: u16 = NLDEV + 11;
/// `RDMA_NLDEV_ATTR_*`.
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const RES_QP: u16 = 19;
const RES_LQPN: u16 = 21;
const RES_RQPN: u16 = 22;
const RES_PID: u16 = 28;
const RES_CM_ID: u16 = 30;
const RES_SRC_ADDR: u16 = 33;
const RES_DST_ADDR: u16 = 34;

/// Queue pairs and connections that are kept, at most.
const ENTRIES_MAX: usize = 65536;

/// What is known of one queue pair of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    pub number: u32,
    /// 0: the kernel's own.
    pub pid: u32,
    pub peer_qp: Option<u32>,
    pub peer: Option<IpAddr>,
    pub local: Option<IpAddr>,
}

/// All queue pairs of a device, with the addresses of their connections where rdma_cm made them.
pub fn of_device(name: &str) -> Result<Vec<Resource>, NetlinkError> {
    let mut netlink = Netlink::open(NETLINK_RDMA)?;
    let mut index = None;
    netlink.dump(GET_DEVICES, &[], |body| {
        let text =
            value(body, DEV_NAME).map(|bytes| bytes.split(|byte| *byte == 0).next().unwrap_or_default());
        if text == Some(name.as_bytes()) {
            index = value(body, DEV_INDEX).and_then(|bytes| u32_at(bytes, 0));
        }
    })?;
    let Some(index) = index else { return Ok(Vec::new()) };
    let wanted = attribute(DEV_INDEX, &index.to_ne_bytes());
    let mut found = Vec::new();
    netlink.dump(GET_QUEUE_PAIRS, &wanted, |body| each(body, RES_QP, &mut found))?;
    let mut connections = Vec::new();
    netlink.dump(GET_CONNECTIONS, &wanted, |body| each(body, RES_CM_ID, &mut connections))?;
    for connection in connections {
        let same = |one: &&mut Resource| one.number == connection.number;
        if let Some(one) = found.iter_mut().find(same) {
            (one.peer, one.local) = (connection.peer, connection.local);
        }
    }
    Ok(found)
}

fn value(body: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(body).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// The entries of one table of the answer.
fn each(body: &[u8], table: u16, found: &mut Vec<Resource>) {
    let Some(table) = value(body, table) else { return };
    let entries = attributes(table).filter_map(|(_, entry)| resource(entry));
    found.extend(entries.take(ENTRIES_MAX.saturating_sub(found.len())));
}

fn resource(entry: &[u8]) -> Option<Resource> {
    let number = |kind| value(entry, kind).and_then(|bytes| u32_at(bytes, 0));
    let address = |kind| value(entry, kind).and_then(socket_address);
    Some(Resource {
        number: number(RES_LQPN)?,
        pid: number(RES_PID).unwrap_or(0),
        peer_qp: number(RES_RQPN).filter(|number| *number != 0),
        peer: address(RES_DST_ADDR),
        local: address(RES_SRC_ADDR),
    })
}

/// `struct sockaddr_storage`; none without an address in it.
fn socket_address(bytes: &[u8]) -> Option<IpAddr> {
    let address = match i32::from(u16_at(bytes, 0)?) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?)),
        _ => return None,
    };
    (!address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_table_are_read_with_their_addresses() {
        let sockaddr = [&2_u16.to_ne_bytes()[..], &[0x12, 0x34, 10, 99, 0, 1], &[0; 120]].concat();
        let entry = [
            attribute(RES_LQPN, &17_u32.to_ne_bytes()),
            attribute(RES_RQPN, &18_u32.to_ne_bytes()),
            attribute(RES_PID, &99_u32.to_ne_bytes()),
            attribute(RES_DST_ADDR, &sockaddr),
        ]
        .concat();
        let table = [attribute(20, &entry), attribute(20, &attribute(RES_PID, &[1, 0, 0, 0]))].concat();
        let body = [attribute(DEV_INDEX, &[0; 4]), attribute(RES_QP, &table)].concat();
        let mut found = Vec::new();
        each(&body, RES_QP, &mut found);
        let peer = Some(IpAddr::from([10, 99, 0, 1]));
        assert_eq!(found, [Resource { number: 17, pid: 99, peer_qp: Some(18), peer, local: None }]);
    }

    #[test]
    fn what_is_cut_or_empty_has_no_entries() {
        let mut found = Vec::new();
        each(&[1, 2, 3], RES_QP, &mut found);
        each(&attribute(RES_QP, &[0xff; 9]), RES_QP, &mut found);
        assert!(found.is_empty());
        assert_eq!(socket_address(&[2, 0, 0]), None);
        assert_eq!(socket_address(&[0; 128]), None);
    }
}
