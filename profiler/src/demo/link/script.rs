//! What a slow link does, by the time since it began: lines `WHEN DIRECTION SETTING…`.
//!
//! ```text
//! # a good link that turns slow and lossy one way after two seconds
//! 0s  both  delay 2ms
//! 2s  a->b  delay 20ms jitter 1ms loss 1% reorder 2% rate 100mbit queue 64KiB
//! ```
//!
//! A line replaces all settings of its direction; what it does not name is off.

use std::str::FromStr;
use std::time::Duration;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    AToB,
    BToA,
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::AToB, Direction::BToA];

    #[must_use]
    pub const fn back(self) -> Direction {
        match self {
            Direction::AToB => Direction::BToA,
            Direction::BToA => Direction::AToB,
        }
    }

    pub(super) const fn index(self) -> usize {
        match self {
            Direction::AToB => 0,
            Direction::BToA => 1,
        }
    }
}

/// What happens to the packets of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Every packet takes at least this long.
    pub delay: Duration,
    /// Added to the delay, evenly distributed between nothing and this. The order of packets stays.
    pub jitter: Duration,
    /// Share of the packets that vanish, 0 to 1.
    pub loss: f64,
    /// Share of the packets that take no delay and so overtake others, 0 to 1.
    pub reorder: f64,
    /// Bits a second; 0: no limit.
    pub rate: u64,
    /// Bytes that may wait for their turn at that rate; more are dropped.
    pub queue: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            rate: 0,
            queue: 1 << 20,
        }
    }
}

/// Settings by time and direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkScript {
    /// By time.
    steps: Vec<(Duration, Direction, Settings)>,
    seed: u64,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line} of a link's script: {message}")]
pub struct ScriptError {
    /// From 1.
    pub line: usize,
    pub message: String,
}

impl LinkScript {
    /// The same delay both ways, always.
    pub fn delay(delay: Duration) -> LinkScript {
        let settings = Settings { delay, ..Settings::default() };
        let steps = Direction::BOTH.map(|direction| (Duration::ZERO, direction, settings));
        LinkScript { steps: steps.into(), seed: 0 }
    }

    /// The same seed makes the same choices for the same packets.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> LinkScript {
        self.seed = seed;
        self
    }

    pub(super) fn seed_value(&self) -> u64 {
        self.seed
    }

    /// What holds at a time since the link began.
    pub fn at(&self, time: Duration, direction: Direction) -> Settings {
        let earlier = self.steps.iter().rev().find(|(when, of, _)| *of == direction && *when <= time);
        earlier.map_or_else(Settings::default, |(_, _, settings)| *settings)
    }
}

impl FromStr for LinkScript {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<LinkScript, ScriptError> {
        let mut script = LinkScript::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split_once('#').map_or(line, |(before, _)| before);
            let words: Vec<&str> = line.split_whitespace().collect();
            if !words.is_empty() {
                script.take(&words).map_err(|message| ScriptError { line: number, message })?;
            }
        }
        script.steps.sort_by_key(|(when, _, _)| *when);
        Ok(script)
    }
}

impl LinkScript {
    fn take(&mut self, words: &[&str]) -> Result<(), String> {
        let [when, direction, rest @ ..] = words else {
            return Err("expected WHEN DIRECTION SETTING…".to_owned());
        };
        let when = duration(when)?;
        let directions: &[Direction] = match *direction {
            "both" => &Direction::BOTH,
            "a->b" => &[Direction::AToB],
            "b->a" => &[Direction::BToA],
            other => return Err(format!("no direction `{other}`; one of: both, a->b, b->a")),
        };
        let mut settings = Settings::default();
        for pair in rest.chunks(2) {
            let [name, value] = pair else { return Err(format!("`{}` has no value", pair.concat())) };
            match *name {
                "delay" => settings.delay = duration(value)?,
                "jitter" => settings.jitter = duration(value)?,
                "loss" => settings.loss = share(value)?,
                "reorder" => settings.reorder = share(value)?,
                "rate" => settings.rate = amount(value, &RATES)?,
                "queue" => settings.queue = amount(value, &SIZES)?,
                other => return Err(format!("no setting `{other}`")),
            }
        }
        self.steps.extend(directions.iter().map(|direction| (when, *direction, settings)));
        Ok(())
    }
}

const RATES: [(&str, u64); 3] = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];
const SIZES: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("B", 1)];

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("`{text}`: {error}"))
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    match number {
        Some(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is no share such as 5%")),
    }
}

fn amount(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let read = |(unit, factor): &(&str, u64)| {
        text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(*factor).filter(|amount| *amount > 0)
    };
    let known = || units.iter().map(|(unit, _)| *unit).collect::<Vec<_>>().join(", ");
    units.iter().find_map(read).ok_or_else(|| format!("`{text}` is no number with one of: {}", known()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn each_line_replaces_the_settings_of_its_direction() {
        let text = "# good\n0s both delay 2ms\n2s a->b delay 20ms loss 1.5% rate 100mbit queue 64KiB\n";
        let script: LinkScript = text.parse().unwrap();
        let at = |ms, direction| script.at(MS * ms, direction);
        assert_eq!(at(1999, Direction::AToB), Settings { delay: 2 * MS, ..Settings::default() });
        let slow = at(2000, Direction::AToB);
        assert_eq!((slow.delay, slow.rate, slow.queue), (20 * MS, 100_000_000, 65_536));
        assert!((slow.loss - 0.015).abs() < 1e-12);
        assert_eq!(at(9000, Direction::BToA).delay, 2 * MS);
        assert_eq!(LinkScript::delay(2 * MS).at(5 * MS, Direction::BToA), at(0, Direction::BToA));
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, part) in [
            ("0s", "expected WHEN DIRECTION"),
            ("soon both", "`soon`"),
            ("0s c->d", "no direction `c->d`"),
            ("0s both delay", "`delay` has no value"),
            ("0s both loss 101%", "`101%` is no share"),
            ("0s both rate 7", "kbit, mbit, gbit"),
            ("0s both wind 7", "no setting `wind`"),
        ] {
            let error = format!("\n{text}").parse::<LinkScript>().unwrap_err().to_string();
            assert!(error.starts_with("line 2 of a link's script: ") && error.contains(part), "{error}");
        }
    }
}
