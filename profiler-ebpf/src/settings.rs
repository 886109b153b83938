//! What userspace wrote before loading. The globals are frozen then, so the verifier knows their values and drops the
//! code for what this kernel lacks.

use profiler_common::{Offsets, Settings};

#[unsafe(no_mangle)]
static SETTINGS: Settings =
    Settings { min_stall_ns: 100_000, spin_gap_ns: 10_000_000, own_tgid: 0, reserved: 0 };

#[unsafe(no_mangle)]
pub static OFFSETS: Offsets = {
    // SAFETY: integers only.
    unsafe {
        core::mem::transmute::<[u32; size_of::<Offsets>() / 4], Offsets>([u32::MAX; size_of::<Offsets>() / 4])
    }
};

/// Byte offset of a member of a kernel structure, `NO_OFFSET` where there is none.
#[macro_export]
macro_rules! offset {
    ($field:ident) => {
        // SAFETY: a field of a static. Volatile, because userspace overwrites it after compilation.
        unsafe { core::ptr::read_volatile(&raw const $crate::settings::OFFSETS.$field) }
    };
}

#[inline(always)]
pub fn min_stall_ns() -> u64 {
    // SAFETY: as above.
    unsafe { core::ptr::read_volatile(&raw const SETTINGS.min_stall_ns) }
}

#[inline(always)]
pub fn spin_gap_ns() -> u64 {
    // SAFETY: as above.
    unsafe { core::ptr::read_volatile(&raw const SETTINGS.spin_gap_ns) }
}

#[inline(always)]
pub fn own_tgid() -> u32 {
    // SAFETY: as above.
    unsafe { core::ptr::read_volatile(&raw const SETTINGS.own_tgid) }
}
