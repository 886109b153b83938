//! What samples of the processors say, with the error that sampling brings.

use super::report::OnCpu;
use crate::trace::record::CpuSamples;

/// Two-sided, 95 %.
const Z: f64 = 1.959_964;

/// How much of the time in which a thread was there it was on a processor.
pub(super) fn of(samples: &CpuSamples, wall_ns: u64) -> OnCpu {
    let CpuSamples { period_ns, samples: hits, looking, .. } = *samples;
    // As many samples as one processor had.
    let chances = wall_ns.checked_div(period_ns).unwrap_or(0).max(hits);
    let (low, high) = interval(hits, chances);
    OnCpu {
        samples: hits,
        looking_samples: looking,
        period_ns,
        running_ns: hits.saturating_mul(period_ns),
        ci95_ns: [low, high].map(|share| times(share, wall_ns)),
    }
}

/// How much of `looked_ns`, in which a thread awake waited for non-blocking descriptors, it was about something else than
/// looking. No more than is certain is told: a few samples tell nothing.
pub(super) fn worked_ns(samples: Option<&CpuSamples>, looked_ns: u64) -> u64 {
    samples.map_or(0, |samples| times(interval(samples.working, samples.waiting).0, looked_ns))
}

/// Wilson's interval for a share of which `hits` of `chances` were seen.
fn interval(hits: u64, chances: u64) -> (f64, f64) {
    if chances == 0 {
        return (0.0, 1.0);
    }
    if hits == 0 {
        // Exact, where rounding would leave a trace.
        return (0.0, Z * Z / (chances as f64 + Z * Z));
    }
    let (n, share) = (chances as f64, hits.min(chances) as f64 / chances as f64);
    let middle = share + Z * Z / (2.0 * n);
    let width = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let whole = 1.0 + Z * Z / n;
    (((middle - width) / whole).clamp(0.0, 1.0), ((middle + width) / whole).clamp(0.0, 1.0))
}

/// Not more than the whole.
fn times(share: f64, ns: u64) -> u64 {
    ((share * ns as f64) as u64).min(ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture::{Trace, spin, tcp, wait};
    use crate::trace::record::Wait;
    use profiler_common::Call;

    fn looks(start_ns: u64, end_ns: u64) -> Wait {
        spin(wait(Call::Recvfrom, start_ns, end_ns, vec![tcp(1, "10.0.1.1:80")]))
    }

    fn counts(samples: u64, waiting: u64, working: u64) -> CpuSamples {
        CpuSamples { period_ns: 10, samples, waiting, working, ..CpuSamples::default() }
    }

    #[test]
    fn the_interval_is_wilson_s() {
        let (low, high) = interval(20, 100);
        // By hand: (0.2 + 0.0192 -+ 0.0806) / 1.0384.
        assert!((low - 0.1334).abs() < 1e-4 && (high - 0.2888).abs() < 1e-4, "{low} {high}");
        assert!(interval(0, 100).0 < f64::MIN_POSITIVE);
        assert!((interval(0, 100).1 - 0.0370).abs() < 1e-4);
        assert!(interval(0, 0).0 < f64::MIN_POSITIVE && interval(0, 0).1 > 0.999);
        assert!(interval(u64::MAX, 1).1 <= 1.0 && interval(100, 100).1 > 0.999);
    }

    #[test]
    fn running_time_is_told_with_its_error() {
        let told = of(&counts(50, 0, 0), 1000);
        assert_eq!((told.samples, told.period_ns, told.running_ns), (50, 10, 500));
        assert!(told.ci95_ns[0] < 410 && told.ci95_ns[1] > 590, "{told:?}");
        // Damage.
        assert_eq!(of(&CpuSamples { samples: 3, ..CpuSamples::default() }, 1000).running_ns, 0);
    }

    #[test]
    fn few_samples_of_work_tell_nothing() {
        assert_eq!(worked_ns(None, 1000), 0);
        assert_eq!(worked_ns(Some(&counts(9, 0, 0)), 1000), 0);
        assert_eq!(worked_ns(Some(&counts(900, 900, 0)), 1000), 0);
        assert!(worked_ns(Some(&counts(1, 1, 1)), 1000) < 250);
        assert!(worked_ns(Some(&counts(10_000, 10_000, 5000)), 1000) > 480);
    }

    #[test]
    fn a_thread_that_works_between_its_looks_is_running_then_and_not_stalled() {
        let row = |samples: [u64; 4]| {
            let mut trace = Trace::new();
            trace.wait(looks(1000, 1800)).times(1000, 0, 0).times(2000, 900, 0).samples(1, samples);
            let analysis = trace.analyse();
            let row = analysis.report.threads[0].clone();
            assert_eq!(analysis.report.totals.stalled_ns, row.stalled_ns);
            let parts = [row.running_ns, row.runnable_ns, row.stalled_ns, row.idle_ns, row.other_ns];
            assert_eq!(parts.iter().sum::<u64>(), row.wall_ns, "{row:?}");
            row
        };
        let spinning = row([900, 800, 800, 0]);
        assert_eq!((spinning.stalled_ns, spinning.running_ns), (800, 100));
        assert_eq!(spinning.on_cpu.unwrap().looking_samples, 800);
        let working = row([900, 400, 800, 400]);
        assert!((400..=440).contains(&working.stalled_ns), "{working:?}");
        assert_eq!(working.stalled_ns + working.running_ns, 900);
    }
}
