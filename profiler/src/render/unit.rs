//! Figures for people: durations, shares, byte counts.

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// Three digits and a unit: `999 ns`, `310 us`, `45.6 ms`, `1.23 s`; from a minute on `2 min 05 s`, from an
/// hour on `1 h 01 min`.
pub fn duration(ns: u64) -> String {
    if ns < US {
        return format!("{ns} ns");
    }
    for (unit, name, limit) in [(US, "us", 1_000), (MS, "ms", 1_000), (S, "s", 60)] {
        if let Some(digits) = three_digits(ns, unit, limit) {
            return format!("{digits} {name}");
        }
    }
    let seconds = ns / S + u64::from(ns % S >= S / 2);
    if seconds < 3600 {
        return format!("{} min {:02} s", seconds / 60, seconds % 60);
    }
    let minutes = seconds / 60 + u64::from(seconds % 60 >= 30);
    format!("{} h {:02} min", minutes / 60, minutes % 60)
}

/// `ns / unit` rounded to three digits, or nothing where that reaches `limit` and the next unit's turn comes.
fn three_digits(ns: u64, unit: u64, limit: u64) -> Option<String> {
    let mut step = unit / 100;
    for decimals in [2_usize, 1, 0] {
        let rounded = (ns / step).saturating_add(u64::from(ns % step >= step.div_ceil(2)));
        if rounded < 1_000 {
            let scale = 10_u64.pow(decimals as u32);
            let (whole, part) = (rounded / scale, rounded % scale);
            return (whole < limit).then(|| {
                if decimals == 0 { whole.to_string() } else { format!("{whole}.{part:0decimals$}") }
            });
        }
        step *= 10;
    }
    None
}

/// `part` of `whole`: `0%`, `<0.1%`, `20.8%`, `>99.9%`, `100%`; `-` where there is no whole.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    percent(part as f64 / whole as f64)
}

/// A ratio as a percentage; `-` where it is no number.
pub fn percent(ratio: f64) -> String {
    if !ratio.is_finite() {
        return "-".to_owned();
    }
    let value = ratio * 100.0;
    if value <= 0.0 {
        "0%".to_owned()
    } else if value < 0.1 {
        "<0.1%".to_owned()
    } else if (99.95..100.0).contains(&value) {
        ">99.9%".to_owned()
    } else if value >= 100.0 {
        format!("{value:.0}%")
    } else {
        format!("{value:.1}%")
    }
}

/// `512 B`, `1.50 KiB`, `64.0 MiB`.
pub fn bytes(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64;
    let mut name = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        name = next;
    }
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {name}")
}

/// With separators: `1,234,567`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 thread`, `2 threads`.
pub fn plural(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(value), if value == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits_and_change_unit_at_the_boundary() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (310_000, "310 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (45_649_999, "45.6 ms"),
            (999_499_999, "999 ms"),
            (999_500_000, "1.00 s"),
            (1_234_999_999, "1.23 s"),
            (9_995_000_000, "10.0 s"),
            (59_940_000_000, "59.9 s"),
            (59_990_000_000, "1 min 00 s"),
            (61_000_000_000, "1 min 01 s"),
            (3_599_400_000_000, "59 min 59 s"),
            (3_599_500_000_000, "1 h 00 min"),
            (3_661_000_000_000, "1 h 01 min"),
        ] {
            assert_eq!(duration(ns), text, "{ns} ns");
        }
    }

    #[test]
    fn the_longest_duration_does_not_overflow() {
        assert_eq!(duration(u64::MAX), "5124095 h 35 min");
    }

    #[test]
    fn shares_tell_little_from_nothing_and_almost_all_from_all() {
        assert_eq!(share(0, 10), "0%");
        assert_eq!(share(1, 100_000), "<0.1%");
        assert_eq!(share(208, 1000), "20.8%");
        assert_eq!(share(9_990, 10_000), "99.9%");
        assert_eq!(share(99_999, 100_000), ">99.9%");
        assert_eq!(share(10, 10), "100%");
        assert_eq!(share(1, 0), "-");
        assert_eq!(percent(f64::NAN), "-");
    }

    #[test]
    fn byte_counts_use_binary_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
        assert_eq!(bytes((1 << 20) - 1), "1.00 MiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(plural(1, "thread"), "1 thread");
        assert_eq!(plural(0, "thread"), "0 threads");
    }
}
