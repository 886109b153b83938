//! The recorded machine: name, kernel, clocks.

use nix::sys::utsname::UtsName;
use nix::time::{ClockId, clock_gettime};

use crate::trace::record::{Clock, Host};

/// Now, nanoseconds of `CLOCK_MONOTONIC`, the clock of the eBPF programs' `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

fn clock_ns(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| {
        u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
    })
}

/// Both clocks, read as close together as three tries allow.
pub fn clock() -> Clock {
    let mut best = (u64::MAX, Clock::default());
    for _ in 0..3 {
        let before = monotonic_ns();
        let unix_ns = clock_ns(ClockId::CLOCK_REALTIME);
        let after = monotonic_ns();
        let span = after.saturating_sub(before);
        if span < best.0 {
            best = (span, Clock { monotonic_ns: before + span / 2, unix_ns });
        }
    }
    best.1
}

pub fn host() -> Host {
    let uname = nix::sys::utsname::uname().ok();
    let text =
        |value: Option<&std::ffi::OsStr>| value.map(|v| v.to_string_lossy().into_owned()).unwrap_or_default();
    Host {
        name: text(uname.as_ref().map(UtsName::nodename)),
        kernel: text(uname.as_ref().map(UtsName::release)),
        arch: text(uname.as_ref().map(UtsName::machine)),
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        recorder: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_advance_and_agree_with_the_standard_library() {
        let clock = clock();
        assert!(clock.monotonic_ns > 0 && clock.monotonic_ns <= monotonic_ns());
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let now = u64::try_from(unix.as_nanos()).unwrap();
        assert!(now.abs_diff(clock.unix_ns) < 60_000_000_000);
    }

    #[test]
    fn the_host_has_a_kernel_and_cpus() {
        let host = host();
        assert!(!host.kernel.is_empty());
        assert!(host.cpus >= 1);
    }
}
