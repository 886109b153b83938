//! One DNS message. Only the header and the first question are taken out; the rest is walked to see
//! whether it holds together and to find the upper bits of the answer code.

use hickory_proto::op::{Header, MessageType, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, DecodeError};

use super::name::present;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Question {
    /// As it was sent, in presentation form.
    pub name: String,
    pub qtype: u16,
}

impl Question {
    /// `A`, `AAAA`, `PTR` …; `TYPE1234` where the type has no name.
    pub fn type_name(&self) -> String {
        match RecordType::from(self.qtype) {
            RecordType::Unknown(number) => format!("TYPE{number}"),
            known => known.to_string(),
        }
    }

    /// Whether both ask for the same; the case of letters is no part of a name.
    pub fn is_same(&self, other: &Question) -> bool {
        self.qtype == other.qtype && self.name.eq_ignore_ascii_case(&other.name)
    }
}

/// A message as far as it could be decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub id: u16,
    pub is_answer: bool,
    /// The TC bit: the answer did not fit and should be asked for over TCP.
    pub is_truncated: bool,
    /// With the upper bits from EDNS where that record was captured.
    pub rcode: u16,
    /// Number of answer records according to the header.
    pub answers: u16,
    /// The first question; `None` where there is none or it could not be read.
    pub question: Option<Question>,
    /// The message does not hold together. Never set for what merely was not captured.
    pub malformed: bool,
}

impl Message {
    /// Decodes `data`, the first bytes of a message of `length` bytes. `None` where there is not even a
    /// header.
    pub fn decode(data: &[u8], length: usize) -> Option<Message> {
        let complete = data.len() >= length;
        let mut decoder = BinDecoder::new(data);
        let header = Header::read(&mut decoder).ok()?;
        let mut message = Message {
            id: header.id,
            is_answer: header.message_type == MessageType::Response,
            is_truncated: header.truncation,
            rcode: header.response_code.into(),
            answers: header.counts.answers,
            question: None,
            malformed: false,
        };
        let body = message.decode_body(&header, &mut decoder);
        message.malformed = match body {
            // A cut capture ends somewhere; only what is there can be wrong.
            Err(DecodeError::InsufficientBytes) => complete,
            Err(_) => true,
            Ok(()) => false,
        };
        Some(message)
    }

    fn decode_body(&mut self, header: &Header, decoder: &mut BinDecoder<'_>) -> Result<(), DecodeError> {
        for index in 0..header.counts.queries {
            let query = Query::read(decoder)?;
            if index == 0 {
                let question = Question { name: present(query.name()), qtype: query.query_type().into() };
                self.question = Some(question);
            }
        }
        let counts = &header.counts;
        let records =
            u32::from(counts.answers) + u32::from(counts.authorities) + u32::from(counts.additionals);
        for _ in 0..records {
            // A server may cut a message anywhere when it says that it is truncated.
            if self.is_truncated && decoder.is_empty() {
                break;
            }
            self.walk_record(decoder)?;
        }
        Ok(())
    }

    /// Steps over one record. Its data is not looked at.
    fn walk_record(&mut self, decoder: &mut BinDecoder<'_>) -> Result<(), DecodeError> {
        Name::read(decoder)?;
        let kind = RecordType::read(decoder)?;
        let _class = decoder.read_u16()?;
        let ttl = decoder.read_u32()?.unverified();
        let length = decoder.read_u16()?.unverified();
        decoder.read_slice(usize::from(length))?;
        if kind == RecordType::OPT {
            // RFC 6891 6.1.3: the first byte of the TTL is the upper 8 of 12 bits.
            self.rcode = (self.rcode & 0xf) | (((ttl >> 24) as u16) << 4);
        }
        Ok(())
    }
}

/// The answer code's name in the IANA registry; `RCODE23` where it has none.
pub fn rcode_name(rcode: u16) -> String {
    let name = match <ResponseCode as From<u16>>::from(rcode) {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::YXDomain => "YXDOMAIN",
        ResponseCode::YXRRSet => "YXRRSET",
        ResponseCode::NXRRSet => "NXRRSET",
        ResponseCode::NotAuth => "NOTAUTH",
        ResponseCode::NotZone => "NOTZONE",
        // 16 means BADSIG only inside TSIG records.
        ResponseCode::BADVERS | ResponseCode::BADSIG => "BADVERS",
        ResponseCode::BADKEY => "BADKEY",
        ResponseCode::BADTIME => "BADTIME",
        ResponseCode::BADMODE => "BADMODE",
        ResponseCode::BADNAME => "BADNAME",
        ResponseCode::BADALG => "BADALG",
        ResponseCode::BADTRUNC => "BADTRUNC",
        ResponseCode::BADCOOKIE => "BADCOOKIE",
        ResponseCode::Unknown(number) => return format!("RCODE{number}"),
    };
    name.to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::Ipv4Addr;

    use hickory_proto::op::{Edns, Message as Packet, OpCode};
    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{RData, Record};
    use proptest::prelude::*;

    use super::*;

    /// Any bytes, cut at dots.
    fn name(text: &str) -> Name {
        Name::from_labels(text.trim_end_matches('.').split('.').map(str::as_bytes)).unwrap()
    }

    /// A query as a resolver sends it.
    pub(crate) fn query(id: u16, name: &str, qtype: RecordType) -> Vec<u8> {
        let mut packet = Packet::new(id, MessageType::Query, OpCode::Query);
        packet.add_query(Query::query(self::name(name), qtype));
        packet.to_vec().unwrap()
    }

    /// An answer with `records` addresses.
    pub(crate) fn answer(
        id: u16,
        name: &str,
        qtype: RecordType,
        rcode: ResponseCode,
        records: u8,
    ) -> Vec<u8> {
        let mut packet = Packet::new(id, MessageType::Response, OpCode::Query);
        packet.metadata.response_code = rcode;
        let name = self::name(name);
        packet.add_query(Query::query(name.clone(), qtype));
        for last in 0..records {
            let address = RData::A(A(Ipv4Addr::new(10, 0, 0, last)));
            packet.add_answer(Record::from_rdata(name.clone(), 60, address));
        }
        packet.to_vec().unwrap()
    }

    #[test]
    fn reads_id_question_and_answer_code() {
        let data = answer(0xbeef, "Node01.example.", RecordType::A, ResponseCode::NXDomain, 0);
        let message = Message::decode(&data, data.len()).unwrap();
        assert_eq!(message.id, 0xbeef);
        assert!(message.is_answer);
        assert!(!message.malformed);
        assert_eq!(rcode_name(message.rcode), "NXDOMAIN");
        let question = message.question.unwrap();
        assert_eq!((question.name.as_str(), question.type_name().as_str()), ("Node01.example", "A"));
        assert!(question.is_same(&Question { name: "node01.EXAMPLE".to_string(), qtype: 1 }));
        assert!(!question.is_same(&Question { name: "node01.example".to_string(), qtype: 28 }));
    }

    #[test]
    fn a_capture_that_is_cut_still_gives_the_question_and_is_not_malformed() {
        let data = answer(7, "big.example.", RecordType::A, ResponseCode::NoError, 100);
        assert!(data.len() > 512);
        let message = Message::decode(&data[..512], data.len()).unwrap();
        assert!(!message.malformed);
        assert_eq!(message.answers, 100);
        assert_eq!(message.question.unwrap().name, "big.example");
    }

    #[test]
    fn a_whole_message_that_ends_inside_a_record_is_malformed() {
        let data = answer(7, "big.example.", RecordType::A, ResponseCode::NoError, 3);
        let message = Message::decode(&data[..data.len() - 5], data.len() - 5).unwrap();
        assert!(message.malformed);
        assert_eq!(message.question.unwrap().name, "big.example");
    }

    #[test]
    fn fewer_bytes_than_a_header_are_no_message() {
        assert_eq!(Message::decode(&[0; 11], 11), None);
    }

    #[test]
    fn a_pointer_to_itself_is_malformed() {
        let mut data = vec![0, 1, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        data.extend([0xc0, 12, 0, 1, 0, 1]);
        let message = Message::decode(&data, data.len()).unwrap();
        assert!(message.malformed);
        assert_eq!(message.question, None);
    }

    #[test]
    fn upper_bits_of_the_answer_code_come_from_edns() {
        let mut packet = Packet::new(1, MessageType::Response, OpCode::Query);
        packet.add_query(Query::query(Name::from_ascii("x.").unwrap(), RecordType::HTTPS));
        packet.metadata.response_code = ResponseCode::BADVERS;
        packet.set_edns(Edns::new());
        let data = packet.to_vec().unwrap();
        let message = Message::decode(&data, data.len()).unwrap();
        assert_eq!(rcode_name(message.rcode), "BADVERS");
        assert_eq!(message.question.unwrap().type_name(), "HTTPS");
    }

    #[test]
    fn types_and_codes_without_a_name_are_given_by_number() {
        assert_eq!(Question { name: "x".into(), qtype: 4711 }.type_name(), "TYPE4711");
        assert_eq!(rcode_name(12), "RCODE12");
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(data in proptest::collection::vec(any::<u8>(), 0..600), length in 0usize..70000) {
            if let Some(Message { question: Some(question), .. }) = Message::decode(&data, length) {
                prop_assert!(question.name.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
            }
        }

        #[test]
        fn a_damaged_answer_is_survived(position in 0usize..60, value in any::<u8>()) {
            let mut data = answer(3, "node01.example.", RecordType::A, ResponseCode::NoError, 2);
            if let Some(byte) = data.get_mut(position) {
                *byte = value;
            }
            let _ = Message::decode(&data, data.len());
        }
    }
}
