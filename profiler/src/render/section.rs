//! What a report says, apart from how it looks: tables and notes for text and HTML.

mod finding;
mod gpu;
mod net;
mod note_rows;
mod path;
mod queue;
mod setup;
mod stall;
mod task;

use crate::analysis::Analysis;
use crate::render::name::escape_controls;
use crate::render::table::Table;

pub(super) use finding::{FindingText, findings, severity};
pub(super) use gpu::worst_kernel;
pub(super) use note_rows::{coverage, environment, header};
pub(super) use stall::{WorstStall, worst_stalls};

/// The tables that have rows, in the order in which they are read.
pub(super) fn tables(analysis: &Analysis) -> Vec<Table> {
    let report = &analysis.report;
    let mut tables = vec![
        stall::worst_table(analysis),
        stall::cause_table(report),
        gpu::kernel_table(report),
        gpu::wait_table(report, |tid| thread_label(analysis, tid)),
        gpu::name_table(report),
        net::dns_table(report),
        net::connect_table(analysis),
        net::socket_table(analysis),
        net::hop_table(report),
        queue::queue_table(report),
        queue::counter_table(report),
        setup::operation_table(report),
        setup::command_table(report),
        task::thread_table(report),
    ];
    tables.retain(|table| !table.rows.is_empty());
    tables
}

/// `gather [4251]`: ids, since a table is what one goes on from with other tools.
fn thread_label(analysis: &Analysis, tid: u32) -> String {
    match analysis.threads.get(&tid).map(|name| name.trim()) {
        Some(name) if !name.is_empty() => format!("{} [{tid}]", escape_controls(name)),
        _ => format!("[{tid}]"),
    }
}
