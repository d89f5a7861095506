//! Seeded random numbers: one independent ChaCha stream for each purpose and index, so that no draw depends
//! on the number of other draws. The arithmetic is portable, so that every machine draws the same numbers.

mod box_muller;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Purpose of a random stream. The position of a variant is part of the stream's key, so their order must not
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// Initial representation.
    Start,
    /// Cohort of a round.
    Cohort,
    /// Synthetic ground truth.
    Truth,
    /// Training samples of a client.
    Samples,
    /// Test samples of a client.
    Test,
    /// Speed of a client.
    Speed,
    /// Partition of data among clients, and labels given by new clients.
    Partition,
    /// Random source of a simulated device.
    Device,
    /// Speed of a client in a round. The upper half of the index is the round, the lower half the client.
    RoundSpeed,
    /// Bootstrap resampling of seeds.
    Resample,
    /// Choice of the slow clients.
    SlowClients,
    /// Bandwidth of a client.
    Bandwidth,
    /// Frame loss on a client's link in a round; index as for `RoundSpeed`.
    Loss,
    /// Dropout of a client from a round; index as for `RoundSpeed`.
    Dropout,
    /// Sample count of a client.
    Size,
    /// Choice of the attackers (index 0), and what they share: a plane (index 1), the function of poisoned
    /// targets (index 2), and the direction of a drift (index 3).
    Attackers,
    /// Draws of an attacker in a round; index as for `RoundSpeed`. Round 0: draws for the whole run.
    Attack,
    /// Privacy noise of a simulated device. The upper half of the index is the round, the lower half the
    /// device.
    Noise,
    /// Initial network.
    Network,
    /// Coin flips of L2GD in a round; the index is the round.
    Coin,
    /// Cells of a survey; the index is the cell.
    Design,
    /// Choice of the clients that lack half of the features.
    BlindClients,
    /// Whether a client takes much longer in a round; index as for `RoundSpeed`.
    Spike,
    /// Choice of the clients that share one task.
    Minority,
    /// Phase of a client's cycle of sleep; the upper half of the index is the cycle, the lower half the client.
    Waking,
}

/// Returns a part of `width`, always the same for a number, of which consecutive numbers have evenly spread ones: multiplicative hashing with
/// the golden ratio (Knuth, The Art of Computer Programming, 6.4).
#[must_use]
pub fn spread(number: u64, width: u32) -> u32 {
    const RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    let fraction = number.wrapping_mul(RATIO) >> 32;
    u32::try_from((fraction * u64::from(width)) >> 32).unwrap_or_default()
}

/// Random stream of `seed` for a purpose and an index, such as a round or a client.
#[must_use]
pub fn stream(seed: u64, purpose: Purpose, index: u64) -> Stream {
    let mut key = [0u8; 32];
    let (head, remaining) = key.split_at_mut(8);
    head.copy_from_slice(&seed.to_le_bytes());
    let (middle, tail) = remaining.split_at_mut(8);
    middle.copy_from_slice(&index.to_le_bytes());
    if let Some(first) = tail.first_mut() {
        *first = purpose as u8;
    }
    Stream { rng: ChaCha8Rng::from_seed(key), spare: None }
}

/// Stream of random numbers.
#[derive(Clone, Debug)]
pub struct Stream {
    rng: ChaCha8Rng,
    /// Second value of the last Box-Muller transform; `None` if it was already drawn.
    spare: Option<f64>,
}

impl Stream {
    /// Draws 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Draws uniformly from the open interval (0, 1).
    pub fn uniform(&mut self) -> f64 {
        box_muller::uniform(self.bits())
    }

    /// Draws uniformly from `0..n` (0 for n = 0), without bias, by Lemire's method with rejection.
    pub fn below(&mut self, n: usize) -> usize {
        let n = n as u64;
        if n == 0 {
            return 0;
        }
        let threshold = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.rng.next_u64()) * u128::from(n);
            #[allow(clippy::cast_possible_truncation, reason = "the low half is what is meant")]
            if product as u64 >= threshold {
                return usize::try_from(product >> 64).unwrap_or(0);
            }
        }
    }

    /// Draws from the standard normal distribution, by the Box-Muller transform.
    pub fn normal(&mut self) -> f64 {
        if let Some(value) = self.spare.take() {
            return value;
        }
        let [first, second] = box_muller::single(self.bits(), self.bits());
        self.spare = Some(second);
        first
    }

    /// Draws from the standard normal distribution. The values are those of as many calls of [`Self::normal`]; from about eight on,
    /// they are drawn faster.
    pub fn fill_normal(&mut self, mut values: &mut [f64]) {
        if let Some(spare) = self.spare.take_if(|_| !values.is_empty())
            && let Some(first) = values.split_off_first_mut()
        {
            *first = spare;
        }
        for values in values.chunks_mut(2 * box_muller::BLOCK) {
            let count = values.len().div_ceil(2);
            let mut bits = [[0; box_muller::BLOCK]; 2];
            let [radii, angles] = &mut bits;
            for (radius, angle) in radii.iter_mut().zip(angles).take(count) {
                (*radius, *angle) = (self.bits(), self.bits());
            }
            let [first, second] = box_muller::block(&bits, count);
            for ((values, first), second) in values.chunks_mut(2).zip(first).zip(second) {
                match values {
                    [even, odd] => (*even, *odd) = (first, second),
                    [last] => (*last, self.spare) = (first, Some(second)),
                    _ => {}
                }
            }
        }
    }

    /// Draws from the exponential distribution of mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(self.uniform())
    }

    /// Draws `count` of `items` without replacement, in random order.
    #[must_use]
    pub fn choose<T: Clone>(&mut self, items: &[T], count: usize) -> Vec<T> {
        let mut pool = items.to_vec();
        let count = count.min(pool.len());
        for i in 0..count {
            let j = i + self.below(pool.len() - i);
            pool.swap(i, j);
        }
        pool.truncate(count);
        pool
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Also between other draws, and after an odd number of values.
        #[test]
        fn filled_values_are_those_drawn_one_by_one(
            seed in any::<u64>(),
            lengths in proptest::collection::vec(0..200usize, 1..6),
        ) {
            let (mut filled, mut single) = (stream(seed, Purpose::Test, 1), stream(seed, Purpose::Test, 1));
            for length in lengths {
                let mut values = vec![0.0; length];
                filled.fill_normal(&mut values);
                for value in values {
                    prop_assert_eq!(value.to_bits(), single.normal().to_bits());
                }
                prop_assert_eq!(filled.bits(), single.bits());
            }
        }
    }
}
