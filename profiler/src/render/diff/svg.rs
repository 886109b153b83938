//! The flame graph of both sides: how much wider or narrower each frame became, drawn by inferno.
//!
//! Colours go by the frame's inclusive change. inferno gives frames of equal name one colour, so every frame here
//! gets a name of its own: a number in characters that are for private use. In the finished picture the number says
//! which frame a title belongs to, and is taken out.

use std::io::{BufWriter, Write};

use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::from_lines;

use super::{headline, signed, signed_percent, verdict};
use crate::analysis::diff::document::{Diff, delta_pct};
use crate::analysis::diff::stacks::FrameChange;
use crate::render::flame::drawing;
use crate::render::flame::empty::write_lines;
use crate::render::unit::duration;
use crate::render::{RenderError, name};

const LEGEND: &str = "orange: longer after, blue: shorter, grey: as before; \
    the stronger, the larger the part of the frame; width: the longer of both sides";

/// Private-use characters for the numbers of frames, in digits of base [`BASE`].
const FIRST: u32 = 0xe000;
const BASE: u32 = 0x400;

/// A frame below this share of the picture is not drawn, and needs no name of its own.
const NARROWEST: u64 = 20_000;
/// Changes below this share of a frame have no figure in its label.
const LABELLED: f64 = 2.0;

const GREY: [u8; 3] = [232, 232, 232];
const ORANGE: [u8; 3] = [230, 120, 20];
const BLUE: [u8; 3] = [72, 140, 232];

/// Draws both sides; widths are nanoseconds per unit, of a stack the larger of its two.
pub fn write_diff_svg(diff: &Diff, out: &mut dyn Write) -> Result<(), RenderError> {
    out.write_all(picture(diff)?.as_bytes())?;
    Ok(())
}

pub(super) fn picture(diff: &Diff) -> Result<String, RenderError> {
    let tree = FrameChange::of(&diff.stacks);
    if tree.width_ns > i64::MAX as u64 {
        return Err(RenderError::TooLarge);
    }
    if tree.width_ns == 0 {
        return empty(diff);
    }
    let mut drawn = Drawn { palette: PaletteMap::default(), ..Drawn::default() };
    drawn.palette.insert("", colour(&tree));
    drawn.add(&tree, &mut Vec::new(), tree.width_ns / NARROWEST);
    let heading = name::escape_controls(&format!("stallscope diff: {}", headline(diff)));
    let mut drawing = drawing(heading, &mut drawn.palette);
    drawing.subtitle = Some(LEGEND.to_owned());
    let mut bytes = Vec::new();
    from_lines(&mut drawing, drawn.lines.iter().map(String::as_str), BufWriter::new(&mut bytes))?;
    let root = title("all", &tree);
    Ok(with_titles(&String::from_utf8_lossy(&bytes), &drawn.titles, &root))
}

/// The picture with our titles in place of inferno's, and without numbers.
fn with_titles(picture: &str, titles: &[String], root: &str) -> String {
    let mut out = String::with_capacity(picture.len());
    let mut pieces = picture.split("<title>");
    let plain = |text: &str, out: &mut String| out.extend(text.chars().filter(|c| !is_number(*c)));
    plain(pieces.next().unwrap_or_default(), &mut out);
    for piece in pieces {
        let (old, rest) = piece.split_once("</title>").unwrap_or((piece, ""));
        let number = number_in(old);
        let title = if number == 0 { Some(root) } else { titles.get(number - 1).map(String::as_str) };
        out.push_str("<title>");
        out.push_str(&name::html(title.unwrap_or_default()));
        out.push_str("</title>");
        plain(rest, &mut out);
    }
    out
}

/// The number of the frame whose title this is, 0 for the root.
fn number_in(title: &str) -> usize {
    let digits = title.chars().filter(|c| is_number(*c)).map(|c| (u32::from(c) - FIRST) as usize);
    digits.rev().fold(0, |number: usize, digit| number.saturating_mul(BASE as usize).saturating_add(digit))
}

#[derive(Default)]
struct Drawn {
    palette: PaletteMap,
    /// By number, from 1.
    titles: Vec<String>,
    lines: Vec<String>,
}

impl Drawn {
    /// Adds what is below `frame`, whose path is `path`.
    fn add(&mut self, frame: &FrameChange, path: &mut Vec<String>, narrowest: u64) {
        let mut rest = frame.width_ns;
        for (name, child) in &frame.children {
            if child.width_ns <= narrowest {
                continue;
            }
            rest = rest.saturating_sub(child.width_ns);
            let shown: String =
                name::frame(name).chars().map(|c| if is_number(c) { '?' } else { c }).collect();
            self.titles.push(title(&shown, child));
            let unique = shown + &number(self.titles.len());
            self.palette.insert(&unique, colour(child));
            path.push(unique);
            self.add(child, path, narrowest);
            path.pop();
        }
        if rest > 0 && !path.is_empty() {
            self.lines.push(format!("{} {rest}", path.join(";")));
        }
    }
}

/// The number in private-use characters, the lowest digit first.
fn number(mut left: usize) -> String {
    let mut digits = String::new();
    while left > 0 {
        digits.extend(char::from_u32(FIRST + (left % BASE as usize) as u32));
        left /= BASE as usize;
    }
    digits
}

fn is_number(c: char) -> bool {
    (FIRST..FIRST + BASE).contains(&u32::from(c))
}

/// What pointing at a frame shows. What stands before the last bracket is the frame's label.
fn title(name: &str, frame: &FrameChange) -> String {
    let pct = delta_pct(frame.before_ns as f64, frame.after_ns as f64);
    let label = match (frame.before_ns, frame.after_ns, pct) {
        (0, _, _) => format!("{name} NEW"),
        (_, 0, _) => format!("{name} GONE"),
        (_, _, Some(pct)) if pct.abs() >= LABELLED => format!("{name} {}", signed_percent(Some(pct))),
        _ => name.to_owned(),
    };
    format!(
        "{label} (before {}, after {}: {}, {})",
        duration(frame.before_ns),
        duration(frame.after_ns),
        signed(frame.delta_ns()),
        signed_percent(pct)
    )
}

/// From grey to orange or blue, by the root of the change's share of the frame, so that 5 % shows.
fn colour(frame: &FrameChange) -> Color {
    let whole = frame.before_ns.max(frame.after_ns);
    let share = if whole == 0 { 0.0 } else { frame.delta_ns() as f64 / whole as f64 };
    let to = if share > 0.0 { ORANGE } else { BLUE };
    let strength = share.abs().min(1.0).sqrt();
    let mix = |at: usize| {
        let (from, to) = (f64::from(GREY[at]), f64::from(to[at]));
        (from + (to - from) * strength).round() as u8
    };
    Color::new(mix(0), mix(1), mix(2))
}

fn empty(diff: &Diff) -> Result<String, RenderError> {
    let title = format!("stallscope diff: {}", verdict(&diff.total));
    let mut bytes = Vec::new();
    write_lines(&title, &["Nothing stalled on either side.".to_owned()], &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::diff::document::{StackChange, delta_ns};

    fn row(stack: &str, before_ns: u64, after_ns: u64) -> StackChange {
        StackChange {
            stack: stack.split(';').map(str::to_owned).collect(),
            before_ns,
            after_ns,
            delta_ns: delta_ns(before_ns, after_ns),
            ..StackChange::default()
        }
    }

    fn drawn(stacks: Vec<StackChange>) -> String {
        picture(&Diff { stacks, ..Diff::default() }).unwrap()
    }

    /// Fill of the first frame whose title begins so.
    fn fill(picture: &str, title: &str) -> [u8; 3] {
        let at = picture.find(&format!("<title>{title}")).unwrap_or_else(|| panic!("{title}: {picture}"));
        let rest = &picture[at..];
        let rgb = rest.split("fill=\"rgb(").nth(1).unwrap().split(')').next().unwrap();
        let parts: Vec<u8> = rgb.split(',').map(|part| part.parse().unwrap()).collect();
        parts.try_into().unwrap()
    }

    #[test]
    fn a_parent_has_the_colour_of_all_that_is_below_it() {
        let picture = drawn(vec![row("p;t;send;[a]", 100, 100), row("p;t;recv;[b]", 100, 300)]);
        assert_eq!(fill(&picture, "send ("), GREY);
        let [red, _, blue] = fill(&picture, "t +100.0%");
        assert!(red > 200 && blue < 120, "{red} {blue}");
        assert!(picture.contains("t +100.0% (before 200 ns, after 400 ns: +200 ns, +100.0%)"));
    }

    #[test]
    fn equal_names_have_colours_of_their_own_and_no_trace_of_their_numbers() {
        let picture = drawn(vec![row("p;a;recv", 100, 300), row("p;b;recv", 300, 100)]);
        assert_ne!(fill(&picture, "recv +"), fill(&picture, "recv -"));
        assert!(!picture.chars().any(is_number));
    }

    #[test]
    fn what_is_gone_keeps_its_width_and_what_is_new_is_named() {
        let picture = drawn(vec![row("p;old", 300, 0), row("p;new", 0, 300)]);
        assert_eq!(fill(&picture, "old GONE"), BLUE);
        assert_eq!(fill(&picture, "new NEW"), ORANGE);
        assert!(picture.contains("fg:w=\"300\""), "{picture}");
    }

    #[test]
    fn orange_and_blue_differ_in_more_than_red_and_green() {
        // What is left where red and green look alike: blue against the mean of the others.
        let tone = |rgb: [u8; 3]| 2 * i32::from(rgb[2]) - i32::from(rgb[0]) - i32::from(rgb[1]);
        assert!(tone(BLUE) - tone(ORANGE) > 300);
    }

    #[test]
    fn hostile_names_stay_text() {
        let picture = drawn(vec![row("p\u{e001};<script>\u{1b}\t\"x\";title=\"a\"", 10, 20)]);
        assert!(!picture.contains("<script>\\u"), "{picture}");
        assert!(picture.contains("&lt;script&gt;"));
    }

    #[test]
    fn nothing_on_either_side_is_said() {
        assert!(drawn(Vec::new()).contains("Nothing stalled on either side."));
    }
}
