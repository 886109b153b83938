//! The report as one HTML file that loads nothing from elsewhere: findings, tables and the flame graph.
//!
//! The flame graph sits in a sandboxed frame of its own, so that its script and its keys (it takes Ctrl-F)
//! stay out of the page, and the page forbids itself every connection.

pub(super) mod frame;

use std::io::{BufWriter, Write};

use crate::analysis::Analysis;
use crate::analysis::report::Report;
use crate::render::RenderError;
use crate::render::name::html;
use crate::render::note;
use crate::render::section::{self, FindingText};
use crate::render::table::{Align, Table};
use crate::render::tree::{FlameOptions, View};

const STYLE: &str = include_str!("html/report.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Writes the report with a flame graph of every stall, by stack and by cause.
///
/// Fails where the stalls add up to more than 2^63 ns, and where `out` fails.
pub fn write_html(analysis: &Analysis, out: &mut dyn Write) -> Result<(), RenderError> {
    let mut out = BufWriter::new(out);
    let report = &analysis.report;
    begin_page(&format!("stallscope: {}", note::target(report)), &mut out)?;
    write_head(report, &mut out)?;
    write_findings(report, &mut out)?;
    for view in [View::Stack, View::Cause] {
        writeln!(out, "<h2>Flame graph by {view}</h2>")?;
        frame::write_flame(analysis, &FlameOptions { view, ..FlameOptions::default() }, &mut out)?;
    }
    for table in section::tables(analysis) {
        write_table(&table, &mut out)?;
    }
    write_pairs("Coverage", &section::coverage(report), &mut out)?;
    write_pairs("Environment", &section::environment(report), &mut out)?;
    end_page(&mut out)?;
    out.flush()?;
    Ok(())
}

/// Everything down to the title.
pub(super) fn begin_page(title: &str, out: &mut dyn Write) -> Result<(), RenderError> {
    let title = html(title);
    writeln!(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(out, "<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">")?;
    writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(out, "<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>")?;
    Ok(())
}

pub(super) fn end_page(out: &mut dyn Write) -> Result<(), RenderError> {
    writeln!(out, "</body>\n</html>")?;
    Ok(())
}

fn write_head(report: &Report, out: &mut dyn Write) -> Result<(), RenderError> {
    let damage = note::damage(report);
    if !damage.is_empty() {
        writeln!(out, "<div class=\"damage\"><strong>The trace is not whole.</strong>")?;
        writeln!(out, "Figures below are lower bounds.\n<ul>")?;
        for text in &damage {
            writeln!(out, "<li>{}</li>", html(text))?;
        }
        writeln!(out, "</ul></div>")?;
    }
    for line in section::header(report) {
        writeln!(out, "<p class=\"head\">{}</p>", html(&line))?;
    }
    Ok(())
}

fn write_findings(report: &Report, out: &mut dyn Write) -> Result<(), RenderError> {
    writeln!(out, "<h2>Findings</h2>")?;
    let findings = section::findings(report);
    if findings.is_empty() {
        writeln!(out, "<p>none</p>")?;
    }
    for finding in &findings {
        write_finding(finding, out)?;
    }
    Ok(())
}

fn write_finding(finding: &FindingText, out: &mut dyn Write) -> Result<(), RenderError> {
    let severity = section::severity(finding.severity);
    let id = html(&finding.id);
    writeln!(out, "<article class=\"{severity}\">")?;
    writeln!(
        out,
        "<h3><span class=\"severity\">{severity}</span> {id} <small>{}, {}</small></h3>",
        finding.cause, finding.stalled
    )?;
    writeln!(out, "<p>{}</p>", html(&finding.summary))?;
    if !finding.proof.is_empty() {
        writeln!(out, "<p class=\"proof\">{}</p>", html(&finding.proof))?;
    }
    if !finding.advice.is_empty() {
        let lines: Vec<String> = finding.advice.iter().map(|line| html(line)).collect();
        writeln!(out, "<pre>{}</pre>", lines.join("\n"))?;
    }
    writeln!(out, "</article>")?;
    Ok(())
}

pub(super) fn write_table(table: &Table, out: &mut dyn Write) -> Result<(), RenderError> {
    writeln!(out, "<h2>{}</h2>\n<div class=\"wide\"><table>", html(table.title))?;
    let class = |at: usize| match table.columns.get(at).map(|column| column.align) {
        Some(Align::Right) => " class=\"figure\"",
        _ => "",
    };
    write!(out, "<thead><tr>")?;
    for (at, column) in table.columns.iter().enumerate() {
        write!(out, "<th{}>{}</th>", class(at), html(column.title))?;
    }
    writeln!(out, "</tr></thead>\n<tbody>")?;
    for (number, row) in table.rows.iter().enumerate() {
        write!(out, "<tr>")?;
        for (at, cell) in row.iter().enumerate() {
            write!(out, "<td{}>{}</td>", class(at), html(cell))?;
        }
        writeln!(out, "</tr>")?;
        if let Some(note) = table.notes.get(number).filter(|note| !note.is_empty()) {
            writeln!(out, "<tr><td colspan=\"{}\"><small>{}</small></td></tr>", row.len(), html(note))?;
        }
    }
    writeln!(out, "</tbody></table></div>")?;
    if let Some(rest) = table.rest() {
        writeln!(out, "<p>{}; the JSON report has more</p>", html(&rest))?;
    }
    if let Some(remark) = table.remark {
        writeln!(out, "<p>{}</p>", html(remark))?;
    }
    Ok(())
}

fn write_pairs<K: AsRef<str>>(
    title: &str,
    pairs: &[(K, String)],
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    if pairs.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>{title}</h2>\n<dl>")?;
    for (word, text) in pairs {
        writeln!(out, "<dt>{}</dt><dd>{}</dd>", html(word.as_ref()), html(text))?;
    }
    writeln!(out, "</dl>")?;
    Ok(())
}
