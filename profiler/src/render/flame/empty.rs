//! The picture of a recording in which nothing stalled.

use std::io::{self, Write};

use super::{filters, title};
use crate::analysis::Analysis;
use crate::render::tree::FlameOptions;
use crate::render::unit::duration;
use crate::render::{name, note};

/// Pixels from one line of text to the next.
const LINE: usize = 20;
/// Most lines of text; a trace can name any number of probe families.
const MOST: usize = 30;
/// Longest line that fits the picture, in characters.
const WIDTH: usize = 150;

pub(super) fn write_empty(
    analysis: &Analysis,
    options: &FlameOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    write_lines(&title(analysis, options), &lines(analysis, options), out)
}

/// A picture of text; the first line is what counts.
pub(in crate::render) fn write_lines(title: &str, lines: &[String], out: &mut dyn Write) -> io::Result<()> {
    let height = LINE * (lines.len() + 4);
    writeln!(out, r#"<?xml version="1.0" encoding="UTF-8" standalone="no"?>"#)?;
    writeln!(
        out,
        r#"<svg version="1.1" xmlns="http://www.w3.org/2000/svg" width="1200" height="{height}" viewBox="0 0 1200 {height}">"#
    )?;
    writeln!(out, r#"<rect width="100%" height="100%" fill="rgb(255,255,255)"/>"#)?;
    let text = name::html(title);
    writeln!(
        out,
        r#"<text x="600" y="24" text-anchor="middle" font-family="monospace" font-size="17">{text}</text>"#
    )?;
    for (index, line) in lines.iter().enumerate() {
        let y = LINE * (index + 3);
        let weight = if index == 0 { r#" font-weight="bold""# } else { "" };
        let text = name::html(&name::shorten(line, WIDTH));
        writeln!(
            out,
            r#"<text x="20" y="{y}" font-family="monospace" font-size="13"{weight}>{text}</text>"#
        )?;
    }
    writeln!(out, "</svg>")
}

fn lines(analysis: &Analysis, options: &FlameOptions) -> Vec<String> {
    let report = &analysis.report;
    let mut lines = Vec::new();
    if options.is_filtered() {
        lines.push(format!("No stall: {}", filters(options)));
        lines.push(format!("stalled in all: {}", duration(report.totals.stalled_ns)));
    } else {
        lines.push(format!("{}.", note::no_stall(report)));
    }
    lines.push(note::presence(analysis));
    lines.push(note::calls_seen(report, 6));
    let below = report.coverage.below_min_stall;
    if below.count > 0 {
        lines.push(format!(
            "{} waits below --min-stall, {} in all",
            crate::render::unit::count(below.count),
            duration(below.sum_ns)
        ));
    }
    lines.extend(note::damage(report).into_iter().map(|text| format!("trace damage: {text}")));
    lines.extend(note::blind_spots(report).into_iter().map(|text| format!("not seen: {text}")));
    lines.extend(note::losses(report));
    lines.truncate(MOST);
    lines
}
