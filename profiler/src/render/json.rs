//! The report as one JSON document, schema `stallscope.report/1`.

use std::io::{self, Write};

use crate::analysis::report::Report;

/// Writes the report, indented, with a line end behind it.
pub fn write_json(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    out.write_all(b"\n")
}
