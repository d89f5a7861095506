//! Backward pass of a dense layer: `out = delta W^T`, optionally masked by the activations of a ReLU.

use super::simd::Vector;
use super::tiles::{Kernel, Tiles, add_products, cover, load, load_tile, rows_of, store_tile};
#[cfg(all(feature = "wide", not(target_os = "none")))]
use super::transpose::transpose_four;
use crate::pace::Pace;

/// Number of outputs processed at a time: the weights of a strip for this many outputs are transposed on the
/// stack.
const PIECE: usize = 32;

/// Backward pass with the shapes of [`super::backward`]. The activations are used only if `MASKED` is true.
pub struct Backward<'a, const MASKED: bool> {
    delta: &'a [f32],
    layer: &'a [f32],
    inputs: usize,
    outputs: usize,
    activations: &'a [f32],
    out: &'a mut [f32],
    pace: Pace<'a>,
}

impl<'a, const MASKED: bool> Backward<'a, MASKED> {
    /// Creates the pass for a layer with a bias.
    pub fn new(
        delta: &'a [f32],
        layer: &'a [f32],
        outputs: usize,
        activations: &'a [f32],
        out: &'a mut [f32],
        pace: Pace<'a>,
    ) -> Self {
        let outputs = outputs.max(1);
        let inputs = (layer.len() / outputs).saturating_sub(1);
        Self { delta, layer, inputs, outputs, activations, out, pace }
    }
}

#[cfg(feature = "adapter")]
impl<'a> Backward<'a, false> {
    /// Creates the pass for weights without a bias.
    pub fn product(
        delta: &'a [f32],
        weights: &'a [f32],
        outputs: usize,
        out: &'a mut [f32],
        pace: Pace<'a>,
    ) -> Self {
        let outputs = outputs.max(1);
        let inputs = weights.len() / outputs;
        Self { delta, layer: weights, inputs, outputs, activations: &[], out, pace }
    }
}

impl<const MASKED: bool> Kernel for Backward<'_, MASKED> {
    #[inline(always)]
    fn run<V: Vector, const ROWS: usize, const COUNT: usize, const WIDTH: usize>(self, v: V) {
        let Self { inputs, outputs, .. } = self;
        let values = if MASKED { self.activations.len() } else { self.out.len() };
        let Some(n) = self.out.len().min(values).checked_div(inputs) else { return };
        let n = n.min(self.delta.len() / outputs);
        let mut strip = TransposedStrip { shapes: self, first: 0, count: 0, weights: [[0.0; WIDTH]; PIECE] };
        while strip.first < outputs {
            strip.count = PIECE.min(outputs - strip.first);
            cover::<V, ROWS, COUNT>(&mut strip, v, 0..n, inputs);
            strip.first += PIECE;
        }
        if !MASKED {
            return;
        }
        let Backward { activations, out, .. } = strip.shapes;
        for (out, activation) in out.iter_mut().zip(activations).take(n * inputs) {
            *out = if *activation > 0.0 { *out } else { 0.0 };
        }
    }
}

/// Strip of transposed weights: the weights of one output are adjacent.
struct TransposedStrip<'a, const MASKED: bool, const WIDTH: usize> {
    shapes: Backward<'a, MASKED>,
    /// Index of the first output of the current piece.
    first: usize,
    /// Number of outputs of the current piece.
    count: usize,
    weights: [[f32; WIDTH]; PIECE],
}

impl<const MASKED: bool, const WIDTH: usize> TransposedStrip<'_, MASKED, WIDTH> {
    /// Transposes the weights of `width` inputs from `column` on.
    #[inline(always)]
    fn transpose(&mut self, column: usize, width: usize) -> Option<()> {
        let Backward { layer, outputs, .. } = self.shapes;
        #[cfg(all(feature = "wide", not(target_os = "none")))]
        for lane in (0..width / 4 * 4).step_by(4) {
            let rows = rows_of(layer.get(self.first..)?, column + lane, outputs, self.count)?;
            transpose_four(rows, self.weights.as_flattened_mut().get_mut(lane..)?, WIDTH)?;
        }
        let done = if cfg!(all(feature = "wide", not(target_os = "none"))) { width / 4 * 4 } else { 0 };
        for lane in done..width {
            let row = layer.get((column + lane) * outputs + self.first..)?.get(..self.count)?;
            for (weights, weight) in self.weights.iter_mut().zip(row) {
                *weights.get_mut(lane)? = *weight;
            }
        }
        Some(())
    }
}

impl<const MASKED: bool, const WIDTH: usize> Tiles for TransposedStrip<'_, MASKED, WIDTH> {
    #[inline(always)]
    fn tile<V: Vector, const R: usize, const C: usize>(
        &mut self,
        v: V,
        row: usize,
        column: usize,
    ) -> Option<()> {
        // Tiles run down a strip, so the first tile of a strip transposes its weights.
        if row == 0 {
            self.transpose(column, C * V::LANES)?;
        }
        let Backward { delta, inputs, outputs, ref mut out, pace, .. } = self.shapes;
        let (first, count) = (self.first, self.count);
        pace.spend(R * C * V::LANES * count);
        let delta = rows_of::<R>(delta.get(first..)?, row, outputs, count)?;
        let offset = row * inputs + column;
        let mut sums = [[v.splat(0.0); C]; R];
        if first > 0 {
            sums = load_tile(v, out, offset, inputs)?;
        }
        let mut o = 0;
        while o < count {
            let weights = load(v, self.weights.get(o)?, 0)?;
            add_products(v, &mut sums, &delta, o, &weights)?;
            o += 1;
        }
        store_tile(v, out, offset, inputs, &sums)
    }
}
