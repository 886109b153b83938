//! The tables of a diff, for text and HTML alike.

use crate::analysis::diff::document::{
    Change, Diff, EnvironmentChange, HopChange, Normaliser, Side, SocketChange, StackChange, StackState,
};
use crate::render::name::escape_controls;
use crate::render::table::{Column, Table};
use crate::render::unit::{count, duration, plural};

use super::{signed, signed_percent, verdict};

/// Rows of each table; the JSON has all.
const MOST: usize = 20;
const MOST_STACKS: usize = 30;

pub(super) fn tables(diff: &Diff) -> Vec<Table> {
    let mut tables = vec![
        environment(&diff.environment),
        causes(diff),
        sockets(&diff.sockets),
        hops(&diff.hops),
        stacks("Stacks that are new", diff, |row| row.state == StackState::New),
        stacks("Stacks that are gone", diff, |row| row.state == StackState::Gone),
        stacks("Stacks by change", diff, |row| row.state == StackState::Both && row.delta_ns != 0),
    ];
    tables.retain(|table| !table.rows.is_empty());
    tables
}

/// `1 recording of 10.0 s, stalled 9.80 s, 390 waits`.
pub(super) fn side(side: &Side, by: Normaliser) -> String {
    let units = match by {
        Normaliser::Time => String::new(),
        Normaliser::Waits => format!(", {}", plural(side.units.round() as u64, "wait")),
        Normaliser::Steps => format!(", {}", plural(side.units.round() as u64, "step")),
        Normaliser::Collectives => format!(", {}", plural(side.units.round() as u64, "collective")),
        Normaliser::Marker => format!(", {}", plural(side.units.round() as u64, "call")),
    };
    format!(
        "{} of {}, stalled {}{units}",
        plural(side.traces, "recording"),
        duration(side.duration_ns),
        duration(side.stalled_ns)
    )
}

fn environment(changes: &[EnvironmentChange]) -> Table {
    let columns = vec![Column::name("what"), Column::name("before"), Column::name("after")];
    let cell = |value: &Option<String>| value.as_deref().map_or("(not there)".to_owned(), escape_controls);
    Table::of("Environment changes", columns, changes, 2 * MOST, |row| {
        vec![escape_controls(&row.what), cell(&row.before), cell(&row.after)]
    })
}

/// `+19.8% to +21.0%`.
fn interval(change: &Change) -> String {
    change.ci95_pct.map_or("-".to_owned(), |[low, high]| {
        format!("{} to {}", signed_percent(Some(low)), signed_percent(Some(high)))
    })
}

fn causes(diff: &Diff) -> Table {
    let columns = vec![
        Column::name("cause"),
        Column::figure("before"),
        Column::figure("after"),
        Column::figure("change"),
        Column::figure("%"),
        Column::figure("95 % interval"),
        Column::name(""),
    ];
    let mut rows: Vec<(String, &Change)> = vec![("all".to_owned(), &diff.total)];
    rows.extend(diff.causes.iter().map(|row| (row.cause.name().to_owned(), &row.change)));
    if diff.causes.is_empty() {
        rows.clear();
    }
    Table::of("Causes", columns, &rows, MOST, |(name, change)| {
        vec![
            name.clone(),
            duration(change.before_ns),
            duration(change.after_ns),
            signed(change.delta_ns),
            signed_percent(change.delta_pct),
            interval(change),
            verdict(change).to_owned(),
        ]
    })
}

fn median(ns: Option<u64>) -> String {
    ns.map_or("-".to_owned(), duration)
}

fn significance(before: Option<u64>, after: Option<u64>, significant: bool) -> String {
    match (before, after, significant) {
        (None, _, _) => "new",
        (_, None, _) => "gone",
        (_, _, true) => "significant",
        (one, two, false) if one == two => "no change",
        _ => "not significant",
    }
    .to_owned()
}

fn sockets(rows: &[SocketChange]) -> Table {
    let columns = vec![
        Column::name("peer"),
        Column::name("dir"),
        Column::figure("waits before"),
        Column::figure("after"),
        Column::figure("p50 before"),
        Column::figure("after"),
        Column::figure("%"),
        Column::name(""),
    ];
    Table::of("Sockets", columns, rows, MOST, |row| {
        vec![
            if row.peer.is_empty() { "[unknown peer]".to_owned() } else { escape_controls(&row.peer) },
            escape_controls(&row.direction),
            count(row.before_waits),
            count(row.after_waits),
            median(row.before_p50_ns),
            median(row.after_p50_ns),
            signed_percent(row.delta_pct),
            significance(row.before_p50_ns, row.after_p50_ns, row.significant),
        ]
    })
}

fn hops(rows: &[HopChange]) -> Table {
    let columns = vec![
        Column::name("peer"),
        Column::figure("RTT p50 before"),
        Column::figure("after"),
        Column::figure("%"),
        Column::name(""),
    ];
    Table::of("Hops", columns, rows, MOST, |row| {
        vec![
            escape_controls(&row.peer),
            median(row.before_p50_ns),
            median(row.after_p50_ns),
            signed_percent(row.delta_pct),
            significance(row.before_p50_ns, row.after_p50_ns, row.significant),
        ]
    })
}

fn stacks(title: &'static str, diff: &Diff, wanted: impl Fn(&StackChange) -> bool) -> Table {
    let columns = vec![
        Column::figure("change"),
        Column::figure("before"),
        Column::figure("after"),
        Column::name("leaf"),
        Column::name("stack"),
    ];
    let rows: Vec<&StackChange> = diff.stacks.iter().filter(|row| wanted(row)).collect();
    Table::of(title, columns, &rows, MOST_STACKS, |row| {
        let (leaf, path) =
            row.stack.split_last().map_or(("", [].as_slice()), |(leaf, path)| (leaf.as_str(), path));
        vec![
            signed(row.delta_ns),
            duration(row.before_ns),
            duration(row.after_ns),
            escape_controls(leaf),
            escape_controls(&path.join(";")),
        ]
    })
}
