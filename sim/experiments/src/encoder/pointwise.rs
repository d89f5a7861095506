//! Elementwise and row-wise functions of the encoder, with their backward passes: layer normalisation, GELU
//! and softmax. All sums have a fixed order.

use fedspan_client::kernel::elementary::exp;
use pulp::{Arch, Simd, WithSimd};

use super::error_function::erf;
use super::model::Norm;

/// Intermediate values of a layer normalisation that the backward pass needs.
#[derive(Clone, Debug, Default)]
pub struct NormCache {
    /// Normalised values, n x d: mean 0 and variance 1 in each row.
    pub scaled: Vec<f32>,
    /// Inverse standard deviation of each row.
    pub inverse: Vec<f32>,
}

/// Sums `values(0)` to `values(count - 1)` in eight lanes that are added at the end.
fn sum(values: impl Fn(usize) -> f32, count: usize) -> f32 {
    let mut sums = [0.0_f32; 8];
    let full = count - count % 8;
    for first in (0..full).step_by(8) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += values(first + lane);
        }
    }
    let [s0, s1, s2, s3, s4, s5, s6, s7] = sums;
    let partial_total = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7));
    (full..count).fold(partial_total, |sum, index| sum + values(index))
}

/// Normalises each row (n x d) to mean 0 and variance 1, then applies weight and bias (Ba et al. 2016).
pub fn normalize(values: &mut [f32], norm: &Norm, epsilon: f32) -> NormCache {
    let d = norm.weight.len();
    let mut cache = NormCache { scaled: Vec::with_capacity(values.len()), inverse: Vec::new() };
    for row in values.chunks_exact_mut(d) {
        let mean = sum(|i| row[i], d) / d as f32;
        let variance = sum(|i| (row[i] - mean) * (row[i] - mean), d) / d as f32;
        let inverse = 1.0 / (variance + epsilon).sqrt();
        for ((value, weight), bias) in row.iter_mut().zip(&norm.weight).zip(&norm.bias) {
            let scaled = (*value - mean) * inverse;
            cache.scaled.push(scaled);
            *value = scaled * weight + bias;
        }
        cache.inverse.push(inverse);
    }
    cache
}

/// Backward pass of [`normalize`]: replaces the gradient with respect to the output (n x d) by the gradient
/// with respect to the input.
pub fn normalize_errors(errors: &mut [f32], cache: &NormCache, norm: &Norm) {
    let d = norm.weight.len();
    let rows = errors.chunks_exact_mut(d).zip(cache.scaled.chunks_exact(d)).zip(&cache.inverse);
    for ((row, scaled), inverse) in rows {
        row.iter_mut().zip(&norm.weight).for_each(|(error, weight)| *error *= weight);
        let mean = sum(|i| row[i], d) / d as f32;
        let along = sum(|i| row[i] * scaled[i], d) / d as f32;
        for (error, scaled) in row.iter_mut().zip(scaled) {
            *error = (*error - mean - scaled * along) * inverse;
        }
    }
}

/// Replaces each value x by `x P(x)`, where P is the standard normal distribution function (GELU; Hendrycks
/// and Gimpel 2016). Returns the derivatives if `derive` is true, otherwise an empty vector.
pub fn gelu(values: &mut [f32], derive: bool) -> Vec<f32> {
    struct Gelu<'a>(&'a mut [f32], &'a mut [f32]);

    impl WithSimd for Gelu<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(values, slopes) = self;
            if slopes.is_empty() {
                return values.iter_mut().for_each(|x| *x = gelu_and_slope(*x).0);
            }
            for (x, slope) in values.iter_mut().zip(slopes) {
                (*x, *slope) = gelu_and_slope(*x);
            }
        }
    }

    let mut slopes = vec![0.0; if derive { values.len() } else { 0 }];
    Arch::new().dispatch(Gelu(values, &mut slopes));
    slopes
}

/// Returns GELU and its derivative at x.
#[inline(always)]
fn gelu_and_slope(x: f32) -> (f32, f32) {
    const DENSITY: f32 = 0.398_942_3;
    let normal_cdf = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
    (x * normal_cdf, normal_cdf + x * DENSITY * exp(-0.5 * x * x))
}

/// Replaces each row of `columns` values by its softmax.
pub fn softmax(values: &mut [f32], columns: usize) {
    struct Softmax<'a>(&'a mut [f32], usize);

    impl WithSimd for Softmax<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(values, columns) = self;
            for row in values.chunks_exact_mut(columns) {
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                row.iter_mut().for_each(|value| *value = exp(*value - largest));
                let total = sum(|i| row[i], columns);
                row.iter_mut().for_each(|value| *value /= total);
            }
        }
    }

    Arch::new().dispatch(Softmax(values, columns));
}

/// Backward pass of [`softmax`]: replaces the gradient with respect to the output by the gradient with
/// respect to the input.
pub fn softmax_errors(errors: &mut [f32], probabilities: &[f32], columns: usize) {
    for (row, part) in errors.chunks_exact_mut(columns).zip(probabilities.chunks_exact(columns)) {
        let along = sum(|i| row[i] * part[i], columns);
        for (error, part) in row.iter_mut().zip(part) {
            *error = part * (*error - along);
        }
    }
}
