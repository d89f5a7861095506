//! The arithmetic of a noisy product: exact in integers from the rounding of a row on, so that what one record moves is
//! bounded for what is really computed ([`sensitivity`](crate::privacy::sensitivity)). The same bits on every core and
//! for any order of rows.
//!
//! All buffers hold integers in place of floats ([`bit_cast`](super::bit_cast)).

use super::bit_cast::{from_int, to_int};
use crate::privacy::{CERTIFIED, FRACTION};
use crate::task::quantise::{halved, square};

/// One, with the fractional bits of rows and bases.
const ONE: i32 = 1 << FRACTION;

/// The squared norm of a row is at most `2^30`, one.
const SQUARE_MAX: u64 = 1 << (2 * FRACTION);

/// How often a row is made again, smaller, before it is given up.
const TRIES: u32 = 11;

/// `v` in units of 2^-15, halves away from zero. A NaN is 0, what is too large the largest there is.
fn fixed(v: f32) -> i32 {
    halved(v * 65_536.0)
}

/// Replaces a basis by its integers, below 2^15.
pub fn round_basis(basis: &mut [f32]) {
    for value in basis {
        *value = from_int(fixed(*value).clamp(1 - ONE, ONE - 1));
    }
}

/// The same as floats again.
pub fn float_basis(basis: &mut [f32]) {
    for value in basis {
        #[allow(clippy::cast_precision_loss, reason = "15 bits")]
        let integer = to_int(*value) as f32;
        *value = integer / 32_768.0;
    }
}

/// The largest absolute row sum of `Zq^T Zq - 2^30 I`, if it is more than what the sensitivity allows for.
pub fn check_basis(basis: &[f32], r: usize) -> Result<(), u64> {
    let mut worst = 0;
    for i in 0..r {
        let mut sum = 0;
        for j in 0..r {
            let target = if i == j { SQUARE_MAX.cast_signed() } else { 0 };
            sum += (column_dot(basis, r, i, j) - target).unsigned_abs();
        }
        worst = sum.max(worst);
    }
    if worst <= SQUARE_MAX >> CERTIFIED { Ok(()) } else { Err(worst) }
}

/// Of fewer than 2^16 products of magnitude below 2^30.
fn column_dot(basis: &[f32], r: usize, i: usize, j: usize) -> i64 {
    basis.chunks_exact(r.max(1)).fold(0, |sum, row| match (row.get(i), row.get(j)) {
        (Some(p), Some(q)) => sum + i64::from(to_int(*p) * to_int(*q)),
        _ => sum,
    })
}

/// Writes the row `scale x`, of norm 1 at most, into `row`. That its integers have a squared norm of at most 2^30 is
/// checked, and is all that privacy needs of it, whatever happened to the floats before. Where the roundings make it
/// longer, it is made again a little smaller. False if that was to no avail: it is zero then.
pub fn round_row(row: &mut [f32], x: &[f32], mut scale: f32) -> bool {
    // All of them sum up to 2^-7; roundings of 2^16 features make a row longer by 2^-8.
    // What roundings do to the norm of a row of a hundred features is 2^-17 at most times out of three. All steps sum up to
    // 2^-6; roundings of 2^16 features make a row longer by 2^-8.
    let mut step = 1.0 / 131_072.0;
    for _ in 0..TRIES {
        let mut total = 0;
        for (place, &x) in row.iter_mut().zip(x) {
            let integer = fixed(x * scale);
            *place = from_int(integer);
            total += square(integer);
        }
        if total <= SQUARE_MAX {
            return true;
        }
        scale *= 1.0 - step;
        step *= 2.0;
    }
    row.fill(0.0);
    false
}

/// `p = round(Zq^T q / 2^15)`: the row seen through the basis.
///
/// By Cauchy and Schwarz a sum, and each part of it, has a magnitude of at most `|q| |column of Zq|`. The first is at
/// most `2^15`; the second at most `2^15 sqrt(1 + 2^-10)`, since the diagonal of `Zq^T Zq` is part of the row sums that
/// were checked. The product is at most `2^30 + 2^19`: it fits, and so does it with the half that rounds it.
pub fn project(basis: &[f32], row: &[f32], projected: &mut [f32]) {
    let r = projected.len();
    let (blocks, rest) = projected.as_chunks_mut::<4>();
    let mut first = 0;
    for block in blocks {
        *block = columns(basis, r, first, row);
        first += 4;
    }
    for place in rest {
        [*place] = columns(basis, r, first, row);
        first += 1;
    }
}

/// Columns `first..first + W` of it, in registers.
fn columns<const W: usize>(basis: &[f32], r: usize, first: usize, row: &[f32]) -> [f32; W] {
    let mut sums = [0; W];
    for (values, &q) in basis.chunks_exact(r.max(1)).zip(row) {
        let Some(values) = values.get(first..).and_then(<[f32]>::first_chunk::<W>) else { break };
        for (sum, &z) in sums.iter_mut().zip(values) {
            *sum += to_int(q) * to_int(z);
        }
    }
    sums.map(|sum| from_int((sum + ONE / 2) >> FRACTION))
}

/// Adds `round(q_i p_j / 2^(30 - grid))` to the sums, d x r.
///
/// `|q_i| <= 2^15` and `|p_j| <= 2^15 + 16`, so a product is at most `2^30 + 2^20`; with the half that rounds it, at most
/// 2^29, it fits. What is added is then at most `2^grid (1 + 2^-10) + 1/2`, and of n rows with `n 2^grid <= 2^30` the sum
/// is at most `2^30 + 2^20 + 2^29`: it fits.
pub fn accumulate(sums: &mut [f32], row: &[f32], projected: &[f32], grid: u32) {
    let shift = (2 * FRACTION).saturating_sub(grid);
    let half = 1 << shift.saturating_sub(1);
    for (sums, &q) in sums.chunks_exact_mut(projected.len().max(1)).zip(row) {
        let q = to_int(q);
        for (sum, &p) in sums.iter_mut().zip(projected) {
            *sum = from_int(to_int(*sum) + ((q * to_int(p) + half) >> shift));
        }
    }
}
