//! Aggregation rules for subspaces. A subspace of k directions is represented by its orthogonal projector
//! `P = U U^T`, which, unlike a basis `U`, does not depend on signs or rotations.
//!
//! The rules are the mean of the projectors and their geometric median (the Subspace-Median of Singh and
//! Vaswani 2024), each followed by the k leading eigenvectors. The projectors of the devices are never
//! formed. Their distances follow from the inner products of all pairs, and the median is a weighted mean of
//! the projectors, so the iterations change only the weights. Forming the mean (d x d) in every iteration
//! instead would be more expensive for up to d^2 k devices, and the smoothing radius needs all pairs in any
//! case.

use super::geometric_median::GeometricMedian;
use super::gram::Gram;
use super::rule::{AggregationRule, NamedRule, SubspaceRule};
use super::{Weighted, weighted_median};
use crate::linalg::{
    Matrix, RankDeficient, orthonormal, principal_angle_distance, product, product_transposed, random_basis,
    top_eigenspace,
};
use crate::random::{Purpose, stream};
use crate::reader::{Problem, Section};

/// Rule for subspaces: the k leading eigenvectors of the mean of the orthogonal projectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectorMean;

impl NamedRule for ProjectorMean {
    const NAME: &'static str = "projector-mean";
    const SUMMARY: &'static str = "for subspaces: leading eigenvectors of the mean of the projectors";
    const FOR_SUBSPACES: bool = true;

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }
}

impl AggregationRule for ProjectorMean {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Combines vectors, such as those of a start, by their geometric median.
    fn combine(&self, updates: &[Weighted<'_>], center: &[f64], out: &mut [f64]) {
        GeometricMedian.combine(updates, center, out);
    }

    fn as_subspace_rule(&self) -> Option<&dyn SubspaceRule> {
        Some(self)
    }
}

impl SubspaceRule for ProjectorMean {
    fn combine_subspaces(
        &self,
        bases: &[(f64, Matrix)],
        reference: &Matrix,
    ) -> Result<Matrix, RankDeficient> {
        projector_mean(bases, reference)
    }
}

/// Rule for subspaces: the k leading eigenvectors of the geometric median of the projectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectorGeometricMedian;

impl NamedRule for ProjectorGeometricMedian {
    const NAME: &'static str = "projector-geometric-median";
    const SUMMARY: &'static str =
        "for subspaces: leading eigenvectors of the geometric median of the projectors";
    const FOR_SUBSPACES: bool = true;

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }
}

impl AggregationRule for ProjectorGeometricMedian {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Combines vectors, such as those of a start, by their geometric median.
    fn combine(&self, updates: &[Weighted<'_>], center: &[f64], out: &mut [f64]) {
        GeometricMedian.combine(updates, center, out);
    }

    fn as_subspace_rule(&self) -> Option<&dyn SubspaceRule> {
        Some(self)
    }
}

impl SubspaceRule for ProjectorGeometricMedian {
    fn combine_subspaces(
        &self,
        bases: &[(f64, Matrix)],
        reference: &Matrix,
    ) -> Result<Matrix, RankDeficient> {
        projector_geometric_median(bases, reference)
    }
}

/// Smoothing radius, in units of [`spread`]. It is large for the same reason as for the geometric median of
/// vectors.
const SMOOTHING: f64 = 1.0;
/// Lower bound of the smoothing radius, for rounds in which half of the weight belongs to projectors that are
/// equal up to the rounding of encodings.
const SMOOTHING_LEAST: f64 = 1e-6;
/// Bound of the relative difference between two sums of the same weights in different orders.
const ROUNDING: f64 = 1e-9;
/// Largest change of a weight at which the iteration stops.
const TOLERANCE: f64 = 1e-10;
/// Maximum number of iterations.
const ITERATIONS: usize = 300;
/// Bound of the smallest pivot, above which the result is the basis nearest to the reference.
const ALIGNED: f64 = 1e-6;
/// Largest d for which the mean of the projectors is formed and decomposed. For larger d, block iteration is
/// used.
const DENSE: usize = 256;
/// Maximum number of block iterations.
const BLOCK_ITERATIONS: usize = 200;
/// Change (sine of the largest principal angle) at which the block iteration stops.
const BLOCK_TOLERANCE: f64 = 1e-12;
/// Number of columns of the block in addition to k.
const WIDER: usize = 8;
/// Multiple of the identity that is added to the matrix in block iteration.
const SHIFT: f64 = 1e-3;
/// Index of the random stream for the initial block.
const BLOCK: u64 = 1 << 32;

/// Leading k-dimensional eigenspace of the weighted mean of the projectors, as the orthonormal basis (d x k)
/// nearest to `reference` (d x k). `bases` are orthonormal, d x k, with their weights.
///
/// # Errors
/// [`RankDeficient`] if the bases together span fewer than k directions.
pub fn projector_mean(bases: &[(f64, Matrix)], reference: &Matrix) -> Result<Matrix, RankDeficient> {
    let weights: Vec<f64> = bases.iter().map(|(weight, _)| *weight).collect();
    top(bases, &weights, reference)
}

/// Leading k-dimensional eigenspace of the geometric median of the projectors in the Frobenius norm, by
/// smoothed Weiszfeld iterations on the weights. Arguments and result are those of [`projector_mean`].
///
/// # Errors
/// [`RankDeficient`] if the bases together span fewer than k directions.
pub fn projector_geometric_median(
    bases: &[(f64, Matrix)],
    reference: &Matrix,
) -> Result<Matrix, RankDeficient> {
    let gram = Gram::new(bases);
    let total: f64 = bases.iter().map(|(weight, _)| weight).sum();
    let mut shares: Vec<f64> = bases.iter().map(|(weight, _)| weight / total).collect();
    let least = (SMOOTHING * spread(&gram, bases)).max(SMOOTHING_LEAST);
    for _ in 0..ITERATIONS {
        let away = distances(&gram, &shares);
        let next: Vec<f64> =
            away.iter().zip(bases).map(|(away, (weight, _))| weight / away.max(least)).collect();
        let total: f64 = next.iter().sum();
        let mut moved: f64 = 0.0;
        for (share, next) in shares.iter_mut().zip(next) {
            let next = next / total;
            moved = moved.max((next - *share).abs());
            *share = next;
        }
        if moved <= TOLERANCE {
            break;
        }
    }
    top(bases, &shares, reference)
}

/// Scale of the distances between projectors: the smallest, over all projectors, of the weighted median of
/// the distances from that projector to all projectors. Bad projectors with less than half of the weight can
/// make it neither arbitrarily large nor arbitrarily small.
fn spread(gram: &Gram, bases: &[(f64, Matrix)]) -> f64 {
    let between = |i: usize, j: usize| (gram.at(i, i) - 2.0 * gram.at(i, j) + gram.at(j, j)).max(0.0).sqrt();
    let total: f64 = bases.iter().map(|(weight, _)| weight).sum();
    let mut least = f64::INFINITY;
    for i in 0..gram.size() {
        let away: Vec<(f64, f64)> =
            bases.iter().enumerate().map(|(j, (weight, _))| (between(i, j), *weight)).collect();
        // The median is computed, which needs sorting, only if it can be smaller than the smallest so far.
        // This is rarely the case.
        let nearer: f64 = away.iter().filter(|(away, _)| *away < least).map(|(_, weight)| weight).sum();
        if 2.0 * nearer > (1.0 - ROUNDING) * total {
            least = least.min(weighted_median(away));
        }
    }
    least
}

/// Distances of all projectors from their weighted mean `sum_j shares_j P_j`. The shares must sum to 1.
fn distances(gram: &Gram, shares: &[f64]) -> Vec<f64> {
    let towards = gram.times(shares);
    let own = towards.iter().zip(shares).fold(0.0, |sum, (value, share)| sum + value * share);
    let away = |(i, towards): (usize, &f64)| (gram.at(i, i) - 2.0 * towards + own).max(0.0).sqrt();
    towards.iter().enumerate().map(away).collect()
}

/// Leading k-dimensional eigenspace of `sum_i weights_i P_i`, as the basis nearest to `reference` (d x k).
fn top(bases: &[(f64, Matrix)], weights: &[f64], reference: &Matrix) -> Result<Matrix, RankDeficient> {
    let (d, k) = reference.shape();
    let space = if d <= DENSE {
        let mut sum = Matrix::zeros(d, d);
        for ((_, basis), weight) in bases.iter().zip(weights) {
            add_projector(&mut sum, basis, *weight);
        }
        top_eigenspace(&sum, k)
    } else {
        block_iteration(bases, weights, d, k)?
    };
    // The projection of the reference onto the subspace gives a basis near the reference. So heads from
    // earlier rounds still fit, and the basis depends neither on signs nor on the order of nearly equal
    // eigenvalues.
    let near = product(&space, &product_transposed(&space, reference));
    match orthonormal(&near) {
        Ok(basis) if smallest_pivot(&basis, &near) > ALIGNED => Ok(basis),
        _ => orthonormal(&with_signs(space)),
    }
}

/// Adds `weight U U^T` to `sum`, in the order of rows.
fn add_projector(sum: &mut Matrix, basis: &Matrix, weight: f64) {
    let d = basis.nrows();
    for column in basis.column_iter() {
        for j in 0..d {
            let factor = weight * column[j];
            for i in 0..d {
                sum[(i, j)] += column[i] * factor;
            }
        }
    }
}

/// Leading eigenspace of `sum_i weights_i U_i U_i^T` by orthogonal iteration, without forming the d x d
/// matrix. The iteration starts from a random block slightly wider than k, and the eigenvectors within the
/// block are computed at the end. A small multiple of the identity is added, which changes no eigenvector, so
/// that the block keeps full rank even if all spans are equal.
fn block_iteration(
    bases: &[(f64, Matrix)],
    weights: &[f64],
    d: usize,
    k: usize,
) -> Result<Matrix, RankDeficient> {
    let total: f64 = weights.iter().sum();
    let apply = |block: &Matrix| {
        let mut sum = block * SHIFT;
        for ((_, basis), weight) in bases.iter().zip(weights) {
            sum += product(basis, &product_transposed(basis, block)) * (weight / total);
        }
        sum
    };
    let mut block = random_basis(d, (k + WIDER).min(d), &mut stream(0, Purpose::Start, BLOCK));
    for _ in 0..BLOCK_ITERATIONS {
        let next = orthonormal(&apply(&block))?;
        // Only the first k columns must converge; the others are discarded.
        let moved = principal_angle_distance(&first(&block, k), &first(&next, k));
        block = next;
        if moved <= BLOCK_TOLERANCE {
            break;
        }
    }
    let within = product_transposed(&block, &apply(&block));
    Ok(product(&block, &top_eigenspace(&within, k)))
}

/// First `k` columns of a block.
fn first(block: &Matrix, k: usize) -> Matrix {
    block.columns(0, k).into_owned()
}

/// Smallest diagonal entry of `R` in `near = Q R`.
fn smallest_pivot(q: &Matrix, near: &Matrix) -> f64 {
    let dot = |j: usize| q.column(j).iter().zip(near.column(j).iter()).fold(0.0, |sum, (a, b)| sum + a * b);
    (0..q.ncols()).map(dot).fold(f64::INFINITY, f64::min)
}

/// Flips the signs of columns so that the entry of largest magnitude of each column is positive.
fn with_signs(mut basis: Matrix) -> Matrix {
    for mut column in basis.column_iter_mut() {
        let largest =
            column.iter().copied().fold(0.0f64, |most, v| if v.abs() > most.abs() { v } else { most });
        if largest < 0.0 {
            column.neg_mut();
        }
    }
    basis
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_least_median_distance_bit_for_bit() {
        for seed in 0..200 {
            let random = &mut stream(seed, Purpose::Start, 0);
            let n = 1 + random.below(12);
            let bases: Vec<(f64, Matrix)> =
                (0..n).map(|_| (0.1 * (1 + random.below(9)) as f64, random_basis(5, 2, random))).collect();
            let gram = Gram::new(&bases);
            let between = |i, j| f64::sqrt((gram.at(i, i) - 2.0 * gram.at(i, j) + gram.at(j, j)).max(0.0));
            let median = |i| weighted_median((0..n).map(|j| (between(i, j), bases[j].0)).collect());
            let expected = (0..n).map(median).fold(f64::INFINITY, f64::min);
            assert_eq!(spread(&gram, &bases).to_bits(), expected.to_bits(), "seed {seed}");
        }
    }
}
