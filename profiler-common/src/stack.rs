//! Stacks that the kernel knows again without a copy.
//!
//! Unwinding a copied stack tells at which places above the stack pointer the words lie that decide where it leads: the
//! return addresses, and saved registers that other frames are found by. These places are the stack's [`Shape`]. Another
//! wait with the same program counter and stack pointer, and the same words in the same places, has the same stack: the
//! unwinder would read nothing else. So userspace tells the shape and the hash of the words, and the kernel reads the
//! words and looks the hash up.

/// Key of the map `SHAPES`: where a thread left user mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct ShapeKey {
    pub tgid: u32,
    pub reserved: u32,
    pub ip: u64,
    pub sp: u64,
}

/// Words of one stack at most.
pub const SHAPE_SLOTS: usize = 250;
/// Shapes of one key: the same function can be called through functions with different frames.
pub const SHAPES_OF_KEY: usize = 2;

/// Which words of a stack decide where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shape {
    /// Slots that are used.
    pub count: u16,
    /// `SHAPE_*`, 0: there is no shape here.
    pub flags: u16,
    /// Distances from the stack pointer, in words of eight bytes.
    pub slots: [u16; SHAPE_SLOTS],
}

/// There is a shape.
pub const SHAPE_SET: u16 = 1;
/// The frame pointer register counts too.
pub const SHAPE_BP: u16 = 2;
/// The frame records that the register leads to count too (`StackRecord::chain`).
pub const SHAPE_CHAIN: u16 = 4;

/// Value of the map `SHAPES`.
pub type Shapes = [Shape; SHAPES_OF_KEY];

pub const NO_SHAPE: Shape = Shape { count: 0, flags: 0, slots: [0; SHAPE_SLOTS] };

const SEED: u64 = 0x9ae1_6a3b_2f90_404f;

/// Takes a value into a hash.
#[must_use]
#[inline]
pub const fn mix(hash: u64, value: u64) -> u64 {
    let hash = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

impl Shape {
    /// Begins the hash of a stack of this shape; [`with_word`] goes on with each of its slots in order.
    #[must_use]
    #[inline]
    pub const fn begin(&self, key: &ShapeKey, bp: u64, chain: u64) -> u64 {
        let mut hash = mix(mix(mix(SEED, key.tgid as u64), key.ip), key.sp);
        hash = mix(hash, (self.flags as u64) << 16 | self.count as u64);
        if self.flags & SHAPE_BP != 0 {
            hash = mix(hash, bp);
        }
        if self.flags & SHAPE_CHAIN != 0 {
            hash = mix(hash, chain);
        }
        hash
    }
}

/// Takes the word in a slot into a hash.
#[must_use]
#[inline]
pub const fn with_word(hash: u64, slot: u16, word: u64) -> u64 {
    mix(mix(hash, slot as u64), word)
}

const _: () = assert!(size_of::<ShapeKey>() == 24);
const _: () = assert!(size_of::<Shapes>() == SHAPES_OF_KEY * (4 + 2 * SHAPE_SLOTS));

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding (sizes asserted above): every bit pattern is valid.
    unsafe impl aya::Pod for super::ShapeKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Shape {}
}
