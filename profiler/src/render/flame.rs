//! The flame graph as an SVG picture, drawn by inferno.

mod colour;
pub(super) mod empty;

use std::io::{BufWriter, Write};

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use crate::analysis::Analysis;
use crate::render::tree::{FlameOptions, View, WeightedStack, fold_stalls};
use crate::render::unit::duration;
use crate::render::{RenderError, name, note};

/// Longest subtitle that fits the picture's 1200 pixels, in characters.
const SUBTITLE: usize = 150;

/// Draws the stalls that `options` select; widths are stalled nanoseconds. Where there are none the picture
/// says so, and what was seen instead.
pub fn write_svg(
    analysis: &Analysis,
    options: &FlameOptions,
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    let stacks = fold_stalls(analysis, options)?;
    let mut out = BufWriter::new(out);
    if stacks.is_empty() {
        empty::write_empty(analysis, options, &mut out)?;
    } else {
        draw(analysis, options, &stacks, &mut out)?;
    }
    out.flush()?;
    Ok(())
}

fn draw(
    analysis: &Analysis,
    options: &FlameOptions,
    stacks: &[WeightedStack],
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    let lines: Vec<String> =
        stacks.iter().map(|stack| format!("{} {}", stack.path(), stack.weight_ns)).collect();
    let mut palette = colour::palette(stacks);
    let mut drawing = drawing(title(analysis, options), &mut palette);
    drawing.subtitle = subtitle(analysis, options, stacks);
    from_lines(&mut drawing, lines.iter().map(String::as_str), out)?;
    Ok(())
}

/// How all flame graphs are drawn.
pub(super) fn drawing(title: String, palette: &mut PaletteMap) -> Options<'_> {
    let mut drawing = Options::default();
    drawing.title = title;
    "ns".clone_into(&mut drawing.count_name);
    "Frame:".clone_into(&mut drawing.name_type);
    // Functions and leaves tell most by their beginning.
    drawing.text_truncate_direction = TextTruncateDirection::Right;
    drawing.bgcolors = Some(BackgroundColor::Flat(Color::new(255, 255, 255)));
    drawing.palette_map = Some(palette);
    // For the root alone, the only frame outside of the palette.
    drawing.deterministic = true;
    drawing
}

/// `stallscope: python3 (pid 4242), 10.0 s, stalled 8.30 s of 40.0 s thread time (20.8%)`.
fn title(analysis: &Analysis, options: &FlameOptions) -> String {
    let report = &analysis.report;
    let what = match &options.title {
        Some(title) => name::escape_controls(title),
        None => note::target(report),
    };
    format!("stallscope: {what}, {}, {}", duration(report.target.duration_ns), note::stalled(report))
}

/// What the picture leaves out, by wish or by loss.
fn subtitle(analysis: &Analysis, options: &FlameOptions, stacks: &[WeightedStack]) -> Option<String> {
    let report = &analysis.report;
    let mut notes = Vec::new();
    if !report.trace.damage.is_empty() || report.trace.bytes_unread > 0 {
        notes.push("TRACE DAMAGED, see the report".to_owned());
    } else if !report.trace.complete {
        notes.push("recording cut short".to_owned());
    }
    if options.is_filtered() {
        let shown: u64 = stacks.iter().map(|stack| stack.weight_ns).sum();
        notes.push(format!("{}: {}", filters(options), duration(shown)));
    }
    if options.view != View::Stack {
        notes.push(format!("by {}", options.view));
    }
    notes.extend(note::losses(report));
    let mut text = String::new();
    for note in notes {
        let separator = if text.is_empty() { "" } else { "; " };
        if text.len() + separator.len() + note.len() > SUBTITLE {
            text.push_str("; ..");
            break;
        }
        text.push_str(separator);
        text.push_str(&note);
    }
    (!text.is_empty()).then_some(text)
}

/// `only cause dns.resolve, thread 4242`.
fn filters(options: &FlameOptions) -> String {
    let cause = options.cause.map(|cause| format!("cause {cause}"));
    let tid = options.tid.map(|tid| format!("thread {tid}"));
    let rank = options.rank.map(|rank| format!("rank {rank}"));
    let parts: Vec<String> = [cause, tid, rank].into_iter().flatten().collect();
    format!("only {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cause::Cause;

    fn svg(analysis: &Analysis, options: &FlameOptions) -> String {
        let mut out = Vec::new();
        write_svg(analysis, options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_empty_analysis_gives_a_picture_that_says_so() {
        let text = svg(&Analysis::default(), &FlameOptions::default());
        assert!(text.starts_with("<?xml"), "{text}");
        assert!(text.contains("No stall was read; waits that were still open are not known."), "{text}");
        assert!(text.contains("0 system calls seen"), "{text}");
        assert!(text.trim_end().ends_with("</svg>"), "{text}");
    }

    #[test]
    fn a_filter_that_leaves_nothing_says_what_there_is() {
        let mut analysis = Analysis::default();
        analysis.report.totals.stalled_ns = 8_300_000_000;
        let options = FlameOptions { cause: Some(Cause::TcpConnect), ..FlameOptions::default() };
        let text = svg(&analysis, &options);
        assert!(text.contains("No stall: only cause tcp.connect"), "{text}");
        assert!(text.contains("8.30 s"), "{text}");
    }

    #[test]
    fn losses_stand_below_the_title() {
        let mut analysis = Analysis::default();
        analysis.report.trace.complete = true;
        assert_eq!(subtitle(&analysis, &FlameOptions::default(), &[]), None);
        analysis.report.coverage.lost_events = 1234;
        analysis.report.coverage.truncated_stacks = 1;
        assert_eq!(
            subtitle(&analysis, &FlameOptions::default(), &[]).unwrap(),
            "1,234 events lost; 1 truncated stack"
        );
        analysis.report.trace.damage.push("block 3".to_owned());
        assert!(subtitle(&analysis, &FlameOptions::default(), &[]).unwrap().starts_with("TRACE DAMAGED"));
    }

    #[test]
    fn a_hostile_title_is_escaped() {
        let options = FlameOptions { title: Some("<b>\x1b]--></b>".to_owned()), ..FlameOptions::default() };
        let text = svg(&Analysis::default(), &options);
        assert!(text.contains("&lt;b&gt;\\u{1b}]--&gt;&lt;/b&gt;"), "{text}");
    }
}
