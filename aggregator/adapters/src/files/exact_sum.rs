//! The weighted mean of numbers, from their exact sum: one result for one set of clients.
//!
//! Weights are integers below 2^29 and numbers are f32, so products are exact in f64. They are added up in f64 together with
//! what every addition loses (Knuth 1969, 4.2.2: it is an f64 itself). Nearly always that is nothing, and the sum is exact.
//! Elsewhere it is made again as Shewchuk (1997, "Adaptive precision floating-point arithmetic") does, and rounded once. So
//! what is divided is in every case the f64 next to the exact sum, and no order of clients can be seen in it.
//!
//! A product of f64 is two numbers (with a fused multiplication), all of which are added up as Shewchuk does.
//!
//! The mean differs from the exact one by two roundings of f64, 2^-52 of its magnitude, before it is rounded into a file's
//! numbers.

use super::Dtype;

/// Elements that are added up together: they and their sums stay in the nearest cache.
const TOGETHER: usize = 1024;

/// Magnitude of f64 above which sums are made of numbers that are scaled down, and how much.
const WIDE_MAX: f64 = 1e280;
const WIDE_STEP: f64 = 1.0 / (1u64 << 60) as f64;

/// Room to compute in.
#[derive(Clone, Debug)]
pub struct MeanBuffers {
    values: Vec<f32>,
    sums: Vec<f64>,
    lost: Vec<u64>,
    parts: Vec<f64>,
}

impl Default for MeanBuffers {
    fn default() -> Self {
        Self {
            values: vec![0.0; TOGETHER],
            sums: vec![0.0; TOGETHER],
            lost: vec![0; TOGETHER],
            parts: Vec::new(),
        }
    }
}

/// The mean of `blocks`, element by element, into `means`; each block is a weight, an integer below 2^29, and as many numbers
/// of `dtype` as there are means. `total` is the sum of the weights, above 0.
///
/// # Errors
/// The first block and the first element in it that is no finite number.
pub fn weighted_mean(
    blocks: &[(f64, &[u8])],
    dtype: Dtype,
    total: f64,
    means: &mut [f64],
    room: &mut MeanBuffers,
) -> Result<(), (usize, usize)> {
    if dtype == Dtype::F64 {
        return mean_wide(blocks, total, means, &mut room.parts);
    }
    let size = dtype.size();
    for (group, means) in means.chunks_mut(TOGETHER).enumerate() {
        let first = group * TOGETHER;
        let count = means.len();
        let part = |bytes: &[u8]| (first * size).min(bytes.len())..((first + count) * size).min(bytes.len());
        let MeanBuffers { values, sums, lost, parts } = room;
        let (values, sums, lost) = (&mut values[..count], &mut sums[..count], &mut lost[..count]);
        // The only number that changes none that is added to it.
        sums.fill(-0.0);
        lost.fill(0);
        for (weight, bytes) in blocks {
            dtype.decode(&bytes[part(bytes)], values);
            if *weight == 0.0 {
                // It does not count, but is looked at.
                lost.iter_mut()
                    .zip(&*values)
                    .for_each(|(lost, value)| *lost |= u64::from(!value.is_finite()));
            } else {
                add(*weight, values, sums, lost);
            }
        }
        for (index, mean) in means.iter_mut().enumerate() {
            if lost[index] != 0 {
                sums[index] = again(blocks, dtype, first + index, parts).map_err(|block| {
                    // Of that block there may be one before.
                    (block, first_not_finite(blocks[block].1, dtype).unwrap_or(first + index))
                })?;
            }
            *mean = sums[index] / total;
        }
    }
    Ok(())
}

/// The same of f64: a product is two of them, and the mean stays within what is averaged.
fn mean_wide(
    blocks: &[(f64, &[u8])],
    total: f64,
    means: &mut [f64],
    parts: &mut Vec<f64>,
) -> Result<(), (usize, usize)> {
    let size = Dtype::F64.size();
    let at = |bytes: &[u8], index: usize| Dtype::F64.number(bytes.get(index * size..).unwrap_or_default());
    for (block, (_, bytes)) in blocks.iter().enumerate() {
        if let Some(index) = (0..means.len()).find(|index| !at(bytes, *index).is_finite()) {
            return Err((block, index));
        }
    }
    for (index, mean) in means.iter_mut().enumerate() {
        let counted = || blocks.iter().filter(|(weight, _)| *weight != 0.0);
        let values = || counted().map(|(_, bytes)| at(bytes, index));
        let (least, most) = values().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        // Sums of the greatest numbers would overflow.
        let scale = if least < -WIDE_MAX || most > WIDE_MAX { WIDE_STEP } else { 1.0 };
        parts.clear();
        for ((weight, _), value) in counted().zip(values()) {
            let product = weight * (value * scale);
            let rest = weight.mul_add(value * scale, -product);
            if rest != 0.0 {
                grow(parts, rest);
            }
            grow(parts, product);
        }
        *mean = (rounded(parts) / total / scale).clamp(least, most);
    }
    Ok(())
}

/// Adds products; whatever an addition loses, a NaN where something is not finite, leaves bits in `lost`.
fn add(weight: f64, values: &[f32], sums: &mut [f64], lost: &mut [u64]) {
    for ((value, sum), lost) in values.iter().zip(sums).zip(lost) {
        let product = weight * f64::from(*value);
        let (before, after) = (*sum, *sum + product);
        let back = after - before;
        let error = (before - (after - back)) + (product - back);
        *sum = after;
        // Its sign says nothing.
        *lost |= error.to_bits() << 1;
    }
}

/// The f64 next to the exact sum of one element's products, or which block's is not finite.
fn again(blocks: &[(f64, &[u8])], dtype: Dtype, index: usize, parts: &mut Vec<f64>) -> Result<f64, usize> {
    parts.clear();
    for (block, (weight, bytes)) in blocks.iter().enumerate() {
        let mut value = [0.0];
        let from = (index * dtype.size()).min(bytes.len());
        dtype.decode(&bytes[from..], &mut value);
        if !value[0].is_finite() {
            return Err(block);
        }
        grow(parts, weight * f64::from(value[0]));
    }
    Ok(rounded(parts))
}

/// Adds a number to parts that do not overlap, smallest first.
fn grow(parts: &mut Vec<f64>, number: f64) {
    let (mut sum, mut kept) = (number, 0);
    for index in 0..parts.len() {
        let part = parts[index];
        let after = sum + part;
        let back = after - sum;
        let error = (sum - (after - back)) + (part - back);
        if error != 0.0 {
            parts[kept] = error;
            kept += 1;
        }
        sum = after;
    }
    parts.truncate(kept);
    parts.push(sum);
}

/// The f64 next to the sum of parts that do not overlap.
fn rounded(parts: &[f64]) -> f64 {
    let mut rest = parts.iter().rev().copied();
    let mut sum = rest.next().unwrap_or(0.0);
    while let Some(part) = rest.next() {
        let before = sum;
        sum = before + part;
        let error = part - (sum - before);
        if error == 0.0 {
            continue;
        }
        // A tie that went to even goes where the rest pulls it.
        if rest.next().is_some_and(|next| next != 0.0 && (next > 0.0) == (error > 0.0)) {
            let twice = 2.0 * error;
            let pulled = sum + twice;
            if pulled - sum == twice {
                sum = pulled;
            }
        }
        break;
    }
    sum
}

/// Within a block.
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

    /// Integers far apart, which i128 adds up exactly: the quotient is that of the f64 next to the sum, ties to even.
    #[test]
    fn sums_are_those_of_integers() {
        let random = &mut stream(5, Purpose::Start, 2);
        let mut below = |bound: f64| {
            #[allow(clippy::cast_possible_truncation, reason = "rounded down, which is meant")]
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
        assert!(lossy > 5_000, "{lossy} sums that f64 cannot hold");
    }
}
