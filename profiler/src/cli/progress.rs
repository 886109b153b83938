//! How far the reading of recordings is, on a terminal. Without a terminal it shows nothing.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Length of the bar of one recording: half of it is reading, half is analysing.
const WHOLE: u64 = 2000;
/// What is over sooner needs no bar.
const AFTER: Duration = Duration::from_millis(300);

/// A bar over one or several recordings, removed when it is dropped.
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// For this many recordings.
    pub fn new(recordings: usize) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let len = WHOLE * recordings.max(1) as u64;
            // Nothing is drawn at first.
            let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::hidden());
            if let Ok(style) = ProgressStyle::with_template("reading {wide_bar} {percent:>3} %") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        Progress { bar }
    }

    /// Half of a recording, of which nothing is done so far.
    pub fn half(&self) -> Half<'_> {
        Half { bar: self.bar.as_ref(), shown: AtomicU64::new(0) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Reading a recording, or analysing it.
pub struct Half<'p> {
    bar: Option<&'p ProgressBar>,
    shown: AtomicU64,
}

impl Half<'_> {
    /// Shows that `done` of `all` is done.
    pub fn set(&self, done: u64, all: u64) {
        let Some(bar) = self.bar else { return };
        let part = u128::from(done.min(all)) * u128::from(WHOLE / 2) / u128::from(all.max(1));
        let part = u64::try_from(part).unwrap_or(0);
        // Several threads tell; who comes late has nothing new.
        let shown = self.shown.fetch_max(part, Ordering::Relaxed);
        if part > shown {
            bar.inc(part - shown);
            if bar.is_hidden() && bar.elapsed() > AFTER {
                bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_recordings_make_a_whole_bar_whoever_tells_them() {
        let bar = ProgressBar::with_draw_target(Some(2 * WHOLE), ProgressDrawTarget::hidden());
        let progress = Progress { bar: Some(bar.clone()) };
        for _ in 0..4 {
            let half = progress.half();
            for done in [1, 5, 3, 7, 7, 9] {
                half.set(done, 7);
            }
        }
        assert_eq!(bar.position(), 2 * WHOLE);
        progress.half().set(5, 0);
    }

    #[test]
    fn without_a_terminal_there_is_no_bar() {
        let progress = Progress { bar: None };
        progress.half().set(1, 2);
        assert!(progress.bar.is_none());
    }
}
