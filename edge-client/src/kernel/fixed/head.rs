//! Least-squares head in fixed point: solved from integer sums by a triangular factor of `Z^T Z` in f32.
//!
//! A more precise method would gain nothing. `Z` has errors of about 2^-16 of its size, so directions much
//! shorter than the longest one are noise with any method. For directions longer than [`CUT`] the normal
//! equations, although they square the condition number, are exact enough in f32: the rounding error,
//! `(2^10)^2 2^-24`, is 6 % of the squared length of the shortest such direction.

use fedspan_protocol::sqrt::sqrtf;

use super::super::least_squares::Limits;
use super::super::rank::{full_rank, minimum_norm, substitute};
use super::super::vector::{from, from_mut, subtract};
use crate::pace::Pace;

/// Length, relative to the longest direction, below which a direction counts as zero.
pub const CUT: f32 = 1.0 / 1024.0;

/// Solves `Z^T Z W = Z^T Y` for the `W` of least norm. `gram` is the upper triangle of a k x k matrix, with
/// zeros below; `rhs` (k x c) becomes `W`; `scratch` holds k values. Returns the numerical rank. A head that
/// f32 cannot represent becomes zero. Without `has_minimum_norm`, returns `None` if the rank is not full; the arguments are then
/// overwritten.
///
/// The integers of a projection share one scale, so their errors are relative to the largest integer. The
/// units of columns therefore matter: a column that is shorter than [`CUT`] times the longest is cut and not
/// counted in the rank.
#[inline(never)]
pub fn solve(
    gram: &mut [f32],
    rhs: &mut [f32],
    scratch: &mut [f32],
    has_minimum_norm: bool,
    pace: Pace<'_>,
) -> Option<usize> {
    let k = scratch.len();
    let Some(c) = rhs.len().checked_div(k) else { return Some(0) };
    if !factorise(gram, rhs, k, c, pace) {
        if has_minimum_norm {
            return Some(minimum_norm(gram, rhs, scratch, CUT, pace));
        }
        if !full_rank(gram, rhs, scratch, CUT, pace) {
            return None;
        }
    } else {
        substitute(gram, rhs, k, c, pace);
    }
    if rhs.iter().any(|w| !w.is_finite()) {
        rhs.fill(0.0);
        return Some(0);
    }
    Some(k)
}

/// Factorises `Z^T Z = R^T R` in place, and replaces `rhs` by `R^-T Z^T Y`. Rows whose pivot is not above the
/// cut become zero. Returns true if the pivots are so similar that no row needs to be cut.
fn factorise(gram: &mut [f32], rhs: &mut [f32], k: usize, c: usize, pace: Pace<'_>) -> bool {
    let largest_pivot =
        gram.iter().step_by((k + 1).max(1)).fold(0.0f32, |largest_pivot, &pivot| largest_pivot.max(pivot));
    let mut smallest_pivot = largest_pivot;
    for j in 0..k {
        pace.spend((k - j) * ((k - j) / 2 + c + 2));
        let (upper, below) = gram.split_at_mut_checked((j + 1) * k).unwrap_or_default();
        let (rhs_row, rhs_below) = rhs.split_at_mut_checked((j + 1) * c).unwrap_or_default();
        let rhs_row = from_mut(rhs_row, j * c);
        let Some((pivot, row)) = from_mut(upper, j * k + j).split_first_mut() else { return false };
        smallest_pivot = smallest_pivot.min(*pivot);
        if *pivot > CUT * CUT * largest_pivot {
            *pivot = sqrtf(*pivot);
            let inverse = 1.0 / *pivot;
            for value in row.iter_mut().chain(&mut *rhs_row) {
                *value *= inverse;
            }
        } else {
            *pivot = 0.0;
            row.fill(0.0);
            rhs_row.fill(0.0);
        }
        let (mut below, mut rhs_below) = (below, rhs_below);
        for (i, &factor) in row.iter().enumerate() {
            let (Some(below), Some(rhs)) = (below.split_off_mut(..k), rhs_below.split_off_mut(..c)) else {
                break;
            };
            subtract(factor, from(row, i), from_mut(below, j + 1 + i), 1);
            subtract(factor, rhs_row, rhs, 1);
        }
    }
    smallest_pivot >= Limits::WITH_TRIANGULAR.pivot_ratio * largest_pivot && largest_pivot > 0.0
}
