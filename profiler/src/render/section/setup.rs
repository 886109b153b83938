//! What the kernel and the device did to set RDMA up.

use crate::analysis::rdma_setup::{CommandRow, OperationRow};
use crate::analysis::report::Report;
use crate::render::name::escape_controls;
use crate::render::table::{Column, Table};
use crate::render::unit::{bytes, count, duration, percent};

/// Rows of each of these tables.
const MOST: usize = 20;

pub(super) fn operation_table(report: &Report) -> Table {
    let columns = vec![
        Column::name("operation"),
        Column::figure("pid"),
        Column::figure("calls"),
        Column::figure("time"),
        Column::figure("p50"),
        Column::figure("p99"),
        Column::figure("bytes"),
        Column::figure("pinning"),
        Column::figure("device"),
        Column::figure("failed"),
        Column::figure("in flight").extra(),
        Column::figure("driver").extra(),
        Column::figure("queued").extra(),
        Column::figure("commands").extra(),
        Column::figure("running").extra(),
        Column::figure("run queue").extra(),
    ];
    let rows: Vec<&OperationRow> = report.rdma_setup.iter().flat_map(|section| &section.operations).collect();
    let mut table = Table::of("RDMA set-up in the kernel", columns, &rows, MOST, |row| {
        let part = |ns, share| if ns == 0 { "-".to_owned() } else { percent(share) };
        let size = if row.bytes == 0 { "-".to_owned() } else { bytes(row.bytes) };
        vec![
            escape_controls(&row.op),
            if row.pid == 0 { "-".to_owned() } else { row.pid.to_string() },
            count(row.calls),
            duration(row.total_ns),
            duration(row.duration.p50_ns),
            duration(row.duration.p99_ns),
            size,
            part(row.pin_ns, row.pin_share),
            part(row.command_ns, row.command_share),
            count(row.failed),
            count(row.in_flight),
            duration(row.driver_ns),
            duration(row.queued_ns),
            count(row.commands),
            duration(row.running_ns),
            duration(row.runq_ns),
        ]
    });
    table.remark = (!rows.is_empty())
        .then_some("all calls, those below --min-stall among them; pinning, device: parts of the time");
    table
}

pub(super) fn command_table(report: &Report) -> Table {
    let columns = vec![
        Column::name("command"),
        Column::figure("count"),
        Column::figure("time"),
        Column::figure("queued"),
    ];
    let rows: Vec<&CommandRow> = report.rdma_setup.iter().flat_map(|section| &section.commands).collect();
    Table::of("Commands to RDMA devices", columns, &rows, MOST, |row| {
        vec![escape_controls(&row.name), count(row.commands), duration(row.total_ns), duration(row.queued_ns)]
    })
}
