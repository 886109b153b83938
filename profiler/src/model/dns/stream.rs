//! DNS over TCP: messages with a length of two bytes before each, in segments that follow the calls of the
//! program rather than the messages.

use std::collections::HashMap;

use super::message::Message;

/// Bytes of one message that are kept: header, question, and of usual answers everything.
const KEPT: usize = 4096;
/// Streams at most; the one that was silent for longest makes room.
const STREAMS: usize = 1024;
/// A length below that of a header cannot be a message.
const HEADER: usize = 12;

/// A stream in one direction.
#[derive(Clone, Debug, Default)]
struct Stream {
    state: State,
    touched_ns: u64,
}

#[derive(Clone, Debug, Default)]
enum State {
    /// Between messages.
    #[default]
    Between,
    /// After the first byte of a length.
    HalfLength(u8),
    Inside {
        length: usize,
        /// Bytes of the message that went by, captured or not.
        passed: usize,
        /// The first bytes, without gaps.
        head: Vec<u8>,
    },
    /// A length went by uncaptured: where messages begin is not known.
    Lost,
}

/// Key of a stream: process, socket inode (or descriptor), whether it is the receiving direction.
pub type StreamKey = (u32, u64, bool);

/// All streams of a trace.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    streams: HashMap<StreamKey, Stream>,
}

impl Streams {
    /// Takes the next `length` bytes of a stream, of which the first are captured in `data`, and returns the
    /// messages that are complete with them; `None` for one without even a header.
    pub fn push(&mut self, key: StreamKey, time_ns: u64, data: &[u8], length: usize) -> Vec<Option<Message>> {
        if !self.streams.contains_key(&key) && self.streams.len() >= STREAMS {
            self.drop_oldest();
        }
        let stream = self.streams.entry(key).or_default();
        stream.touched_ns = time_ns;
        stream.push(data.get(..length).unwrap_or(data), length)
    }

    fn drop_oldest(&mut self) {
        let oldest = self.streams.iter().min_by_key(|(key, stream)| (stream.touched_ns, **key));
        if let Some(key) = oldest.map(|(key, _)| *key) {
            self.streams.remove(&key);
        }
    }
}

impl Stream {
    fn push(&mut self, captured: &[u8], length: usize) -> Vec<Option<Message>> {
        let mut done = Vec::new();
        let mut data = captured;
        let mut unseen = length.saturating_sub(captured.len());
        if matches!(self.state, State::Lost) && begins_message(data, length) {
            self.state = State::Between;
        }
        while !data.is_empty() {
            data = self.step(data, &mut done);
        }
        while unseen > 0 {
            unseen = self.skip(unseen, &mut done);
        }
        done
    }

    /// Takes some of the captured bytes and returns the rest.
    fn step<'a>(&mut self, data: &'a [u8], done: &mut Vec<Option<Message>>) -> &'a [u8] {
        let Some((first, rest)) = data.split_first() else { return data };
        match std::mem::take(&mut self.state) {
            State::Lost => {
                self.state = State::Lost;
                &[]
            }
            State::Between => {
                self.state = State::HalfLength(*first);
                rest
            }
            State::HalfLength(high) => {
                let length = usize::from(u16::from_be_bytes([high, *first]));
                self.state = State::Inside { length, passed: 0, head: Vec::new() };
                self.finish(done);
                rest
            }
            State::Inside { length, passed, mut head } => {
                let (taken, rest) = data.split_at(data.len().min(length.saturating_sub(passed)));
                if head.len() == passed {
                    head.extend(taken.iter().take(KEPT.saturating_sub(head.len())));
                }
                self.state = State::Inside { length, passed: passed + taken.len(), head };
                self.finish(done);
                rest
            }
        }
    }

    /// Lets uncaptured bytes go by and returns how many are left.
    fn skip(&mut self, unseen: usize, done: &mut Vec<Option<Message>>) -> usize {
        if let State::Inside { length, passed, .. } = &mut self.state {
            let taken = unseen.min(length.saturating_sub(*passed));
            *passed += taken;
            self.finish(done);
            return unseen - taken;
        }
        self.state = State::Lost;
        0
    }

    /// Hands out the message when all its bytes went by.
    fn finish(&mut self, done: &mut Vec<Option<Message>>) {
        if let State::Inside { length, passed, head } = &self.state
            && passed >= length
        {
            done.push(Message::decode(head, *length));
            self.state = State::Between;
        }
    }
}

/// Whether a segment looks like the begin of a message: programs write, and mostly read, whole messages,
/// or the length alone.
fn begins_message(data: &[u8], length: usize) -> bool {
    let Some([high, low]) = data.first_chunk::<2>() else { return false };
    let said = usize::from(u16::from_be_bytes([*high, *low]));
    said >= HEADER && (length == 2 || length == said + 2)
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::ResponseCode;
    use hickory_proto::rr::RecordType;
    use proptest::prelude::*;

    use super::super::message::tests::{answer, query};
    use super::*;

    const KEY: StreamKey = (1, 77, true);

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut bytes = (message.len() as u16).to_be_bytes().to_vec();
        bytes.extend(message);
        bytes
    }

    fn ids(messages: &[Option<Message>]) -> Vec<u16> {
        messages.iter().flatten().map(|message| message.id).collect()
    }

    fn large(id: u16) -> Vec<u8> {
        answer(id, "big.example.", RecordType::A, ResponseCode::NoError, 60)
    }

    #[test]
    fn a_length_split_over_two_segments_is_put_together() {
        let bytes = framed(&query(5, "node01.", RecordType::A));
        let mut streams = Streams::default();
        assert!(streams.push(KEY, 0, &bytes[..1], 1).is_empty());
        assert!(streams.push(KEY, 1, &bytes[1..9], 8).is_empty());
        assert_eq!(ids(&streams.push(KEY, 2, &bytes[9..], bytes.len() - 9)), [5]);
    }

    #[test]
    fn several_messages_in_one_segment_are_all_found() {
        let mut bytes = framed(&query(5, "node01.", RecordType::A));
        bytes.extend(framed(&query(6, "node01.", RecordType::AAAA)));
        let mut streams = Streams::default();
        assert_eq!(ids(&streams.push(KEY, 0, &bytes, bytes.len())), [5, 6]);
    }

    #[test]
    fn uncaptured_bytes_are_skipped_by_count() {
        let bytes = framed(&large(5));
        assert!(bytes.len() > 700);
        let mut streams = Streams::default();
        assert!(streams.push(KEY, 0, &bytes[..100], 600).is_empty());
        let done = streams.push(KEY, 1, &bytes[600..], bytes.len() - 600);
        assert_eq!(ids(&done), [5]);
        assert!(!done[0].as_ref().unwrap().malformed, "a gap is no fault of the message");
        let next = framed(&query(6, "node01.", RecordType::A));
        assert_eq!(ids(&streams.push(KEY, 2, &next, next.len())), [6]);
    }

    #[test]
    fn after_a_length_that_went_by_uncaptured_the_next_whole_message_is_found() {
        let mut bytes = framed(&large(5));
        bytes.extend(framed(&large(6)));
        let mut streams = Streams::default();
        // The second length lies beyond what was captured.
        assert_eq!(ids(&streams.push(KEY, 0, &bytes[..512], bytes.len())), [5]);
        assert!(streams.push(KEY, 1, b"garbage that is no message", 26).is_empty());
        let next = framed(&query(7, "node01.", RecordType::A));
        assert!(streams.push(KEY, 2, &next[..2], 2).is_empty());
        assert_eq!(ids(&streams.push(KEY, 3, &next[2..], next.len() - 2)), [7]);
    }

    #[test]
    fn directions_and_sockets_are_apart() {
        let bytes = framed(&query(5, "node01.", RecordType::A));
        let mut streams = Streams::default();
        assert!(streams.push((1, 77, false), 0, &bytes[..4], 4).is_empty());
        assert_eq!(ids(&streams.push((1, 77, true), 0, &bytes, bytes.len())), [5]);
        assert_eq!(ids(&streams.push((1, 77, false), 1, &bytes[4..], bytes.len() - 4)), [5]);
    }

    #[test]
    fn an_empty_message_has_no_header() {
        let mut streams = Streams::default();
        assert_eq!(streams.push(KEY, 0, &[0, 0], 2), [None]);
    }

    #[test]
    fn the_number_of_streams_is_bounded() {
        let mut streams = Streams::default();
        for ino in 0..5000 {
            streams.push((1, ino, true), ino, &[1], 1);
        }
        assert_eq!(streams.streams.len(), STREAMS);
        assert!(streams.streams.contains_key(&(1, 4999, true)));
    }

    proptest! {
        #[test]
        fn any_segments_are_survived_in_bounded_memory(
            segments in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..520), 0usize..70000), 0..20)
        ) {
            let mut streams = Streams::default();
            for (data, length) in &segments {
                streams.push(KEY, 0, data, *length);
            }
            if let Some(Stream { state: State::Inside { head, .. }, .. }) = streams.streams.get(&KEY) {
                prop_assert!(head.len() <= KEPT);
            }
        }

        #[test]
        fn every_cut_into_segments_gives_the_same_messages(cuts in proptest::collection::vec(1usize..40, 1..60)) {
            let mut bytes = framed(&query(5, "node01.", RecordType::A));
            bytes.extend(framed(&large(6)));
            bytes.extend(framed(&query(7, "node01.", RecordType::AAAA)));
            let mut streams = Streams::default();
            let mut found = Vec::new();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (segment, tail) = rest.split_at(cut.min(rest.len()));
                found.extend(streams.push(KEY, 0, segment, segment.len()));
                rest = tail;
            }
            found.extend(streams.push(KEY, 0, rest, rest.len()));
            prop_assert_eq!(ids(&found), vec![5, 6, 7]);
        }
    }
}
