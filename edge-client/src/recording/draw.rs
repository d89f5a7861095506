//! Seeded draws of the simulator, without allocation: the windows that a wearer labels, and the windows on
//! which a round's head is fitted. The original functions are in `aggregator/engine/src/random.rs` and
//! `sim/core/src/data/watch.rs` (`draw_per_class`); the same seed gives the same windows.

use chacha20::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::{DRAW_MAX, Recording};

/// Number of the simulator's `Purpose::Partition`.
const PURPOSE: u8 = 6;
/// First stream of this purpose that is used for draws per class.
const FIRST: u64 = 2000;

/// Random number generator of one draw.
#[derive(Debug)]
pub struct DrawRng(ChaCha8Rng);

impl DrawRng {
    /// Creates the generator of draw `index` under `seed`.
    #[must_use]
    pub fn new(seed: u64, index: u64) -> Self {
        let mut key = [0u8; 32];
        for (target, byte) in key.iter_mut().zip(
            seed.to_le_bytes().into_iter().chain((FIRST.wrapping_add(index)).to_le_bytes()).chain([PURPOSE]),
        ) {
            *target = byte;
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Draws a uniform integer in `0..n` (0 for n = 0), without bias: Lemire's method with rejection.
    pub fn below(&mut self, n: usize) -> usize {
        let n = n as u64;
        if n == 0 {
            return 0;
        }
        let threshold = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(n);
            #[allow(clippy::cast_possible_truncation, reason = "the low half is what is meant")]
            if product as u64 >= threshold {
                return usize::try_from(product >> 64).unwrap_or(0);
            }
        }
    }

    /// Calls `take` with the first `count` (at most [`DRAW_MAX`]) elements of a random permutation of `0..n`.
    /// The permutation is never stored; only the exchanges that affect later elements are.
    pub fn sample_without_replacement(&mut self, n: usize, count: usize, mut take: impl FnMut(usize)) {
        let mut moved = [(usize::MAX, 0); DRAW_MAX];
        for i in 0..count.min(n).min(DRAW_MAX) {
            let j = i + self.below(n - i);
            let value = |index: usize| {
                moved.iter().find(|(position, _)| *position == index).map_or(index, |(_, v)| *v)
            };
            let (value_i, value_j) = (value(i), value(j));
            take(value_j);
            // The value at i has moved to j; position i is not used again.
            let known = moved.iter().position(|(position, _)| *position == j).unwrap_or(i);
            if let Some(entry) = moved.get_mut(known) {
                *entry = (j, value_i);
            }
        }
    }
}

/// Draws `count` random training windows of each class, and calls `take` with their numbers, class by class.
pub fn draw_per_class(recording: &Recording<'_>, count: usize, index: u64, mut take: impl FnMut(u16)) {
    let header = recording.header();
    let mut stream = DrawRng::new(header.seed, index);
    for class in (0..header.classes).filter_map(|class| u8::try_from(class).ok()) {
        stream.sample_without_replacement(recording.windows_of(class), count, |nth| {
            if let Some(number) = recording.number_of(class, nth).and_then(|n| u16::try_from(n).ok()) {
                take(number);
            }
        });
    }
}

/// Returns the index of the draw for the head of a wearer's round.
#[must_use]
pub fn round_index(wearer: u64, round: u32) -> u64 {
    wearer.wrapping_add(1) << 32 | u64::from(round)
}
