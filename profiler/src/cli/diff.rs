//! `stallscope diff`.

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use super::args::{DiffArgs, DiffFormat};
use super::error::{CliError, REGRESSION};
use super::load::{leave, load_model};
use super::output::{keep_inputs, write_output};
use super::progress::Progress;
use super::record::note;
use super::report::colours_wanted;
use crate::analysis::diff::document::Diff;
use crate::analysis::diff::profile::Profile;
use crate::analysis::diff::{compare, profile_of, too_few};
use crate::render::RenderError;
use crate::render::diff::{write_diff_html, write_diff_json, write_diff_svg, write_diff_text};
use crate::render::text::TextOptions;

/// Recordings of one side at most; all their profiles are in memory at once.
const TRACES_MAX: usize = 64;

pub fn run(args: &DiffArgs) -> Result<u8, CliError> {
    let (before, after) = sides(args)?;
    if args.format == DiffFormat::Svg && args.output.is_none() && stdout().is_terminal() {
        let error = CliError::usage("the picture would go to the terminal");
        return Err(error.with_help("name a file: -o diff.svg; or -o - if the terminal is meant"));
    }
    keep_inputs(args.output.as_deref(), before.iter().chain(&after).copied())?;
    let (old, new) = load(&before, &after)?;
    let diff = compare(&old, &new);
    leave((old, new));
    let colour = args.output.is_none() && colours_wanted();
    write_output(args.output.as_deref(), |out| match args.format {
        DiffFormat::Text => write_diff_text(&diff, TextOptions { colour, ..TextOptions::default() }, out)
            .map_err(RenderError::from),
        DiffFormat::Json => write_diff_json(&diff, out).map_err(RenderError::from),
        DiffFormat::Svg => write_diff_svg(&diff, out),
        DiffFormat::Html => write_diff_html(&diff, out),
    })?;
    let Some(allowed) = args.fail_above else { return Ok(0) };
    if let Some(text) = unsure(&diff, allowed) {
        note(&text);
    }
    Ok(if is_regression(&diff, allowed) { REGRESSION } else { 0 })
}

/// The recordings of each side: the two that stand alone, and those behind `--before` and `--after`.
fn sides(args: &DiffArgs) -> Result<(Vec<&Path>, Vec<&Path>), CliError> {
    let before: Vec<&Path> = args.trace_before.iter().chain(&args.before).map(PathBuf::as_path).collect();
    let after: Vec<&Path> = args.trace_after.iter().chain(&args.after).map(PathBuf::as_path).collect();
    for (name, flag, side) in [("before", "--before", &before), ("after", "--after", &after)] {
        if side.is_empty() {
            return Err(CliError::usage(format!("no recording {name} is named"))
                .with_help(format!("stallscope diff BEFORE AFTER, or name recordings behind {flag}")));
        }
        if side.len() > TRACES_MAX {
            return Err(CliError::usage(format!("{} recordings {name}; at most {TRACES_MAX}", side.len())));
        }
    }
    Ok((before, after))
}

/// One recording after the other, each on several threads: their waits are not in memory at the same time.
fn load(before: &[&Path], after: &[&Path]) -> Result<(Vec<Profile>, Vec<Profile>), CliError> {
    let progress = Progress::new(before.len() + after.len());
    let load_side = |side: &[&Path]| {
        side.iter().map(|trace| load_profile_with(trace, &progress)).collect::<Result<Vec<_>, _>>()
    };
    Ok((load_side(before)?, load_side(after)?))
}

/// Reduces a recording to what a diff needs of it, as far as it can be read.
pub fn load_profile(trace: &Path) -> Result<Profile, CliError> {
    load_profile_with(trace, &Progress::new(1))
}

fn load_profile_with(trace: &Path, progress: &Progress) -> Result<Profile, CliError> {
    let (model, state) = load_model(trace, progress)?;
    let half = progress.half();
    Ok(profile_of(model, state, &|done, all| half.set(done, all)))
}

/// Whether stalls became longer by more than that share, and not by chance.
fn is_regression(diff: &Diff, allowed: f64) -> bool {
    diff.total.significant && is_above(diff, allowed)
}

/// Whether stalls became longer by more than that share.
fn is_above(diff: &Diff, allowed: f64) -> bool {
    match diff.total.delta_pct {
        Some(pct) => pct > allowed * 100.0,
        // From nothing to something is more than any share.
        None => diff.total.delta_ns > 0,
    }
}

/// Why a change above the limit is no regression, where that is for want of recordings.
fn unsure(diff: &Diff, allowed: f64) -> Option<String> {
    let unsure = !diff.total.significant && is_above(diff, allowed);
    let why = too_few(diff.before.traces, diff.after.traces).filter(|_| unsure)?;
    Some(format!("stalls became longer by more than --fail-above, which is not significant: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::diff::document::{Change, Side};

    #[test]
    fn a_change_that_two_recordings_cannot_prove_is_explained() {
        let diff = |traces, delta_pct, significant| Diff {
            before: Side { traces, ..Side::default() },
            after: Side { traces, ..Side::default() },
            total: Change { delta_pct: Some(delta_pct), significant, ..Change::default() },
            ..Diff::default()
        };
        assert!(unsure(&diff(2, 40.0, false), 0.05).unwrap().ends_with("Give three or more"));
        for sure in [diff(2, 4.0, false), diff(2, 40.0, true), diff(1, 40.0, false), diff(3, 40.0, false)] {
            assert_eq!(unsure(&sure, 0.05), None);
        }
    }

    #[test]
    fn only_a_significant_change_above_the_limit_is_a_regression() {
        let diff = |delta_pct, delta_ns, significant| Diff {
            total: Change { delta_ns, delta_pct, significant, ..Change::default() },
            ..Diff::default()
        };
        assert!(is_regression(&diff(Some(6.0), 6, true), 0.05));
        assert!(!is_regression(&diff(Some(5.0), 5, true), 0.05));
        assert!(!is_regression(&diff(Some(6.0), 6, false), 0.05));
        assert!(!is_regression(&diff(Some(-60.0), -60, true), 0.05));
        assert!(is_regression(&diff(None, 1, true), 0.05));
    }
}
