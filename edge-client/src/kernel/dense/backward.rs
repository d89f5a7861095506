//! `out = delta W^T`, where an activation is positive.

use super::tiles::{Kernel, cover, rows_of, run_of, run_of_mut};

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
    fn run<const ROWS: usize, const WIDTH: usize>(mut self) {
        let Some(n) = self.out.len().min(self.activations.len()).checked_div(self.inputs) else { return };
        let (n, columns) = (n.min(self.delta.len() / self.outputs), self.inputs);
        cover::<ROWS, WIDTH>(&mut self, 0..n, columns);
    }

    #[inline(always)]
    fn tile<const R: usize, const C: usize>(&mut self, row: usize, column: usize) {
        let Self { delta, layer, inputs, outputs, activations, ref mut out } = *self;
        let Some(delta) = rows_of::<R>(delta, row, outputs, outputs) else { return };
        let Some(w) = rows_of::<C>(layer, column, outputs, outputs) else { return };
        let mut sums = [[0.0; C]; R];
        for o in 0..outputs {
            let w = w.map(|w| w[o]);
            for (sums, delta) in sums.iter_mut().zip(delta) {
                let delta = delta[o];
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum += delta * w;
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let place = (row + r) * inputs + column;
            let Some(activations) = run_of::<C>(activations, place) else { return };
            let Some(out) = run_of_mut::<C>(out, place) else { return };
            for ((out, sum), activation) in out.iter_mut().zip(sums).zip(activations) {
                *out = if *activation > 0.0 { *sum } else { 0.0 };
            }
        }
    }
}
