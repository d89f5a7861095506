//! The discrete Gaussian, sampled exactly: `P(X = x)` is proportional to `exp(-x^2 / (2 sigma^2))` for integers x.
//!
//! The algorithm is that of Canonne, Kamath and Steinke ("The Discrete Gaussian for Differential Privacy", 2020). With
//! `t = floor(sigma) + 1`:
//!
//! 1. A trial that succeeds with probability `exp(-g)`, `0 <= g <= 1`: trials with probabilities g, g/2, g/3, ... until
//!    one fails; success if that was one of odd number. (It is number k + 1 with probability
//!    `g^k/k! - g^(k+1)/(k+1)!`; summed over even k that is the series of `exp(-g)`.) For larger g as many trials of
//!    `exp(-1)` as fit, and one of what is left.
//! 2. The discrete Laplace distribution, `P(Y = y)` proportional to `exp(-|y| / t)`: u uniform in 0..t, kept with
//!    probability `exp(-u / t)`; v trials of `exp(-1)` that succeed before one fails; `|y| = u + t v`; a sign. Minus
//!    zero begins anew.
//! 3. y is kept with probability `exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2))`, else all begins anew. The product of
//!    both is `exp(-y^2 / (2 sigma^2))` but for a factor without y.
//!
//! # Exactness
//!
//! Every probability above is either `exp` of a rational, which step 1 reduces to trials with rational probability, or
//! rational. A trial with probability p/q compares the binary digits of p/q, made by long division, with random bits,
//! until they differ: U < p/q for a U whose bits are drawn as far as they are looked at. It needs two bits on average,
//! no division, and has no remainder to be biased by. Uniform integers below t are as many bits as t - 1 has, drawn
//! anew while they are not below t.
//!
//! `sigma^2 = n/d` with `t^2 d <= 2^56` ([`Variance`]), and candidates with v = 64 are thrown away. Then
//! `|y| d t < 64 t^2 d <= 2^62`, its distance from n squared is below 2^124, and what it is compared with,
//! `2 n d t^2`, is below 2^113: u64 and u128 hold every number, and nothing is rounded.
//!
//! Two things differ from the ideal, and neither can be observed. The law is that of X on the condition `|X| < 64 t`:
//! the rest has a probability below `exp(-63^2 / 2) < 2^-2800`. And trials are counted in 32 bits: more than that are
//! needed with a probability below `1 / (2^32)!`.
//!
//! # Cost
//!
//! On average a sample takes fewer than five words of 32 bits, whatever the variance: 1.3 to 2.3 where sigma is at most
//! 256, 3.9 at 2^20, 4.9 where the scale is 2^27 + 1, which throws most uniform integers away. The tests hold it to
//! that. There is no number that it never exceeds.
//!
//! # Running time
//!
//! It depends on the random bits, as it must where sampling is by rejection. How many candidates are thrown away says
//! nothing about the one that is kept: they are independent. But the one that is kept took `|x| / t` trials of `exp(-1)`
//! in step 2 and about `(|x| - sigma)^2 / (2 sigma^2)` in step 3, and every trial its bits: time, and whether a second
//! block of the key stream was needed, tell something of the magnitude. The sign takes one bit in any case. Hide it
//! behind a fixed time of sending.

use core::fmt;

/// The least sigma is 1/4.
const LEAST: u64 = 4;
/// `t^2 d` at most.
const WEIGHT_MAX: u128 = 1 << 56;
/// No candidate has a magnitude of so many `t`.
const CANDIDATE_MAX: u32 = 64;

/// `sigma^2`, a rational number of squared units of the grid: sigma is at least 1/4 and below 2^28.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variance {
    /// `n`, below 2^56.
    numerator: u64,
    /// `d`.
    denominator: u64,
    /// `t = floor(sigma) + 1`, at most 2^28.
    scale: u32,
}

impl Variance {
    /// `numerator / denominator`.
    ///
    /// # Errors
    /// [`VarianceError`]: what the arithmetic has no room for. The larger the variance, the smaller must be its
    /// denominator: `(floor(sigma) + 1)^2 denominator <= 2^56`, which leaves 24 bits for sigma below 2^16, 8 bits for
    /// sigma below 2^24, none for sigma below 2^28.
    pub const fn new(numerator: u64, denominator: u64) -> Result<Self, VarianceError> {
        let Some(floor) = numerator.checked_div(denominator) else {
            return Err(VarianceError::ZeroDenominator { numerator });
        };
        // Beyond this the scale has no room, nor has the weight for any denominator.
        if floor >> 56 != 0 {
            return Err(VarianceError::TooLarge { numerator, denominator });
        }
        // The root of less than 2^56 is less than 2^28.
        #[allow(clippy::cast_possible_truncation, reason = "28 bits")]
        let scale = floor.isqrt() as u32 + 1;
        let square = scale as u128 * scale as u128;
        if square * denominator as u128 > WEIGHT_MAX {
            return Err(VarianceError::TooLarge { numerator, denominator });
        }
        if (numerator as u128) * ((LEAST * LEAST) as u128) < denominator as u128 {
            return Err(VarianceError::TooSmall { numerator, denominator });
        }
        Ok(Self { numerator, denominator, scale })
    }

    /// Numerator and denominator, as they were given.
    #[must_use]
    pub const fn ratio(&self) -> (u64, u64) {
        (self.numerator, self.denominator)
    }

    /// No sample has a larger magnitude: 64 (floor(sigma) + 1) - 1, below 2^34.
    #[must_use]
    pub const fn magnitude_max(&self) -> u64 {
        CANDIDATE_MAX as u64 * self.scale as u64 - 1
    }
}

/// A variance that cannot be sampled exactly here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VarianceError {
    /// It is no number.
    ZeroDenominator {
        /// Over nothing.
        numerator: u64,
    },
    /// Below 1/16: the grid is too coarse for so little noise.
    TooSmall {
        /// What was given,
        numerator: u64,
        /// as a fraction.
        denominator: u64,
    },
    /// `(floor(sigma) + 1)^2 denominator` is above 2^56.
    TooLarge {
        /// What was given,
        numerator: u64,
        /// as a fraction.
        denominator: u64,
    },
}

impl fmt::Display for VarianceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ZeroDenominator { numerator } => write!(f, "variance {numerator}/0 is no number"),
            Self::TooSmall { numerator, denominator } => {
                write!(f, "variance {numerator}/{denominator} is below 1/16")
            }
            Self::TooLarge { numerator, denominator } => {
                write!(f, "variance {numerator}/{denominator}, or its denominator, is too large")
            }
        }
    }
}

impl core::error::Error for VarianceError {}

/// One sample, from words of 32 fair bits. It takes as many as it needs, begins with a word of its own, and does not
/// come to an end if words are the same for ever: give it a generator, never a source of entropy.
#[must_use]
pub fn sample(variance: &Variance, words: impl FnMut() -> u32) -> i64 {
    Bits::new(words).gaussian(variance)
}

/// Random bits, and what is made of them.
struct Bits<F> {
    words: F,
    word: u32,
    /// Bits of `word` that are not used yet.
    left: u32,
}

impl<F: FnMut() -> u32> Bits<F> {
    const fn new(words: F) -> Self {
        Self { words, word: 0, left: 0 }
    }

    fn bit(&mut self) -> bool {
        if self.left == 0 {
            self.word = (self.words)();
            self.left = u32::BITS;
        }
        self.left -= 1;
        let bit = self.word & 1 == 1;
        self.word >>= 1;
        bit
    }

    /// Uniform in `0..n`, for `n > 0`.
    fn below(&mut self, n: u32) -> u32 {
        let length = u32::BITS - n.saturating_sub(1).leading_zeros();
        loop {
            let value = (0..length).fold(0, |value, _| value << 1 | u32::from(self.bit()));
            if value < n {
                return value;
            }
        }
    }

    /// True with probability `p / q`, for `p <= q < 2^127`.
    fn bernoulli(&mut self, p: u128, q: u128) -> bool {
        // No bit could say otherwise.
        if p >= q {
            return true;
        }
        let mut rest = p;
        loop {
            rest <<= 1;
            let digit = rest >= q;
            if digit {
                rest -= q;
            }
            // The first bit of U that is not that of p/q says which of them is less.
            if self.bit() != digit {
                return digit;
            }
        }
    }

    /// True with probability `exp(-p / q)`, for `p < 2^127` and `0 < q < 2^127`.
    fn exponential(&mut self, p: u128, q: u128) -> bool {
        let mut rest = p;
        while rest > q {
            rest -= q;
            if !self.fraction(1, 1) {
                return false;
            }
        }
        self.fraction(rest, q)
    }

    /// The same for `p <= q`.
    fn fraction(&mut self, p: u128, q: u128) -> bool {
        let mut number = 1u32;
        // Of probability p/q over the number.
        while self.bernoulli(p, q) && self.bernoulli(1, number.into()) {
            number = number.saturating_add(1);
        }
        number & 1 == 1
    }

    /// The magnitude and sign of a sample of the discrete Laplace distribution of this scale, below
    /// `CANDIDATE_MAX` scales.
    fn laplace(&mut self, scale: u32) -> (u64, bool) {
        loop {
            let low = self.below(scale);
            if !self.fraction(low.into(), scale.into()) {
                continue;
            }
            let mut high = 0;
            while high < CANDIDATE_MAX && self.fraction(1, 1) {
                high += 1;
            }
            let negative = self.bit();
            let magnitude = u64::from(low) + u64::from(scale) * u64::from(high);
            if high < CANDIDATE_MAX && !(negative && magnitude == 0) {
                return (magnitude, negative);
            }
        }
    }

    fn gaussian(&mut self, variance: &Variance) -> i64 {
        let Variance { numerator, denominator, scale } = *variance;
        let slope = denominator * u64::from(scale);
        let over = 2 * u128::from(numerator) * u128::from(slope) * u128::from(scale);
        loop {
            let (magnitude, negative) = self.laplace(scale);
            let distance = u128::from((magnitude * slope).abs_diff(numerator));
            if self.exponential(distance * distance, over) {
                let value = magnitude.cast_signed();
                return if negative { -value } else { value };
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::float_arithmetic)]
mod tests;
