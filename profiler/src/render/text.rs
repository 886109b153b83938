//! The report for a terminal or a mail: 100 columns, the findings first.

pub(super) mod layout;
pub(super) mod style;
mod summary;

use std::io::{self, Write};

use crate::analysis::Analysis;
use crate::analysis::report::{Report, Severity};
use crate::render::note;
use crate::render::section::{self, FindingText};
use layout::{wrap, write_pairs, write_table};
use style::{Painter, Style};

/// Columns of the page.
pub(super) const WIDTH: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// ANSI colours, for a terminal.
    pub colour: bool,
    /// Where lines of the summary are cut, which the terminal would break; `None`: nowhere. The report has a width of
    /// its own.
    pub columns: Option<usize>,
}

/// Writes the report without colours.
pub fn write_report(analysis: &Analysis, out: &mut dyn Write) -> io::Result<()> {
    write_report_with(analysis, TextOptions::default(), out)
}

/// Writes the report.
pub fn write_report_with(analysis: &Analysis, options: TextOptions, out: &mut dyn Write) -> io::Result<()> {
    let painter = Painter::new(options);
    let report = &analysis.report;
    write_damage(report, painter, out)?;
    write_header(report, painter, out)?;
    write_findings(report, painter, out)?;
    if analysis.stall_sums().next().is_none() {
        writeln!(out)?;
        let text = format!("{}. {}.", note::no_stall(report), note::presence(analysis));
        for line in wrap(&text, WIDTH) {
            writeln!(out, "{line}")?;
        }
    }
    for table in section::tables(analysis) {
        writeln!(out, "\n{}", painter.paint(Style::Heading, &table.title.to_uppercase()))?;
        write_table(&table, out)?;
    }
    writeln!(out, "\n{}", painter.paint(Style::Heading, "COVERAGE"))?;
    write_pairs(&section::coverage(report), out)?;
    let environment = section::environment(report);
    if !environment.is_empty() {
        writeln!(out, "\n{}", painter.paint(Style::Heading, "ENVIRONMENT"))?;
        write_pairs(&environment, out)?;
    }
    Ok(())
}

/// Writes what `record` says at its end, in at most 15 lines, without colours.
pub fn write_summary(analysis: &Analysis, out: &mut dyn Write) -> io::Result<()> {
    write_summary_with(analysis, TextOptions::default(), out)
}

/// Writes what `record` says at its end, in at most 15 lines, cut where `options` say so.
pub fn write_summary_with(analysis: &Analysis, options: TextOptions, out: &mut dyn Write) -> io::Result<()> {
    summary::write(analysis, options, out)
}

fn write_damage(report: &Report, painter: Painter, out: &mut dyn Write) -> io::Result<()> {
    let notes = note::damage(report);
    if notes.is_empty() {
        return Ok(());
    }
    let title = "!!! THE TRACE IS NOT WHOLE: figures below are lower bounds";
    writeln!(out, "{}", painter.paint(Style::Critical, title))?;
    for text in notes.iter().take(10) {
        for line in wrap(text, WIDTH - 4) {
            writeln!(out, "{}", painter.paint(Style::Critical, &format!("!!! {line}")))?;
        }
    }
    if notes.len() > 10 {
        let more = format!("!!! {} more in the JSON report", notes.len() - 10);
        writeln!(out, "{}", painter.paint(Style::Critical, &more))?;
    }
    writeln!(out)
}

fn write_header(report: &Report, painter: Painter, out: &mut dyn Write) -> io::Result<()> {
    let lines = section::header(report);
    for (index, line) in lines.iter().enumerate() {
        let line = if index == 0 { format!("stallscope report: {line}") } else { line.clone() };
        let style = if index == 0 { Style::Heading } else { Style::Plain };
        for line in wrap(&line, WIDTH) {
            writeln!(out, "{}", painter.paint(style, &line))?;
        }
    }
    Ok(())
}

fn write_findings(report: &Report, painter: Painter, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n{}", painter.paint(Style::Heading, "FINDINGS"))?;
    let findings = section::findings(report);
    if findings.is_empty() {
        return writeln!(out, "  none");
    }
    for (index, finding) in findings.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        write_finding(finding, painter, out)?;
    }
    Ok(())
}

fn write_finding(finding: &FindingText, painter: Painter, out: &mut dyn Write) -> io::Result<()> {
    let word = section::severity(finding.severity).to_uppercase();
    let word = painter.paint(severity_style(finding.severity), &word);
    writeln!(out, "  {word}  {} ({}, {})", finding.id, finding.cause, finding.stalled)?;
    for line in wrap(&finding.summary, WIDTH - 4) {
        writeln!(out, "    {line}")?;
    }
    let proof = if finding.proof.is_empty() { Vec::new() } else { wrap(&finding.proof, WIDTH - 14) };
    let advice = finding.advice.iter().flat_map(|line| advice_lines(line, WIDTH - 14)).collect();
    for (word, lines) in [("proof", proof), ("advice", advice)] {
        for (index, line) in lines.iter().enumerate() {
            writeln!(out, "      {:<8}{line}", if index == 0 { word } else { "" })?;
        }
    }
    Ok(())
}

/// A command is in one line, however long, and what is said about it stands above as comments: all of it can be pasted into
/// a shell.
fn advice_lines(line: &str, width: usize) -> Vec<String> {
    let Some((command, comment)) = line.split_once(" # ") else { return wrap(line, width) };
    let mut lines: Vec<String> =
        wrap(comment.trim(), width - 2).into_iter().map(|part| format!("# {part}")).collect();
    lines.push(command.trim().to_owned());
    lines
}

fn severity_style(severity: Severity) -> Style {
    match severity {
        Severity::Critical => Style::Critical,
        Severity::Warning => Style::Warning,
        Severity::Info => Style::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_one_line_and_what_is_said_about_it_are_comments_above() {
        let line = "nsenter -t 556 -m -r cat /etc/resolv.conf # what it sees; is that right?";
        let expected = ["# what it sees; is", "# that right?", "nsenter -t 556 -m -r cat /etc/resolv.conf"];
        assert_eq!(advice_lines(line, 20), expected);
        assert_eq!(advice_lines("Look at the other end.", 12), ["Look at the", "other end."]);
    }
}
