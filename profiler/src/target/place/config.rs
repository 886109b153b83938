//! The configuration space of a PCI function, as the file `config` has it: 64 bytes without privilege, 256 of an old
//! device, 4096 of a PCI Express one. Lists in it are followed a bounded number of times.

/// Size of the space.
pub(super) const CONFIG_MAX: usize = 4096;

const STATUS: usize = 0x06;
const STATUS_HAS_LIST: u16 = 1 << 4;
const LIST: usize = 0x34;
const EXPRESS: u8 = 0x10;
const EXTENDED: usize = 0x100;
const ACS: u16 = 0x000d;
/// Capabilities of either list, at most: as many as there is room for.
const LIST_MAX: usize = (CONFIG_MAX - EXTENDED) / 4;

/// Redirection of peer-to-peer requests and of completions: such packets go up to the root complex.
pub const ACS_REDIRECT: u16 = 1 << 2 | 1 << 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config<'a>(pub &'a [u8]);

impl Config<'_> {
    fn u16(&self, at: usize) -> Option<u16> {
        let bytes = self.0.get(at..at.checked_add(2)?)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }

    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Kind of port: 0 end point, 1 legacy end point, 4 root port, 5 upstream and 6 downstream port of a switch.
    pub fn port_type(&self) -> Option<u8> {
        if self.u16(STATUS)? & STATUS_HAS_LIST == 0 {
            return None;
        }
        let mut at = usize::from(*self.0.get(LIST)? & 0xfc);
        for _ in 0..LIST_MAX {
            if at < 0x40 {
                return None;
            }
            let (id, next) = (*self.0.get(at)?, *self.0.get(at + 1)?);
            if id == EXPRESS {
                return Some((self.u16(at + 2)? >> 4 & 0xf) as u8);
            }
            at = usize::from(next & 0xfc);
        }
        None
    }

    /// Control register of Access Control Services.
    pub fn acs(&self) -> Option<u16> {
        let mut at = EXTENDED;
        for _ in 0..LIST_MAX {
            let header = self.u32(at)?;
            if header == 0 || header == u32::MAX {
                return None;
            }
            if header as u16 == ACS {
                return self.u16(at + 6);
            }
            at = (header >> 20) as usize & !3;
            if at < EXTENDED {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
pub(crate) fn bridge(port_type: u8, acs: u16) -> Vec<u8> {
    let mut bytes = vec![0; CONFIG_MAX];
    bytes[STATUS] = 0x10;
    bytes[LIST] = 0x40;
    // Power management first.
    bytes[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
    bytes[0x60..0x64].copy_from_slice(&[EXPRESS, 0, port_type << 4 | 2, 0]);
    // Error reporting first.
    bytes[0x100..0x104].copy_from_slice(&(0x0001_u32 | 1 << 16 | 0x148 << 20).to_le_bytes());
    bytes[0x148..0x14c].copy_from_slice(&(u32::from(ACS) | 1 << 16).to_le_bytes());
    bytes[0x14e..0x150].copy_from_slice(&acs.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_register_is_found_behind_other_capabilities() {
        let bytes = bridge(6, 0x1d);
        assert_eq!(Config(&bytes).acs(), Some(0x1d));
        assert_eq!(Config(&bytes).port_type(), Some(6));
    }

    #[test]
    fn what_an_ordinary_user_can_read_has_no_extended_capabilities() {
        let bytes = bridge(6, 0x1d);
        for len in [0, 1, 7, 64, 256, 0x148, 0x14f] {
            assert_eq!(Config(&bytes[..len]).acs(), None, "{len}");
        }
        assert_eq!(Config(&bytes[..64]).port_type(), None);
        assert_eq!(Config(&bytes[..256]).port_type(), Some(6));
    }

    #[test]
    fn lists_that_go_round_or_lead_nowhere_end() {
        let mut round = bridge(4, 0);
        round[0x148..0x14c].copy_from_slice(&(0x0002_u32 | 1 << 16 | 0x100 << 20).to_le_bytes());
        round[0x60..0x62].copy_from_slice(&[0x05, 0x40]);
        assert_eq!((Config(&round).acs(), Config(&round).port_type()), (None, None));
        for byte in [0x00, 0xff, 0x10, 0x0d] {
            let bytes = vec![byte; CONFIG_MAX];
            assert_eq!(Config(&bytes).acs(), None, "{byte}");
            Config(&bytes).port_type();
        }
    }
}
