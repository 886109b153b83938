//! Maps for small keys that are looked up for each of millions of waits.
//!
//! The keys come from traces, which may be forged, so the mixing begins with a number that is another one in each run.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

pub type FastMap<K, V> = HashMap<K, V, Seeded>;

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Makes hashers that all begin with the same number, drawn once in a run.
#[derive(Clone, Copy, Debug)]
pub struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Seeded {
        static SEED: OnceLock<u64> = OnceLock::new();
        Seeded(*SEED.get_or_init(|| RandomState::new().hash_one(FACTOR)))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

/// Multiplies what it has with each number, and folds the product.
#[derive(Clone, Debug)]
pub struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * u128::from(FACTOR);
        // What was mixed in stays, whatever comes.
        self.0 = (product as u64 ^ (product >> 64) as u64).rotate_left(23).wrapping_add(self.0);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        let product = u128::from(self.0) * u128::from(FACTOR);
        product as u64 ^ (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_are_found_and_others_are_not() {
        let mut map = FastMap::default();
        for key in 0..10_000_u64 {
            map.insert((key, key as u32, "text"), key);
        }
        assert!((0..10_000).all(|key| map.get(&(key, key as u32, "text")) == Some(&key)));
        assert_eq!(map.get(&(3, 4, "text")), None);
        assert_eq!(map.get(&(3, 3, "texts")), None);
    }

    #[test]
    fn hashes_of_neighbours_differ_in_the_bits_that_tables_use() {
        let hash = |key: u64| Seeded::default().hash_one(key);
        for shift in [0, 57] {
            let mut seen = [0_u32; 128];
            (0..12_800).for_each(|key| seen[(hash(key << 12) >> shift & 0x7f) as usize] += 1);
            assert!(seen.iter().all(|count| (20..500).contains(count)), "{seen:?}");
        }
    }
}
