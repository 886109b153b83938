//! Views of a diff: text, JSON, a flame graph of both sides, HTML. All are pure functions of the [`Diff`].

mod html;
mod svg;
mod table;
mod text;

use std::io::{self, Write};

use crate::analysis::diff::document::{Change, Diff, Normaliser};
use crate::render::json::Escaping;
use crate::render::name::escape_controls;
use crate::render::unit::duration;

pub use html::write_diff_html;
pub use svg::write_diff_svg;
pub use text::write_diff_text;

/// Writes the diff as one JSON document, schema `stallscope.diff/1`.
pub fn write_diff_json(diff: &Diff, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(Escaping(&mut *out), diff)?;
    out.write_all(b"\n")
}

/// `+310 us`, `-1.20 ms`, `0 ns`.
fn signed(ns: i64) -> String {
    let sign = match ns {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", duration(ns.unsigned_abs()))
}

/// `+20.4%`, `-3.1%`, `0%`, `<+0.1%`; `-` where there is none.
fn signed_percent(pct: Option<f64>) -> String {
    let Some(pct) = pct.filter(|pct| pct.is_finite()) else { return "-".to_owned() };
    if pct == 0.0 {
        return "0%".to_owned();
    }
    let sign = if pct > 0.0 { '+' } else { '-' };
    match pct.abs() {
        small if small < 0.05 => format!("<{sign}0.1%"),
        large if large >= 1000.0 => format!("{sign}{large:.0}%"),
        value => format!("{sign}{value:.1}%"),
    }
}

/// `25.0 ms -> 30.1 ms per wait: +5.10 ms (+20.4%), significant`.
fn headline(diff: &Diff) -> String {
    let total = &diff.total;
    format!(
        "{} -> {} {}: {} ({}), {}",
        duration(total.before_ns),
        duration(total.after_ns),
        diff.normalised_by.per(),
        signed(total.delta_ns),
        signed_percent(total.delta_pct),
        verdict(total)
    )
}

/// `python3;gather;..;step;recv`: the thread and the innermost functions of the site that the unit is of.
fn site(diff: &Diff) -> Option<String> {
    const INNERMOST: usize = 3;
    let path: Vec<String> = diff.normalised_site.iter().map(|frame| escape_controls(frame)).collect();
    let text = match path.as_slice() {
        [] => return None,
        [process, thread, between @ .., _, _, _] if !between.is_empty() => {
            let inner = path.get(path.len() - INNERMOST..).unwrap_or_default();
            format!("{process};{thread};..;{}", inner.join(";"))
        }
        path => path.join(";"),
    };
    Some(match diff.normalised_by {
        Normaliser::Marker => format!("a call is one of {}", path.join(", ")),
        _ => format!("a wait is one of {text}"),
    })
}

fn verdict(change: &Change) -> &'static str {
    if change.significant {
        "significant"
    } else if change.delta_ns == 0 {
        "no change"
    } else {
        "not significant"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_a_sign() {
        assert_eq!([310_000, -1_200_000, 0].map(signed), ["+310 us", "-1.20 ms", "0 ns"]);
        assert_eq!(signed(i64::MIN), "-2562047 h 47 min");
        let percents = [20.44, -3.06, 0.0, 0.01, -0.01, 12_345.0].map(|pct| signed_percent(Some(pct)));
        assert_eq!(percents, ["+20.4%", "-3.1%", "0%", "<+0.1%", "<-0.1%", "+12345%"]);
        assert_eq!([signed_percent(None), signed_percent(Some(f64::NAN))], ["-", "-"]);
    }
}
