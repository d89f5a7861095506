//! Weighted mean with an exact sum, so that the result does not depend on the order of clients.
//!
//! Weights are integers below 2^29 and values are f32, so every product is exact in f64. A first pass adds
//! the products in f64 and computes the rounding error of every addition, which is an f64 itself (Knuth 1969,
//! 4.2.2). In most cases all errors are zero and the sum is exact. Otherwise the sum is computed again with
//! Shewchuk's expansions (1997, "Adaptive precision floating-point arithmetic") and rounded once. In both
//! cases the result is the f64 nearest to the exact sum, which is then divided by the sum of the weights.
//!
//! For f64 values, a product is represented as the sum of two f64 (computed with a fused multiply-add), and
//! all parts are added with Shewchuk's expansions.
//!
//! Before it is rounded to the dtype of the file, the mean differs from the exact mean by two roundings in
//! f64, that is by at most 2^-52 of its magnitude.

use super::Dtype;

/// Number of elements per pass. The values and sums of so many elements fit the L1 cache.
const CHUNK: usize = 1024;

/// Magnitude above which f64 values are scaled down before they are added.
const WIDE_MAX: f64 = 1e280;

/// Scale that is applied to values above [`WIDE_MAX`].
const WIDE_SCALE: f64 = 1.0 / (1u64 << 60) as f64;

/// Buffers of [`weighted_mean`], which are reused between calls.
#[derive(Clone, Debug)]
pub struct MeanBuffers {
    values: Vec<f32>,
    sums: Vec<f64>,
    inexact: Vec<u64>,
    parts: Vec<f64>,
}

impl Default for MeanBuffers {
    fn default() -> Self {
        Self { values: vec![0.0; CHUNK], sums: vec![0.0; CHUNK], inexact: vec![0; CHUNK], parts: Vec::new() }
    }
}

/// Writes the weighted mean of `blocks` to `means`, element by element. A block consists of a weight (an
/// integer below 2^29) and one little-endian value of `dtype` per mean. `total` is the sum of the weights,
/// which must be above 0.
///
/// # Errors
/// Index of the first block with a value that is not finite, and the index of that value in the block.
pub fn weighted_mean(
    blocks: &[(f64, &[u8])],
    dtype: Dtype,
    total: f64,
    means: &mut [f64],
    buffers: &mut MeanBuffers,
) -> Result<(), (usize, usize)> {
    if dtype == Dtype::F64 {
        return mean_wide(blocks, total, means, &mut buffers.parts);
    }
    let size = dtype.size();
    for (group, means) in means.chunks_mut(CHUNK).enumerate() {
        let first = group * CHUNK;
        let count = means.len();
        let byte_range =
            |bytes: &[u8]| (first * size).min(bytes.len())..((first + count) * size).min(bytes.len());
        let MeanBuffers { values, sums, inexact, parts } = buffers;
        let values = &mut values[..count];
        let sums = &mut sums[..count];
        let inexact = &mut inexact[..count];
        // Sums begin with -0.0, the neutral element of addition: 0.0 would turn a sum of -0.0 into 0.0.
        sums.fill(-0.0);
        inexact.fill(0);
        for (weight, bytes) in blocks {
            dtype.decode(&bytes[byte_range(bytes)], values);
            if *weight == 0.0 {
                // A client with weight 0 is not added, but its values must be finite.
                inexact
                    .iter_mut()
                    .zip(&*values)
                    .for_each(|(inexact, value)| *inexact |= u64::from(!value.is_finite()));
            } else {
                add_products(*weight, values, sums, inexact);
            }
        }
        for (index, mean) in means.iter_mut().enumerate() {
            if inexact[index] != 0 {
                sums[index] = exact_sum(blocks, dtype, first + index, parts).map_err(|block| {
                    // The block may have an earlier value that is not finite.
                    (block, first_not_finite(blocks[block].1, dtype).unwrap_or(first + index))
                })?;
            }
            *mean = sums[index] / total;
        }
    }
    Ok(())
}

/// Weighted mean of f64 values, clamped to the range of the values that are averaged.
fn mean_wide(
    blocks: &[(f64, &[u8])],
    total: f64,
    means: &mut [f64],
    parts: &mut Vec<f64>,
) -> Result<(), (usize, usize)> {
    let size = Dtype::F64.size();
    let value_at =
        |bytes: &[u8], index: usize| Dtype::F64.number(bytes.get(index * size..).unwrap_or_default());
    for (block, (_, bytes)) in blocks.iter().enumerate() {
        if let Some(index) = (0..means.len()).find(|index| !value_at(bytes, *index).is_finite()) {
            return Err((block, index));
        }
    }
    for (index, mean) in means.iter_mut().enumerate() {
        let weighted = || blocks.iter().filter(|(weight, _)| *weight != 0.0);
        let values = || weighted().map(|(_, bytes)| value_at(bytes, index));
        let (smallest, largest) = values()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(smallest, largest), value| {
                (smallest.min(value), largest.max(value))
            });
        // Sums of values near f64::MAX would overflow.
        let scale = if smallest < -WIDE_MAX || largest > WIDE_MAX { WIDE_SCALE } else { 1.0 };
        parts.clear();
        for ((weight, _), value) in weighted().zip(values()) {
            let product = weight * (value * scale);
            let product_error = weight.mul_add(value * scale, -product);
            if product_error != 0.0 {
                grow_expansion(parts, product_error);
            }
            grow_expansion(parts, product);
        }
        *mean = (round_expansion(parts) / total / scale).clamp(smallest, largest);
    }
    Ok(())
}

/// Adds the products of `weight` and `values` to `sums`. A rounding error, or a value that is not finite,
/// sets bits in `inexact`.
fn add_products(weight: f64, values: &[f32], sums: &mut [f64], inexact: &mut [u64]) {
    for ((value, sum), inexact) in values.iter().zip(sums).zip(inexact) {
        let product = weight * f64::from(*value);
        let (old_sum, new_sum) = (*sum, *sum + product);
        let added = new_sum - old_sum;
        let error = (old_sum - (new_sum - added)) + (product - added);
        *sum = new_sum;
        // Removes the sign bit, because an error of -0.0 is not an error.
        *inexact |= error.to_bits() << 1;
    }
}

/// Exact sum of the products of one element, rounded once to f64. The error is the index of the first block
/// whose value is not finite.
fn exact_sum(
    blocks: &[(f64, &[u8])],
    dtype: Dtype,
    index: usize,
    parts: &mut Vec<f64>,
) -> Result<f64, usize> {
    parts.clear();
    for (block, (weight, bytes)) in blocks.iter().enumerate() {
        let mut value = [0.0];
        let from = (index * dtype.size()).min(bytes.len());
        dtype.decode(&bytes[from..], &mut value);
        if !value[0].is_finite() {
            return Err(block);
        }
        grow_expansion(parts, weight * f64::from(value[0]));
    }
    Ok(round_expansion(parts))
}

/// Adds a number to an expansion of non-overlapping parts in ascending order (Shewchuk's Grow-Expansion).
fn grow_expansion(parts: &mut Vec<f64>, number: f64) {
    let mut sum = number;
    let mut kept_parts = 0;
    for index in 0..parts.len() {
        let part = parts[index];
        let new_sum = sum + part;
        let added = new_sum - sum;
        let error = (sum - (new_sum - added)) + (part - added);
        if error != 0.0 {
            parts[kept_parts] = error;
            kept_parts += 1;
        }
        sum = new_sum;
    }
    parts.truncate(kept_parts);
    parts.push(sum);
}

/// Sum of an expansion, rounded once to the nearest f64.
fn round_expansion(parts: &[f64]) -> f64 {
    let mut smaller_parts = parts.iter().rev().copied();
    let mut sum = smaller_parts.next().unwrap_or(0.0);
    while let Some(part) = smaller_parts.next() {
        let old_sum = sum;
        sum = old_sum + part;
        let error = part - (sum - old_sum);
        if error == 0.0 {
            continue;
        }
        // A tie was rounded to even, which is wrong if the remaining parts lie on the other side of the
        // midpoint.
        if smaller_parts.next().is_some_and(|next| next != 0.0 && (next > 0.0) == (error > 0.0)) {
            let doubled_error = 2.0 * error;
            let corrected = sum + doubled_error;
            if corrected - sum == doubled_error {
                sum = corrected;
            }
        }
        break;
    }
    sum
}

/// Index of the first value of a block that is not finite.
fn first_not_finite(bytes: &[u8], dtype: Dtype) -> Option<usize> {
    let mut value = [0.0];
    bytes.chunks(dtype.size()).position(|bytes| {
        dtype.decode(bytes, &mut value);
        !value[0].is_finite()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{MeanBuffers, weighted_mean};
    use crate::files::Dtype;
    use fedspan_engine::random::{Purpose, stream};

    /// For integers of very different magnitude, whose sum is exact in i128, the result is the f64 nearest to
    /// the exact sum, ties to even.
    #[test]
    fn sums_match_exact_integer_sums() {
        let random = &mut stream(5, Purpose::Start, 2);
        let mut below = |bound: f64| {
            #[allow(clippy::cast_possible_truncation, reason = "rounding down is intended")]
            let drawn = (random.normal().abs() * 1e6 % 1.0 * bound) as i64;
            drawn
        };
        let mut lossy = 0;
        for _ in 0..20_000 {
            let count = 2 + below(6.0);
            let terms: Vec<(i64, i64, i64)> = (0..count)
                .map(|_| {
                    let sign = if below(2.0) == 0 { 1 } else { -1 };
                    (1 + below(4.0), sign * below(16_777_216.0), below(7.0) * 11)
                })
                .collect();
            let sum: i128 = terms.iter().map(|(w, m, e)| i128::from(w * m) << e).sum();
            #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "24 bits")]
            let values: Vec<[u8; 4]> = terms
                .iter()
                .map(|(_, m, e)| ((*m as f64) * (*e as f64).exp2()) as f32)
                .map(f32::to_le_bytes)
                .collect();
            #[allow(clippy::cast_precision_loss, reason = "small")]
            let blocks: Vec<(f64, &[u8])> =
                terms.iter().zip(&values).map(|((w, ..), bytes)| (*w as f64, &bytes[..])).collect();
            let mut means = [0.0];
            weighted_mean(&blocks, Dtype::F32, 1.0, &mut means, &mut MeanBuffers::default()).unwrap();
            #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "to the nearest")]
            let (expected, exact) = (sum as f64, sum as f64 as i128 == sum);
            assert_eq!(means[0].abs().to_bits(), expected.abs().to_bits(), "{terms:?}");
            lossy += usize::from(!exact);
        }
        assert!(lossy > 5_000, "only {lossy} sums are inexact in f64");
    }
}
