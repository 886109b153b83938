//! Counters of adapters' ports in sysfs.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// Counters of one device, at most.
const COUNTERS_MAX: usize = 1024;
/// A counter is a decimal number.
const TEXT_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    pub port: u32,
    pub name: String,
    pub value: u64,
}

/// Where sysfs has the adapters: the machine's, or a stand-in for tests.
pub fn folder() -> PathBuf {
    PathBuf::from("/sys/class/infiniband")
}

/// All counters of a device, by port and name; none where the device is not there. The name comes from the
/// target's memory: it must be one component of a path.
pub fn read(folder: &Path, device: &str) -> Vec<Counter> {
    let fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if device.is_empty() || !device.bytes().all(fit) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (port, path) in numbered(&folder.join(device).join("ports")) {
        for kind in ["counters", "hw_counters"] {
            let Ok(entries) = fs::read_dir(path.join(kind)) else { continue };
            let room = COUNTERS_MAX.saturating_sub(found.len());
            let counter = |entry: fs::DirEntry| {
                let name = entry.file_name().into_string().ok()?;
                let text = fs::read_to_string(entry.path()).ok()?;
                let value = text.get(..text.len().min(TEXT_MAX))?.trim().parse().ok()?;
                // What its own sampling interval is set to.
                (name != "lifespan").then_some(Counter { port, name, value })
            };
            found.extend(entries.flatten().filter_map(counter).take(room));
        }
    }
    found.sort_by(|one, other| (one.port, &one.name).cmp(&(other.port, &other.name)));
    found
}

/// An entry of a port's table of GIDs.
pub fn gid(folder: &Path, device: &str, port: u32, index: u32) -> Option<Ipv6Addr> {
    let fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if device.is_empty() || !device.bytes().all(fit) {
        return None;
    }
    let path = folder.join(device).join(format!("ports/{port}/gids/{index}"));
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The device's only port; `None` where it has several or is not there.
pub fn only_port(folder: &Path, device: &str) -> Option<u32> {
    let ports = numbered(&folder.join(device).join("ports"));
    match ports.as_slice() {
        [(port, _)] => Some(*port),
        _ => None,
    }
}

fn numbered(folder: &Path) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let number = |entry: fs::DirEntry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()));
    entries.flatten().filter_map(number).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_device_are_read_and_other_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let port = folder.path().join("mlx5_0/ports/1");
        for (name, text) in [
            ("counters/port_xmit_wait", "17\n"),
            ("counters/words", "a few\n"),
            ("hw_counters/out_of_sequence", "3\n"),
            ("hw_counters/lifespan", "10\n"),
        ] {
            let path = port.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = read(folder.path(), "mlx5_0");
        let found: Vec<(u32, &str, u64)> =
            found.iter().map(|one| (one.port, one.name.as_str(), one.value)).collect();
        assert_eq!(found, [(1, "out_of_sequence", 3), (1, "port_xmit_wait", 17)]);
        assert_eq!(only_port(folder.path(), "mlx5_0"), Some(1));
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_no_device() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "../x", "a/b", "mlx5_9"] {
            assert_eq!(read(folder.path(), name), [], "{name}");
        }
    }
}
