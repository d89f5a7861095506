//! Seeded randomness: one independent ChaCha stream per purpose and index, so that no draw depends on how
//! many others were made. Only pinned arithmetic: the same numbers on every machine.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// What a stream of random numbers is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// The initial representation.
    Start,
    /// Who is asked in a round.
    Cohort,
    /// Synthetic ground truth.
    Truth,
    /// A client's samples.
    Samples,
    /// A client's test samples.
    Test,
    /// A client's speed.
    Speed,
    /// Partitions of data among clients, labels that new clients give.
    Partition,
    /// A device's own randomness in a simulation.
    Device,
    /// A client's speed in a round: the upper half of the index is the round, the lower the client.
    RoundSpeed,
    /// Seeds that a bootstrap draws again.
    Resample,
    /// Which clients are slow.
    SlowClients,
    /// A client's bandwidth.
    Bandwidth,
    /// Frames that are lost on a client's link in a round: index as with `RoundSpeed`.
    Loss,
    /// Whether a client loses a round: index as with `RoundSpeed`.
    Dropout,
    /// A client's number of samples.
    Size,
    /// Which clients attack (index 0), and the plane that they agree on (index 1).
    Attackers,
    /// What an attacker draws in a round: index as with `RoundSpeed`.
    Attack,
    /// The noise of a simulated device's release: the upper half of the index is the round, the lower the device.
    Noise,
    /// The network that all begin with.
    Network,
    /// How many steps of which kind a round has, by the number of the round.
    Coin,
}

/// The stream of `seed` for `purpose` and `index` (a round, a client).
#[must_use]
pub fn stream(seed: u64, purpose: Purpose, index: u64) -> Stream {
    let mut key = [0u8; 32];
    let (head, rest) = key.split_at_mut(8);
    head.copy_from_slice(&seed.to_le_bytes());
    let (middle, tail) = rest.split_at_mut(8);
    middle.copy_from_slice(&index.to_le_bytes());
    if let Some(first) = tail.first_mut() {
        *first = purpose as u8;
    }
    Stream { rng: ChaCha8Rng::from_seed(key), spare: None }
}

/// Random numbers of the kinds that are needed.
#[derive(Clone, Debug)]
pub struct Stream {
    rng: ChaCha8Rng,
    spare: Option<f64>,
}

impl Stream {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Uniform in (0, 1): never 0, never 1.
    pub fn uniform(&mut self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let steps = (self.rng.next_u64() >> 11) as f64;
        (steps + 0.5) * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Uniform in `0..n` (0 for n = 0), without bias: Lemire's method with rejection.
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

    /// Standard normal, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        if let Some(value) = self.spare.take() {
            return value;
        }
        let radius = libm::sqrt(-2.0 * libm::log(self.uniform()));
        let angle = core::f64::consts::TAU * self.uniform();
        self.spare = Some(radius * libm::sin(angle));
        radius * libm::cos(angle)
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(self.uniform())
    }

    /// The first `count` of a random permutation of `items`, in random order.
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
