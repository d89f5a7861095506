//! Symmetric positive definite matrices as packed lower triangles, for posteriors of heads on all features: sums of outer products,
//! Cholesky's factor, and solutions of systems.
//!
//! Row i of a packed d x d matrix has its i + 1 values up to the diagonal; the rows follow one another. A *column* of a row-major
//! matrix is given by the values from its first element on, and the number of columns as the step.

use fedspan_protocol::sqrt::sqrtf;

use super::vector::{at, dot, from_mut, put, subtract};
use crate::pace::Pace;

/// Smallest squared pivot relative to its diagonal element. Smaller pivots may be rounding errors.
const SMALLEST_PIVOT: f32 = 1e-6;

/// Smallest squared pivot, so that no division overflows.
const SMALLEST_SQUARE: f32 = 1e-30;

/// Returns the number of values of a packed d x d matrix.
#[must_use]
pub const fn packed_len(d: usize) -> usize {
    d.saturating_mul(d.saturating_add(1)) / 2
}

/// Returns row `i` of a packed matrix, from its first value to the diagonal.
fn row(packed: &[f32], i: usize) -> &[f32] {
    let first = packed_len(i);
    packed.get(first..first + i + 1).unwrap_or_default()
}

/// Adds `factor x x^T`.
#[inline(never)]
pub fn add_outer(packed: &mut [f32], x: &[f32], factor: f32) {
    let mut rest = packed;
    for (i, &xi) in x.iter().enumerate() {
        let Some((row, after)) = rest.split_at_mut_checked(i + 1) else { return };
        subtract(-factor * xi, x.get(..=i).unwrap_or_default(), row, 1);
        rest = after;
    }
}

/// Adds `value` to every diagonal element of a d x d matrix.
pub fn add_diagonal(packed: &mut [f32], d: usize, value: f32) {
    for i in 0..d {
        let index = packed_len(i + 1) - 1;
        let sum = at(packed, index) + value;
        put(packed, index, sum);
    }
}

/// Returns the largest diagonal element of a d x d matrix that is not negative.
#[must_use]
pub fn largest_diagonal(packed: &[f32], d: usize) -> f32 {
    (0..d).map(|i| at(packed, packed_len(i + 1) - 1)).fold(0.0, f32::max)
}

/// Replaces a d x d matrix by its Cholesky factor, and returns the logarithm of its determinant. Returns `None` if a pivot is too
/// small to be exact; the matrix is then overwritten.
#[must_use]
#[inline(never)]
pub fn factorise(packed: &mut [f32], d: usize, pace: Pace<'_>) -> Option<f32> {
    let mut log_determinant = 0.0;
    for j in 0..d {
        pace.spend(j * (j + 1) / 2 + 2 * j + 40);
        let (above, current) = packed.split_at_mut_checked(packed_len(j))?;
        for i in 0..j {
            let row = row(above, i);
            let (Some((&pivot, row)), Some((done, [value, ..]))) =
                (row.split_last(), current.split_at_mut_checked(i))
            else {
                return None;
            };
            *value = (*value - dot(row, done, 1)) / pivot;
        }
        let Some((done, [pivot, ..])) = current.split_at_mut_checked(j) else { return None };
        let square = *pivot - dot(done, done, 1);
        // The condition is negated so that a NaN fails too.
        if !(square >= SMALLEST_SQUARE && square >= SMALLEST_PIVOT * *pivot && square.is_finite()) {
            return None;
        }
        log_determinant += libm::logf(square);
        *pivot = sqrtf(square);
    }
    Some(log_determinant)
}

/// Solves `L z = x` for one column in place, where L is the factor of a d x d matrix.
#[inline(never)]
pub fn solve_lower(factor: &[f32], d: usize, column: &mut [f32], step: usize, pace: Pace<'_>) {
    let mut rest = factor;
    for i in 0..d {
        pace.spend(i + 4);
        let Some((row, after)) = rest.split_at_checked(i + 1) else { return };
        let Some((&pivot, row)) = row.split_last() else { return };
        let value = (at(column, i * step) - dot(row, column, step)) / pivot;
        put(column, i * step, value);
        rest = after;
    }
}

/// Solves `L^T z = x` for one column in place.
#[inline(never)]
pub fn solve_upper(factor: &[f32], d: usize, column: &mut [f32], step: usize, pace: Pace<'_>) {
    for i in (0..d).rev() {
        pace.spend(i + 4);
        let Some((&pivot, row)) = row(factor, i).split_last() else { return };
        let value = at(column, i * step) / pivot;
        put(column, i * step, value);
        subtract(value, row, column, step);
    }
}

/// Solves `L L^T z = x` for each of the `columns` columns of a matrix in place.
pub fn solve_columns(factor: &[f32], d: usize, matrix: &mut [f32], columns: usize, pace: Pace<'_>) {
    for index in 0..columns {
        let column = from_mut(matrix, index);
        solve_lower(factor, d, column, columns, pace);
        solve_upper(factor, d, column, columns, pace);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

    extern crate std;

    use super::{add_diagonal, add_outer, factorise, packed_len, solve_columns, solve_lower};
    use crate::pace::Pace;

    /// Returns numbers from -1 to 1.
    fn random(state: &mut u64) -> f32 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// The solutions of systems, and the determinant, are those of the matrix: checked by multiplication, and by another order of
    /// elimination in f64.
    #[test]
    fn solutions_satisfy_their_systems() {
        let mut state = 3;
        for d in [1usize, 2, 5, 17, 40] {
            let mut packed = std::vec![0.0f32; packed_len(d)];
            let mut full = std::vec![0.0f64; d * d];
            for _ in 0..2 * d {
                let x: std::vec::Vec<f32> = (0..d).map(|_| random(&mut state)).collect();
                add_outer(&mut packed, &x, 0.5);
                for i in 0..d {
                    for j in 0..d {
                        full[i * d + j] += 0.5 * f64::from(x[i]) * f64::from(x[j]);
                    }
                }
            }
            add_diagonal(&mut packed, d, 0.25);
            (0..d).for_each(|i| full[i * d + i] += 0.25);
            let right: std::vec::Vec<f32> = (0..3 * d).map(|_| random(&mut state)).collect();
            let mut solution = right.clone();
            let log_determinant = factorise(&mut packed, d, Pace::NONE).unwrap();
            solve_columns(&packed, d, &mut solution, 3, Pace::NONE);
            for column in 0..3 {
                for i in 0..d {
                    let product: f64 =
                        (0..d).map(|j| full[i * d + j] * f64::from(solution[3 * j + column])).sum();
                    assert!((product - f64::from(right[3 * i + column])).abs() < 1e-4, "{d}");
                }
            }
            // |L^-1 x|^2 = x^T A^-1 x.
            let mut half: std::vec::Vec<f32> = (0..d).map(|i| right[3 * i]).collect();
            solve_lower(&packed, d, &mut half, 1, Pace::NONE);
            let square: f32 = half.iter().map(|v| v * v).sum();
            let expected: f32 = (0..d).map(|i| right[3 * i] * solution[3 * i]).sum();
            assert!((square - expected).abs() < 1e-4 * expected.abs().max(1.0));
            let mut expected = 0.0f64;
            for pivot in (0..d).rev() {
                let p = full[pivot * d + pivot];
                expected += p.ln();
                for i in 0..pivot {
                    let ratio = full[i * d + pivot] / p;
                    for j in 0..pivot {
                        full[i * d + j] -= ratio * full[pivot * d + j];
                    }
                }
            }
            assert!(
                (f64::from(log_determinant) - expected).abs() < 1e-3,
                "{d}: {log_determinant} {expected}"
            );
        }
    }

    /// A matrix without full rank, or with values that are not finite, has no factor.
    #[test]
    fn matrices_without_full_rank_have_no_factor() {
        for scale in [0.0f32, 1e-20, 1.0, 1e9, 1e20, f32::NAN] {
            let mut packed = [0.0f32; packed_len(6)];
            add_outer(&mut packed, &[scale, scale, 0.0, -scale, 2.0 * scale, scale], 1.0);
            assert_eq!(factorise(&mut packed, 6, Pace::NONE), None, "{scale}");
        }
    }
}
