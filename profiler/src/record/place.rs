//! Where the devices of the targets sit, and what their ports count while the recording goes on.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::target::ProcRoot;
use crate::target::place::{self, Machine, SysRoot, ethtool};
use crate::target::verbs::counters;
use crate::trace::place::{DeviceUse, PciDevice, PciRole, RdmaPort, ThreadPlace};
use crate::trace::rdma::PortCounter;
use crate::trace::record::{Environment, Record};

/// Processes that are looked at, at most.
const PROCESSES_MAX: usize = 4096;
/// Threads that post whose processor is looked at, at most.
const POSTERS_MAX: usize = 64;
/// Records of counters and of threads' processors between the recording's ends, at most: an hour of fifty that move.
const SAMPLES_MAX: usize = 200_000;
/// The longest time between two looks for devices of a process, nanoseconds.
const LOOKS_NS: u64 = 30_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Reading counters takes one part in this many of the recorder's time at most.
const IDLE_PARTS: u64 = 20;

/// When a process is looked at next, and how long it is left alone after that.
#[derive(Clone, Copy, Debug)]
struct Look {
    due_ns: u64,
    gap_ns: u64,
}

#[derive(Debug)]
pub(super) struct PlaceWatch {
    proc: ProcRoot,
    sys: SysRoot,
    wanted: bool,
    /// `None` until the first target uses a device.
    machine: Option<Machine>,
    looks: HashMap<u32, Look>,
    used: BTreeSet<(u32, String)>,
    nodes: BTreeMap<u32, i32>,
    posters: BTreeSet<(u32, u32)>,
    counters: Counters,
    samples: usize,
}

/// Device, port and name.
type Key = (String, u32, String);

#[derive(Debug, Default)]
struct Counters {
    /// Value, and when it was written.
    last: HashMap<Key, (u64, u64)>,
    due_ns: u64,
    looked_ns: u64,
}

impl PlaceWatch {
    pub(super) fn new(proc: ProcRoot, sys: SysRoot, wanted: bool) -> PlaceWatch {
        PlaceWatch {
            proc,
            sys,
            wanted,
            machine: None,
            looks: HashMap::new(),
            used: BTreeSet::new(),
            nodes: BTreeMap::new(),
            posters: BTreeSet::new(),
            counters: Counters::default(),
            samples: 0,
        }
    }

    /// A thread has posted a request.
    pub(super) fn posted(&mut self, pid: u32, tid: u32) {
        if self.posters.len() < POSTERS_MAX {
            self.posters.insert((pid, tid));
        }
    }

    /// To be called once a second.
    pub(super) fn tick(&mut self, pids: impl Iterator<Item = u32>, now_ns: u64) -> Vec<Record> {
        let mut records = Vec::new();
        if !self.wanted {
            return records;
        }
        for pid in pids {
            self.look(pid, now_ns, &mut records);
        }
        if self.samples < SAMPLES_MAX && now_ns >= self.counters.due_ns {
            let before = records.len();
            let began_ns = crate::target::monotonic_ns();
            self.count(now_ns, false, &mut records);
            self.find_threads(now_ns, &mut records);
            let took_ns = crate::target::monotonic_ns().saturating_sub(began_ns);
            // A little early, so that the next tick is not missed.
            let pause_ns = took_ns.saturating_mul(IDLE_PARTS).max(SECOND_NS * 9 / 10);
            self.counters.due_ns = now_ns.saturating_add(pause_ns);
            self.samples += records.len() - before;
        }
        records
    }

    /// All counters once more.
    pub(super) fn finish(&mut self, end_ns: u64) -> Vec<Record> {
        let mut records = Vec::new();
        if self.wanted {
            self.count(end_ns, true, &mut records);
        }
        records
    }

    fn look(&mut self, pid: u32, now_ns: u64, records: &mut Vec<Record>) {
        let room = self.looks.len() < PROCESSES_MAX;
        match self.looks.get_mut(&pid) {
            Some(look) if now_ns < look.due_ns => return,
            Some(look) => {
                look.gap_ns = look.gap_ns.saturating_mul(2).min(LOOKS_NS);
                look.due_ns = now_ns.saturating_add(look.gap_ns);
            }
            None if room => {
                self.looks.insert(pid, Look { due_ns: now_ns, gap_ns: SECOND_NS / 2 });
            }
            None => return,
        }
        for device in place::open_devices(&self.proc, &self.sys, pid) {
            if self.used.insert((pid, device.clone())) {
                if self.machine.is_none() {
                    self.describe(records);
                }
                records.push(Record::DeviceUse(DeviceUse { pid, device }));
            }
        }
    }

    fn describe(&mut self, records: &mut Vec<Record>) {
        let machine = place::machine(&self.proc, &self.sys);
        self.nodes = place::nodes(&self.sys);
        records.extend(environment(&machine).into_iter().map(Record::Environment));
        records.extend(machine.pci.iter().cloned().map(Record::PciDevice));
        records.extend(machine.ports.iter().cloned().map(Record::RdmaPort));
        self.machine = Some(machine);
    }

    /// Counters of the ports that are used; only those that moved, unless `all`.
    fn count(&mut self, now_ns: u64, all: bool, records: &mut Vec<Record>) {
        let Some(machine) = &self.machine else { return };
        let devices: BTreeSet<&str> = self.used.iter().map(|(_, device)| device.as_str()).collect();
        let folder = self.sys.path("class/infiniband");
        let Counters { last, looked_ns, .. } = &mut self.counters;
        let mut tell = |device: &str, port: u32, name: String, value: u64| {
            let key = (device.to_owned(), port, name);
            let known = last.get(&key).copied();
            let moved = known.is_none_or(|(before, _)| before != value);
            if !moved && !all {
                return;
            }
            let mut write = |time_ns, value| {
                let (device, port, name) = key.clone();
                records.push(Record::PortCounter(PortCounter { time_ns, device, port, name, value }));
            };
            // The look before bounds when it moved.
            if let Some((before, written_ns)) = known
                && moved
                && written_ns < *looked_ns
            {
                write(*looked_ns, before);
            }
            write(now_ns, value);
            last.insert(key, (value, now_ns));
        };
        for device in &devices {
            for one in counters::read(&folder, device) {
                tell(device, one.port, one.name, one.value);
            }
        }
        for port in machine.ports.iter().filter(|port| devices.contains(port.device.as_str())) {
            if place::has_netdev(&self.sys, port) {
                for (name, value) in ethtool::counters(&port.netdev) {
                    tell(&port.netdev, port.port, name, value);
                }
            }
        }
        *looked_ns = now_ns;
    }

    fn find_threads(&self, time_ns: u64, records: &mut Vec<Record>) {
        for &(pid, tid) in &self.posters {
            if let Some(cpu) = place::last_cpu(&self.proc, pid, tid) {
                let node = self.nodes.get(&cpu).copied().unwrap_or(-1);
                records.push(Record::ThreadPlace(ThreadPlace { time_ns, pid, tid, cpu, node }));
            }
        }
    }
}

/// Rows of the table `environment`: links and ports as they were found.
fn environment(machine: &Machine) -> Vec<Environment> {
    let row = |what: String, value: String| Environment { what, value, pid: 0 };
    let mut rows: Vec<Environment> = machine
        .pci
        .iter()
        .filter(|device| device.role != PciRole::Bridge)
        .map(|device| row(format!("pcie.{}", name(device)), link_text(device)))
        .collect();
    rows.extend(
        machine.ports.iter().map(|port| row(format!("rdma.{}:{}", port.device, port.port), port_text(port))),
    );
    rows.extend(machine.congestion.iter().map(|(what, value)| row(format!("rdma.{what}"), value.clone())));
    rows
}

fn name(device: &PciDevice) -> &str {
    if device.name.is_empty() { &device.address } else { &device.name }
}

fn link_text(device: &PciDevice) -> String {
    let lanes = |width| if width == 0 { "x?".to_owned() } else { format!("x{width}") };
    let speed = |speed| if speed == 0 { "?".to_owned() } else { format!("{}", f64::from(speed) / 1e3) };
    let link = device.link;
    let node = if device.node < 0 { "unknown".to_owned() } else { device.node.to_string() };
    format!(
        "{} of {}, {} of {} GT/s, node {node} ({})",
        lanes(link.width),
        lanes(link.width_max),
        speed(link.speed),
        speed(link.speed_max),
        device.address
    )
}

fn port_text(port: &RdmaPort) -> String {
    let mut text = format!("{}, {}, {}", port.link_layer, port.state, port.rate);
    if !port.netdev.is_empty() {
        text.push_str(&format!(", {}", port.netdev));
    }
    if port.mtu != 0 {
        text.push_str(&format!(", MTU {}", port.mtu));
    }
    let gids: Vec<String> =
        port.gids.iter().take(8).map(|gid| format!("{} {}", gid.index, gid.kind)).collect();
    if port.link_layer == "Ethernet" && !gids.is_empty() {
        text.push_str(&format!(", GIDs {}", gids.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(folder: &std::path::Path, path: &str, text: &str) {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Process 7 has `rxe0` open, a device in software.
    fn fixture() -> (tempfile::TempDir, PlaceWatch) {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        write(at, "sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n");
        write(at, "sys/class/infiniband/rxe0/ports/1/hw_counters/retry", "5\n");
        write(at, "sys/class/infiniband/rxe0/ports/1/hw_counters/still", "1\n");
        write(at, "sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n");
        write(at, "sys/devices/system/node/node1/cpulist", "0-15\n");
        std::fs::create_dir_all(at.join("proc/7/fd")).unwrap();
        symlink("/dev/infiniband/uverbs0", at.join("proc/7/fd/3")).unwrap();
        write(at, "proc/7/task/8/stat", &format!("8 (post) R {} 3 0", ["0"; 35].join(" ")));
        let watch = PlaceWatch::new(ProcRoot::new(at.join("proc")), SysRoot::new(at.join("sys")), true);
        (folder, watch)
    }

    fn value(record: &Record) -> Option<(&str, u64)> {
        match record {
            Record::PortCounter(one) => Some((one.name.as_str(), one.value)),
            _ => None,
        }
    }

    fn values(records: &[Record]) -> Vec<(&str, u64)> {
        records.iter().filter_map(value).collect()
    }

    #[test]
    fn counters_are_told_when_they_move_and_at_the_end() {
        let (folder, mut watch) = fixture();
        let second = SECOND_NS;
        let first = watch.tick([7].into_iter(), second);
        assert_eq!(values(&first), [("retry", 5), ("still", 1)]);
        assert!(first.contains(&Record::DeviceUse(DeviceUse { pid: 7, device: "rxe0".into() })));
        assert!(
            first
                .iter()
                .any(|record| matches!(record, Record::Environment(row) if row.what == "rdma.rxe0:1"))
        );
        write(folder.path(), "sys/class/infiniband/rxe0/ports/1/hw_counters/retry", "9\n");
        let later = watch.counters.due_ns;
        assert_eq!(values(&watch.tick([7].into_iter(), later - 1)), [], "not yet");
        assert_eq!(values(&watch.tick([7].into_iter(), later)), [("retry", 9)]);
        assert_eq!(values(&watch.tick([7].into_iter(), later + 5 * second)), []);
        write(folder.path(), "sys/class/infiniband/rxe0/ports/1/hw_counters/retry", "10\n");
        let moved = watch.tick([7].into_iter(), later + 10 * second);
        assert_eq!(values(&moved), [("retry", 9), ("retry", 10)], "with the look before");
        let time =
            |record: &Record| matches!(record, Record::PortCounter(one) if one.time_ns == later + 5 * second);
        assert_eq!(moved.iter().filter(|record| time(record)).count(), 1);
        assert_eq!(values(&watch.finish(later + 11 * second)), [("retry", 10), ("still", 1)]);
    }

    #[test]
    fn threads_that_post_are_found_on_their_node() {
        let (_folder, mut watch) = fixture();
        watch.posted(7, 8);
        let records = watch.tick([7].into_iter(), SECOND_NS);
        let place = ThreadPlace { time_ns: SECOND_NS, pid: 7, tid: 8, cpu: 3, node: 1 };
        assert!(records.contains(&Record::ThreadPlace(place)), "{records:?}");
    }

    #[test]
    fn nothing_is_read_where_no_target_uses_a_device_or_it_is_not_wanted() {
        let (_folder, mut watch) = fixture();
        assert_eq!(watch.tick([9].into_iter(), SECOND_NS), []);
        watch.wanted = false;
        assert_eq!(watch.tick([7].into_iter(), SECOND_NS), []);
        assert_eq!(watch.finish(2 * SECOND_NS), []);
    }
}
