//! `out = x W + bias`.

use super::tiles::{Kernel, Tiles, add_products, cover, rows_of, run_of, run_of_mut};

/// Inputs at a time: their weights stay in the first cache while all samples pass.
const PIECE: usize = 32;

/// Shapes as in [`super::forward`], cut to whole rows by [`Forward::new`].
pub struct Forward<'a> {
    x: &'a [f32],
    layer: &'a [f32],
    inputs: usize,
    outputs: usize,
    out: &'a mut [f32],
    /// The inputs at hand, and how many.
    first: usize,
    count: usize,
}

impl<'a> Forward<'a> {
    pub fn new(x: &'a [f32], layer: &'a [f32], outputs: usize, out: &'a mut [f32]) -> Self {
        let outputs = outputs.max(1);
        let inputs = (layer.len() / outputs).saturating_sub(1);
        Self { x, layer, inputs, outputs, out, first: 0, count: 0 }
    }
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run<const ROWS: usize, const WIDTH: usize>(mut self) {
        let n = self.out.len() / self.outputs;
        let n = self.x.len().checked_div(self.inputs).map_or(n, |rows| rows.min(n));
        let Some(bias) = self.layer.get(self.inputs * self.outputs..).and_then(|b| b.get(..self.outputs))
        else {
            return;
        };
        for out in self.out.chunks_exact_mut(self.outputs).take(n) {
            out.copy_from_slice(bias);
        }
        while self.first < self.inputs {
            self.count = PIECE.min(self.inputs - self.first);
            let columns = self.outputs;
            cover::<ROWS, WIDTH>(&mut self, 0..n, columns);
            self.first += self.count;
        }
    }
}

impl Tiles for Forward<'_> {
    #[inline(always)]
    fn tile<const R: usize, const C: usize>(&mut self, row: usize, column: usize) {
        let Self { x, layer, inputs, outputs, ref mut out, first, count } = *self;
        let Some(x) = x.get(first..).and_then(|x| rows_of::<R>(x, row, inputs, count)) else { return };
        let Some(layer) = layer.get(first * outputs..) else { return };
        let mut sums = [[0.0; C]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            let Some(out) = run_of(out, (row + r) * outputs + column) else { return };
            *sums = *out;
        }
        for (i, w) in (0..count).zip(layer.chunks_exact(outputs)) {
            let Some(w) = run_of::<C>(w, column) else { return };
            add_products(&mut sums, &x, i, w);
        }
        for (r, sums) in sums.iter().enumerate() {
            let Some(out) = run_of_mut(out, (row + r) * outputs + column) else { return };
            *out = *sums;
        }
    }
}
