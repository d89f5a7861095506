//! Backward pass of a convolutional layer on a host, without the products with zeros. After pooling, at most one error of
//! a window is not zero, and only if the ReLU passed its maximum.
//!
//! **Bits.** The sums are those of the patches, in the same order. A product with zero does not change a sum if the
//! other factor is finite and the sum is not negative zero; a sum that starts with zero is never negative zero. Other
//! layers are left to the strips.

use alloc::vec;
use alloc::vec::Vec;

use super::super::super::all_within;
use super::super::super::convolution::{Convolution, MaxPooling};
use super::super::super::dense::simd::{Fours, One, Vector};
use super::super::super::dense::tiles::{Kernel, add_scaled, dispatch, load, store};
use super::super::super::dense::transpose::transpose;
use super::Filters;
use crate::pace::Pace;

/// Smallest length of a patch's row for which this pass is faster.
const ROW_MIN: usize = 32;

/// Number of vectors of sums that are computed together: with their operands they fit sixteen registers.
const LARGE: usize = 10;

/// Term of a sum: where its factors begin in the source of the sum, and a common factor.
type Term = (usize, f32);

/// Errors of an image's filters that are not zero.
#[derive(Default)]
struct Errors {
    /// For each filter the terms of its gradient, in ascending order of positions. The source is the image.
    by_filter: Vec<Vec<Term>>,
    /// Terms of the errors of the inputs, position by position, in ascending order of filters. The source are the
    /// transposed weights.
    terms: Vec<Term>,
    /// For each position with an error: the start of its patch in the image, and the end of its terms.
    positions: Vec<(usize, usize)>,
}

impl Errors {
    /// Collects the errors of an image (`delta`, one for each output of the pooling).
    fn collect(&mut self, Filters { convolution, pooling }: &Filters, delta: &[f32], pool_indices: &[u8]) {
        let MaxPooling { channels, rows, columns, .. } = *pooling;
        let patch = convolution.patch();
        self.by_filter.resize(channels, Vec::new());
        self.by_filter.iter_mut().for_each(Vec::clear);
        self.terms.clear();
        self.positions.clear();
        let across = pooling.out_width();
        for y in 0..pooling.out_height() * rows {
            for x in 0..across * columns {
                let first = (y / rows * across + x / columns) * channels;
                let number = y % rows * columns + x % columns;
                let start = convolution.start(y * convolution.out_width() + x);
                let window = delta.iter().zip(pool_indices).skip(first).take(channels);
                let before = self.terms.len();
                for ((filter, terms), (error, index)) in self.by_filter.iter_mut().enumerate().zip(window) {
                    if usize::from(*index) == number && *error != 0.0 {
                        self.terms.push((filter * patch, *error));
                        terms.push((start, *error));
                    }
                }
                if self.terms.len() > before {
                    self.positions.push((start, self.terms.len()));
                }
            }
        }
    }
}

/// Computes the backward pass: adds the gradient to `sums`, and writes the errors of the inputs to `below` (n x inputs).
/// Returns false, and computes nothing, if the layer is left to the strips.
pub fn backward(
    filters: &Filters,
    [x, delta, weights]: [&[f32]; 3],
    pool_indices: &[u8],
    mut below: Option<&mut [f32]>,
    mut sums: Option<&mut [f32]>,
    pace: Pace<'_>,
) -> bool {
    let Filters { convolution, pooling } = *filters;
    let (patch, count) = (convolution.patch(), convolution.filters);
    let is_negative_zero = |sum: &f32| sum.to_bits() == (-0.0_f32).to_bits();
    let is_left = convolution.columns * convolution.channels < ROW_MIN
        || below.is_some() && !all_within(weights, f32::MAX)
        || sums.is_some() && !all_within(x, f32::MAX)
        || sums.as_ref().is_some_and(|sums| sums.iter().any(is_negative_zero))
        || weights.len() != convolution.layer()
        || sums.as_ref().is_some_and(|sums| sums.len() != convolution.layer());
    if is_left {
        return false;
    }
    let mut transposed_weights = vec![0.0; if below.is_some() { patch * count } else { 0 }];
    let mut transposed_sums = vec![0.0; if sums.is_some() { patch * count } else { 0 }];
    if below.is_some() {
        transpose(weights.get(..patch * count).unwrap_or_default(), count, &mut transposed_weights);
    }
    let (mut sums, mut biases) =
        sums.as_mut().and_then(|sums| sums.split_at_mut_checked(patch * count)).unzip();
    if let Some(sums) = &sums {
        transpose(sums, count, &mut transposed_sums);
    }
    let mut errors = Errors::default();
    let (inputs, outputs) = (convolution.inputs().max(1), pooling.outputs().max(1));
    let mut images_below = below.as_mut().map(|below| below.chunks_exact_mut(inputs));
    let images =
        x.chunks_exact(inputs).zip(delta.chunks_exact(outputs).zip(pool_indices.chunks_exact(outputs)));
    for (image, (delta, pool_indices)) in images {
        errors.collect(filters, delta, pool_indices);
        if let Some(biases) = &mut biases {
            for (bias, terms) in biases.iter_mut().zip(&errors.by_filter) {
                *bias = terms.iter().fold(*bias, |sum, (_, error)| sum + error);
            }
            dispatch(Gradient { convolution, errors: &errors, image, sums: &mut transposed_sums, pace });
        }
        if let Some(below) = images_below.as_mut().and_then(Iterator::next) {
            below.fill(0.0);
            dispatch(InputErrors { convolution, errors: &errors, weights: &transposed_weights, below, pace });
            super::super::super::dense::relu_errors(image, below);
        }
    }
    if let Some(sums) = &mut sums {
        transpose(&transposed_sums, patch, sums);
    }
    true
}

/// Gradient of an image, added to the transposed sums, filters x patch.
struct Gradient<'a> {
    convolution: Convolution,
    errors: &'a Errors,
    image: &'a [f32],
    sums: &'a mut [f32],
    pace: Pace<'a>,
}

impl Kernel for Gradient<'_> {
    #[inline(always)]
    fn run<V: Vector, const ROWS: usize, const COUNT: usize, const WIDTH: usize>(self, v: V) {
        let Self { convolution, errors, image, sums, pace } = self;
        let (line, row) =
            (convolution.width * convolution.channels, convolution.columns * convolution.channels);
        for (sums, terms) in sums.chunks_exact_mut(convolution.patch().max(1)).zip(&errors.by_filter) {
            pace.spend(terms.len() * sums.len());
            for (y, sums) in sums.chunks_exact_mut(row.max(1)).enumerate() {
                add_row::<V, true>(v, terms, image.get(y * line..).unwrap_or_default(), sums);
            }
        }
    }
}

/// Errors of an image's inputs, added to `below`.
struct InputErrors<'a> {
    convolution: Convolution,
    errors: &'a Errors,
    /// Transposed weights, filters x patch.
    weights: &'a [f32],
    below: &'a mut [f32],
    pace: Pace<'a>,
}

impl Kernel for InputErrors<'_> {
    #[inline(always)]
    fn run<V: Vector, const ROWS: usize, const COUNT: usize, const WIDTH: usize>(self, v: V) {
        let Self { convolution, errors, weights, below, pace } = self;
        let (line, row) =
            (convolution.width * convolution.channels, convolution.columns * convolution.channels);
        let mut first = 0;
        for &(start, end) in &errors.positions {
            let terms = errors.terms.get(first..end).unwrap_or_default();
            first = end;
            pace.spend(terms.len() * convolution.patch());
            for y in 0..convolution.rows {
                let below = below.get_mut(start + y * line..).and_then(|below| below.get_mut(..row));
                let weights = weights.get(y * row..).unwrap_or_default();
                add_row::<V, false>(v, terms, weights, below.unwrap_or_default());
            }
        }
    }
}

/// Adds the terms to the sums of a patch's row, from the last block of vectors to the first. Sums with `CHAINED` continue
/// with the terms; otherwise the terms are summed first.
#[inline(always)]
fn add_row<V: Vector, const CHAINED: bool>(
    v: V,
    terms: &[Term],
    source: &[f32],
    sums: &mut [f32],
) -> Option<()> {
    let mut end = sums.len();
    while end > 0 {
        let large = end.is_multiple_of(LARGE * V::LANES);
        let whole = end.is_multiple_of(V::LANES);
        let four = end.is_multiple_of(Fours::LANES);
        end -= match () {
            () if large => LARGE * V::LANES,
            () if whole => V::LANES,
            () if four => Fours::LANES,
            () => 1,
        };
        let (source, sums) = (source.get(end..)?, sums.get_mut(end..)?);
        match () {
            () if large => add::<V, LARGE, CHAINED>(v, terms, source, sums)?,
            () if whole => add::<V, 1, CHAINED>(v, terms, source, sums)?,
            () if four => add::<Fours, 1, CHAINED>(Fours, terms, source, sums)?,
            () => add::<One, 1, CHAINED>(One, terms, source, sums)?,
        }
    }
    Some(())
}

/// Adds the terms to the first `C` vectors of sums.
#[inline(always)]
fn add<V: Vector, const C: usize, const CHAINED: bool>(
    v: V,
    terms: &[Term],
    source: &[f32],
    sums: &mut [f32],
) -> Option<()> {
    let mut vectors = [v.splat(0.0); C];
    if CHAINED {
        vectors = load(v, sums, 0)?;
    }
    for &(from, factor) in terms {
        let factors = load(v, source, from)?;
        add_scaled(v, &mut vectors, factor, &factors);
    }
    if !CHAINED {
        let before = load::<V, C>(v, sums, 0)?;
        for (vector, before) in vectors.iter_mut().zip(before) {
            *vector = v.add(before, *vector);
        }
    }
    store(v, sums, 0, &vectors)
}
