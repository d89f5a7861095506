//! The ridge of least leave-one-out error, exactly and without fitting a head for each sample left out.
//!
//! With `Z = U S V^T`, the ridge `a` and `m` samples, a prediction is `sum over j of u_ij p_j q_j` with the shares
//! `p_j = s_j^2 / (s_j^2 + m a)` and `q = U^T Y`; the leverage of sample i is `h_i = sum of u_ij^2 p_j`; and the
//! residual that the sample would have if the head had been fitted on all others is `r_i / (1 - h_i)` (Golub, Heath and
//! Wahba 1979, section 2; Hastie, Tibshirani and Friedman, section 7.10). One pass over the samples after the factor is
//! there; of each sample only its `u_i` (k values) is needed.
//!
//! Ridges are counted in mean squares of `Z`, `|Z|^2 / (m k)`, so the unit in which all features are measured changes
//! nothing; features whose units differ by more than a factor of 32 are lifted as [`super::rank`] says. A constant
//! column is centred out: its weight is free, and it does not count in the mean square.
//!
//! Classes are compared by the squared error of their one-hot targets as well. On handwritten digits and windows of a
//! smartwatch, k of 8 to 24 and 2 to 30 samples a class, heads so chosen are at most 0.015 behind the best fixed ridge; by
//! counts of wrong classes they would be up to 0.048 behind.

use super::rank::Directions;
use super::vector::{dot, from};

/// Ridges that are compared, in mean squares of `Z`: none, and half decades from 1e-4 to 10.
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

/// Least `1 - h` that can be divided by: a thousand roundings are left of it. Under a ridge where a leverage is closer to
/// one, a sample is explained by itself alone, and the ridge is not chosen.
pub const LEAST_REMAINDER: f32 = 1.0 / 1024.0;

/// Leave-one-out errors of the ridges.
#[derive(Clone, Copy, Debug)]
pub struct LeaveOneOut {
    /// A ridge of one mean square, in units of squared lengths of directions.
    unit: f32,
    /// Sums of squared leave-one-out residuals.
    errors: [f32; RIDGES.len()],
}

impl LeaveOneOut {
    /// Nothing is left out yet. `squares` are those of [`super::rank::decompose`].
    #[must_use]
    pub fn new(directions: &Directions, squares: &[f32]) -> Self {
        let free = usize::from(directions.first_is_free);
        let squares = from(squares, free);
        #[allow(clippy::cast_precision_loss, reason = "a width")]
        let count = squares.len().max(1) as f32;
        Self { unit: squares.iter().sum::<f32>() / count, errors: [0.0; RIDGES.len()] }
    }

    /// Counts a sample `z` (k values) with its target `y`. `r` and `q` are those of [`super::rank::decompose`];
    /// `scratch` holds 2 k values.
    #[inline(never)]
    pub fn add(
        &mut self,
        directions: &Directions,
        factor: [&[f32]; 3],
        z: &[f32],
        y: &[f32],
        scratch: &mut [f32],
    ) {
        let [r, q, squares] = factor;
        let (k, c) = (z.len(), y.len());
        let Some((u, shares)) = scratch.split_at_mut_checked(k) else { return };
        for ((u, row), &square) in u.iter_mut().zip(r.chunks_exact(k.max(1))).zip(squares) {
            *u = if square == 0.0 { 0.0 } else { dot(row, z, 1) * directions.scale / square };
        }
        for (error, ridge) in self.errors.iter_mut().zip(RIDGES) {
            let mut remainder = 1.0;
            for (number, ((share, &u), &square)) in shares.iter_mut().zip(&*u).zip(squares).enumerate() {
                *share = u * directions.share(number, square, ridge * self.unit);
                remainder -= u * *share;
            }
            // False for a NaN.
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

    /// The ridge of least error, in units of squared lengths of directions; the smallest of several. `None` if no ridge has
    /// a finite error.
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
