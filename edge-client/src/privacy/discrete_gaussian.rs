//! Exact sampler of the discrete Gaussian: `P(X = x)` is proportional to `exp(-x^2 / (2 sigma^2))` for
//! integers x.
//!
//! The algorithm is by Canonne, Kamath and Steinke ("The Discrete Gaussian for Differential Privacy", 2020).
//! With `t = floor(sigma) + 1` it has three steps:
//!
//! 1. A trial that succeeds with probability `exp(-g)`, `0 <= g <= 1`: run trials with probabilities g, g/2,
//!    g/3, ... until one fails; succeed if the number of the failed trial is odd. (The failed trial is number
//!    k + 1 with probability `g^k/k! - g^(k+1)/(k+1)!`; summed over even k this is the series of `exp(-g)`.)
//!    For larger g run as many trials of `exp(-1)` as fit into g, and one trial for the remainder.
//! 2. A candidate y from the discrete Laplace distribution, `P(Y = y)` proportional to `exp(-|y| / t)`: u is
//!    uniform in 0..t and accepted with probability `exp(-u / t)`; v is the number of trials of `exp(-1)`
//!    that succeed before one fails; `|y| = u + t v`; the sign is a random bit. Minus zero is rejected.
//! 3. y is accepted with probability `exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2))`. The product of the
//!    probabilities of steps 2 and 3 is `exp(-y^2 / (2 sigma^2))` up to a factor that does not depend on y.
//!
//! # Exactness
//!
//! Every probability above is rational, or `exp` of a rational number, which step 1 reduces to trials with
//! rational probability. A trial with probability p/q compares the binary digits of p/q, computed by long
//! division, with random bits until they differ. This decides U < p/q for a uniform U whose bits are drawn as
//! needed; it takes two bits on average and no division, and has no remainder that could bias the result.
//! Uniform integers below t are drawn with as many bits as t - 1 has, and rejected if they are not below t.
//!
//! `sigma^2 = n/d` with `t^2 d <= 2^56` ([`Variance`]), and candidates with v = 64 are rejected. Hence
//! `|y| d t < 64 t^2 d <= 2^62`, the squared distance from n is below 2^124, and `2 n d t^2`, with which it
//! is compared, is below 2^113: u64 and u128 can represent every number, and nothing is rounded.
//!
//! There are two differences from the ideal distribution, and neither can be observed. First, the
//! distribution is that of X conditioned on `|X| < 64 t`: the complement has a probability below
//! `exp(-63^2 / 2) < 2^-2800`. Second, trials are counted in 32 bits: more trials are needed with a
//! probability below `1 / (2^32)!`.
//!
//! # Cost
//!
//! On average a sample needs fewer than five words of 32 bits, for any variance: 1.3 to 2.3 words for sigma
//! up to 256, 3.9 at 2^20, and 4.9 at a scale of 2^27 + 1, which rejects most uniform integers. The tests
//! check these averages. The number of words has no upper bound.
//!
//! # Running time
//!
//! The running time depends on the random bits, as in all rejection sampling. The number of rejected
//! candidates reveals nothing about the accepted candidate, because the candidates are independent. But the
//! accepted candidate x needed `|x| / t` trials of `exp(-1)` in step 2 and about
//! `(|x| - sigma)^2 / (2 sigma^2)` in step 3, and every trial needs bits: the time, and the use of a second
//! block of the key stream, reveal something about the magnitude. The sign always takes one bit. The caller
//! must hide the running time by sending at a fixed time.

use core::fmt;

/// Reciprocal of the smallest sigma.
const LEAST: u64 = 4;
/// Upper bound on `t^2 d`.
const WEIGHT_MAX: u128 = 1 << 56;
/// Upper bound on the magnitude of candidates, in units of `t`.
const CANDIDATE_MAX: u32 = 64;

/// Variance `sigma^2` in squared units of the grid, a rational number. Sigma is at least 1/4 and below 2^28.
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
    /// [`VarianceError`] for a zero denominator, for a variance below 1/16, and if the arithmetic would
    /// overflow. The larger the variance, the smaller its denominator must be:
    /// `(floor(sigma) + 1)^2 denominator <= 2^56`. The denominator can then have 24 bits for sigma below
    /// 2^16, 8 bits for sigma below 2^24, and none for sigma below 2^28.
    pub const fn new(numerator: u64, denominator: u64) -> Result<Self, VarianceError> {
        let Some(floor) = numerator.checked_div(denominator) else {
            return Err(VarianceError::ZeroDenominator { numerator });
        };
        // A larger variance overflows the scale, and exceeds the bound for any denominator.
        if floor >> 56 != 0 {
            return Err(VarianceError::TooLarge { numerator, denominator });
        }
        // The square root of a number below 2^56 is below 2^28.
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

    /// Returns the numerator and the denominator, as given.
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
    /// The variance is below 1/16: the grid is too coarse for this little noise.
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

/// Draws one sample, using as many words of 32 fair bits as needed; no bits are kept between samples. The
/// function does not return if all words are equal, so `words` must be a pseudorandom generator, not an
/// entropy source.
#[must_use]
pub fn sample(variance: &Variance, words: impl FnMut() -> u32) -> i64 {
    Bits::new(words).gaussian(variance)
}

/// Random bits, and the distributions drawn from them.
struct Bits<F> {
    /// Source of random words.
    words: F,
    /// Word whose bits are being used.
    word: u32,
    /// Number of unused bits of `word`.
    bits_left: u32,
}

impl<F: FnMut() -> u32> Bits<F> {
    /// Creates a reader without unused bits.
    const fn new(words: F) -> Self {
        Self { words, word: 0, bits_left: 0 }
    }

    /// Draws one fair bit.
    fn bit(&mut self) -> bool {
        if self.bits_left == 0 {
            self.word = (self.words)();
            self.bits_left = u32::BITS;
        }
        self.bits_left -= 1;
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
        let mut remainder = p;
        loop {
            remainder <<= 1;
            let digit = remainder >= q;
            if digit {
                remainder -= q;
            }
            // The first bit of U that differs from the corresponding digit of p/q decides the comparison.
            if self.bit() != digit {
                return digit;
            }
        }
    }

    /// Returns true with probability `exp(-p / q)`, for `p < 2^127` and `0 < q < 2^127`.
    fn exponential(&mut self, p: u128, q: u128) -> bool {
        let mut remainder = p;
        while remainder > q {
            remainder -= q;
            if !self.fraction(1, 1) {
                return false;
            }
        }
        self.fraction(remainder, q)
    }

    /// Returns true with probability `exp(-p / q)`, for `p <= q`.
    fn fraction(&mut self, p: u128, q: u128) -> bool {
        let mut number = 1u32;
        // The trial succeeds with probability p/q divided by its number.
        while self.bernoulli(p, q) && self.bernoulli(1, number.into()) {
            number = number.saturating_add(1);
        }
        number & 1 == 1
    }

    /// Draws the magnitude and the sign of the discrete Laplace distribution of this scale; the magnitude is
    /// below `CANDIDATE_MAX` scales.
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

    /// Draws one sample of the discrete Gaussian.
    fn gaussian(&mut self, variance: &Variance) -> i64 {
        let Variance { numerator, denominator, scale } = *variance;
        let slope = denominator * u64::from(scale);
        let divisor = 2 * u128::from(numerator) * u128::from(slope) * u128::from(scale);
        loop {
            let (magnitude, negative) = self.laplace(scale);
            let distance = u128::from((magnitude * slope).abs_diff(numerator));
            if self.exponential(distance * distance, divisor) {
                let value = magnitude.cast_signed();
                return if negative { -value } else { value };
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::float_arithmetic)]
mod tests;
