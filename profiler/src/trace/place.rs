//! Records of where devices sit in the machine.

use serde::{Deserialize, Serialize};

/// A PCI function: a GPU, a network adapter, or a bridge on the way to one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciDevice {
    /// `0000:17:00.0`.
    pub address: String,
    /// `mlx5_0`, `nvidia3`; empty for bridges and for GPUs whose number is not known.
    pub name: String,
    pub role: PciRole,
    /// Address of the bridge above; empty below a root complex.
    pub parent: String,
    /// The root complex: `pci0000:16`.
    pub root: String,
    /// NUMA node; -1: not known.
    pub node: i32,
    /// The link above an end point or a switch's upstream port, the link below another port.
    pub link: PciLink,
    /// Kind of port from the PCI Express capability (4 root, 5 upstream, 6 downstream); `None`: could not be read.
    pub port_type: Option<u8>,
    /// Control register of Access Control Services; `None`: the device has none, or it could not be read.
    pub acs: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PciRole {
    Gpu,
    Nic,
    #[default]
    Bridge,
}

/// Width in lanes and speed in mega-transfers a second; 0: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciLink {
    pub width: u32,
    pub width_max: u32,
    pub speed: u32,
    pub speed_max: u32,
}

/// A port of an RDMA device, as it was when the recording found the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// `mlx5_0`.
    pub device: String,
    pub port: u32,
    /// `InfiniBand`, `Ethernet`.
    pub link_layer: String,
    /// `4: ACTIVE`.
    pub state: String,
    /// `100 Gb/sec (2X HDR)`.
    pub rate: String,
    /// Its network device; empty: none, or in another network namespace.
    pub netdev: String,
    /// Of the network device, bytes; 0: not known.
    pub mtu: u32,
    /// GIDs that are set.
    pub gids: Vec<Gid>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    pub index: u32,
    pub gid: String,
    /// `IB/RoCE v1`, `RoCE v2`.
    pub kind: String,
}

/// A process has a device open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    pub pid: u32,
    /// [`PciDevice::name`] or [`RdmaPort::device`].
    pub device: String,
}

/// Where a thread that posts requests was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadPlace {
    pub time_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub cpu: u32,
    /// NUMA node of that processor; -1: not known.
    pub node: i32,
}
