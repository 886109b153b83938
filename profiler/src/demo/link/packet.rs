//! As much of a packet as the log needs: the ends, numbers and flags of TCP segments.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What passes through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// IP packets.
    Ip,
    /// Ethernet frames.
    Ethernet,
}

/// A TCP segment, as its header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub seq: u32,
    /// Of no meaning without the flag.
    pub ack: Option<u32>,
    /// Bytes of data.
    pub len: u32,
    pub syn: bool,
    pub fin: bool,
}

impl Segment {
    /// The number behind everything in it.
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len).wrapping_add(u32::from(self.syn) + u32::from(self.fin))
    }
}

/// The segment in a packet, if it is whole enough to tell and no fragment.
pub(super) fn segment(layer: Layer, packet: &[u8]) -> Option<Segment> {
    let packet = match layer {
        Layer::Ip => packet,
        Layer::Ethernet => packet.get(14..)?,
    };
    match packet.first()? >> 4 {
        4 => segment_v4(packet),
        6 => segment_v6(packet),
        _ => None,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn segment_v4(packet: &[u8]) -> Option<Segment> {
    let header = usize::from(packet.first()? & 15) * 4;
    let total = usize::from(u16_at(packet, 2)?);
    let is_fragment = u16_at(packet, 6)? & 0x3fff != 0;
    if *packet.get(9)? != libc::IPPROTO_TCP as u8 || is_fragment {
        return None;
    }
    let from = Ipv4Addr::from_bits(u32_at(packet, 12)?).into();
    let to = Ipv4Addr::from_bits(u32_at(packet, 16)?).into();
    // Ethernet fills short frames up.
    tcp(packet.get(header..total)?, from, to)
}

fn segment_v6(packet: &[u8]) -> Option<Segment> {
    let total = usize::from(u16_at(packet, 4)?) + 40;
    if *packet.get(6)? != libc::IPPROTO_TCP as u8 {
        return None;
    }
    let address = |at: usize| {
        let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
        Some(IpAddr::from(Ipv6Addr::from(octets)))
    };
    tcp(packet.get(40..total)?, address(8)?, address(24)?)
}

fn tcp(segment: &[u8], from: IpAddr, to: IpAddr) -> Option<Segment> {
    let header = usize::from(segment.get(12)? >> 4) * 4;
    let flags = *segment.get(13)?;
    Some(Segment {
        from: SocketAddr::new(from, u16_at(segment, 0)?),
        to: SocketAddr::new(to, u16_at(segment, 2)?),
        seq: u32_at(segment, 4)?,
        ack: (flags & 0x10 != 0).then_some(u32_at(segment, 8)?),
        len: u32::try_from(segment.len().checked_sub(header)?).ok()?,
        syn: flags & 2 != 0,
        fin: flags & 1 != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IPv4, TCP with SYN and ACK, three bytes of data, two of padding.
    fn packet() -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 43, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes.extend([0x1f, 0x90, 0, 80, 0, 0, 0, 7, 0, 0, 0, 9, 0x50, 0x12, 0, 0, 0, 0, 0, 0]);
        bytes.extend([1, 2, 3, 0, 0]);
        bytes
    }

    #[test]
    fn segments_are_read_from_packets_and_frames() {
        let read = segment(Layer::Ip, &packet()).unwrap();
        assert_eq!(
            (read.from.to_string(), read.to.to_string()),
            ("10.0.0.1:8080".into(), "10.0.0.2:80".into())
        );
        assert_eq!((read.seq, read.ack, read.len, read.syn, read.fin), (7, Some(9), 3, true, false));
        assert_eq!(read.end(), 11);
        let frame = [vec![0; 14], packet()].concat();
        assert_eq!(segment(Layer::Ethernet, &frame), Some(read));
    }

    #[test]
    fn ipv6_is_read_too() {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 21, 6, 64];
        bytes.extend([0xfd; 16]);
        bytes.extend([0xfe; 16]);
        bytes.extend(&packet()[20..41]);
        let read = segment(Layer::Ip, &bytes).unwrap();
        assert_eq!((read.from.port(), read.len), (8080, 1));
    }

    #[test]
    fn what_is_cut_or_something_else_is_no_segment() {
        for len in 0..40 {
            assert_eq!(segment(Layer::Ip, &packet()[..len]), None, "{len}");
        }
        let mut udp = packet();
        udp[9] = 17;
        assert_eq!(segment(Layer::Ip, &udp), None);
        let mut fragment = packet();
        fragment[7] = 9;
        assert_eq!(segment(Layer::Ip, &fragment), None);
        let mut long_header = packet();
        long_header[32] = 0xf0;
        assert_eq!(segment(Layer::Ip, &long_header), None);
    }
}
