//! Exact privacy account of Gaussian releases.
//!
//! Releases with noise multipliers `z_t`, each of which may depend on the releases before it, are together as
//! private as a single release that is Gaussian with standard deviation 1 and, for two neighbouring data
//! sets, the means 0 and `mu = sqrt(sum 1 / z_t^2)` (Dong, Roth and Su 2019, Corollary 3.3). The privacy
//! profile of this release is (Balle and Wang 2018, Theorem 8)
//!
//! ```text
//! delta(epsilon) = Q(a) - e^epsilon Q(b),    a = epsilon/mu - mu/2,  b = epsilon/mu + mu/2
//! ```
//!
//! where `Q` is the upper tail probability of the standard normal distribution and `phi` its density. Since
//! `e^epsilon phi(b) = phi(a)`, the profile in terms of Mills' ratio `R = Q / phi` is
//!
//! ```text
//!     delta = phi(a) (R(a) - R(b)) = phi(a) * integral from a to b of (1 - x R(x)) dx
//! 1 - delta = phi(a) (R(-a) + R(b))
//! ```
//!
//! The code computes logarithms of these expressions, which neither overflow nor cancel: it uses the integral
//! for `mu` of at most 1, the difference for larger `mu`, and the last line for `a < -1`, where `delta` is
//! above 0.68.

use super::bisection::smallest_f64;
use super::normal::{LN_SQRT_2PI, mills};
use super::{Delta, Epsilon, NoiseMultiplier, Releases};

/// Largest supported `mu`. For larger values epsilon is above 5e17 at any delta below a half, and is reported
/// as infinite.
const MU_MAX: f64 = 1e9;

/// Bound of `a` above which delta is below the smallest positive `f64`.
const A_MAX: f64 = 40.0;

/// Positive abscissas and weights of the 10-point Gauss-Legendre rule on [-1, 1]. For integrals over
/// intervals of length 1, as used here, its relative error is below 1e-18.
const GAUSS_LEGENDRE: [(f64, f64); 5] = [
    (0.148_874_338_981_631_22, 0.295_524_224_714_752_87),
    (0.433_395_394_129_247_2, 0.269_266_719_309_996_35),
    (0.679_409_568_299_024_4, 0.219_086_362_515_982_04),
    (0.865_063_366_688_984_5, 0.149_451_349_150_580_6),
    (0.973_906_528_517_171_7, 0.066_671_344_308_688_14),
];

/// Composition of Gaussian releases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Composition {
    mu: f64,
}

impl Composition {
    /// Composes the given numbers of releases per noise multiplier; their order does not matter. Without
    /// releases, epsilon and delta are 0.
    #[must_use]
    pub fn new(releases: &[(NoiseMultiplier, Releases)]) -> Self {
        let mut parts: Vec<f64> =
            releases.iter().map(|&(multiplier, releases)| mu_of_releases(multiplier, releases)).collect();
        // Sorting makes the sum independent of the order of the releases.
        parts.sort_by(f64::total_cmp);
        let Some(&largest) = parts.last() else { return Self { mu: 0.0 } };
        if parts.len() == 1 || largest.is_infinite() {
            return Self { mu: largest };
        }
        let sum = parts.iter().fold(0.0, |sum, part| sum + (part / largest) * (part / largest));
        // Each addition may round down by half a machine epsilon, and so may the few operations around the
        // sum.
        let round_up = 1.0 + (parts.len() + 4) as f64 * f64::EPSILON;
        Self { mu: (largest * sum.sqrt() * round_up).next_up() }
    }

    /// Composes releases with one multiplier.
    #[must_use]
    pub fn repeated(multiplier: NoiseMultiplier, releases: Releases) -> Self {
        Self { mu: mu_of_releases(multiplier, releases) }
    }

    /// Parameter `mu` of Gaussian differential privacy of the composition, `sqrt(sum 1 / z^2)`, rounded up;
    /// infinite if it overflows.
    #[must_use]
    pub fn mu(self) -> f64 {
        self.mu
    }

    /// Smallest delta at this epsilon, rounded up.
    #[must_use]
    pub fn delta(self, epsilon: Epsilon) -> f64 {
        match profile(self.mu, epsilon.get()) {
            Profile::Zero => 0.0,
            Profile::Delta { at_most } => libm::exp(at_most) * (1.0 + 4.0 * f64::EPSILON),
            Profile::Complement { at_least } => 1.0 - libm::exp(at_least) * (1.0 - 4.0 * f64::EPSILON),
        }
        .next_up()
        .min(1.0)
    }

    /// Smallest epsilon at this delta, rounded up: 0 if delta is at least the profile at epsilon 0, infinite
    /// if no float is large enough.
    #[must_use]
    pub fn epsilon(self, delta: Delta) -> f64 {
        // Each logarithm is shifted by its rounding error in the conservative direction.
        let (ln, ln_complement) = (libm::log(delta.get()), libm::log1p(-delta.get()));
        let (ln, ln_complement) = (ln * (1.0 + f64::EPSILON), ln_complement * (1.0 - f64::EPSILON));
        let holds = |epsilon: f64| match profile(self.mu, epsilon) {
            Profile::Zero => true,
            Profile::Delta { at_most } => at_most <= ln,
            Profile::Complement { at_least } => at_least >= ln_complement,
        };
        smallest_f64(holds).unwrap_or(f64::INFINITY)
    }
}

/// Parameter `mu` of releases with one multiplier, rounded up.
fn mu_of_releases(multiplier: NoiseMultiplier, releases: Releases) -> f64 {
    (f64::from(releases.get()).sqrt() / multiplier.get()).next_up().next_up()
}

/// Bound of a delta that accounts for all rounding errors of the computation.
enum Profile {
    /// Delta is 0, because nothing was released.
    Zero,
    /// The logarithm of delta is at most `at_most`.
    Delta { at_most: f64 },
    /// The logarithm of 1 - delta is at least `at_least`.
    Complement { at_least: f64 },
}

/// Privacy profile of a Gaussian of mean `mu`, for an epsilon of at least 0.
fn profile(mu: f64, epsilon: f64) -> Profile {
    if mu <= 0.0 {
        return Profile::Zero;
    }
    if mu > MU_MAX {
        return Profile::Complement { at_least: f64::NEG_INFINITY };
    }
    let (centre, half) = (epsilon / mu, 0.5 * mu);
    let (a, b) = (centre - half, centre + half);
    // Bounds of the exact value of `a`, since the computed quotient and difference are rounded.
    let (low, high) = (1.0 - f64::EPSILON, 1.0 + f64::EPSILON);
    let (a_min, a_max) = (centre * low * low - half * high, centre * high * high - half * low);
    if a_min > A_MAX {
        return Profile::Delta { at_most: f64::NEG_INFINITY };
    }
    // Bound of the effect of this range on the logarithm of R(a), whose slope is at most 2 for a >= -1, and
    // on the logarithm of the complement for a large b.
    let slope = 2.0 * (a_max - a_min);
    if a < -1.0 {
        let sum = libm::log(mills(-a).ratio + mills(b).ratio);
        let square = a_min * a_min;
        let error = slope + f64::EPSILON * (32.0 + square + sum.abs());
        return Profile::Complement { at_least: sum - 0.5 * square - LN_SQRT_2PI - error };
    }
    // `cancellation` is the factor by which the difference magnifies the rounding errors of R.
    let (difference, cancellation) = if mu <= 1.0 {
        (half * mean_neg_derivative(centre, half), 1.0)
    } else {
        let (near, far) = (mills(a).ratio, mills(b).ratio);
        (near - far, near / (near - far))
    };
    let nearest = if a_min > 0.0 { a_min } else { a_max.min(0.0) };
    let square = nearest * nearest;
    let log = libm::log(difference);
    let error = slope + f64::EPSILON * (32.0 + 16.0 * cancellation + square + log.abs());
    Profile::Delta { at_most: log - 0.5 * square - LN_SQRT_2PI + error }
}

/// Integral of `1 - x R(x)` over the interval `centre + half * [-1, 1]`, divided by `half`.
fn mean_neg_derivative(centre: f64, half: f64) -> f64 {
    let pair = |(node, weight): (f64, f64)| {
        weight * (mills(centre - half * node).neg_derivative + mills(centre + half * node).neg_derivative)
    };
    GAUSS_LEGENDRE.into_iter().map(pair).sum()
}
