//! The few lines that `record` ends with.

use std::io::{self, Write};

use super::style::{Painter, Style};
use super::{WIDTH, severity_style};
use crate::analysis::Analysis;
use crate::render::section::{self, WorstStall};
use crate::render::unit::{count, duration};
use crate::render::{name, note};

/// Stalls and findings that are named; with the lines around them the summary has at most 15 lines.
const STALLS: usize = 5;
const FINDINGS: usize = 3;

pub(super) fn write(analysis: &Analysis, painter: Painter, out: &mut dyn Write) -> io::Result<()> {
    let report = &analysis.report;
    let damage = note::damage(report);
    if let Some(first) = damage.first() {
        let more = if damage.len() > 1 { format!(" (and {} more)", damage.len() - 1) } else { String::new() };
        let line = cut(&format!("trace not whole: {first}"), WIDTH - more.len());
        writeln!(out, "{}", painter.paint(Style::Critical, &format!("{line}{more}")))?;
    }
    let length = duration(report.target.duration_ns);
    let head = format!("{}: {} in {length}", note::target(report), note::stalled(report));
    writeln!(out, "{}", painter.paint(Style::Heading, &cut(&head, WIDTH)))?;
    write_stalls(analysis, out)?;
    if let Some(line) = section::worst_kernel(report) {
        writeln!(out, "{}", cut(&line, WIDTH))?;
    }
    write_findings(analysis, painter, out)?;
    let mut losses = note::losses(report);
    losses.extend(note::blind_spots(report));
    if !losses.is_empty() {
        writeln!(out, "{}", cut(&format!("lost or not seen: {}", losses.join("; ")), WIDTH))?;
    }
    Ok(())
}

fn write_stalls(analysis: &Analysis, out: &mut dyn Write) -> io::Result<()> {
    let mut worst = section::worst_stalls(analysis);
    if worst.is_empty() {
        let line = format!("{}; {}", note::no_stall(&analysis.report), note::calls_seen(&analysis.report, 4));
        writeln!(out, "{}", cut(&line, WIDTH))?;
        return writeln!(out, "{}", cut(&note::presence(analysis), WIDTH));
    }
    worst.truncate(STALLS);
    writeln!(out, "worst stalls:")?;
    let width = |of: fn(&WorstStall) -> usize| worst.iter().map(of).max().unwrap_or_default();
    let times = width(|row| duration(row.total_ns).len());
    let causes = width(|row| row.cause.name().len());
    let peers = width(|row| row.peer.chars().count()).min(30);
    let threads = width(|row| row.thread.chars().count()).min(24);
    for row in &worst {
        let open =
            if row.in_flight > 0 { format!(", {} in flight", count(row.in_flight)) } else { String::new() };
        let detail = if row.detail.is_empty() { String::new() } else { format!(": {}", row.detail) };
        let line = format!(
            "  {:>times$}  {:<causes$}  {:<peers$}  {:<threads$}  {}x{open}{detail}",
            duration(row.total_ns),
            row.cause.name(),
            name::shorten(&row.peer, peers),
            name::shorten(&row.thread, threads),
            count(row.count),
        );
        writeln!(out, "{}", cut(&line, WIDTH))?;
    }
    Ok(())
}

fn write_findings(analysis: &Analysis, painter: Painter, out: &mut dyn Write) -> io::Result<()> {
    let findings = section::findings(&analysis.report);
    if findings.is_empty() {
        return Ok(());
    }
    writeln!(out, "findings:")?;
    for finding in findings.iter().take(FINDINGS) {
        let word = section::severity(finding.severity);
        let text = cut(&finding.summary, WIDTH - word.len() - 4);
        writeln!(out, "  {}: {text}", painter.paint(severity_style(finding.severity), word))?;
    }
    if findings.len() > FINDINGS {
        writeln!(out, "  and {} more, see the report", findings.len() - FINDINGS)?;
    }
    Ok(())
}

/// The text in at most `width` characters, cut at its end.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(width.saturating_sub(2)).collect();
    out.push_str("..");
    out
}
