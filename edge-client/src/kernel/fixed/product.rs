//! Products of an integer matrix and an integer vector: projections and residuals in fixed point.

use super::Scale;
use super::scale::{LEAST, integer};

/// Returns the number of halvings that keep a sum of `n` products, each at most 32767^2, below 2^30.
fn count_halvings(n: usize) -> u32 {
    // Counted in a loop, because small cores have no instruction that counts leading zeros.
    let (mut halvings, mut remaining) = (0, n.saturating_sub(1));
    while remaining > 0 {
        (halvings, remaining) = (halvings + 1, remaining / 2);
    }
    halvings
}

/// Computes `A v` as 32-bit integers below 2^30, stored as the bits of floats. `rows` holds the rows of `A`,
/// each as long as `v`; `exponent` is the sum of the exponents of both scales. Returns the exponent of the
/// result.
#[inline(never)]
pub fn products(rows: &[i16], v: &[i16], exponent: i32, wide: &mut [f32]) -> i32 {
    let halvings = count_halvings(v.len());
    let mut rows_left = rows;
    for target in wide {
        let Some((row, later)) = rows_left.split_at_checked(v.len()) else { break };
        rows_left = later;
        *target = f32::from_bits(dot(row, v, halvings).cast_unsigned());
    }
    exponent.saturating_add_unsigned(halvings)
}

/// Replaces `y` (c finite values) by `A v - y`, as 32-bit integers stored as the bits of floats. The other
/// arguments are those of [`products`]. Returns the exponent of the result.
#[inline(never)]
pub fn residuals(rows: &[i16], v: &[i16], exponent: i32, y: &mut [f32]) -> i32 {
    let halvings = count_halvings(v.len());
    let exponent = exponent.saturating_add_unsigned(halvings);
    // The common exponent is so fine that the larger operand keeps 30 bits.
    let targets = Scale::of(y).unwrap_or_default().exponent() - 15;
    let common = exponent.max(targets).max(i32::from(LEAST));
    let shift = common.abs_diff(exponent);
    let mut rows_left = rows;
    for target in y {
        let Some((row, later)) = rows_left.split_at_checked(v.len()) else { break };
        rows_left = later;
        let prediction = halve(dot(row, v, halvings), shift);
        *target = f32::from_bits((prediction - integer(common, *target)).cast_unsigned());
    }
    common
}

/// Computes `value / 2^times`, rounded to nearest.
pub(super) fn halve(value: i32, times: u32) -> i32 {
    let half = if times == 0 { 0 } else { value.unbounded_shr(times - 1) & 1 };
    value.unbounded_shr(times) + half
}

/// Computes `sum of a b / 2^halvings`, rounded to nearest.
///
/// Pairs of products are summed in two words, above and below 2^16: small cores add two words as fast as one
/// number of 64 bits. Two words also avoid a fault of LLVM 22: at opt-level 3 its patterns for the dual
/// multiplications of Cortex-M4 and M7 count products of 64-bit sums twice. The program `lengths` of the
/// emulated boards detects this fault.
#[inline(always)]
fn dot(a: &[i16], b: &[i16], halvings: u32) -> i32 {
    let (a, a_rest) = a.as_chunks::<4>();
    let (b, b_rest) = b.as_chunks::<4>();
    let mut sum = Words { high: 0, low: 0 };
    for (a, b) in a.iter().zip(b) {
        // The sum of two products fits 32 bits.
        sum.add(multiply(a[0], b[0]) + multiply(a[1], b[1]));
        sum.add(multiply(a[2], b[2]) + multiply(a[3], b[3]));
    }
    for (a, b) in a_rest.iter().zip(b_rest) {
        sum.add(multiply(*a, *b));
    }
    sum.halve(halvings)
}

/// Integer `high 2^16 + low`. Neither word overflows with up to 65535 terms of 32 bits.
struct Words {
    /// Upper word.
    high: i32,
    /// Lower word.
    low: u32,
}

impl Words {
    /// Adds one term, split into the two words.
    #[inline(always)]
    fn add(&mut self, term: i32) {
        self.high += term >> 16;
        self.low += term.cast_unsigned() & 0xffff;
    }

    /// Returns the sum without its `times` lowest bits, rounded to nearest; the result must fit 32 bits.
    fn halve(self, times: u32) -> i32 {
        let sum = (i64::from(self.high) << 16) + i64::from(self.low) + i64::from(1u32 << times >> 1);
        // Avoids a 64-bit shift, which is a function call on small cores.
        let (high, low) = (low_half(sum.cast_unsigned() >> 32), low_half(sum.cast_unsigned()));
        ((high << 1 << (31 - times)) | (low >> times)).cast_signed()
    }
}

/// Returns the lower half of a 64-bit number.
#[allow(clippy::cast_possible_truncation, reason = "the lower half")]
fn low_half(value: u64) -> u32 {
    value as u32
}

/// Returns the product of two integers, which fits 32 bits.
fn multiply(a: i16, b: i16) -> i32 {
    i32::from(a) * i32::from(b)
}
