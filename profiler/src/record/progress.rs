//! What `record` shows on a terminal while it runs. Without a terminal it shows nothing.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Running totals of a recording.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub events: u64,
    pub lost: u64,
    /// Longest wait so far that was no idling: nanoseconds, call and peer.
    pub worst: Option<(u64, String)>,
}

pub struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    duration: Option<Duration>,
}

impl Progress {
    pub fn new(duration: Option<Duration>) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Progress { bar, started: Instant::now(), duration }
    }

    pub fn update(&self, totals: &Totals) {
        if let Some(bar) = &self.bar {
            bar.set_message(line(self.started.elapsed(), self.duration, totals));
            bar.tick();
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn line(elapsed: Duration, of: Option<Duration>, totals: &Totals) -> String {
    let mut text = format!("{:.1} s", elapsed.as_secs_f64());
    if let Some(of) = of {
        text += &format!(" of {:.1} s", of.as_secs_f64());
    }
    text += &format!(", {} events, {} lost", totals.events, totals.lost);
    if let Some((ns, what)) = &totals.worst {
        text += &format!(", worst so far {:.3} s {what}", *ns as f64 / 1e9);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_time_events_losses_and_the_worst_wait() {
        let totals = Totals { events: 12, lost: 3, worst: Some((1_500_000_000, "poll 10.0.0.1:53".into())) };
        assert_eq!(
            line(Duration::from_millis(2_340), Some(Duration::from_secs(10)), &totals),
            "2.3 s of 10.0 s, 12 events, 3 lost, worst so far 1.500 s poll 10.0.0.1:53"
        );
    }
}
