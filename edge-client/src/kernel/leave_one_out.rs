//! Choice of the ridge by leave-one-out error: exact, and without a fit for each sample.
//!
//! Let `Z = U S V^T` with m samples, let `a` be the ridge, and let `q = U^T Y`. A prediction is
//! `sum over j of u_ij p_j q_j` with the shrinkage factors `p_j = s_j^2 / (s_j^2 + m a)`, and the leverage of
//! sample i is `h_i = sum of u_ij^2 p_j`. The residual of the sample under a head fitted on all other samples
//! is `r_i / (1 - h_i)` (Golub, Heath and Wahba 1979, section 2; Hastie, Tibshirani and Friedman, section
//! 7.10). The computation takes one pass over the samples after the factor is complete, and needs only `u_i`
//! (k values) of each sample.
//!
//! Ridges are multiples of the mean square of `Z`, `|Z|^2 / (m k)`, so a common unit of all features has no
//! effect; features whose units differ by more than a factor of 32 are lifted as in [`super::rank`]. A
//! constant column is centred out: no ridge applies to its weight, and it does not count in the mean square.
//!
//! For classes, the squared error of the one-hot targets is used too. On handwritten digits and on windows of
//! a smartwatch, with k of 8 to 24 and 2 to 30 samples per class, the accuracy of the resulting heads is at
//! most 0.015 below that of the best fixed ridge; with the number of wrong classes as criterion it is up to
//! 0.048 below.

use super::rank::Directions;
use super::vector::{dot, from};
use crate::pace::Pace;

/// Candidate ridges, in units of the mean square of `Z`: zero, and half decades from 1e-4 to 10.
pub const RIDGES: [f32; 12] = [
    0.0,
    1e-4,
    3.162_277_7e-4,
    1e-3,
    3.162_277_7e-3,
    1e-2,
    3.162_278e-2,
    0.1,
    0.316_227_77,
    1.0,
    3.162_277_7,
    10.0,
];

/// Smallest `1 - h` to divide by: the quotient then has a relative error of about a thousand roundings. A
/// ridge under which a leverage is closer to one explains a sample by that sample alone, and is rejected.
pub const LEAST_REMAINDER: f32 = 1.0 / 1024.0;

/// Leave-one-out errors of the candidate ridges.
#[derive(Clone, Copy, Debug)]
pub struct LeaveOneOut {
    /// Ridge that equals the mean square of `Z`, in squared lengths of directions.
    unit: f32,
    /// Sums of squared leave-one-out residuals.
    errors: [f32; RIDGES.len()],
}

impl LeaveOneOut {
    /// Creates the state before the first sample. `squares` is the output of [`super::rank::decompose`].
    #[must_use]
    pub fn new(directions: &Directions, squares: &[f32]) -> Self {
        let free = usize::from(directions.first_is_free);
        let squares = from(squares, free);
        #[allow(clippy::cast_precision_loss, reason = "a layer width is far below 2^24")]
        let count = squares.len().max(1) as f32;
        Self { unit: squares.iter().sum::<f32>() / count, errors: [0.0; RIDGES.len()] }
    }

    /// Adds a sample `z` (k values) with its target `y`. The factors `r` and `q` are outputs of
    /// [`super::rank::decompose`]; `scratch` holds 2 k values.
    #[inline(never)]
    pub fn add(
        &mut self,
        directions: &Directions,
        factor: [&[f32]; 3],
        z: &[f32],
        y: &[f32],
        scratch: &mut [f32],
        pace: Pace<'_>,
    ) {
        let [r, q, squares] = factor;
        let k = z.len();
        pace.spend(k * (k + 3));
        let Some((u, shares)) = scratch.split_at_mut_checked(k) else { return };
        for ((u, row), &square) in u.iter_mut().zip(r.chunks_exact(k.max(1))).zip(squares) {
            *u = if square == 0.0 { 0.0 } else { dot(row, z, 1) * directions.scale / square };
        }
        #[cfg(all(feature = "wide", not(target_os = "none")))]
        self.add_side_by_side(directions, q, squares, y, [u, shares], pace);
        #[cfg(not(all(feature = "wide", not(target_os = "none"))))]
        self.add_in_turn(directions, q, squares, y, [u, shares], pace);
    }

    /// Adds the errors of one ridge after the other, with scratch memory of k values.
    #[cfg(any(test, not(all(feature = "wide", not(target_os = "none")))))]
    #[inline(always)]
    fn add_in_turn(
        &mut self,
        directions: &Directions,
        q: &[f32],
        squares: &[f32],
        y: &[f32],
        [u, shares]: [&mut [f32]; 2],
        pace: Pace<'_>,
    ) {
        let (k, c) = (u.len(), y.len());
        for (error, ridge) in self.errors.iter_mut().zip(RIDGES) {
            let mut remainder = 1.0;
            pace.spend(k * (c + 6) + 4 * c);
            for (number, ((share, &u), &square)) in shares.iter_mut().zip(&*u).zip(squares).enumerate() {
                *share = u * directions.share(number, square, ridge * self.unit);
                remainder -= u * *share;
            }
            // The comparison is false for a NaN.
            let compares = remainder >= LEAST_REMAINDER;
            if !compares {
                *error = f32::INFINITY;
                continue;
            }
            for (output, y) in y.iter().enumerate() {
                let residual = (y - dot(shares.get(..k).unwrap_or_default(), from(q, output), c)) / remainder;
                *error += residual * residual;
            }
        }
    }

    /// Adds the errors of all ridges side by side in the host's vectors, with the bits of those in turn.
    #[cfg(all(feature = "wide", not(target_os = "none")))]
    #[inline(always)]
    fn add_side_by_side(
        &mut self,
        directions: &Directions,
        q: &[f32],
        squares: &[f32],
        y: &[f32],
        [u, _]: [&mut [f32]; 2],
        pace: Pace<'_>,
    ) {
        let (k, c) = (u.len(), y.len());
        RIDGES.iter().for_each(|_| pace.spend(k * (c + 6) + 4 * c));
        let extras = RIDGES.map(|ridge| ridge * self.unit);
        let shares = |number: usize, u: f32, square: f32| {
            let mut shares = extras;
            shares.iter_mut().for_each(|share| *share = u * directions.share(number, square, *share));
            shares
        };
        let mut remainders = [1.0; RIDGES.len()];
        for (number, (&u, &square)) in u.iter().zip(squares).enumerate() {
            for (remainder, share) in remainders.iter_mut().zip(shares(number, u, square)) {
                *remainder -= u * share;
            }
        }
        for (output, y) in y.iter().enumerate() {
            let mut predictions = [0.0; RIDGES.len()];
            let weights = from(q, output).iter().step_by(c);
            for (number, ((&u, &square), weight)) in u.iter().zip(squares).zip(weights).enumerate() {
                for (prediction, share) in predictions.iter_mut().zip(shares(number, u, square)) {
                    *prediction += share * weight;
                }
            }
            for ((error, prediction), remainder) in self.errors.iter_mut().zip(predictions).zip(remainders) {
                let residual = (y - prediction) / remainder;
                let sum = *error + residual * residual;
                // The comparison is false for a NaN.
                *error = if remainder >= LEAST_REMAINDER { sum } else { f32::INFINITY };
            }
        }
    }

    /// Returns the ridge of least error, in squared lengths of directions; the smallest of several equally
    /// good ridges. Returns `None` if no ridge has a finite error.
    #[must_use]
    pub fn best(&self) -> Option<f32> {
        let mut best = (f32::INFINITY, None);
        for (&error, ridge) in self.errors.iter().zip(RIDGES) {
            if error < best.0 {
                best = (error, Some(ridge * self.unit));
            }
        }
        best.1
    }
}

#[cfg(all(test, feature = "wide"))]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Values around one, and values at which comparisons and divisions change.
    fn value() -> impl Strategy<Value = f32> {
        prop_oneof![8 => -2.0f32..2.0, 1 => Just(0.0), 1 => Just(1.0), 1 => -1e30f32..1e30]
    }

    proptest! {
        #[test]
        fn errors_side_by_side_are_those_in_turn(
            (k, c) in (1..9usize, 1..4usize),
            values in proptest::collection::vec(value(), 240),
            first_is_free in any::<bool>(),
            unit in 0.0f32..4.0,
        ) {
            let directions = Directions { rank: k, scale: 1.0, first_is_free };
            let mut values = values.chunks_exact(8 * 5);
            let mut take = |count: usize| values.next().map(|values| values[..count].to_vec()).unwrap_or_default();
            let squares: Vec<f32> = take(k).iter().map(|value| value * value).collect();
            let q = take(k * c);
            let mut side_by_side = LeaveOneOut { unit, errors: [0.0; RIDGES.len()] };
            let mut in_turn = side_by_side;
            for _ in 0..2 {
                let (mut u, mut shares, y) = (take(k), take(k), vec![0.25; c]);
                side_by_side.add_side_by_side(&directions, &q, &squares, &y, [&mut u, &mut shares], Pace::NONE);
                in_turn.add_in_turn(&directions, &q, &squares, &y, [&mut u, &mut shares], Pace::NONE);
                prop_assert_eq!(side_by_side.errors.map(f32::to_bits), in_turn.errors.map(f32::to_bits));
            }
        }
    }
}
