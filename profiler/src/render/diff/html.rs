//! The diff as one HTML file that loads nothing from elsewhere.

use std::io::{BufWriter, Write};

use super::{headline, site, svg, table};
use crate::analysis::diff::document::Diff;
use crate::render::RenderError;
use crate::render::html::frame::write_picture;
use crate::render::html::{begin_page, end_page, write_table};
use crate::render::name::html;

/// Writes the diff with its flame graph.
pub fn write_diff_html(diff: &Diff, out: &mut dyn Write) -> Result<(), RenderError> {
    let mut out = BufWriter::new(out);
    begin_page(&format!("stallscope diff: {}", headline(diff)), &mut out)?;
    for (name, side) in [("before", &diff.before), ("after", &diff.after)] {
        let text = table::side(side, diff.normalised_by);
        writeln!(out, "<p class=\"head\">{name}: {}</p>", html(&text))?;
    }
    if let Some(site) = site(diff) {
        writeln!(out, "<p class=\"head\">{}</p>", html(&site))?;
    }
    for remark in &diff.remarks {
        writeln!(out, "<p class=\"head\">{}</p>", html(remark))?;
    }
    if diff.environment.is_empty() {
        writeln!(out, "<h2>Environment changes</h2>\n<p>none</p>")?;
    }
    let mut tables = table::tables(diff).into_iter().peekable();
    if let Some(environment) = tables.next_if(|_| !diff.environment.is_empty()) {
        write_table(&environment, &mut out)?;
    }
    writeln!(out, "<h2>Flame graph of both sides</h2>")?;
    write_picture(&svg::picture(diff)?, "flame graph of both sides", &mut out)?;
    for table in tables {
        write_table(&table, &mut out)?;
    }
    end_page(&mut out)?;
    out.flush()?;
    Ok(())
}
