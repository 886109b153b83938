//! The few lines that `record` ends with.

use std::io::{self, Write};

use super::style::{Painter, Style};
use super::{TextOptions, severity_style};
use crate::analysis::Analysis;
use crate::render::section::{self, WorstStall};
use crate::render::unit::{count, duration};
use crate::render::{name, note};

/// Stalls and findings that are named; with the lines around them the summary has at most 15 lines.
const STALLS: usize = 5;
const FINDINGS: usize = 3;

pub(super) fn write(analysis: &Analysis, options: TextOptions, out: &mut dyn Write) -> io::Result<()> {
    let painter = Painter::new(options);
    let width = options.columns.unwrap_or(usize::MAX);
    let report = &analysis.report;
    let damage = note::damage(report);
    if let Some(first) = damage.first() {
        let more = if damage.len() > 1 { format!(" (and {} more)", damage.len() - 1) } else { String::new() };
        let line = cut(&format!("trace not whole: {first}"), width.saturating_sub(more.len()));
        writeln!(out, "{}", painter.paint(Style::Critical, &format!("{line}{more}")))?;
    }
    let length = duration(report.target.duration_ns);
    let head = format!("{}: {} in {length}", note::target(report), note::stalled(report));
    writeln!(out, "{}", painter.paint(Style::Heading, &cut(&head, width)))?;
    write_stalls(analysis, width, out)?;
    if let Some(line) = section::worst_kernel(report) {
        writeln!(out, "{}", cut(&line, width))?;
    }
    write_findings(analysis, painter, width, out)?;
    let mut losses = note::losses(report);
    losses.extend(note::blind_spots(report));
    if !losses.is_empty() {
        writeln!(out, "{}", cut(&format!("lost or not seen: {}", losses.join("; ")), width))?;
    }
    Ok(())
}

fn write_stalls(analysis: &Analysis, width: usize, out: &mut dyn Write) -> io::Result<()> {
    let (worst, _) = section::worst_stalls(analysis, STALLS);
    if worst.is_empty() {
        let line = format!("{}; {}", note::no_stall(&analysis.report), note::calls_seen(&analysis.report, 4));
        writeln!(out, "{}", cut(&line, width))?;
        return writeln!(out, "{}", cut(&note::presence(analysis), width));
    }
    writeln!(out, "worst stalls:")?;
    let widest = |of: fn(&WorstStall) -> usize| worst.iter().map(of).max().unwrap_or_default();
    let times = widest(|row| duration(row.total_ns).len());
    let causes = widest(|row| row.cause.name().len());
    let peers = widest(|row| row.peer.chars().count()).min((width / 10).saturating_mul(3));
    let threads = widest(|row| thread(row).chars().count()).min(width / 4);
    for row in &worst {
        let open =
            if row.in_flight > 0 { format!(", {} in flight", count(row.in_flight)) } else { String::new() };
        let detail = if row.detail.is_empty() { String::new() } else { format!(": {}", row.detail) };
        let path = if row.path.is_empty() { String::new() } else { format!("; {}", row.path) };
        let line = format!(
            "  {:>times$}  {:<causes$}  {:<peers$}  {:<threads$}  {}x{open}{detail}{path}",
            duration(row.total_ns),
            row.cause.name(),
            name::shorten(&row.peer, peers),
            name::shorten(&thread(row), threads),
            count(row.count),
        );
        writeln!(out, "{}", cut(&line, width))?;
    }
    Ok(())
}

/// `gather [4251]`, with its rank where that is known.
fn thread(row: &WorstStall) -> String {
    match row.rank {
        Some(rank) => format!("{} rank {rank}", row.thread),
        None => row.thread.clone(),
    }
}

fn write_findings(
    analysis: &Analysis,
    painter: Painter,
    width: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let findings = section::findings(&analysis.report);
    if findings.is_empty() {
        return Ok(());
    }
    writeln!(out, "findings:")?;
    for finding in findings.iter().take(FINDINGS) {
        let word = section::severity(finding.severity);
        let text = cut(&finding.summary, width.saturating_sub(word.len() + 4));
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
