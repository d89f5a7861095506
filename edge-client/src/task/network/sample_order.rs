//! Order of samples in an epoch: a pseudo-random permutation that needs no memory.

use fedspan_protocol::message::RoundId;

/// Number of rounds of the Feistel network.
const ROUNDS: usize = 4;

/// Permutation of `0..count`: a balanced Feistel network over the next power of four, with cycle walking
/// (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"). It is not meant to be secure.
#[derive(Clone, Copy, Debug)]
pub struct SampleOrder {
    /// Number of samples.
    count: u32,
    /// Number of bits in half of a number.
    half: u32,
    /// Keys of the rounds of the Feistel network.
    keys: [u32; ROUNDS],
}

impl SampleOrder {
    /// Creates the permutation of a seed.
    pub fn new(count: u32, seed: u64) -> Self {
        let bits = u32::BITS - count.saturating_sub(1).leading_zeros();
        let mut state = seed;
        let keys = core::array::from_fn(|_| {
            state = splitmix64(state);
            (state >> 32) as u32
        });
        Self { count, half: bits.div_ceil(2).max(1), keys }
    }

    /// Returns the sample number at position `position`; `None` if `position` is not below `count`.
    pub fn at(&self, position: u32) -> Option<u32> {
        if position >= self.count {
            return None;
        }
        let mut number = position;
        // Walks along the cycle of `position`, which ends at `position` itself.
        loop {
            number = self.apply_feistel(number);
            if number < self.count {
                return Some(number);
            }
        }
    }

    /// Applies the Feistel network once.
    fn apply_feistel(&self, number: u32) -> u32 {
        let mask = (1u32 << self.half) - 1;
        let (mut high, mut low) = (number >> self.half, number & mask);
        for key in self.keys {
            let mut hash = (low ^ key).wrapping_mul(0x9e37_79b1);
            hash ^= hash >> 15;
            hash = hash.wrapping_mul(0x85eb_ca6b);
            (high, low) = (low, high ^ (hash >> 13 & mask));
        }
        high << self.half | low
    }
}

/// Derives the seed of a round's epochs from the device's seed.
pub fn round_seed(seed: u64, id: RoundId) -> u64 {
    splitmix64(seed ^ splitmix64(u64::from(id.round) << 16 | u64::from(id.stage)))
}

/// Advances a SplitMix64 generator (Steele et al. 2014).
pub fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_has_one_position() {
        for count in (0..70).chain([255, 256, 257, 1000]) {
            for seed in 0..20 {
                let order = SampleOrder::new(count, seed);
                let mut is_used = [false; 1000];
                for position in 0..count {
                    let sample = order.at(position).map_or(usize::MAX, |sample| sample as usize);
                    assert!(!core::mem::replace(&mut is_used[sample], true), "{count} {seed} {position}");
                }
                assert!(is_used[..count as usize].iter().all(|is_used| *is_used));
                assert_eq!(order.at(count), None);
            }
        }
    }

    /// Tests that each sample is equally likely at each position, and that neighbours are adjacent as often
    /// as by chance.
    #[test]
    fn positions_are_spread_evenly() {
        const COUNT: u32 = 80;
        const SEEDS: u32 = 8000;
        let mut counts = [[0u32; COUNT as usize]; COUNT as usize];
        let mut neighbours = 0;
        for seed in 0..SEEDS {
            let order = SampleOrder::new(COUNT, splitmix64(u64::from(seed)));
            let mut before = None;
            for (position, counts) in (0..).zip(&mut counts) {
                let sample = order.at(position).unwrap_or(COUNT);
                counts[sample as usize] += 1;
                neighbours += u32::from(before.is_some_and(|before: u32| sample == before + 1));
                before = Some(sample);
            }
        }
        // 6400 cells with a mean of 100: chi-square with 79 x 79 degrees of freedom, mean 6241 and standard
        // deviation 112.
        let square: f64 = counts.iter().flatten().map(|&c| (f64::from(c) - 100.0).powi(2) / 100.0).sum();
        assert!((square - 6241.0).abs() < 5.0 * 112.0, "{square}");
        // A permutation of 80 numbers has 79/80 such neighbours on average, with a variance near one.
        let mean = f64::from(neighbours) / f64::from(SEEDS);
        assert!((mean - 79.0 / 80.0).abs() < 5.0 / f64::from(SEEDS).sqrt(), "{mean}");
    }
}
