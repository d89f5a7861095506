//! SplitMix64 random number generator, which gives the same inputs on every machine.

/// A small seeded random number generator.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a uniform number in `0..n`, up to a bias of `n` in 2^64; 0 for an empty range.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    /// Returns true with probability 1 / `n`.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns a random byte.
    pub fn byte(&mut self) -> u8 {
        self.bits().to_le_bytes()[7]
    }

    /// Returns a uniform number in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}
