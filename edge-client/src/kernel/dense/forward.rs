//! Forward pass of a dense layer: `out = x W + bias`, or `out += x W` without a bias.

use super::super::vector;
use super::simd::Vector;
use super::tiles::{Kernel, Tiles, add_products, cover, load, load_tile, rows_of, store_tile};
use crate::pace::Pace;

/// Number of inputs processed at a time: their weights stay in the first-level cache for all samples.
const PIECE: usize = 32;

/// Forward pass with the shapes of [`super::forward`]. Sums start with the bias, or with the values of `out`
/// if there is no bias.
pub struct Forward<'a, const BIASED: bool> {
    x: &'a [f32],
    layer: &'a [f32],
    inputs: usize,
    outputs: usize,
    out: &'a mut [f32],
    /// Index of the first input of the current piece.
    first: usize,
    /// Number of inputs of the current piece.
    count: usize,
    pace: Pace<'a>,
}

impl<'a> Forward<'a, true> {
    /// Creates the pass for a layer with a bias.
    pub fn new(x: &'a [f32], layer: &'a [f32], outputs: usize, out: &'a mut [f32], pace: Pace<'a>) -> Self {
        let outputs = outputs.max(1);
        let inputs = (layer.len() / outputs).saturating_sub(1);
        Self { x, layer, inputs, outputs, out, first: 0, count: 0, pace }
    }
}

#[cfg(any(feature = "adapter", all(feature = "recurrent", feature = "wide", not(target_os = "none"))))]
impl<'a> Forward<'a, false> {
    /// Creates the pass for weights without a bias.
    pub fn product(
        x: &'a [f32],
        weights: &'a [f32],
        outputs: usize,
        out: &'a mut [f32],
        pace: Pace<'a>,
    ) -> Self {
        let outputs = outputs.max(1);
        let inputs = weights.len() / outputs;
        Self { x, layer: weights, inputs, outputs, out, first: 0, count: 0, pace }
    }
}

impl<const BIASED: bool> Kernel for Forward<'_, BIASED> {
    #[inline(always)]
    fn run<V: Vector, const ROWS: usize, const COUNT: usize, const WIDTH: usize>(mut self, v: V) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let n = self.out.len() / outputs;
        let n = self.x.len().checked_div(inputs).map_or(n, |rows| rows.min(n));
        if BIASED {
            let Some(bias) = self.layer.get(inputs * outputs..).and_then(|b| b.get(..outputs)) else {
                return;
            };
            for out in self.out.chunks_exact_mut(outputs).take(n) {
                out.copy_from_slice(bias);
            }
        }
        while self.first < inputs {
            self.count = PIECE.min(inputs - self.first);
            cover::<V, ROWS, COUNT>(&mut self, v, 0..n, outputs);
            self.first += PIECE;
        }
    }
}

impl<const BIASED: bool> Tiles for Forward<'_, BIASED> {
    #[inline(always)]
    fn tile<V: Vector, const R: usize, const C: usize>(
        &mut self,
        v: V,
        row: usize,
        column: usize,
    ) -> Option<()> {
        let Self { x, layer, inputs, outputs, ref mut out, first, count, pace } = *self;
        pace.spend(R * C * V::LANES * count);
        let x = rows_of::<R>(x.get(first..)?, row, inputs, count)?;
        let mut sums = load_tile::<V, R, C>(v, out, row * outputs + column, outputs)?;
        let mut weights = layer.get(first * outputs + column..)?;
        let mut i = 0;
        while i < count {
            let w = load(v, weights, 0)?;
            add_products(v, &mut sums, &x, i, &w)?;
            // Without a bias the slice ends after the last row of weights.
            weights = if BIASED { weights.get(outputs..)? } else { vector::from(weights, outputs) };
            i += 1;
        }
        store_tile(v, out, row * outputs + column, outputs, &sums)
    }
}
