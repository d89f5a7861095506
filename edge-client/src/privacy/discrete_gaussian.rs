//! Exact sampler of the discrete Gaussian: `P(X = x)` is proportional to `exp(-x^2 / (2 sigma^2))` for integers x.
//!
//! The algorithm is that of Canonne, Kamath and Steinke ("The Discrete Gaussian for Differential Privacy", 2020). With
//! `t = floor(sigma) + 1`:
//!
//! 1. Trial that succeeds with probability `exp(-g)`, `0 <= g <= 1`: trials with probabilities g, g/2, g/3, ...
//!    until one fails; success if the failed one has an odd number. (It is number k + 1 with probability
//!    `g^k/k! - g^(k+1)/(k+1)!`; summed over even k this is the series of `exp(-g)`.) For larger g as many trials of
//!    `exp(-1)` as fit, and one of the rest.
//! 2. Discrete Laplace distribution, `P(Y = y)` proportional to `exp(-|y| / t)`: u uniform in 0..t, kept with
//!    probability `exp(-u / t)`; v trials of `exp(-1)` that succeed before one fails; `|y| = u + t v`; a sign. Minus
//!    zero is rejected.
//! 3. y is kept with probability `exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2))`, otherwise rejected. The product of
//!    both probabilities is `exp(-y^2 / (2 sigma^2))` up to a factor without y.
//!
//! # Exactness
//!
//! Every probability above is rational, or `exp` of a rational, which step 1 reduces to trials with rational
//! probability. A trial with probability p/q compares the binary digits of p/q, computed by long division, with
//! random bits until they differ: U < p/q for a U whose bits are drawn as needed. It needs two bits on average and
//! no division, and leaves no remainder that could bias it. Uniform integers below t are drawn with as many bits as
//! t - 1 has, and rejected while they are not below t.
//!
//! `sigma^2 = n/d` with `t^2 d <= 2^56` ([`Variance`]), and candidates with v = 64 are rejected. Then
//! `|y| d t < 64 t^2 d <= 2^62`, the squared distance from n is below 2^124, and the number it is compared with,
//! `2 n d t^2`, is below 2^113: u64 and u128 hold every number, and nothing is rounded.
//!
//! There are two differences from the ideal, neither observable. The distribution is that of X conditioned on
//! `|X| < 64 t`: the rest has a probability below `exp(-63^2 / 2) < 2^-2800`. And trials are counted in 32 bits:
//! more are needed with a probability below `1 / (2^32)!`.
//!
//! # Cost
//!
//! On average a sample needs fewer than five words of 32 bits, for any variance: 1.3 to 2.3 for sigma up to 256,
//! 3.9 at 2^20, 4.9 at a scale of 2^27 + 1, which rejects most uniform integers. The tests check these averages.
//! There is no upper bound.
//!
//! # Running time
//!
//! The running time depends on the random bits, as in all rejection sampling. The number of rejected candidates
//! reveals nothing about the accepted one: they are independent. But the accepted one needed `|x| / t` trials of
//! `exp(-1)` in step 2 and about `(|x| - sigma)^2 / (2 sigma^2)` in step 3, and every trial needs bits: the time,
//! and the use of a second block of the key stream, reveal something about the magnitude. The sign always takes one
//! bit. The caller must hide the time, by sending at a fixed time.

use core::fmt;

/// Reciprocal of the smallest sigma.
const LEAST: u64 = 4;
/// Largest `t^2 d`.
const WEIGHT_MAX: u128 = 1 << 56;
/// Bound of the magnitude of candidates, in units of `t`.
const CANDIDATE_MAX: u32 = 64;

/// Variance `sigma^2`, a rational number of squared units of the grid: sigma is at least 1/4 and below 2^28.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variance {
    /// Numerator `n`, below 2^56.
    numerator: u64,
    /// Denominator `d`.
    denominator: u64,
    /// Scale `t = floor(sigma) + 1`, at most 2^28.
    scale: u32,
}

impl Variance {
    /// Creates the variance `numerator / denominator`.
    ///
    /// # Errors
    /// [`VarianceError`] for a zero denominator, for a variance below 1/16, and if the arithmetic would overflow:
    /// the larger the variance, the smaller its denominator must be, `(floor(sigma) + 1)^2 denominator <= 2^56`.
    /// This leaves 24 bits for sigma below 2^16, 8 bits for sigma below 2^24, none for sigma below 2^28.
    pub const fn new(numerator: u64, denominator: u64) -> Result<Self, VarianceError> {
        let Some(floor) = numerator.checked_div(denominator) else {
            return Err(VarianceError::ZeroDenominator { numerator });
        };
        // A larger variance overflows the scale, and the bound for any denominator.
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

    /// Returns numerator and denominator as given.
    #[must_use]
    pub const fn ratio(&self) -> (u64, u64) {
        (self.numerator, self.denominator)
    }

    /// Returns the largest magnitude of a sample: 64 (floor(sigma) + 1) - 1, below 2^34.
    #[must_use]
    pub const fn magnitude_max(&self) -> u64 {
        CANDIDATE_MAX as u64 * self.scale as u64 - 1
    }
}

/// Variance that cannot be sampled exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VarianceError {
    /// The denominator is zero.
    ZeroDenominator {
        /// Numerator that was given.
        numerator: u64,
    },
    /// The variance is below 1/16: the grid is too coarse for so little noise.
    TooSmall {
        /// Numerator that was given.
        numerator: u64,
        /// Denominator that was given.
        denominator: u64,
    },
    /// `(floor(sigma) + 1)^2 denominator` is above 2^56.
    TooLarge {
        /// Numerator that was given.
        numerator: u64,
        /// Denominator that was given.
        denominator: u64,
    },
}

impl fmt::Display for VarianceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ZeroDenominator { numerator } => write!(f, "variance {numerator}/0 has a zero denominator"),
            Self::TooSmall { numerator, denominator } => {
                write!(f, "variance {numerator}/{denominator} is below 1/16")
            }
            Self::TooLarge { numerator, denominator } => {
                write!(f, "variance {numerator}/{denominator} is too large, or its denominator is")
            }
        }
    }
}

impl core::error::Error for VarianceError {}

/// Draws one sample from words of 32 fair bits. It takes as many words as it needs, starting with a new one. It
/// does not return if all words are equal, so `words` must be a generator, not an entropy source.
#[must_use]
pub fn sample(variance: &Variance, words: impl FnMut() -> u32) -> i64 {
    Bits::new(words).gaussian(variance)
}

/// Random bits, and the distributions drawn from them.
struct Bits<F> {
    words: F,
    word: u32,
    /// Number of unused bits of `word`.
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

    /// Draws a uniform integer in `0..n`, for `n > 0`.
    fn below(&mut self, n: u32) -> u32 {
        let length = u32::BITS - n.saturating_sub(1).leading_zeros();
        loop {
            let value = (0..length).fold(0, |value, _| value << 1 | u32::from(self.bit()));
            if value < n {
                return value;
            }
        }
    }

    /// Returns true with probability `p / q`, for `p <= q < 2^127`.
    fn bernoulli(&mut self, p: u128, q: u128) -> bool {
        // The result is certain, so no bit is drawn.
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
            // The first bit of U that differs from that of p/q decides which of them is less.
            if self.bit() != digit {
                return digit;
            }
        }
    }

    /// Returns true with probability `exp(-p / q)`, for `p < 2^127` and `0 < q < 2^127`.
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

    /// Returns true with probability `exp(-p / q)`, for `p <= q`.
    fn fraction(&mut self, p: u128, q: u128) -> bool {
        let mut number = 1u32;
        // Succeeds with probability p/q divided by the number.
        while self.bernoulli(p, q) && self.bernoulli(1, number.into()) {
            number = number.saturating_add(1);
        }
        number & 1 == 1
    }

    /// Draws magnitude and sign of the discrete Laplace distribution of this scale, below `CANDIDATE_MAX` scales.
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
