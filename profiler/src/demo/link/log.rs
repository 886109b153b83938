//! What a link did to which packet, and the round trips that it saw.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::packet::Segment;
use super::script::Direction;
use super::shaper::Fate;

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketRecord {
    pub direction: Direction,
    pub bytes: usize,
    /// Right after it was read from its sender's kernel, `CLOCK_MONOTONIC`, nanoseconds.
    pub taken_ns: u64,
    pub fate: Fate,
    /// Right before it was handed to the receiver's kernel; `None` where it was not, or not yet.
    pub delivered_ns: Option<u64>,
    /// `None`: no TCP.
    pub segment: Option<Segment>,
}

/// A segment and what acknowledged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// When the link took the segment.
    pub taken_ns: u64,
    /// From then to when the link gave the first packet back that acknowledges it: the sender sees no less.
    pub ns: u64,
    pub syn: bool,
}

/// A segment that is not acknowledged yet.
struct Sent {
    segment: Segment,
    taken_ns: u64,
    once: bool,
}

/// Round trips of segments that went `direction` and were sent once, in their order.
pub fn round_trips(packets: &[PacketRecord], direction: Direction) -> Vec<RoundTrip> {
    let mut open: HashMap<(SocketAddr, SocketAddr), Vec<Sent>> = HashMap::new();
    let mut trips = Vec::new();
    // As they passed: an acknowledgement counts when it is given back.
    let mut events: Vec<(u64, &PacketRecord, &Segment)> = Vec::new();
    for packet in packets {
        let Some(segment) = &packet.segment else { continue };
        if packet.direction == direction {
            events.push((packet.taken_ns, packet, segment));
        } else if let Some(delivered_ns) = packet.delivered_ns {
            events.push((delivered_ns, packet, segment));
        }
    }
    events.sort_by_key(|(time_ns, _, _)| *time_ns);
    for (time_ns, packet, segment) in events {
        if packet.direction == direction {
            if segment.end() == segment.seq {
                continue;
            }
            let sent = open.entry((segment.from, segment.to)).or_default();
            // Which copy is acknowledged cannot be told.
            let again = sent.iter_mut().find(|known| known.segment.seq == segment.seq);
            match again {
                Some(known) => known.once = false,
                None => sent.push(Sent { segment: *segment, taken_ns: time_ns, once: true }),
            }
        } else if let (Some(ack), Some(sent)) = (segment.ack, open.get_mut(&(segment.to, segment.from))) {
            sent.retain(|Sent { segment: known, taken_ns, once }| {
                let acknowledged = ack.wrapping_sub(known.end()).cast_signed() >= 0;
                if acknowledged && *once {
                    let ns = time_ns.saturating_sub(*taken_ns);
                    let (from, to, syn) = (known.from, known.to, known.syn);
                    trips.push(RoundTrip { from, to, taken_ns: *taken_ns, ns, syn });
                }
                !acknowledged
            });
        }
    }
    trips.sort_by_key(|trip| trip.taken_ns);
    trips
}

/// Segments with data that went `direction` and whose first byte had passed before.
pub fn retransmissions(packets: &[PacketRecord], direction: Direction) -> usize {
    let mut next: HashMap<(SocketAddr, SocketAddr), u32> = HashMap::new();
    let mut count = 0;
    for packet in packets.iter().filter(|packet| packet.direction == direction) {
        let Some(segment) = packet.segment.filter(|segment| segment.len > 0 && !segment.syn) else {
            continue;
        };
        let known = next.entry((segment.from, segment.to)).or_insert(segment.seq);
        if segment.seq.wrapping_sub(*known).cast_signed() < 0 {
            count += 1;
        } else {
            *known = segment.end();
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    /// Taken at `taken`, given on at `given`.
    fn packet(
        direction: Direction,
        taken: u64,
        given: Option<u64>,
        seq: u32,
        ack: u32,
        len: u32,
    ) -> PacketRecord {
        let (from, to) = match direction {
            Direction::AToB => (address(1), address(2)),
            Direction::BToA => (address(2), address(1)),
        };
        let segment = Segment { from, to, seq, ack: Some(ack), len, syn: false, fin: false };
        PacketRecord {
            direction,
            bytes: 40 + len as usize,
            taken_ns: taken,
            fate: given.map_or(Fate::Lost, |due_ns| Fate::Deliver { due_ns, overtakes: false }),
            delivered_ns: given,
            segment: Some(segment),
        }
    }

    use Direction::{AToB, BToA};

    #[test]
    fn a_round_trip_ends_with_the_first_acknowledgement_that_is_given_back() {
        let packets = [
            packet(AToB, 100, Some(110), 5, 0, 3),
            packet(BToA, 112, Some(122), 0, 7, 0),
            packet(BToA, 115, Some(125), 0, 8, 0),
            packet(BToA, 130, Some(140), 0, 8, 9),
        ];
        let trips = round_trips(&packets, AToB);
        assert_eq!(trips.iter().map(|trip| (trip.taken_ns, trip.ns)).collect::<Vec<_>>(), [(100, 25)]);
        let of_b = round_trips(&packets, BToA);
        assert_eq!(of_b, []);
    }

    #[test]
    fn what_was_sent_twice_or_never_acknowledged_has_no_round_trip() {
        let packets = [
            packet(AToB, 100, None, 5, 0, 3),
            packet(AToB, 300, Some(310), 5, 0, 3),
            packet(BToA, 312, Some(322), 0, 8, 0),
            packet(AToB, 400, Some(410), 8, 0, 3),
            packet(BToA, 412, None, 0, 11, 0),
        ];
        assert_eq!(round_trips(&packets, AToB), []);
        assert_eq!(retransmissions(&packets, AToB), 1);
        assert_eq!(retransmissions(&packets, BToA), 0);
    }

    #[test]
    fn numbers_wrap_around() {
        let packets = [
            packet(AToB, 100, Some(110), u32::MAX, 0, 3),
            packet(BToA, 112, Some(122), 0, 2, 0),
            packet(AToB, 200, Some(210), 2, 0, 3),
        ];
        assert_eq!(round_trips(&packets, AToB).len(), 1);
        assert_eq!(retransmissions(&packets, AToB), 0);
    }
}
