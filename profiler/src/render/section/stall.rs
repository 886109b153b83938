//! The worst stalls and the causes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::net::{LOWER_BOUND, bounded, of};
use super::path::calling_path;
use super::thread_label;
use crate::analysis::Analysis;
use crate::analysis::report::{CauseRow, Domain, Report};
use crate::analysis::stall::Stall;
use crate::model::cause::Cause;
use crate::render::name::escape_controls;
use crate::render::table::{Column, Table};
use crate::render::unit::{count, duration, share};

/// Rows of the table of worst stalls.
const MOST: usize = 10;

/// All stalls of one thread with one cause and peer: often beats long.
#[derive(Clone, Debug)]
pub(in crate::render) struct WorstStall {
    pub cause: Cause,
    /// Without control characters; empty where unknown.
    pub peer: String,
    /// What the longest of them says of itself; may be empty.
    pub detail: String,
    pub thread: String,
    /// Of its process, where the launcher's variables say it.
    pub rank: Option<u32>,
    /// Where most of the time was waited: `main → gather → recv`; may be empty.
    pub path: String,
    pub total_ns: u64,
    pub count: u64,
    pub in_flight: u64,
    pub longest_ns: u64,
    /// The longest is a lower bound.
    pub began_earlier: bool,
}

#[derive(Default)]
struct Sum<'a> {
    pid: u32,
    detail: &'a str,
    total_ns: u64,
    count: u64,
    in_flight: u64,
    longest_ns: u64,
    began_earlier: bool,
}

/// What stalls are added up by.
type Key<'a> = (Cause, &'a str, u32);

/// Stalled time by thread, cause and peer, most first: the first `most`, and how many there are.
pub(in crate::render) fn worst_stalls(analysis: &Analysis, most: usize) -> (Vec<WorstStall>, usize) {
    let mut sums: HashMap<Key<'_>, Sum<'_>> = HashMap::new();
    for (stall, count) in analysis.stall_sums().filter(|(stall, _)| stall.cause != Cause::SchedRunq) {
        let sum = sums.entry((stall.cause, &stall.peer, stall.tid)).or_default();
        sum.pid = stall.pid;
        sum.total_ns = sum.total_ns.saturating_add(stall.weight_ns);
        let is_first = sum.count == 0;
        sum.count += count;
        sum.in_flight += if stall.in_flight { count } else { 0 };
        let length = stall.end_ns.saturating_sub(stall.start_ns);
        if length > sum.longest_ns || is_first {
            sum.detail = &stall.detail;
            sum.longest_ns = length;
            sum.began_earlier = stall.began_earlier;
        }
    }
    // The analysis counts whole waits, of which a stall may be one of several pieces.
    for row in &analysis.report.stalls {
        if let Some(sum) = sums.get_mut(&(row.cause, row.peer.as_str(), row.tid)) {
            (sum.count, sum.in_flight) = (row.count, row.in_flight);
            (sum.longest_ns, sum.began_earlier) = (row.longest_ns, row.began_earlier);
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(key_a, a), (key_b, b)| b.total_ns.cmp(&a.total_ns).then(key_a.cmp(key_b)));
    let all = sums.len();
    sums.truncate(most);
    let places = places(analysis, &sums);
    let worst = sums.into_iter().map(|(key, sum)| {
        let (cause, peer, tid) = key;
        WorstStall {
            cause,
            peer: escape_controls(peer),
            detail: escape_controls(sum.detail),
            thread: thread_label(analysis, tid),
            rank: rank(&analysis.report, sum.pid),
            path: places.get(&key).map_or_else(String::new, |stall| calling_path(analysis, stall)),
            total_ns: sum.total_ns,
            count: sum.count,
            in_flight: sum.in_flight,
            longest_ns: sum.longest_ns,
            began_earlier: sum.began_earlier,
        }
    });
    (worst.collect(), all)
}

/// For each sum a stall from where most of its time was waited.
fn places<'a>(analysis: &'a Analysis, sums: &[(Key<'a>, Sum<'a>)]) -> HashMap<Key<'a>, &'a Stall> {
    type Stacks<'a> = BTreeMap<(u64, &'a str, &'a str), (u64, &'a Stall)>;
    let mut stacks: HashMap<Key<'a>, Stacks<'a>> =
        sums.iter().map(|(key, _)| (*key, Stacks::new())).collect();
    for (stall, _) in analysis.stall_sums() {
        if let Some(of_sum) = stacks.get_mut(&(stall.cause, stall.peer.as_str(), stall.tid)) {
            let sum = of_sum.entry((stall.user_stack, stall.api, stall.call)).or_insert((0, stall));
            sum.0 = sum.0.saturating_add(stall.weight_ns);
        }
    }
    let heaviest =
        |stacks: Stacks<'a>| stacks.into_values().max_by_key(|(ns, _)| *ns).map(|(_, stall)| stall);
    stacks.into_iter().filter_map(|(key, stacks)| Some((key, heaviest(stacks)?))).collect()
}

fn rank(report: &Report, pid: u32) -> Option<u32> {
    report.target.ranks.iter().find(|row| row.pid == pid).and_then(|row| row.rank)
}

impl WorstStall {
    /// `1.23 s`, or `>=1.23 s` where the wait began before the recording.
    pub(in crate::render) fn longest(&self) -> String {
        bounded(self.longest_ns, self.began_earlier)
    }
}

pub(super) fn worst_table(analysis: &Analysis) -> Table {
    let has_ranks = analysis.report.target.ranks.iter().any(|row| row.rank.is_some());
    let mut columns = vec![
        Column::name("cause"),
        Column::name("peer"),
        Column::name("thread"),
        Column::figure("rank"),
        Column::figure("time"),
        Column::figure("share"),
        Column::figure("count"),
        Column::figure("longest"),
        Column::figure("in flight"),
        Column::name("detail of the longest").extra(),
    ];
    columns.retain(|column| has_ranks || column.title != "rank");
    let stalled_ns = analysis.report.totals.stalled_ns;
    let (worst, all) = worst_stalls(analysis, MOST);
    let mut table = Table::of("Worst stalls", columns, &worst, MOST, |row| {
        let mut cells = vec![row.cause.to_string(), row.peer.clone(), row.thread.clone()];
        if has_ranks {
            cells.push(row.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()));
        }
        cells.extend([
            duration(row.total_ns),
            share(row.total_ns, stalled_ns),
            count(row.count),
            row.longest(),
            count(row.in_flight),
            row.detail.clone(),
        ]);
        cells
    });
    table.notes = worst.iter().map(|row| row.path.clone()).collect();
    table.left_out = all.saturating_sub(worst.len());
    table.remark = worst.iter().any(|row| row.began_earlier).then_some(LOWER_BOUND);
    table
}

pub(super) fn cause_table(report: &Report) -> Table {
    let columns = vec![
        Column::name("cause"),
        Column::name("domain").extra(),
        Column::figure("time"),
        Column::figure("share"),
        Column::figure("count"),
        Column::figure("p50"),
        Column::figure("p99"),
        Column::figure("longest"),
        Column::figure("in flight"),
    ];
    let mut rows: Vec<&CauseRow> = report.causes.iter().collect();
    rows.sort_by_key(|row| (row.domain as u8, Reverse(row.stalled_ns), row.cause));
    let mut table = Table::of("Causes", columns, &rows, Cause::ALL.len() * 3, |row| {
        let domain = match row.domain {
            Domain::Thread => "thread",
            Domain::Qp => "qp",
            Domain::Gpu => "gpu",
        };
        // Times of different domains are never set against each other, and run queue time is no stall.
        let is_stalled = row.domain == Domain::Thread && row.cause != Cause::SchedRunq;
        let part = if is_stalled { share(row.stalled_ns, report.totals.stalled_ns) } else { "-".to_owned() };
        vec![
            row.cause.to_string(),
            domain.to_owned(),
            duration(row.stalled_ns),
            part,
            // The kernel's account of run queues has no single waits.
            if row.duration.count == 0 { "-".to_owned() } else { count(row.count) },
            of(&row.duration, row.duration.p50_ns),
            of(&row.duration, row.duration.p99_ns),
            if row.duration.count == 0 { "-".to_owned() } else { bounded(row.longest_ns, row.began_earlier) },
            count(row.in_flight),
        ]
    });
    table.remark = rows.iter().any(|row| row.began_earlier).then_some(LOWER_BOUND);
    table
}
