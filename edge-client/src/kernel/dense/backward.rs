//! `out = delta W^T`, where an activation is positive.

use super::tiles::{Kernel, Tiles, add_products, cover, rows_of, run_of, run_of_mut};

/// Outputs at a time: so many columns of a strip of weights are turned round on the stack.
const PIECE: usize = 32;

/// Shapes as in [`super::backward`].
pub struct Backward<'a> {
    delta: &'a [f32],
    layer: &'a [f32],
    inputs: usize,
    outputs: usize,
    activations: &'a [f32],
    out: &'a mut [f32],
}

impl<'a> Backward<'a> {
    pub fn new(
        delta: &'a [f32],
        layer: &'a [f32],
        outputs: usize,
        activations: &'a [f32],
        out: &'a mut [f32],
    ) -> Self {
        let outputs = outputs.max(1);
        let inputs = (layer.len() / outputs).saturating_sub(1);
        Self { delta, layer, inputs, outputs, activations, out }
    }
}

impl Kernel for Backward<'_> {
    #[inline(always)]
    fn run<const ROWS: usize, const WIDTH: usize>(self) {
        let Self { inputs, outputs, .. } = self;
        let Some(n) = self.out.len().min(self.activations.len()).checked_div(inputs) else { return };
        let n = n.min(self.delta.len() / outputs);
        let mut turned = Turned { shapes: self, first: 0, count: 0, weights: [[0.0; WIDTH]; PIECE] };
        while turned.first < outputs {
            turned.count = PIECE.min(outputs - turned.first);
            cover::<ROWS, WIDTH>(&mut turned, 0..n, inputs);
            turned.first += PIECE;
        }
    }
}

/// A strip of weights that lies so that one output's are side by side.
struct Turned<'a, const WIDTH: usize> {
    shapes: Backward<'a>,
    /// The outputs at hand, and how many.
    first: usize,
    count: usize,
    weights: [[f32; WIDTH]; PIECE],
}

impl<const WIDTH: usize> Turned<'_, WIDTH> {
    /// Fills it from inputs `column..column + C`.
    #[inline(always)]
    fn turn<const C: usize>(&mut self, column: usize) -> Option<()> {
        let Backward { layer, outputs, .. } = self.shapes;
        let rows = rows_of::<C>(layer.get(self.first..)?, column, outputs, self.count)?;
        for (o, weights) in (0..self.count).zip(&mut self.weights) {
            for (weight, row) in weights.iter_mut().zip(rows) {
                *weight = row[o];
            }
        }
        Some(())
    }
}

impl<const WIDTH: usize> Tiles for Turned<'_, WIDTH> {
    #[inline(always)]
    fn tile<const R: usize, const C: usize>(&mut self, row: usize, column: usize) {
        // Tiles go down a strip: the first of them turns it.
        if row == 0 && self.turn::<C>(column).is_none() {
            return;
        }
        let Backward { delta, inputs, outputs, activations, ref mut out, .. } = self.shapes;
        let (first, count) = (self.first, self.count);
        let Some(delta) = delta.get(first..).and_then(|delta| rows_of::<R>(delta, row, outputs, count))
        else {
            return;
        };
        let mut sums = [[0.0; C]; R];
        if first > 0 {
            for (r, sums) in sums.iter_mut().enumerate() {
                let Some(out) = run_of(out, (row + r) * inputs + column) else { return };
                *sums = *out;
            }
        }
        for (o, weights) in (0..count).zip(&self.weights) {
            let Some(weights) = weights.first_chunk::<C>() else { return };
            add_products(&mut sums, &delta, o, weights);
        }
        let last = first + count == outputs;
        for (r, sums) in sums.iter().enumerate() {
            let place = (row + r) * inputs + column;
            let Some(activations) = run_of::<C>(activations, place) else { return };
            let Some(out) = run_of_mut::<C>(out, place) else { return };
            for ((out, sum), activation) in out.iter_mut().zip(sums).zip(activations) {
                *out = if last && !(*activation > 0.0) { 0.0 } else { *sum };
            }
        }
    }
}
