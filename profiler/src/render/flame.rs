//! The flame graph as an SVG picture, drawn by inferno.

mod colour;
pub(super) mod empty;

use std::io::{BufWriter, Write};

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use crate::analysis::Analysis;
use crate::render::tree::{FlameOptions, FrameTree, View, fold_tree};
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
    let tree = fold_tree(analysis, options)?;
    let mut out = BufWriter::new(out);
    if tree.is_empty() {
        empty::write_empty(analysis, options, &mut out)?;
    } else {
        draw(analysis, options, &tree, &mut out)?;
    }
    out.flush()?;
    Ok(())
}

fn draw(
    analysis: &Analysis,
    options: &FlameOptions,
    tree: &FrameTree,
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    let width = Options::default().min_width;
    // The stacks of a large recording are many more than can be seen: what is above a frame that is left out anyway is
    // not handed over. A little less than what is left out, so that rounding decides nothing.
    let lines = tree.cut((tree.total_ns() as f64 * width / 100.0 * 0.99) as u64);
    draw_lines(analysis, options, (tree, &lines), out)
}

/// Draws these lines of the tree's.
fn draw_lines(
    analysis: &Analysis,
    options: &FlameOptions,
    (tree, lines): (&FrameTree, &[String]),
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    let names = lines.iter().flat_map(|line| {
        let path = line.rsplit_once(' ').map_or(line.as_str(), |(path, _)| path);
        path.split(';').filter_map(|name| Some((name, tree.kind(name)?)))
    });
    let mut palette = colour::palette(names);
    let mut drawing = drawing(title(analysis, options), &mut palette);
    drawing.subtitle = subtitle(analysis, options, tree.total_ns());
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
fn subtitle(analysis: &Analysis, options: &FlameOptions, shown_ns: u64) -> Option<String> {
    let report = &analysis.report;
    let mut notes = Vec::new();
    if !report.trace.damage.is_empty() || report.trace.bytes_unread > 0 {
        notes.push("TRACE DAMAGED, see the report".to_owned());
    } else if !report.trace.complete {
        notes.push("recording cut short".to_owned());
    }
    if options.is_filtered() {
        notes.push(format!("{}: {}", filters(options), duration(shown_ns)));
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
        assert_eq!(subtitle(&analysis, &FlameOptions::default(), 0), None);
        analysis.report.coverage.lost_events = 1234;
        analysis.report.coverage.truncated_stacks = 1;
        assert_eq!(
            subtitle(&analysis, &FlameOptions::default(), 0).unwrap(),
            "1,234 events lost; 1 truncated stack"
        );
        analysis.report.trace.damage.push("block 3".to_owned());
        assert!(subtitle(&analysis, &FlameOptions::default(), 0).unwrap().starts_with("TRACE DAMAGED"));
    }

    #[test]
    fn a_hostile_title_is_escaped() {
        let options = FlameOptions { title: Some("<b>\x1b]--></b>".to_owned()), ..FlameOptions::default() };
        let text = svg(&Analysis::default(), &options);
        assert!(text.contains("&lt;b&gt;\\u{1b}]--&gt;&lt;/b&gt;"), "{text}");
    }

    /// Some call sites take nearly all of the time; thousands are narrower than what is drawn, alone and together.
    fn wide_and_narrow() -> Analysis {
        let mut random = crate::random::Random(7);
        let mut analysis = Analysis::default();
        for id in 0..40_u64 {
            let function = |depth: u64| crate::trace::record::Frame {
                function: format!("f{}", (id >> depth) + depth * 100),
                module: String::new(),
                offset: 0,
            };
            let frames = (0..6).map(function).collect();
            let space = crate::trace::record::Space::User;
            analysis.stacks.insert(id, crate::trace::record::Stack { id, space, frames, truncated: false });
        }
        for number in 0..4000_u32 {
            let weight_ns = if number % 100 == 0 { 5_000_000 } else { random.below(4000) as u64 + 1 };
            // A thread's name can end in a number, which must not be taken for a weight.
            let tid = 10 + number % 7;
            analysis.threads.insert(tid, format!("worker {tid}"));
            analysis.merged.push((
                crate::analysis::stall::Stall {
                    pid: 10,
                    tid,
                    cause: if number % 3 == 0 { Cause::SockRecv } else { Cause::TcpConnect },
                    peer: format!("10.0.{}.1:80", number % 50),
                    detail: String::new(),
                    start_ns: 0,
                    end_ns: weight_ns,
                    weight_ns,
                    in_flight: number % 17 == 0,
                    began_earlier: false,
                    user_stack: random.below(41) as u64,
                    kernel_stack: 0,
                    api: "",
                    call: "recvfrom",
                },
                1,
            ));
        }
        analysis
    }

    #[test]
    fn what_is_too_narrow_to_be_seen_is_not_handed_over_and_the_picture_is_the_same() {
        let analysis = wide_and_narrow();
        for view in View::ALL {
            let options = FlameOptions { view, ..FlameOptions::default() };
            let tree = fold_tree(&analysis, &options).unwrap();
            let all: Vec<String> = tree.lines().collect();
            let mut whole = Vec::new();
            draw_lines(&analysis, &options, (&tree, &all), &mut whole).unwrap();
            // The pictures are too long to be shown.
            assert!(svg(&analysis, &options) == String::from_utf8(whole).unwrap(), "{view}");
        }
        let tree = fold_tree(&analysis, &FlameOptions::default()).unwrap();
        let least = (tree.total_ns() as f64 * 0.0001 * 0.99) as u64;
        let (cut, all) = (tree.cut(least).len(), tree.lines().count());
        assert!(cut < all, "{cut} of {all} lines");
    }
}
