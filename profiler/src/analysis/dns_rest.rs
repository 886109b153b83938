//! Waits on resolvers beyond those that are told apart by name: a bounded number of sums, so that no time is missing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::dns_wait::DnsWait;
use super::report::DnsRow;
use crate::model::dns::name::present_text;
use crate::model::socket::Transport;

/// Sums that are kept; what is beyond is one more, of no thread and no server.
const SUMS: usize = 1 << 14;

/// By thread, server, transport and function.
type Key = (u32, u32, Arc<str>, Transport, &'static str);

#[derive(Debug, Default)]
pub struct DnsRest {
    sums: BTreeMap<Key, Rest>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    stalled_ns: u64,
    in_flight: u64,
    began_earlier: bool,
}

impl DnsRest {
    /// Keeps waits as long as there are not too many; those that had not ended when the recording stopped come last and
    /// have room of their own. Says which are kept, in the same order.
    pub(super) fn divide(&mut self, waits: Vec<DnsWait>, kept: &mut Vec<DnsWait>, limit: usize) -> Vec<bool> {
        let mut told = Vec::with_capacity(waits.len());
        for wait in waits {
            let room = if wait.in_flight { limit.saturating_mul(2) } else { limit };
            let keep = kept.len() < room;
            told.push(keep);
            if keep {
                kept.push(wait);
            } else {
                self.take(&wait);
            }
        }
        told
    }

    fn take(&mut self, wait: &DnsWait) {
        let key = (wait.pid, wait.tid, Arc::clone(&wait.server), wait.transport, wait.api.symbol());
        let has_room = self.sums.len() < SUMS || self.sums.contains_key(&key);
        let key = if has_room { key } else { (0, 0, Arc::from(""), Transport::Other, "") };
        let rest = self.sums.entry(key).or_default();
        rest.stalled_ns = rest.stalled_ns.saturating_add(wait.weight_ns);
        rest.in_flight += u64::from(wait.in_flight);
        rest.began_earlier |= wait.began_earlier;
    }

    /// The rows with those of the rest, which have no name, most time first.
    pub(super) fn beside(self, rows: &[DnsRow]) -> Vec<DnsRow> {
        let mut all = rows.to_vec();
        if self.sums.is_empty() {
            return all;
        }
        all.extend(self.sums.into_iter().map(|((pid, tid, server, transport, api), rest)| DnsRow {
            api: api.to_owned(),
            server: present_text(&server),
            transport: transport.name().to_owned(),
            stalled_ns: rest.stalled_ns,
            in_flight: rest.in_flight,
            began_earlier: rest.began_earlier,
            pid,
            tid,
            ..DnsRow::default()
        }));
        all.sort_by_key(|row| Reverse(row.stalled_ns));
        all
    }
}
