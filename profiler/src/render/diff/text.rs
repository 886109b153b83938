//! The diff for a terminal or a mail: what was set up differently first, then what that did.

use std::io::{self, Write};

use super::{headline, site, table};
use crate::analysis::diff::document::Diff;
use crate::render::name::escape_controls;
use crate::render::text::layout::{wrap, write_table};
use crate::render::text::style::{Painter, Style};
use crate::render::text::{TextOptions, WIDTH};

/// Writes the diff in 100 columns.
pub fn write_diff_text(diff: &Diff, options: TextOptions, out: &mut dyn Write) -> io::Result<()> {
    let painter = Painter::new(options);
    let style =
        if diff.total.significant && diff.total.delta_ns > 0 { Style::Critical } else { Style::Heading };
    for line in wrap(&format!("stallscope diff: stalled {}", headline(diff)), WIDTH) {
        writeln!(out, "{}", painter.paint(style, &line))?;
    }
    writeln!(out, "  before  {}", table::side(&diff.before, diff.normalised_by))?;
    writeln!(out, "  after   {}", table::side(&diff.after, diff.normalised_by))?;
    for line in site(diff).iter().flat_map(|site| wrap(site, WIDTH - 2)) {
        writeln!(out, "  {line}")?;
    }
    for remark in &diff.remarks {
        for (index, line) in wrap(&escape_controls(remark), WIDTH - 4).iter().enumerate() {
            writeln!(out, "  {} {line}", if index == 0 { "!" } else { " " })?;
        }
    }
    if diff.environment.is_empty() {
        writeln!(out, "\n{}\n  none", painter.paint(Style::Heading, "ENVIRONMENT CHANGES"))?;
    }
    for table in table::tables(diff) {
        writeln!(out, "\n{}", painter.paint(Style::Heading, &table.title.to_uppercase()))?;
        write_table(&table, out)?;
    }
    if diff.stacks.is_empty() {
        writeln!(out, "\nNothing stalled on either side.")?;
    }
    Ok(())
}
