//! Memory for tests: bytes by address, everything else unmapped.

use std::collections::BTreeMap;

use super::memory::Memory;

#[derive(Default)]
pub(super) struct Fake {
    bytes: BTreeMap<u64, u8>,
    pub reads: usize,
}

impl Fake {
    pub(super) fn put(&mut self, address: u64, bytes: &[u8]) {
        self.bytes.extend((address..).zip(bytes.iter().copied()));
    }

    pub(super) fn word(&mut self, address: u64, value: u64) {
        self.put(address, &value.to_le_bytes());
    }
}

impl Memory for Fake {
    fn fill(&mut self, address: u64, buffer: &mut [u8]) -> bool {
        self.reads += 1;
        buffer.iter_mut().enumerate().all(|(index, byte)| {
            let found = address.checked_add(index as u64).and_then(|at| self.bytes.get(&at));
            found.is_some_and(|value| {
                *byte = *value;
                true
            })
        })
    }
}
