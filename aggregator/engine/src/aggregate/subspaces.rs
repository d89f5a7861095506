//! Rules for subspaces. A subspace of k directions is its orthogonal projector `P = U U^T`: unlike a basis that
//! has no signs and no rotation that devices could disagree about.
//!
//! The mean of projectors, and their geometric median (the Subspace-Median of Singh and Vaswani 2024), each then
//! cut to the k largest eigenvalues. No projector is formed for a device: the inner products of all pairs give all
//! distances, and the median is a weighted mean of the projectors whose weights alone are iterated. Were the mean formed
//! instead (d x d), an iteration would cost more for up to d^2 k devices, and the scale of the smoothing asks for
//! all pairs all the same.

use super::gram::Gram;
use super::weighted_median;
use crate::linalg::{
    Matrix, RankDeficient, orthonormal, principal_angle_distance, product, product_transposed, random_basis,
    top_eigenspace,
};
use crate::random::{Purpose, stream};

/// Smallest distance of projectors that is divided by, in [`spread`]s: wide, as for the geometric median of numbers.
const SMOOTHING: f64 = 1.0;
/// And at least so much, where half of the weight is one projector: bases that were rounded for their way are.
const SMOOTHING_LEAST: f64 = 1e-6;
/// What sums of the same weights in another order may differ by, relatively.
const ROUNDING: f64 = 1e-9;
/// The weights stand still when none changes by more.
const TOLERANCE: f64 = 1e-10;
/// Iterations at most.
const ITERATIONS: usize = 300;
/// Smallest pivot with which the new span is described in the terms of the old basis.
const ALIGNED: f64 = 1e-6;
/// Largest d for which the mean of the projectors is formed and decomposed; above it, block iteration.
const DENSE: usize = 256;
/// Block iterations at most, and the largest change (sine) at which they end.
const BLOCK_ITERATIONS: usize = 200;
const BLOCK_TOLERANCE: f64 = 1e-12;
/// Columns of the block beyond k, what is added to all eigenvalues, and the number of the block's random stream.
const WIDER: usize = 8;
const SHIFT: f64 = 1e-3;
const BLOCK: u64 = 1 << 32;

/// The k-dimensional subspace in which most of the weighted mean of the projectors lies, as the orthonormal
/// basis (d x k) that is nearest to `reference` (d x k). `bases` are orthonormal, d x k, with their weights.
///
/// # Errors
/// [`RankDeficient`] if the bases span fewer than k directions between them.
pub fn projector_mean(bases: &[(f64, Matrix)], reference: &Matrix) -> Result<Matrix, RankDeficient> {
    let weights: Vec<f64> = bases.iter().map(|(weight, _)| *weight).collect();
    top(bases, &weights, reference)
}

/// The same of the geometric median of the projectors in the Frobenius norm: smoothed Weiszfeld iterations on the
/// weights.
///
/// # Errors
/// As [`projector_mean`].
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

/// How far the projectors are from one another: the least median distance that one of them has to all. The bad ones, as
/// long as they are under half of the weight, can neither make it large nor small.
fn spread(gram: &Gram, bases: &[(f64, Matrix)]) -> f64 {
    let between = |i: usize, j: usize| (gram.at(i, i) - 2.0 * gram.at(i, j) + gram.at(j, j)).max(0.0).sqrt();
    let total: f64 = bases.iter().map(|(weight, _)| weight).sum();
    let mut least = f64::INFINITY;
    for i in 0..gram.size() {
        let away: Vec<(f64, f64)> =
            bases.iter().enumerate().map(|(j, (weight, _))| (between(i, j), *weight)).collect();
        // Whose median is not less needs no sorting: that is nearly all of them.
        let nearer: f64 = away.iter().filter(|(away, _)| *away < least).map(|(_, weight)| weight).sum();
        if 2.0 * nearer > (1.0 - ROUNDING) * total {
            least = least.min(weighted_median(away));
        }
    }
    least
}

/// Distances of all projectors from `sum_j shares_j P_j`, whose shares sum to 1.
fn distances(gram: &Gram, shares: &[f64]) -> Vec<f64> {
    let towards = gram.times(shares);
    let own = towards.iter().zip(shares).fold(0.0, |sum, (value, share)| sum + value * share);
    let away = |(i, towards): (usize, &f64)| (gram.at(i, i) - 2.0 * towards + own).max(0.0).sqrt();
    towards.iter().enumerate().map(away).collect()
}

/// The top eigenspace of `sum_i weights_i P_i`, in the basis nearest to `reference`.
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
    // The span in the terms of the old basis: heads that go on from round to round still fit, and neither signs
    // nor the order of nearly equal eigenvalues matter.
    let near = product(&space, &product_transposed(&space, reference));
    match orthonormal(&near) {
        Ok(basis) if smallest_pivot(&basis, &near) > ALIGNED => Ok(basis),
        _ => orthonormal(&with_signs(space)),
    }
}

/// `sum += weight U U^T`, by rows in order.
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

/// Orthogonal iteration with `sum_i weights_i U_i U_i^T`, never formed, on a random block that is a little wider than
/// k; the eigenvectors within the block are found at the end. A small multiple of the identity, which moves no
/// eigenvector, keeps the block at full rank where all spans are one.
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
        // Only the first columns have to stand still: the others converge to nothing that is wanted.
        let moved = principal_angle_distance(&first(&block, k), &first(&next, k));
        block = next;
        if moved <= BLOCK_TOLERANCE {
            break;
        }
    }
    let within = product_transposed(&block, &apply(&block));
    Ok(product(&block, &top_eigenspace(&within, k)))
}

fn first(block: &Matrix, k: usize) -> Matrix {
    block.columns(0, k).into_owned()
}

/// The smallest diagonal entry of `R` in `near = Q R`.
fn smallest_pivot(q: &Matrix, near: &Matrix) -> f64 {
    let dot = |j: usize| q.column(j).iter().zip(near.column(j).iter()).fold(0.0, |sum, (a, b)| sum + a * b);
    (0..q.ncols()).map(dot).fold(f64::INFINITY, f64::min)
}

/// Every column with its largest entry positive.
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
    fn the_spread_is_the_least_of_all_medians_bit_by_bit() {
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
