//! A machine made of files.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::model::fixture::{PID, Trace};
use crate::target::place::config::bridge;
use crate::trace::place::DeviceUse;
use crate::trace::record::Record;

/// A fake `/sys` and `/proc` in one folder that goes away with it.
struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { folder: tempfile::tempdir().unwrap() }
    }

    fn sys(&self) -> SysRoot {
        SysRoot::new(self.folder.path().join("sys"))
    }

    fn proc(&self) -> ProcRoot {
        ProcRoot::new(self.folder.path().join("proc"))
    }

    fn write(&self, path: &str, bytes: impl AsRef<[u8]>) -> &Fixture {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        self
    }

    fn link(&self, path: &str, target: &str) -> &Fixture {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(Path::new(target), path).unwrap();
        self
    }

    /// A function at `sys/devices/PATH`, and the link to it.
    fn pci(&self, path: &str, class: &str, vendor: &str, node: i32, link: [&str; 4]) -> &Fixture {
        let address = path.rsplit('/').next().unwrap();
        let folder = format!("sys/devices/{path}");
        self.write(&format!("{folder}/class"), class)
            .write(&format!("{folder}/vendor"), vendor)
            .write(&format!("{folder}/numa_node"), format!("{node}\n"));
        let names = ["current_link_width", "max_link_width", "current_link_speed", "max_link_speed"];
        for (name, value) in names.iter().zip(link) {
            self.write(&format!("{folder}/{name}"), value);
        }
        self.link(&format!("sys/bus/pci/devices/{address}"), &format!("../../../devices/{path}"))
    }

    fn nic(&self, name: &str, path: &str) -> &Fixture {
        let folder = format!("sys/devices/{path}/infiniband/{name}");
        self.link(
            &format!("sys/class/infiniband/{name}"),
            &format!("../../devices/{path}/infiniband/{name}"),
        );
        self.write(&format!("{folder}/ports/1/state"), "4: ACTIVE\n")
            .write(&format!("{folder}/ports/1/link_layer"), "Ethernet\n")
            .write(&format!("{folder}/ports/1/rate"), "400 Gb/sec (4X NDR)\n")
            .link(&format!("{folder}/device"), "../../../0000:1a:00.0");
        self
    }
}

const FULL: [&str; 4] = ["16\n", "16\n", "32.0 GT/s PCIe\n", "32.0 GT/s PCIe\n"];
const HALF: [&str; 4] = ["8\n", "16\n", "32.0 GT/s PCIe\n", "32.0 GT/s PCIe\n"];

/// An adapter at half width and a GPU behind one switch.
fn switched() -> Fixture {
    let fixture = Fixture::new();
    let root = "pci0000:17/0000:17:01.0";
    let up = format!("{root}/0000:18:00.0");
    let (to_nic, to_gpu) = (format!("{up}/0000:19:00.0"), format!("{up}/0000:19:01.0"));
    for (path, port_type, acs) in
        [(root, 4, 0), (up.as_str(), 5, 0), (to_nic.as_str(), 6, 0x1d), (to_gpu.as_str(), 6, 0x1d)]
    {
        fixture.pci(path, "0x060400\n", "0x8086\n", 1, FULL);
        fixture.write(&format!("sys/devices/{path}/config"), bridge(port_type, acs));
    }
    let (nic, gpu) = (format!("{to_nic}/0000:1a:00.0"), format!("{to_gpu}/0000:1b:00.0"));
    fixture.pci(&nic, "0x020700\n", "0x15b3\n", 1, HALF).nic("mlx5_0", &nic);
    fixture.pci(&gpu, "0x030200\n", "0x10de\n", 1, FULL);
    fixture.write("proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: \t X\nDevice Minor: \t 3\n");
    fixture
}

fn device<'a>(machine: &'a Machine, address: &str) -> &'a PciDevice {
    machine.pci.iter().find(|device| device.address == address).unwrap()
}

#[test]
fn devices_are_found_with_their_links_and_the_bridges_above() {
    let fixture = switched();
    let machine = machine(&fixture.proc(), &fixture.sys());
    assert_eq!(machine.pci.len(), 6);
    let nic = device(&machine, "0000:1a:00.0");
    assert_eq!((nic.role, nic.name.as_str(), nic.node), (PciRole::Nic, "mlx5_0", 1));
    assert_eq!((nic.link.width, nic.link.width_max, nic.link.speed), (8, 16, 32_000));
    assert_eq!((nic.parent.as_str(), nic.root.as_str()), ("0000:19:00.0", "pci0000:17"));
    let gpu = device(&machine, "0000:1b:00.0");
    assert_eq!((gpu.role, gpu.name.as_str()), (PciRole::Gpu, "nvidia3"));
    let port = device(&machine, "0000:19:01.0");
    assert_eq!((port.port_type, port.acs, port.parent.as_str()), (Some(6), Some(0x1d), "0000:18:00.0"));
    assert_eq!(device(&machine, "0000:17:01.0").parent, "");
}

#[test]
fn a_gid_table_is_told_with_the_kind_of_each_entry() {
    let fixture = switched();
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    for (index, gid, kind) in [
        (0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1"),
        (1, "0000:0000:0000:0000:0000:0000:0000:0000", "IB/RoCE v1"),
        (3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
    ] {
        fixture
            .write(&format!("{port}/gids/{index}"), format!("{gid}\n"))
            .write(&format!("{port}/gid_attrs/types/{index}"), format!("{kind}\n"))
            .write(&format!("{port}/gid_attrs/ndevs/{index}"), "eth4\n");
    }
    fixture.write(&format!("{port}/gids/2"), "\n").write("sys/class/net/eth4/mtu", "9000\n");
    assert_eq!(machine(&fixture.proc(), &fixture.sys()).ports[0].mtu, 0, "an eth4 of another card");
    fixture.link("sys/class/net/eth4/device", "../../../bus/pci/devices/0000:1a:00.0");
    let found = machine(&fixture.proc(), &fixture.sys());
    let [port] = found.ports.as_slice() else { panic!("{:?}", found.ports) };
    assert_eq!((port.netdev.as_str(), port.mtu, port.link_layer.as_str()), ("eth4", 9000, "Ethernet"));
    let kinds: Vec<(u32, &str)> = port.gids.iter().map(|gid| (gid.index, gid.kind.as_str())).collect();
    assert!(kinds.contains(&(0, "IB/RoCE v1")) && kinds.contains(&(3, "RoCE v2")), "{kinds:?}");
    assert!(!kinds.iter().any(|(index, _)| *index == 1), "{kinds:?}");
}

#[test]
fn garbage_in_attributes_is_unknown_and_breaks_nothing() {
    let fixture = switched();
    let nic = "sys/bus/pci/devices/0000:1a:00.0";
    for (name, bytes) in [
        ("current_link_width", &b"255\n"[..]),
        ("max_link_width", b"-1"),
        ("current_link_speed", b"Unknown\n"),
        ("max_link_speed", b"\xff\x00\xff"),
        ("numa_node", b"99999999999999999999"),
        ("config", &[0xff; 5000]),
    ] {
        fixture.write(&format!("{nic}/{name}"), bytes);
    }
    fixture.write("sys/bus/pci/devices/not-an-address/class", "0x030000");
    fixture.write("sys/class/infiniband/mlx5_0/ports/word/state", "x");
    fixture.link("sys/class/infiniband/loop0", "loop0").link("sys/class/infiniband/out", "../../../../etc");
    fixture.write("proc/driver/nvidia/gpus/0000:1b:00.0/information", vec![b'\xff'; 100_000]);
    let machine = machine(&fixture.proc(), &fixture.sys());
    let nic = device(&machine, "0000:1a:00.0");
    assert_eq!(nic.link, crate::trace::place::PciLink::default());
    assert_eq!((nic.node, nic.acs), (-1, None));
    assert_eq!(device(&machine, "0000:1b:00.0").name, "");
    assert_eq!(machine.ports.len(), 1);
}

#[test]
fn open_devices_are_those_behind_descriptors() {
    let fixture = switched();
    fixture.write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
    fixture.write("sys/class/infiniband_verbs/uverbs1/ibdev", "../../etc\n");
    for (fd, target) in [
        (3, "/dev/infiniband/uverbs0"),
        (4, "/dev/nvidia3"),
        (5, "/dev/nvidiactl"),
        (6, "/dev/infiniband/uverbs1"),
        (7, "/dev/infiniband/uverbs99999999999"),
        (8, "socket:[1]"),
    ] {
        fixture.link(&format!("proc/7/fd/{fd}"), target);
    }
    let found: Vec<String> = open_devices(&fixture.proc(), &fixture.sys(), 7).into_iter().collect();
    assert_eq!(found, ["mlx5_0", "nvidia3"]);
    assert!(open_devices(&fixture.proc(), &fixture.sys(), 8).is_empty());
}

#[test]
fn processors_have_their_nodes_and_threads_their_processor() {
    let fixture = Fixture::new();
    fixture.write("sys/devices/system/node/node0/cpulist", "0-1,4\n");
    fixture.write("sys/devices/system/node/node1/cpulist", "2-3,x,9-,5-4294967295\n");
    let nodes = nodes(&fixture.sys());
    assert_eq!((nodes.get(&4), nodes.get(&3)), (Some(&0), Some(&1)));
    assert!(nodes.len() <= CPUS_MAX);
    let stat = format!("9 (a) b (c) S {} 17 0", ["0"; 35].join(" "));
    fixture.write("proc/9/task/9/stat", stat);
    assert_eq!(last_cpu(&fixture.proc(), 9, 9), Some(17));
    fixture.write("proc/9/task/10/stat", "9 (a");
    assert_eq!(last_cpu(&fixture.proc(), 9, 10), None);
}

#[test]
fn switches_of_the_congestion_control_are_read_by_priority() {
    let fixture = switched();
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    fixture
        .write(&format!("{port}/gids/0"), "fe80::1\n")
        .write(&format!("{port}/gid_attrs/ndevs/0"), "eth4\n")
        .link("sys/class/net/eth4/device", "../../../bus/pci/devices/0000:1a:00.0")
        .write("sys/class/net/eth4/ecn/roce_np/enable/0", "0\n")
        .write("sys/class/net/eth4/ecn/roce_np/enable/3", "1\n");
    let machine = machine(&fixture.proc(), &fixture.sys());
    assert_eq!(machine.congestion, [("eth4.ecn.roce_np".to_owned(), "0:off 3:on".to_owned())]);
}

#[test]
fn what_is_wrong_with_these_files_comes_out_as_findings() {
    let fixture = switched();
    let machine = machine(&fixture.proc(), &fixture.sys());
    let mut trace = Trace::new();
    for device in machine.pci {
        trace.add(Record::PciDevice(device));
    }
    for device in ["mlx5_0", "nvidia3"] {
        trace.add(Record::DeviceUse(DeviceUse { pid: PID, device: device.into() }));
    }
    let ids: Vec<String> = trace.analyse().report.findings.into_iter().map(|finding| finding.id).collect();
    for id in ["pcie.link_degraded", "pcie.acs", "pcie.shared_uplink"] {
        assert!(ids.iter().any(|known| known == id), "{id}: {ids:?}");
    }
    assert!(!ids.iter().any(|id| id == "numa.remote_nic"), "{ids:?}");
}
