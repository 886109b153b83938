//! What a scripted DNS server does with a query: pure functions from message to message.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{Name, RData, Record, RecordType};

/// What happens to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// One address (`A`: 10.77.0.200, `AAAA`: fd77::200, `PTR`: `host.test.`), after the delay.
    Answer { delay: Duration },
    /// The response code of this number with no records, after the delay.
    Code { code: u16, delay: Duration },
    /// One address, as soon as the server is told to release what it holds; over UDP.
    Held,
    /// No answer, ever.
    Never,
    /// The first `count` queries of this name and type get no answer, the others one at once.
    DropFirst { count: usize },
    /// The first `count` queries of this name and type are told that there is no such name, the others get an
    /// answer, each at once: a service that is not registered yet.
    NxdomainFirst { count: usize },
    /// Over UDP an empty truncated answer at once; over TCP the whole one, cut into `segments` pieces
    /// with `gap` between them.
    TruncateThenTcp { segments: usize, gap: Duration },
    /// An answer with another id at once, and after the delay the right one, if there is a delay.
    WrongId { then_right: Option<Duration> },
    /// A message with the right header and question whose answer record is cut off.
    Malformed,
}

impl Action {
    pub const fn answer_at_once() -> Action {
        Action::Answer { delay: Duration::ZERO }
    }

    pub const fn nxdomain(delay: Duration) -> Action {
        Action::Code { code: 3, delay }
    }

    pub const fn servfail(delay: Duration) -> Action {
        Action::Code { code: 2, delay }
    }

    pub const fn refused(delay: Duration) -> Action {
        Action::Code { code: 5, delay }
    }
}

/// Binds names and a type to an action; the first rule that fits a query counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Suffix of the query's name, whole labels, without regard to case; empty: every name.
    pub suffix: String,
    /// `None`: every type.
    pub qtype: Option<RecordType>,
    pub action: Action,
}

impl Rule {
    pub fn new(suffix: &str, action: Action) -> Rule {
        Rule { suffix: suffix.to_owned(), qtype: None, action }
    }

    #[must_use]
    pub fn only(mut self, qtype: RecordType) -> Rule {
        self.qtype = Some(qtype);
        self
    }

    /// `A` is answered at once; the first `AAAA` of each name is lost: the five-second ladder.
    pub fn answers_a_but_not_aaaa(suffix: &str) -> Vec<Rule> {
        vec![
            Rule::new(suffix, Action::DropFirst { count: 1 }).only(RecordType::AAAA),
            Rule::new(suffix, Action::answer_at_once()),
        ]
    }

    pub(super) fn fits(&self, query: &Query) -> bool {
        self.qtype.is_none_or(|qtype| qtype == query.query_type())
            && Name::from_ascii(&self.suffix).is_ok_and(|zone| zone.zone_of(query.name()))
    }
}

/// One message to send: when, counted from the arrival of the query, and whether it answers the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub delay: Duration,
    pub bytes: Vec<u8>,
    /// Pieces that the message is cut into over TCP, and the time between them.
    pub segments: usize,
    pub gap: Duration,
    /// Carries the query's id.
    pub answers: bool,
}

/// The delay of a reply that waits for a word.
pub(super) const HELD: Duration = Duration::MAX;

/// The replies to `request` under `action`; `earlier` queries of its name and type came before it.
pub(super) fn replies(request: &Message, action: Action, earlier: usize, over_tcp: bool) -> Vec<Reply> {
    let at = |delay, message: &Message| Reply {
        delay,
        bytes: message.to_vec().unwrap_or_default(),
        segments: 1,
        gap: Duration::ZERO,
        answers: message.metadata.id == request.metadata.id,
    };
    match action {
        Action::Answer { delay } => vec![at(delay, &answer(request))],
        Action::Code { code, delay } => {
            let code = ResponseCode::from(0, u8::try_from(code & 0xf).unwrap_or(0));
            vec![at(delay, &without_records(request, code))]
        }
        Action::Held => vec![at(HELD, &answer(request))],
        Action::Never => Vec::new(),
        Action::DropFirst { count } if earlier < count => Vec::new(),
        Action::NxdomainFirst { count } if earlier < count => {
            vec![at(Duration::ZERO, &without_records(request, ResponseCode::NXDomain))]
        }
        Action::DropFirst { .. } | Action::NxdomainFirst { .. } => {
            vec![at(Duration::ZERO, &answer(request))]
        }
        Action::TruncateThenTcp { segments, gap } if over_tcp => {
            vec![Reply { segments, gap, ..at(Duration::ZERO, &answer(request)) }]
        }
        Action::TruncateThenTcp { .. } => {
            let mut message = response(request);
            message.metadata.truncation = true;
            vec![at(Duration::ZERO, &message)]
        }
        Action::WrongId { then_right } => {
            let mut wrong = answer(request);
            wrong.metadata.id ^= 0x5555;
            let mut all = vec![at(Duration::ZERO, &wrong)];
            all.extend(then_right.map(|delay| at(delay, &answer(request))));
            all
        }
        Action::Malformed => {
            let mut reply = at(Duration::ZERO, &answer(request));
            // The answer's header still promises a record whose data is not there.
            reply.bytes.truncate(reply.bytes.len().saturating_sub(5));
            vec![reply]
        }
    }
}

fn response(request: &Message) -> Message {
    let mut message = Message::response(request.metadata.id, request.metadata.op_code);
    message.metadata.recursion_desired = request.metadata.recursion_desired;
    message.metadata.recursion_available = true;
    message.queries.clone_from(&request.queries);
    message
}

fn without_records(request: &Message, code: ResponseCode) -> Message {
    let mut message = response(request);
    message.metadata.response_code = code;
    message
}

fn answer(request: &Message) -> Message {
    let mut message = response(request);
    let Some(query) = request.queries.first() else { return message };
    let data = match query.query_type() {
        RecordType::A => RData::A(A(Ipv4Addr::new(10, 77, 0, 200))),
        RecordType::AAAA => RData::AAAA(AAAA(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x200))),
        RecordType::PTR => match Name::from_ascii("host.test.") {
            Ok(name) => RData::PTR(PTR(name)),
            Err(_) => return message,
        },
        _ => return message,
    };
    message.add_answer(Record::from_rdata(query.name().clone(), 0, data));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str, qtype: RecordType) -> Message {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), qtype));
        message
    }

    fn decoded(reply: &Reply) -> Message {
        Message::from_vec(&reply.bytes).unwrap()
    }

    #[test]
    fn suffixes_match_whole_labels_only() {
        let query = |name| Query::query(Name::from_ascii(name).unwrap(), RecordType::A);
        let rule = Rule::new("late.test.", Action::Never);
        assert!(rule.fits(&query("node01.LATE.test.")));
        assert!(!rule.fits(&query("node01.notlate.test.")));
        assert!(!rule.only(RecordType::AAAA).fits(&query("node01.late.test.")));
        assert!(Rule::new("", Action::Never).fits(&query("anything.")));
    }

    #[test]
    fn answers_carry_id_question_and_one_address() {
        let asked = request("a.test.", RecordType::AAAA);
        let replies = replies(&asked, Action::Answer { delay: Duration::from_millis(7) }, 0, false);
        assert_eq!(replies.len(), 1);
        assert_eq!(replies[0].delay, Duration::from_millis(7));
        let message = decoded(&replies[0]);
        assert_eq!(message.metadata.id, asked.metadata.id);
        assert_eq!(message.queries, asked.queries);
        assert!(matches!(message.answers[0].data, RData::AAAA(_)));
    }

    #[test]
    fn codes_are_as_scripted() {
        let asked = request("a.test.", RecordType::A);
        for (action, code) in [
            (Action::nxdomain(Duration::ZERO), ResponseCode::NXDomain),
            (Action::servfail(Duration::ZERO), ResponseCode::ServFail),
            (Action::refused(Duration::ZERO), ResponseCode::Refused),
        ] {
            let message = decoded(&replies(&asked, action, 0, false)[0]);
            assert_eq!(message.metadata.response_code, code);
            assert!(message.answers.is_empty());
        }
    }

    #[test]
    fn wrong_id_comes_before_the_right_one() {
        let asked = request("a.test.", RecordType::A);
        let delay = Duration::from_millis(30);
        let both = replies(&asked, Action::WrongId { then_right: Some(delay) }, 0, false);
        assert_eq!([both[0].answers, both[1].answers], [false, true]);
        assert_ne!(decoded(&both[0]).metadata.id, asked.metadata.id);
        assert_eq!(decoded(&both[1]).metadata.id, asked.metadata.id);
        assert_eq!(replies(&asked, Action::WrongId { then_right: None }, 0, false).len(), 1);
    }

    #[test]
    fn truncated_over_udp_is_whole_over_tcp() {
        let asked = request("a.test.", RecordType::A);
        let action = Action::TruncateThenTcp { segments: 3, gap: Duration::from_millis(5) };
        let udp = decoded(&replies(&asked, action, 0, false)[0]);
        assert!(udp.metadata.truncation && udp.answers.is_empty());
        let tcp = replies(&asked, action, 0, true);
        assert_eq!(tcp[0].segments, 3);
        assert_eq!(decoded(&tcp[0]).answers.len(), 1);
    }

    #[test]
    fn malformed_answers_do_not_decode_but_keep_the_header() {
        let asked = request("a.test.", RecordType::A);
        let reply = &replies(&asked, Action::Malformed, 0, false)[0];
        assert!(Message::from_vec(&reply.bytes).is_err());
        assert_eq!(reply.bytes[..2], asked.metadata.id.to_be_bytes());
    }

    #[test]
    fn first_queries_are_dropped_and_later_ones_answered() {
        let asked = request("a.test.", RecordType::AAAA);
        let action = Action::DropFirst { count: 1 };
        assert!(replies(&asked, action, 0, false).is_empty());
        assert_eq!(replies(&asked, action, 1, false).len(), 1);
    }

    #[test]
    fn a_name_that_is_registered_later_does_not_exist_at_first() {
        let asked = request("a.test.", RecordType::A);
        let action = Action::NxdomainFirst { count: 2 };
        let code = |earlier| {
            let message = decoded(&replies(&asked, action, earlier, false)[0]);
            (message.metadata.response_code, message.answers.len())
        };
        assert_eq!((code(0), code(1)), ((ResponseCode::NXDomain, 0), (ResponseCode::NXDomain, 0)));
        assert_eq!(code(2), (ResponseCode::NoError, 1));
    }
}
