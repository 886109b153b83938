//! Counters that a network device's driver keeps (`ethtool -S`), as far as they tell of pauses, congestion and losses.

use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

const SIOCETHTOOL: u32 = 0x8946;
const GDRVINFO: u32 = 0x03;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
/// `ETH_SS_STATS`.
const STATS: u32 = 1;
const NAME_LEN: usize = 32;
/// `struct ethtool_drvinfo`, and where in it the number of counters is.
const DRVINFO_LEN: usize = 196;
const N_STATS_AT: usize = 180;
/// Counters of one device, at most; mlx5 with many channels has some thousands.
const COUNTERS_MAX: usize = 16384;

/// What names of the wanted counters contain; they differ by driver. Single queues' counters are left out.
const WANTED: [&str; 12] = [
    "pause",
    "pfc",
    "ecn",
    "cnp",
    "discard",
    "out_of_buffer",
    "crc_err",
    "symbol_err",
    "buffer_overrun",
    "phy_raw_errors",
    "link_down_events",
    "dropped",
];

/// `rx_prio3_pause`, `rx_discards_phy`; not `rx7_xdp_drop`, `ch0_…`.
pub fn is_wanted(name: &str) -> bool {
    let of_queue = ["rx", "tx", "ch", "rx_queue_", "tx_queue_"]
        .iter()
        .filter_map(|prefix| name.strip_prefix(prefix))
        .any(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    !of_queue && WANTED.iter().any(|part| name.contains(part))
}

/// The wanted counters of a network device of our own namespace: name and value, 1024 at most. None where the device is
/// not there or keeps none.
pub fn counters(netdev: &str) -> Vec<(String, u64)> {
    read(netdev, is_wanted).unwrap_or_default()
}

fn read(netdev: &str, wanted: impl Fn(&str) -> bool) -> Option<Vec<(String, u64)>> {
    let mut info = words(DRVINFO_LEN);
    put(&mut info, 0, GDRVINFO);
    ask(netdev, &mut info)?;
    let count = get(&info, N_STATS_AT)? as usize;
    if count == 0 || count > COUNTERS_MAX {
        return None;
    }
    let mut names = words(12 + count * NAME_LEN);
    put(&mut names, 0, GSTRINGS);
    put(&mut names, 4, STATS);
    put(&mut names, 8, count as u32);
    ask(netdev, &mut names)?;
    // The number can have grown in between; the kernel then writes nothing for the strings, or fewer than asked for.
    if get(&names, 8)? as usize != count {
        return None;
    }
    let mut values = words(8 + count * 8);
    put(&mut values, 0, GSTATS);
    put(&mut values, 4, count as u32);
    ask(netdev, &mut values)?;
    if get(&values, 4)? as usize != count {
        return None;
    }
    let (names, values) = (flat(&names), flat(&values));
    let one = |index: usize| {
        let name = names.get(12 + index * NAME_LEN..)?.get(..NAME_LEN)?;
        let name = std::str::from_utf8(name.split(|byte| *byte == 0).next()?).ok()?.trim();
        let value = values.get(8 + index * 8..)?.first_chunk::<8>()?;
        let fit = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        (fit && wanted(name)).then(|| (name.to_owned(), u64::from_ne_bytes(*value)))
    };
    Some((0..count).filter_map(one).take(1024).collect())
}

/// A zeroed buffer of at least `len` bytes, aligned for the kernel's structures, with room for counters that a driver
/// might have more than it said.
fn words(len: usize) -> Vec<u64> {
    vec![0; len.div_ceil(8) + COUNTERS_MAX * NAME_LEN / 8]
}

fn put(buffer: &mut [u64], at: usize, value: u32) {
    let Some(word) = buffer.get_mut(at / 8) else { return };
    let mut bytes = word.to_ne_bytes();
    if let Some(half) = bytes.get_mut(at % 8..at % 8 + 4) {
        half.copy_from_slice(&value.to_ne_bytes());
    }
    *word = u64::from_ne_bytes(bytes);
}

fn get(buffer: &[u64], at: usize) -> Option<u32> {
    let bytes = buffer.get(at / 8)?.to_ne_bytes();
    Some(u32::from_ne_bytes(*bytes.get(at % 8..)?.first_chunk::<4>()?))
}

fn flat(buffer: &[u64]) -> Vec<u8> {
    buffer.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn ask(netdev: &str, buffer: &mut [u64]) -> Option<()> {
    if netdev.is_empty() || netdev.len() >= libc::IFNAMSIZ || netdev.contains('\0') {
        return None;
    }
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    // SAFETY: an all-zero `ifreq` is a valid value of a plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(netdev.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
    // SAFETY: `request` and the buffer that it points to live for the whole call. The kernel writes at most what the
    // command's header asks for, and every buffer of `words` has room for the largest answer that is accepted.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::Ioctl::from(SIOCETHTOOL), &raw mut request) };
    (result == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_pauses_and_losses_are_wanted_and_those_of_single_queues_are_not() {
        for name in [
            "rx_prio3_pause",
            "tx_pause_ctrl_phy",
            "rx_discards_phy",
            "rx_out_of_buffer",
            "rx_ecn_mark",
            "outbound_pci_buffer_overflow_pfc",
            "np_cnp_sent",
            "rx_crc_errors_phy",
        ] {
            assert!(is_wanted(name), "{name}");
        }
        for name in ["rx_packets", "rx7_pause", "tx0_dropped", "ch3_events", "tx_queue_0_dropped", ""] {
            assert!(!is_wanted(name), "{name}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_has_no_counters() {
        for name in ["", "no-such-device0", "a-name-that-is-much-too-long", "lo\0x"] {
            assert_eq!(counters(name), [], "{name:?}");
        }
    }

    /// Most virtual cards have counters of queues, which only this test wants.
    #[test]
    fn counters_of_this_machine_s_devices_have_names_where_names_are_looked_for() {
        for entry in std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
            let Ok(netdev) = entry.file_name().into_string() else { continue };
            for (name, value) in read(&netdev, |_| true).unwrap_or_default() {
                assert!(
                    name.starts_with(|first: char| first.is_ascii_alphabetic()),
                    "{netdev}: {name} {value}"
                );
            }
        }
    }

    #[test]
    fn words_keep_what_is_put_at_any_place() {
        let mut buffer = words(12);
        put(&mut buffer, 4, 7);
        put(&mut buffer, 8, 9);
        assert_eq!((get(&buffer, 0), get(&buffer, 4), get(&buffer, 8)), (Some(0), Some(7), Some(9)));
        assert_eq!(flat(&buffer)[4..12], [7_u32.to_ne_bytes(), 9_u32.to_ne_bytes()].concat());
    }
}
