//! A report that can be read whatever was recorded: of tables that have a row for every name or peer the worst rows
//! stay, and the others become one, so that the sums hold.

use super::report::{ConnectRow, DnsRow, Report, SocketRow};

/// Keeps no more than `most` rows of each table; one more stands for the rest.
pub(super) fn fold(report: &mut Report, most: usize) {
    keep(&mut report.dns, most);
    keep(&mut report.connects, most);
    keep(&mut report.sockets, most);
}

/// A row that can stand for others.
trait Row: Default {
    /// What rows are kept for, most first.
    fn weight(&self) -> (u64, u64);
    fn take_in(&mut self, other: &Self);
    fn set_folded(&mut self, rows: u64);
}

fn keep<R: Row>(rows: &mut Vec<R>, most: usize) {
    if rows.len() <= most {
        return;
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.weight()));
    let rest = rows.split_off(most);
    let mut sum = R::default();
    for row in &rest {
        sum.take_in(row);
    }
    sum.set_folded(rest.len() as u64);
    rows.push(sum);
    rows.shrink_to_fit();
}

fn add(sum: &mut u64, value: u64) {
    *sum = sum.saturating_add(value);
}

impl Row for DnsRow {
    fn weight(&self) -> (u64, u64) {
        (self.stalled_ns, self.attempts.saturating_add(self.unsent))
    }

    fn take_in(&mut self, other: &DnsRow) {
        add(&mut self.attempts, other.attempts);
        add(&mut self.answered, other.answered);
        add(&mut self.stalled_ns, other.stalled_ns);
        add(&mut self.in_flight, other.in_flight);
        add(&mut self.lookups, other.lookups);
        add(&mut self.mismatched, other.mismatched);
        add(&mut self.truncated, other.truncated);
        add(&mut self.unsent, other.unsent);
        self.began_earlier |= other.began_earlier;
        self.malformed |= other.malformed;
    }

    fn set_folded(&mut self, rows: u64) {
        self.folded = rows;
    }
}

impl Row for ConnectRow {
    fn weight(&self) -> (u64, u64) {
        (self.stalled_ns, self.count)
    }

    fn take_in(&mut self, other: &ConnectRow) {
        add(&mut self.count, other.count);
        add(&mut self.syn_retransmits, other.syn_retransmits);
        add(&mut self.stalled_ns, other.stalled_ns);
        self.began_earlier |= other.began_earlier;
    }

    fn set_folded(&mut self, rows: u64) {
        self.folded = rows;
    }
}

impl Row for SocketRow {
    fn weight(&self) -> (u64, u64) {
        (self.stalled_ns, self.waits)
    }

    fn take_in(&mut self, other: &SocketRow) {
        add(&mut self.waits, other.waits);
        add(&mut self.stalled_ns, other.stalled_ns);
        add(&mut self.in_flight, other.in_flight);
        add(&mut self.polls, other.polls);
        if other.longest_ns > self.longest_ns {
            (self.longest_ns, self.began_earlier) = (other.longest_ns, other.began_earlier);
        }
    }

    fn set_folded(&mut self, rows: u64) {
        self.folded = rows;
    }
}
