//! Queue pairs of RDMA adapters, and what their ports counted.

use std::cmp::Reverse;

use crate::analysis::queues::QueueRow;
use crate::analysis::queues::counters::CounterRow;
use crate::analysis::report::Report;
use crate::render::name::escape_controls;
use crate::render::table::{Column, Table};
use crate::render::unit::{count, duration};

/// Rows of each of these tables.
const MOST: usize = 20;

pub(super) fn queue_table(report: &Report) -> Table {
    let columns = vec![
        Column::name("device"),
        Column::figure("qp"),
        Column::figure("posted"),
        Column::figure("completed"),
        Column::figure("in flight"),
        Column::figure("depth"),
        Column::figure("p50"),
        Column::figure("p99"),
        Column::figure("queue p50"),
        Column::figure("wire"),
        Column::figure("errors"),
        Column::figure("transmit p50").extra(),
        Column::figure("flushed").extra(),
        Column::figure("oldest in flight").extra(),
        Column::figure("bytes").extra(),
        Column::figure("watched").extra(),
        Column::name("note").extra(),
    ];
    let mut rows: Vec<&QueueRow> = report.queues.iter().collect();
    rows.sort_by_key(|row| Reverse((row.queue.sum_ns, row.post_to_completion.sum_ns, row.posted)));
    let mut table = Table::of("Queue pairs (RDMA)", columns, &rows, MOST, |row| {
        let whole = |ns| if row.post_to_completion.count == 0 { "-".to_owned() } else { duration(ns) };
        let part = |ns| if row.queue.count == 0 { "-".to_owned() } else { duration(ns) };
        let device = if row.device.is_empty() { "[unknown device]" } else { &row.device };
        vec![
            escape_controls(device),
            row.qp.to_string(),
            count(row.posted),
            count(row.completed),
            count(row.in_flight),
            count(row.max_depth),
            whole(row.post_to_completion.p50_ns),
            whole(row.post_to_completion.p99_ns),
            part(row.queue.p50_ns),
            row.wire_ns.map_or("-".to_owned(), duration),
            count(row.errors.values().sum()),
            part(row.transmit.p50_ns),
            count(row.flushed),
            duration(row.oldest_in_flight_ns),
            count(row.bytes),
            format!("{:.0} %", row.sampled_share * 100.0),
            row.reason.clone(),
        ]
    });
    table.remark = (!rows.is_empty()).then_some(
        "p50, p99: from post to completion as polled; wire: the unloaded latency of requests alone",
    );
    table
}

pub(super) fn counter_table(report: &Report) -> Table {
    let columns = vec![
        Column::name("device"),
        Column::figure("port"),
        Column::name("counter"),
        Column::figure("increase"),
        Column::figure("at the end").extra(),
    ];
    let mut rows: Vec<&CounterRow> = report.counters.iter().filter(|row| row.delta > 0).collect();
    rows.sort_by(|one, other| {
        (&one.device, one.port, &one.name).cmp(&(&other.device, other.port, &other.name))
    });
    Table::of("Counters of ports (RDMA)", columns, &rows, 2 * MOST, |row| {
        vec![
            escape_controls(&row.device),
            row.port.to_string(),
            escape_controls(&row.name),
            count(row.delta),
            count(row.end),
        ]
    })
}
