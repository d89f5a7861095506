//! Test helpers for noise: a second, simple implementation of the discrete Gaussian with selectable
//! faults, and Gaussian noise in floats.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common::Random;

/// Returns a generator of random 32-bit words.
pub fn words(seed: u64) -> impl FnMut() -> u32 {
    let mut random = Random(seed);
    move || (random.next() >> 32) as u32
}

/// Returns a standard normal number, by Box and Muller from 53-bit uniforms.
pub fn box_muller_f64(words: &mut impl FnMut() -> u32) -> f64 {
    let mut unit = || {
        let wide = u64::from(words()) << 32 | u64::from(words());
        ((wide >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    };
    (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos()
}

/// Returns a standard normal number, by Box and Muller from 24-bit uniforms in f32, as microcontrollers
/// compute it.
pub fn box_muller_f32(words: &mut impl FnMut() -> u32) -> f32 {
    let mut unit = || ((words() >> 8) as f32 + 1.0) / 16_777_216.0;
    libm::sqrtf(-2.0 * libm::logf(unit())) * libm::cosf(std::f32::consts::TAU * unit())
}

/// Fault of the sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Trials with probability p/q succeed with probability (p + 1)/q.
    TrialOneMore,
    /// Trials with probability p/q succeed with probability p/(q + 1).
    TrialOfOneMore,
    /// The series of trials with probabilities g, g/2, g/3, ... starts with g/2.
    SeriesStartsAtTwo,
    /// Minus zero counts as zero, which doubles the probability of zero.
    BothZeros,
    /// The magnitude of a candidate is compared with t instead of sigma^2 / t.
    ScaleForCentre,
    /// The fractional part of an exponent above 1 is ignored.
    WholeExponent,
    /// Uniform integers are remainders of a four-bit number, which are not uniform.
    UniformByModulo,
    /// Candidates are accepted with probability exp(-u / (t + 1)) instead of exp(-u / t).
    OneMoreScale,
    /// The tails are cut at three scales.
    CandidatesEndAtThree,
}

/// Sampler of the discrete Gaussian, for variances whose products fit u128.
#[derive(Debug)]
pub struct Reference {
    fault: Fault,
    numerator: u128,
    denominator: u128,
    scale: u128,
    state: u64,
}

impl Reference {
    /// Creates a sampler with this fault. The variance is `numerator / denominator`.
    pub fn new(fault: Fault, (numerator, denominator): (u64, u64), seed: u64) -> Self {
        let scale = (numerator / denominator).isqrt() + 1;
        let [numerator, denominator, scale] = [numerator, denominator, scale].map(u128::from);
        Self { fault, numerator, denominator, scale, state: seed }
    }

    /// Returns a number below n, uniform up to a bias of n / 2^128.
    fn below(&mut self, n: u128) -> u128 {
        let mut wide = 0;
        for _ in 0..4 {
            let mut word = words(self.state);
            self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            wide = wide << 32 | u128::from(word());
        }
        wide % n
    }

    /// Returns true with probability p/q.
    fn draw_bernoulli(&mut self, p: u128, q: u128) -> bool {
        match self.fault {
            Fault::TrialOneMore => self.below(q) < p + 1,
            Fault::TrialOfOneMore => self.below(q + 1) < p,
            _ => self.below(q) < p,
        }
    }

    /// Returns true with probability exp(-p/q).
    fn exponential(&mut self, p: u128, q: u128) -> bool {
        for _ in 0..p / q {
            if !self.fraction(1, 1) {
                return false;
            }
        }
        if self.fault == Fault::WholeExponent && p > q {
            return true;
        }
        self.fraction(p % q, q)
    }

    /// Returns true with probability exp(-p/q), for p/q of at most 1.
    fn fraction(&mut self, p: u128, q: u128) -> bool {
        let first = if self.fault == Fault::SeriesStartsAtTwo { 2 } else { 1 };
        let mut number = first;
        while self.draw_bernoulli(p, q * number) {
            number += 1;
        }
        (number - first).is_multiple_of(2)
    }

    /// Returns the magnitude and the sign of a discrete Laplace candidate: true for a negative number.
    fn laplace(&mut self) -> (u128, bool) {
        let t = self.scale;
        loop {
            let low = if self.fault == Fault::UniformByModulo { self.below(16) % t } else { self.below(t) };
            let scale = if self.fault == Fault::OneMoreScale { t + 1 } else { t };
            if !self.fraction(low, scale) {
                continue;
            }
            let mut high = 0;
            while self.fraction(1, 1) {
                high += 1;
            }
            let (magnitude, negative) = (low + t * high, self.below(2) == 1);
            let end = if self.fault == Fault::CandidatesEndAtThree { 3 } else { 64 };
            if high < end && (magnitude > 0 || !negative || self.fault == Fault::BothZeros) {
                return (magnitude, negative);
            }
        }
    }

    /// Draws a sample.
    pub fn sample(&mut self) -> i64 {
        let Self { numerator: n, denominator: d, scale: t, .. } = *self;
        loop {
            let (magnitude, negative) = self.laplace();
            let distance = match self.fault {
                Fault::ScaleForCentre => magnitude.abs_diff(t) * d * t,
                _ => (magnitude * d * t).abs_diff(n),
            };
            if self.exponential(distance * distance, 2 * n * d * t * t) {
                let value = magnitude as i64;
                return if negative { -value } else { value };
            }
        }
    }
}
