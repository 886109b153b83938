//! The one table of limits. A file of the user's can replace any of them; durations are written `200ms`,
//! ratios `5%`.

use std::io::Read as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Debug, thiserror::Error)]
pub enum ThresholdsError {
    #[error("{path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{path}: it is larger than {FILE_MAX} bytes")]
    TooLarge { path: String },
    /// Not TOML, an unknown name, a value out of range.
    #[error("{path}: line {line}: {message}")]
    Parse { path: String, line: usize, message: String },
}

/// No such file is larger; `/dev/zero` is.
const FILE_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Thresholds {
    pub general: General,
    pub dns: Dns,
    pub tcp: Tcp,
    pub net: Net,
    pub rdma: Rdma,
    pub gpu: Gpu,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct General {
    /// Least share of the recording that a finding about waiting needs.
    #[serde(with = "ratio")]
    pub min_share: f64,
    /// From this share on it is a warning.
    #[serde(with = "ratio")]
    pub warning_share: f64,
    /// From this share on a failure is critical.
    #[serde(with = "ratio")]
    pub critical_share: f64,
    /// A failing wait in flight that is older is critical.
    #[serde(with = "span")]
    pub stuck_for: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dns {
    /// `dns.resolver_unreachable`: total time waited in vain.
    #[serde(with = "span")]
    pub unreachable_stall: Duration,
    /// `dns.resolver_unreachable`: with no query given up yet, age of the oldest wait.
    #[serde(with = "span")]
    pub unreachable_wait: Duration,
    /// `dns.slow`: median of the answers' latency.
    #[serde(with = "span")]
    pub late: Duration,
    /// `dns.slow`: total time waited for late answers.
    #[serde(with = "span")]
    pub slow_stall: Duration,
    /// `dns.slow`: total time waited for answers that are each in time.
    #[serde(with = "span")]
    pub busy_stall: Duration,
    /// `dns.retry_ladder`: a question that is sent again after less was not timed out by a resolver.
    #[serde(with = "span")]
    pub retry_step: Duration,
    /// `dns.retry_ladder`: total time waited in such lookups.
    #[serde(with = "span")]
    pub retry_stall: Duration,
    /// Failures that count as repeated, also of `tcp.connect_refused` …
    pub repeated: u64,
    /// … when the first and the last are this far apart.
    #[serde(with = "span")]
    pub repeated_span: Duration,
    /// `dns.servfail`, `dns.nxdomain`: total time waited where no lookup failed for it.
    #[serde(with = "span")]
    pub error_stall: Duration,
    /// `dns.reverse_lookup`: total time waited.
    #[serde(with = "span")]
    pub reverse_stall: Duration,
    /// `dns.still_waiting`: age at the end of the recording.
    #[serde(with = "span")]
    pub still_waiting: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tcp {
    /// `tcp.peer_unreachable`, `tcp.connect_timeout`: time without an answer.
    #[serde(with = "span")]
    pub connect_wait: Duration,
    /// `tcp.retransmits`: time waited in which segments were retransmitted.
    #[serde(with = "span")]
    pub retransmit_stall: Duration,
    /// `tcp.retransmits`: segments to one peer, where no thread waited for them.
    pub retransmits: u64,
    /// `tcp.retransmits`: the same for each second.
    pub retransmits_per_second: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Net {
    /// `net.slow_peer`: time that a thread waited for data of one peer …
    #[serde(with = "span")]
    pub slow_peer_stall: Duration,
    /// … as a share of the thread's time …
    #[serde(with = "ratio")]
    pub slow_peer_share: f64,
    /// … as a share of all its waiting for data …
    #[serde(with = "ratio")]
    pub slow_peer_part: f64,
    /// … and as a multiple of that for the next peer.
    pub slow_peer_lead: f64,
    /// `net.cross_rack_latency`, `net.slow_peer`: round-trip times (means that the kernel keeps) that a hop needs.
    pub cross_rack_samples: u64,
    /// `net.cross_rack_jitter`: the same.
    pub cross_rack_jitter_samples: u64,
    /// `net.cross_rack_latency`, `net.cross_rack_jitter`, `net.slow_peer`: multiple of what it is compared with …
    pub cross_rack_ratio: f64,
    /// … and the difference.
    #[serde(with = "span")]
    pub cross_rack_rtt: Duration,
    /// `net.cross_rack_latency`, `net.cross_rack_jitter`: hosts across racks …
    pub cross_rack_peers: u64,
    /// … of which this share is slow, while this share of those inside the rack is not.
    #[serde(with = "ratio")]
    pub cross_rack_agree: f64,
    /// `net.cross_rack_latency`, `net.cross_rack_jitter`, `net.slow_peer`: waiting that the longer round trips explain.
    #[serde(with = "span")]
    pub cross_rack_stall: Duration,
    /// `net.cross_rack_share`: share of all bytes …
    #[serde(with = "ratio")]
    pub cross_rack_share: f64,
    /// … of at least this many.
    pub cross_rack_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rdma {
    /// `rdma.queue_bound`: median of the waiting behind other requests, as a multiple of the unloaded latency …
    pub queue_ratio: f64,
    /// … of at least this many requests …
    pub queue_requests: u64,
    /// … and time in which the queue pair had some that waited so.
    #[serde(with = "span")]
    pub queue_stall: Duration,
    /// `rdma.counter_errors`: increase of one counter …
    pub counter_errors: u64,
    /// … and of all of a port for each second, from which on also counters that load alone can move are a warning.
    pub counter_errors_per_second: f64,
    /// `rdma.registration_slow`: time of all registrations of a process.
    #[serde(with = "span")]
    pub registration_stall: Duration,
    /// From this part of it on pinning, or the device, is named as what takes the time.
    #[serde(with = "ratio")]
    pub registration_part: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// `gpu.launch_bound`: kernels whose launch was seen …
    pub launch_kernels: u64,
    /// … of which a tenth starts within this time of its launch …
    #[serde(with = "span")]
    pub launch_latency: Duration,
    /// … and this share within twice the time of that tenth.
    #[serde(with = "ratio")]
    pub launch_prompt: f64,
    /// `gpu.launch_bound`: gaps up to this length, ended by such a kernel …
    #[serde(with = "span")]
    pub launch_gap: Duration,
    /// … take this share of the time …
    #[serde(with = "ratio")]
    pub launch_share: f64,
    /// … and this much in all …
    #[serde(with = "span")]
    pub launch_least: Duration,
    /// … while a thread works for this share of its time.
    #[serde(with = "ratio")]
    pub launch_busy: f64,
    /// `gpu.underused`: share of the time in which the GPU does something, at most …
    #[serde(with = "ratio")]
    pub underused_busy: f64,
    /// … from the first kernel to the last one, which are this far apart at least …
    #[serde(with = "span")]
    pub underused_span: Duration,
    /// … and so many.
    pub underused_kernels: u64,
    /// `nccl.late_rank` by kernels: how much later a rank begins than all others, as a share of the recording …
    #[serde(with = "ratio")]
    pub late_share: f64,
    /// … as a multiple of that of the next rank …
    pub late_lead: f64,
    /// … and in this share of the collectives.
    #[serde(with = "ratio")]
    pub late_part: f64,
}

impl Default for Gpu {
    fn default() -> Gpu {
        Gpu {
            launch_kernels: 1000,
            launch_latency: Duration::from_micros(100),
            launch_prompt: 0.75,
            launch_gap: Duration::from_micros(200),
            launch_share: 0.20,
            launch_least: Duration::from_millis(100),
            launch_busy: 0.75,
            underused_busy: 0.30,
            underused_span: Duration::from_secs(2),
            underused_kernels: 100,
            late_share: 0.10,
            late_lead: 2.0,
            late_part: 0.75,
        }
    }
}

impl Default for Rdma {
    fn default() -> Rdma {
        Rdma {
            queue_ratio: 1.0,
            queue_requests: 20,
            queue_stall: Duration::from_millis(20),
            counter_errors: 1,
            counter_errors_per_second: 10.0,
            registration_stall: Duration::from_millis(100),
            registration_part: 0.5,
        }
    }
}

impl Default for General {
    fn default() -> General {
        General {
            min_share: 0.01,
            warning_share: 0.05,
            critical_share: 0.25,
            stuck_for: Duration::from_secs(5),
        }
    }
}

impl Default for Dns {
    fn default() -> Dns {
        Dns {
            unreachable_stall: Duration::from_secs(1),
            unreachable_wait: Duration::from_secs(2),
            late: Duration::from_millis(100),
            slow_stall: Duration::from_millis(200),
            busy_stall: Duration::from_secs(1),
            retry_step: Duration::from_millis(900),
            retry_stall: Duration::from_secs(1),
            repeated: 3,
            repeated_span: Duration::from_secs(1),
            error_stall: Duration::from_millis(200),
            reverse_stall: Duration::from_millis(500),
            still_waiting: Duration::from_millis(500),
        }
    }
}

impl Default for Tcp {
    fn default() -> Tcp {
        Tcp {
            connect_wait: Duration::from_secs(1),
            retransmit_stall: Duration::from_millis(200),
            retransmits: 50,
            retransmits_per_second: 1.0,
        }
    }
}

impl Default for Net {
    fn default() -> Net {
        Net {
            slow_peer_stall: Duration::from_secs(1),
            slow_peer_share: 0.10,
            slow_peer_part: 0.5,
            slow_peer_lead: 2.0,
            cross_rack_samples: 4,
            cross_rack_jitter_samples: 10,
            cross_rack_ratio: 2.0,
            cross_rack_rtt: Duration::from_micros(100),
            cross_rack_peers: 2,
            cross_rack_agree: 0.75,
            cross_rack_stall: Duration::from_millis(500),
            cross_rack_share: 0.5,
            cross_rack_bytes: 100_000_000,
        }
    }
}

impl Thresholds {
    /// Reads a user's file; what it does not name keeps its default.
    pub fn read(path: &std::path::Path) -> Result<Thresholds, ThresholdsError> {
        let shown = path.display().to_string();
        let mut text = String::new();
        let read =
            std::fs::File::open(path).and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text));
        match read {
            Err(source) => Err(ThresholdsError::Read { path: shown, source }),
            Ok(len) if len as u64 > FILE_MAX => Err(ThresholdsError::TooLarge { path: shown }),
            Ok(_) => toml::from_str(&text).map_err(|error| {
                let before = text.get(..error.span().map_or(0, |span| span.start)).unwrap_or("");
                let line = before.matches('\n').count() + 1;
                let message = error.message().lines().collect::<Vec<_>>().join("; ");
                ThresholdsError::Parse { path: shown, line, message }
            }),
        }
    }
}

/// `200ms`, `1s 500ms`.
mod span {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*value))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_duration(&text).map_err(|error| D::Error::custom(format!("{text}: {error}")))
    }
}

/// `5%`.
/// `5%`, as 0.05; nothing below 0 %.
pub fn parse_ratio(text: &str) -> Option<f64> {
    let percent: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    (percent.is_finite() && percent >= 0.0).then_some(percent / 100.0)
}

mod ratio {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{}%", value * 100.0))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        let text = String::deserialize(from)?;
        super::parse_ratio(&text).ok_or_else(|| D::Error::custom(format!("{text}: not a ratio such as 5%")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_replaces_what_it_names_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.toml");
        std::fs::write(&path, "[dns]\nlate = \"50ms\"\n[general]\nwarning_share = \"7.5%\"\n").unwrap();
        let thresholds = Thresholds::read(&path).unwrap();
        assert_eq!(thresholds.dns.late, Duration::from_millis(50));
        assert!((thresholds.general.warning_share - 0.075).abs() < 1e-9);
        assert_eq!(thresholds.tcp, Tcp::default());
    }

    #[test]
    fn an_unknown_name_or_a_bad_value_is_an_error_that_says_where() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.toml");
        for text in
            ["[dns]\nlatte = \"50ms\"\n", "[dns]\nlate = \"soon\"\n", "[general]\nmin_share = \"-1%\"\n"]
        {
            std::fs::write(&path, text).unwrap();
            let message = Thresholds::read(&path).unwrap_err().to_string();
            assert!(message.contains("limits.toml") && message.contains("line 2"), "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
        assert!(Thresholds::read(&directory.path().join("none")).is_err());
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let message = Thresholds::read(std::path::Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(message, "/dev/zero: it is larger than 1048576 bytes");
    }

    #[test]
    fn defaults_survive_being_written_and_read() {
        let text = toml::to_string(&Thresholds::default()).unwrap();
        assert_eq!(toml::from_str::<Thresholds>(&text).unwrap(), Thresholds::default());
    }
}
