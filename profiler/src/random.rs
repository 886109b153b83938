//! Numbers that look random and are the same in each run: for drawings, links and tests, never for secrets.

/// The generator SplitMix64 (Steele, Lea, Flood, 2014); its state is the seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number, all of them equally likely.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// At least 0 and below `limit`; 0 where that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from((u128::from(self.any()) * limit as u128) >> 64).unwrap_or(0)
    }

    /// At least 0 and below 1.
    pub fn share(&mut self) -> f64 {
        (self.any() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut random = Random(1_234_567);
        assert_eq!(
            [(); 3].map(|()| random.any()),
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        let mut random = Random(7);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[random.below(5)] = true;
            assert!((0.0..1.0).contains(&random.share()));
        }
        assert_eq!((seen, random.below(0), random.below(1)), ([true; 5], 0, 0));
    }
}
