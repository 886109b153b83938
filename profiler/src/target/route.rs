//! Which interface has an address, and which one leads to it, asked of the kernel (`rtnetlink`).

use std::net::IpAddr;

use super::netlink::{Netlink, attribute, attributes, u32_at};
use super::root::printable;

const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
const RTM_GETROUTE: u16 = 26;

const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;

/// Lengths of the kernel's `struct ifaddrmsg`, `rtmsg` and `ifinfomsg`.
const ADDRESS_HEAD: usize = 8;
const ROUTE_HEAD: usize = 12;
const LINK_HEAD: usize = 16;

/// The way to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub interface: String,
    /// `None`: directly on the link.
    pub gateway: Option<IpAddr>,
    /// Address that packets would be sent from.
    pub source: Option<IpAddr>,
}

/// Name of the interface that has this address.
pub(super) fn interface_with(netlink: &mut Netlink, local: IpAddr) -> Option<String> {
    let mut head = [0; ADDRESS_HEAD];
    head[0] = family(local);
    let mut found = None;
    let listed = netlink.dump(RTM_GETADDR, &head, |body| {
        found = found.or_else(|| interface_of_address(body, local));
    });
    listed.ok()?;
    interface_name(netlink, found?)
}

/// The way that packets to this address take.
pub(super) fn route_to(netlink: &mut Netlink, peer: IpAddr) -> Option<Route> {
    let mut body = vec![0; ROUTE_HEAD];
    body[0] = family(peer);
    body[1] = if peer.is_ipv4() { 32 } else { 128 };
    body.extend(attribute(RTA_DST, &octets(peer)));
    let answer = netlink.get(RTM_GETROUTE, &body).ok()?;
    let (index, gateway, source) = parse_route(&answer)?;
    Some(Route { interface: interface_name(netlink, index)?, gateway, source })
}

fn interface_name(netlink: &mut Netlink, index: u32) -> Option<String> {
    let mut head = [0; LINK_HEAD];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    let answer = netlink.get(RTM_GETLINK, &head).ok()?;
    let (_, name) = attributes(answer.get(LINK_HEAD..)?).find(|(kind, _)| *kind == IFLA_IFNAME)?;
    Some(printable(name.strip_suffix(b"\0").unwrap_or(name)))
}

/// Index of the interface in an entry of the address list, where the entry is for this address.
fn interface_of_address(body: &[u8], wanted: IpAddr) -> Option<u32> {
    let (head, tail) = body.split_at_checked(ADDRESS_HEAD)?;
    // On a point-to-point link IFA_ADDRESS is the other end, and IFA_LOCAL ours.
    let value = |wanted_kind: u16| attributes(tail).find(|(kind, _)| *kind == wanted_kind);
    let (_, own) = value(IFA_LOCAL).or_else(|| value(IFA_ADDRESS))?;
    (address(own)? == wanted).then(|| u32_at(head, 4))?
}

fn parse_route(body: &[u8]) -> Option<(u32, Option<IpAddr>, Option<IpAddr>)> {
    let (mut index, mut gateway, mut source) = (None, None, None);
    for (kind, value) in attributes(body.get(ROUTE_HEAD..)?) {
        match kind {
            RTA_OIF => index = u32_at(value, 0),
            RTA_GATEWAY => gateway = address(value),
            RTA_PREFSRC => source = address(value),
            _ => {}
        }
    }
    Some((index?, gateway, source))
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_own_end_of_a_point_to_point_link_counts() {
        let mut body = vec![0; ADDRESS_HEAD];
        body[4..8].copy_from_slice(&5_u32.to_ne_bytes());
        body.extend(attribute(IFA_ADDRESS, &[10, 0, 0, 2]));
        body.extend(attribute(IFA_LOCAL, &[10, 0, 0, 1]));
        assert_eq!(interface_of_address(&body, IpAddr::from([10, 0, 0, 1])), Some(5));
        assert_eq!(interface_of_address(&body, IpAddr::from([10, 0, 0, 2])), None);
    }

    #[test]
    fn a_route_has_an_interface_and_may_have_a_gateway() {
        let mut body = vec![0; ROUTE_HEAD];
        assert_eq!(parse_route(&body), None);
        body.extend(attribute(RTA_OIF, &2_u32.to_ne_bytes()));
        assert_eq!(parse_route(&body), Some((2, None, None)));
        body.extend(attribute(RTA_GATEWAY, &[192, 0, 2, 1]));
        assert_eq!(parse_route(&body), Some((2, Some(IpAddr::from([192, 0, 2, 1])), None)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = (parse_route(&bytes), interface_of_address(&bytes, IpAddr::from([1, 2, 3, 4])));
        }
    }
}
