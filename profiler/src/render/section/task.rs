//! Threads.

use std::cmp::Reverse;

use crate::analysis::report::{Report, ThreadRow};
use crate::render::name::escape_controls;
use crate::render::table::{Column, Table};
use crate::render::unit::{duration, share};

/// Rows of the table of threads.
const MOST: usize = 20;

pub(super) fn thread_table(report: &Report) -> Table {
    let columns = vec![
        Column::figure("pid"),
        Column::figure("pid inside").extra(),
        Column::figure("tid"),
        Column::name("name"),
        Column::figure("watched"),
        Column::figure("stalled"),
        Column::figure("share"),
        Column::figure("idle"),
        Column::figure("running"),
        Column::figure("runnable"),
        Column::figure("other"),
    ];
    let mut rows: Vec<&ThreadRow> = report.threads.iter().collect();
    rows.sort_by_key(|row| (Reverse(row.stalled_ns), Reverse(row.wall_ns), row.pid, row.tid));
    Table::of("Threads", columns, &rows, MOST, |row| {
        vec![
            row.pid.to_string(),
            row.ns_pid.to_string(),
            row.tid.to_string(),
            escape_controls(&row.name),
            duration(row.wall_ns),
            duration(row.stalled_ns),
            share(row.stalled_ns, row.wall_ns),
            duration(row.idle_ns),
            duration(row.running_ns),
            duration(row.runnable_ns),
            duration(row.other_ns),
        ]
    })
}
