//! Lookups, connects, sockets and hops.

use std::cmp::Reverse;

use super::thread_label;
use crate::analysis::Analysis;
use crate::analysis::report::{ConnectRow, Distribution, DnsRow, HopRow, Report, SocketRow};
use crate::render::name::escape_controls;
use crate::render::table::{Column, Table};
use crate::render::unit::{bytes, count, duration, percent};

/// Said below a table that has such figures.
pub(super) const LOWER_BOUND: &str = ">= : began before the recording, so this is a lower bound";

/// Rows of each of these tables.
const MOST: usize = 20;

/// A duration of a distribution, `-` where it has none.
pub(super) fn of(distribution: &Distribution, ns: u64) -> String {
    if distribution.count == 0 { "-".to_owned() } else { duration(ns) }
}

pub(super) fn dns_table(report: &Report) -> Table {
    let columns = vec![
        Column::name("query"),
        Column::name("server"),
        Column::name("api"),
        Column::figure("tid"),
        Column::figure("answered"),
        Column::name("answer"),
        Column::figure("stalled"),
        Column::figure("p50"),
        Column::figure("max").extra(),
        Column::figure("lookups").extra(),
        Column::figure("in flight").extra(),
        Column::name("via").extra(),
    ];
    let (mut rows, folded): (Vec<&DnsRow>, Vec<&DnsRow>) = report.dns.iter().partition(|row| row.folded == 0);
    rows.sort_by_key(|row| Reverse((row.stalled_ns, row.attempts)));
    let mut table = Table::of("Lookups (DNS)", columns, &rows, MOST, |row| {
        let name = row.name.as_deref().map_or("[unknown name]".to_owned(), escape_controls);
        let query = match &row.qtype {
            Some(qtype) => format!("{} {name}", escape_controls(qtype)),
            None => name,
        };
        vec![
            query,
            escape_controls(&row.server),
            escape_controls(&row.api),
            row.tid.to_string(),
            format!("{} of {}", count(row.answered), count(row.attempts)),
            answer(row),
            bounded(row.stalled_ns, row.began_earlier),
            of(&row.latency, row.latency.p50_ns),
            of(&row.latency, row.latency.max_ns),
            count(row.lookups),
            count(row.in_flight),
            escape_controls(&row.transport),
        ]
    });
    let shown = rows.iter().take(MOST);
    table.remark =
        shown.into_iter().any(|row| row.began_earlier && row.stalled_ns > 0).then_some(LOWER_BOUND);
    let rest = rows.iter().skip(MOST).chain(&folded);
    leave_out(&mut table, folded.iter().map(|row| row.folded), rest.map(|row| row.stalled_ns));
    table
}

/// Says how many rows are not shown, those that one row of the report stands for included, and what was stalled in them.
fn leave_out(table: &mut Table, folded: impl Iterator<Item = u64>, stalled: impl Iterator<Item = u64>) {
    let folded = usize::try_from(folded.fold(0, u64::saturating_add)).unwrap_or(usize::MAX);
    table.left_out = table.left_out.saturating_add(folded);
    table.left_out_sum = Some(format!("{} stalled", duration(stalled.fold(0, u64::saturating_add))));
}

fn answer(row: &DnsRow) -> String {
    match (&row.rcode, row.malformed) {
        (Some(rcode), false) => escape_controls(rcode),
        (Some(rcode), true) => format!("{} (malformed)", escape_controls(rcode)),
        (None, true) => "malformed".to_owned(),
        (None, false) if row.in_flight > 0 => "waiting".to_owned(),
        (None, false) => "none".to_owned(),
    }
}

/// A duration, marked where it is a lower bound.
pub(super) fn bounded(ns: u64, began_earlier: bool) -> String {
    format!("{}{}", if began_earlier && ns > 0 { ">=" } else { "" }, duration(ns))
}

pub(super) fn connect_table(analysis: &Analysis) -> Table {
    let columns = vec![
        Column::name("peer"),
        Column::name("result"),
        Column::name("thread"),
        Column::figure("count"),
        Column::figure("SYN resent"),
        Column::figure("stalled"),
        Column::figure("p50"),
        Column::figure("max"),
        Column::name("from").extra(),
    ];
    let all = analysis.report.connects.iter();
    let (mut rows, folded): (Vec<&ConnectRow>, Vec<&ConnectRow>) = all.partition(|row| row.folded == 0);
    rows.sort_by_key(|row| Reverse((row.stalled_ns, row.count)));
    let mut table = Table::of("Connects", columns, &rows, MOST, |row| {
        vec![
            escape_controls(&row.peer),
            escape_controls(&row.result).replace('_', " "),
            thread_label(analysis, row.tid),
            count(row.count),
            count(row.syn_retransmits),
            bounded(row.stalled_ns, row.began_earlier),
            of(&row.handshake, row.handshake.p50_ns),
            of(&row.handshake, row.handshake.max_ns),
            escape_controls(&row.local),
        ]
    });
    let shown = rows.iter().take(MOST);
    table.remark =
        shown.into_iter().any(|row| row.began_earlier && row.stalled_ns > 0).then_some(LOWER_BOUND);
    let rest = rows.iter().skip(MOST).chain(&folded);
    leave_out(&mut table, folded.iter().map(|row| row.folded), rest.map(|row| row.stalled_ns));
    table
}

pub(super) fn socket_table(analysis: &Analysis) -> Table {
    let columns = vec![
        Column::name("peer"),
        Column::name("dir"),
        Column::name("thread"),
        Column::figure("waits"),
        Column::figure("stalled"),
        Column::figure("p50"),
        Column::figure("p99"),
        Column::figure("longest"),
        Column::figure("in flight"),
        Column::figure("polls").extra(),
    ];
    let all = analysis.report.sockets.iter();
    let (mut rows, folded): (Vec<&SocketRow>, Vec<&SocketRow>) = all.partition(|row| row.folded == 0);
    rows.sort_by_key(|row| Reverse((row.stalled_ns, row.waits)));
    let mut table = Table::of("Sockets", columns, &rows, MOST, |row| {
        vec![
            escape_controls(&row.peer),
            escape_controls(&row.direction),
            thread_label(analysis, row.tid),
            count(row.waits),
            duration(row.stalled_ns),
            of(&row.duration, row.duration.p50_ns),
            of(&row.duration, row.duration.p99_ns),
            bounded(row.longest_ns, row.began_earlier),
            count(row.in_flight),
            count(row.polls),
        ]
    });
    table.remark = rows.iter().take(MOST).any(|row| row.began_earlier).then_some(LOWER_BOUND);
    let rest = rows.iter().skip(MOST).chain(&folded);
    leave_out(&mut table, folded.iter().map(|row| row.folded), rest.map(|row| row.stalled_ns));
    table
}

pub(super) fn hop_table(report: &Report) -> Table {
    let columns = vec![
        Column::name("peer"),
        Column::name("host"),
        Column::name("rack"),
        Column::name("relation"),
        Column::figure("RTT p50"),
        Column::figure("p99"),
        Column::figure("jitter"),
        Column::figure("resent"),
        Column::figure("bytes"),
        Column::figure("share"),
        Column::name("via").extra(),
        Column::name("device").extra(),
    ];
    let mut rows: Vec<&HopRow> = report.hops.iter().collect();
    rows.sort_by_key(|row| Reverse((row.rtt.p50_ns, row.bytes)));
    Table::of("Hops", columns, &rows, MOST, |row| {
        vec![
            escape_controls(&row.peer),
            escape_controls(row.host.as_deref().unwrap_or("-")),
            escape_controls(row.rack.as_deref().unwrap_or("-")),
            relation(row),
            of(&row.rtt, row.rtt.p50_ns),
            of(&row.rtt, row.rtt.p99_ns),
            of(&row.rtt, row.jitter_ns),
            count(row.retransmits),
            bytes(row.bytes),
            percent(row.share_of_bytes),
            escape_controls(&row.transport),
            escape_controls(row.device.as_deref().unwrap_or("-")),
        ]
    })
}

/// A relation that nobody stated is said to be inferred.
fn relation(row: &HopRow) -> String {
    let relation = escape_controls(&row.relation);
    match row.relation_evidence.as_str() {
        "topology" | "address" | "none" | "" => relation,
        evidence => format!("{relation} ({})", escape_controls(evidence)),
    }
}
