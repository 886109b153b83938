//! `pcie.*`, `numa.remote_nic`, `rdma.roce_v1`, `rdma.counter_errors` and `rdma.port_event`, from records to findings.

use profiler_common::Call;

use super::{check, get, ids, number};
use crate::analysis::report::{Finding, Severity};
use crate::model::fixture::{PID, Trace, tcp, wait};
use crate::trace::place::{DeviceUse, Gid, PciDevice, PciLink, PciRole, RdmaPort, ThreadPlace};
use crate::trace::rdma::PortCounter;
use crate::trace::record::{Environment, Record};

/// What both tests of a place's records and these ones are about.
const FOUND: [&str; 6] = [
    "pcie.link_degraded",
    "pcie.acs",
    "pcie.shared_uplink",
    "numa.remote_nic",
    "rdma.roce_v1",
    "rdma.counter_errors",
];

const FULL: PciLink = PciLink { width: 16, width_max: 16, speed: 32_000, speed_max: 32_000 };
const ROOT: u8 = 4;
const UPSTREAM: u8 = 5;
const DOWNSTREAM: u8 = 6;
const REDIRECT: u16 = 0x1d;

fn device(address: &str, parent: &str, role: PciRole, name: &str) -> PciDevice {
    PciDevice {
        address: address.into(),
        parent: parent.into(),
        role,
        name: name.into(),
        root: "pci0000:17".into(),
        node: 1,
        link: FULL,
        ..PciDevice::default()
    }
}

fn port(address: &str, parent: &str, kind: u8) -> PciDevice {
    PciDevice { port_type: Some(kind), ..device(address, parent, PciRole::Bridge, "") }
}

/// `nvidia0` and `mlx5_0` of process 100 behind one switch, all at its best.
fn switched() -> Vec<PciDevice> {
    let end =
        |address, parent, role, name| PciDevice { port_type: Some(0), ..device(address, parent, role, name) };
    vec![
        port("root", "", ROOT),
        port("up", "root", UPSTREAM),
        port("down0", "up", DOWNSTREAM),
        port("down1", "up", DOWNSTREAM),
        end("nic", "down0", PciRole::Nic, "mlx5_0"),
        end("gpu", "down1", PciRole::Gpu, "nvidia0"),
    ]
}

fn trace(devices: Vec<PciDevice>, used: &[&str]) -> Trace {
    let mut trace = Trace::new();
    for device in devices {
        trace.add(Record::PciDevice(device));
    }
    for device in used {
        trace.add(Record::DeviceUse(DeviceUse { pid: PID, device: (*device).to_owned() }));
    }
    trace
}

fn findings(trace: &Trace) -> Vec<Finding> {
    check(trace.analyse().report.findings)
}

fn change(devices: &mut [PciDevice], address: &str, change: impl FnOnce(&mut PciDevice)) {
    change(devices.iter_mut().find(|device| device.address == address).unwrap());
}

const BOTH: [&str; 2] = ["mlx5_0", "nvidia0"];

#[test]
fn a_narrow_link_is_told_with_both_its_ends() {
    let mut devices = switched();
    change(&mut devices, "nic", |nic| nic.link.width = 8);
    let found = findings(&trace(devices.clone(), &BOTH));
    let finding = get(&found, "pcie.link_degraded");
    assert_eq!(finding.severity, Severity::Warning);
    assert_eq!((number(finding, "width"), number(finding, "width_max")), (8, 16));
    assert_eq!(finding.proof["upstream"], "down0");
    assert!(
        finding.summary.contains("down0 and nic (mlx5_0) runs at x8 where both ends can do x16"),
        "{}",
        finding.summary
    );
    // Where nobody uses it nothing is said.
    assert!(!ids(&findings(&trace(devices, &["nvidia0"]))).contains(&"pcie.link_degraded"));
}

#[test]
fn a_slot_that_is_as_narrow_as_the_link_is_no_degraded_link() {
    let mut devices = switched();
    change(&mut devices, "nic", |nic| nic.link.width = 8);
    change(&mut devices, "down0", |bridge| bridge.link.width_max = 8);
    assert!(!ids(&findings(&trace(devices, &BOTH))).contains(&"pcie.link_degraded"));
}

#[test]
fn without_a_bridge_above_the_slot_may_be_narrow_and_the_finding_says_less() {
    let mut devices = vec![device("nic", "", PciRole::Nic, "mlx5_0")];
    change(&mut devices, "nic", |nic| nic.link.width = 8);
    let found = findings(&trace(devices, &["mlx5_0"]));
    let finding = get(&found, "pcie.link_degraded");
    assert_eq!(finding.severity, Severity::Info);
    assert!(finding.proof["upstream"].is_null() && finding.summary.contains("the device can do x16"));
}

#[test]
fn a_gpu_that_rests_is_not_blamed_for_its_speed_and_an_adapter_is() {
    let mut devices = switched();
    change(&mut devices, "gpu", |gpu| gpu.link.speed = 2_500);
    change(&mut devices, "down1", |bridge| bridge.link.speed = 2_500);
    assert!(!ids(&findings(&trace(devices.clone(), &BOTH))).contains(&"pcie.link_degraded"));
    change(&mut devices, "nic", |nic| nic.link.speed = 16_000);
    let found = findings(&trace(devices, &BOTH));
    assert!(get(&found, "pcie.link_degraded").summary.contains("16 GT/s where both ends can do 32 GT/s"));
}

#[test]
fn the_link_above_a_switch_is_one_of_those_between() {
    let mut devices = switched();
    change(&mut devices, "up", |bridge| bridge.link.width = 4);
    let found = findings(&trace(devices, &BOTH));
    let finding = get(&found, "pcie.link_degraded");
    assert_eq!((&finding.proof["device"], &finding.proof["upstream"]), (&"up".into(), &"root".into()));
    assert_eq!(finding.proof["used_by"], serde_json::json!(["mlx5_0", "nvidia0"]));
}

#[test]
fn redirection_below_the_common_switch_is_told_and_above_it_is_not() {
    let mut devices = switched();
    change(&mut devices, "root", |bridge| bridge.acs = Some(REDIRECT));
    assert!(!ids(&findings(&trace(devices.clone(), &BOTH))).contains(&"pcie.acs"));
    // Source validation alone redirects nothing.
    change(&mut devices, "down0", |bridge| bridge.acs = Some(1));
    assert!(!ids(&findings(&trace(devices.clone(), &BOTH))).contains(&"pcie.acs"));
    change(&mut devices, "down1", |bridge| bridge.acs = Some(REDIRECT));
    let found = findings(&trace(devices.clone(), &BOTH));
    let finding = get(&found, "pcie.acs");
    assert_eq!(
        (finding.severity, &finding.proof["bridges"]),
        (Severity::Warning, &serde_json::json!(["down1"]))
    );
    // No peer to talk to.
    assert!(!ids(&findings(&trace(devices, &["mlx5_0"]))).contains(&"pcie.acs"));
}

#[test]
fn below_different_root_ports_redirection_costs_little_and_below_other_complexes_nothing() {
    let mut devices = vec![
        port("root0", "", ROOT),
        port("root1", "", ROOT),
        device("nic", "root0", PciRole::Nic, "mlx5_0"),
        device("gpu", "root1", PciRole::Gpu, "nvidia0"),
    ];
    change(&mut devices, "root0", |bridge| bridge.acs = Some(REDIRECT));
    let found = findings(&trace(devices.clone(), &BOTH));
    assert_eq!(get(&found, "pcie.acs").severity, Severity::Info);
    assert!(!ids(&found).contains(&"pcie.shared_uplink"));
    change(&mut devices, "gpu", |gpu| gpu.root = "pci0000:80".into());
    assert!(!ids(&findings(&trace(devices, &BOTH))).contains(&"pcie.acs"));
}

#[test]
fn an_uplink_that_carries_less_than_what_is_below_is_told_with_all_who_share_it() {
    let mut devices = switched();
    devices.push(device("other", "down1", PciRole::Gpu, "nvidia7"));
    let found = findings(&trace(devices.clone(), &BOTH));
    let finding = get(&found, "pcie.shared_uplink");
    assert_eq!((finding.severity, &finding.proof["uplink"]), (Severity::Info, &"up".into()));
    assert_eq!(finding.proof["below"], serde_json::json!(["nvidia0", "mlx5_0", "nvidia7"]));
    assert!(finding.summary.contains("1/2.0"), "{}", finding.summary);
    for address in ["gpu", "nic"] {
        change(&mut devices, address, |end| end.link.width_max = 4);
    }
    assert!(!ids(&findings(&trace(devices, &BOTH))).contains(&"pcie.shared_uplink"));
}

#[test]
fn an_adapter_on_another_node_than_the_gpu_is_remote() {
    let mut devices = switched();
    change(&mut devices, "nic", |nic| nic.node = 0);
    let found = findings(&trace(devices.clone(), &BOTH));
    let finding = get(&found, "numa.remote_nic");
    assert_eq!((finding.severity, number(finding, "nic_node")), (Severity::Info, 0));
    devices.push(device("near", "", PciRole::Nic, "mlx5_1"));
    let found = findings(&trace(devices.clone(), &BOTH));
    assert_eq!(get(&found, "numa.remote_nic").severity, Severity::Warning);
    // Of two open adapters without queue pairs nobody knows which is used.
    assert!(
        !ids(&findings(&trace(devices.clone(), &["mlx5_0", "mlx5_1", "nvidia0"])))
            .contains(&"numa.remote_nic")
    );
    for unknown in ["nic", "gpu"] {
        let mut devices = devices.clone();
        change(&mut devices, unknown, |device| device.node = -1);
        assert!(!ids(&findings(&trace(devices, &BOTH))).contains(&"numa.remote_nic"), "{unknown}");
    }
}

#[test]
fn without_a_gpu_the_threads_that_post_count_unless_they_wander() {
    let devices = vec![device("nic", "", PciRole::Nic, "mlx5_0")];
    let at = |nodes: &[i32]| {
        let mut trace = trace(devices.clone(), &["mlx5_0"]);
        for (time_ns, node) in (1000..).zip(nodes) {
            trace.add(Record::ThreadPlace(ThreadPlace { time_ns, pid: PID, tid: PID, cpu: 3, node: *node }));
        }
        ids(&findings(&trace)).contains(&"numa.remote_nic")
    };
    assert!(at(&[0, 0, 0, 0]));
    assert!(!at(&[1, 1, 1, 1]) && !at(&[0, 1, 0, 1, 0, 1]) && !at(&[0]) && !at(&[]));
}

fn roce(kinds: &[&str]) -> RdmaPort {
    let gid =
        |(index, kind): (u32, &&str)| Gid { index, gid: format!("fe80::{index}"), kind: (*kind).to_owned() };
    RdmaPort {
        device: "mlx5_0".into(),
        port: 1,
        link_layer: "Ethernet".into(),
        gids: (0..).zip(kinds).map(gid).collect(),
        ..RdmaPort::default()
    }
}

#[test]
fn roce_v1_is_told_where_a_setting_chooses_it_or_nothing_else_is_there() {
    let with = |kinds: &[&str], index: Option<&str>| {
        let mut trace = trace(Vec::new(), &["mlx5_0"]);
        trace.add(Record::RdmaPort(roce(kinds)));
        if let Some(index) = index {
            let what = "NCCL_IB_GID_INDEX".into();
            trace.add(Record::Environment(Environment { what, value: index.into(), pid: PID }));
        }
        findings(&trace).into_iter().find(|finding| finding.id == "rdma.roce_v1")
    };
    let both = ["IB/RoCE v1", "RoCE v2"];
    let finding = with(&both, Some("0")).unwrap();
    assert_eq!((finding.severity, number(&finding, "v2_index")), (Severity::Warning, 1));
    assert_eq!(with(&both[..1], None).unwrap().severity, Severity::Info);
    for index in [None, Some("1"), Some("7"), Some("first"), Some("-1")] {
        assert!(with(&both, index).is_none(), "{index:?}");
    }
}

fn counter(name: &str, time_ns: u64, value: u64) -> Record {
    Record::PortCounter(PortCounter { time_ns, device: "mlx5_0".into(), port: 1, name: name.into(), value })
}

#[test]
fn counters_of_errors_that_moved_are_told_with_their_meaning_and_others_are_not() {
    let mut trace = trace(Vec::new(), &["mlx5_0"]);
    for (name, values) in [
        ("symbol_error", [3, 3, 8]),
        ("duplicate_request", [0, 2, 2]),
        ("local_ack_timeout_err", [9, 9, 9]),
        ("port_xmit_wait", [0, 100, 200]),
        ("np_cnp_sent", [0, 5, 9]),
    ] {
        for (time_ns, value) in [1000, 1400, 2000].into_iter().zip(values) {
            trace.add(counter(name, time_ns, value));
        }
    }
    let found = findings(&trace);
    let finding = get(&found, "rdma.counter_errors");
    let names: Vec<&str> =
        finding.proof["counters"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(
        (names.as_slice(), finding.severity),
        (&["symbol_error", "duplicate_request"][..], Severity::Warning)
    );
    assert_eq!((number(finding, "first_moved_by_ns"), number(finding, "moved_times")), (400, 2));
    assert!(finding.advice.contains("mlxlink"), "{}", finding.advice);
}

#[test]
fn a_link_that_went_down_is_told_with_the_stalls_of_that_time() {
    let mut trace = trace(Vec::new(), &["mlx5_0"]);
    trace.wait(wait(Call::Recvfrom, 1200, 1500, vec![tcp(9, "10.0.0.2:9000")]));
    for (time_ns, value) in [(1000, 1), (1300, 2), (2000, 2)] {
        trace.add(counter("link_downed", time_ns, value));
    }
    let found = findings(&trace);
    let finding = get(&found, "rdma.port_event");
    assert_eq!((number(finding, "count"), number(finding, "stalled_meanwhile_ns")), (1, 100));
    assert_eq!(finding.proof["seen_by_ns"], serde_json::json!([300]));
}

#[test]
fn all_at_its_best_gives_no_finding_but_what_the_uplink_shares() {
    let found = findings(&trace(switched(), &BOTH));
    let told: Vec<&str> = ids(&found).into_iter().filter(|id| FOUND.contains(id)).collect();
    assert_eq!(told, ["pcie.shared_uplink"]);
}
