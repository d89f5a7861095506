//! The gradient of a layer, and steps down it.

use super::Momentum;
use super::tiles::{Kernel, Tiles, add_scaled, cover, run_of, run_of_mut};

/// Rows of a layer at a time: each is read and written from end to end while it is in the first cache.
const PIECE: usize = 10;

/// What a gradient is for.
pub trait Target {
    /// How many values it has, of the layer's.
    fn len(&self) -> usize;

    /// What the `C` sums from `place` on start from.
    fn start<const C: usize>(&self, place: usize) -> Option<[f32; C]>;

    /// What becomes of them.
    fn finish<const C: usize>(&mut self, place: usize, sums: &[f32; C]) -> Option<()>;
}

/// The gradient, added.
pub struct Sums<'a>(pub &'a mut [f32]);

/// A step of gradient descent.
pub struct Descent<'a> {
    pub layer: &'a mut [f32],
    pub momentum: Option<Momentum<'a>>,
    pub step_size: f32,
}

impl Target for Sums<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn start<const C: usize>(&self, place: usize) -> Option<[f32; C]> {
        run_of(self.0, place).copied()
    }

    #[inline(always)]
    fn finish<const C: usize>(&mut self, place: usize, sums: &[f32; C]) -> Option<()> {
        *run_of_mut(self.0, place)? = *sums;
        Some(())
    }
}

impl Target for Descent<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        let velocity = self.momentum.as_ref().map(|momentum| momentum.velocity.len());
        velocity.map_or(self.layer.len(), |length| length.min(self.layer.len()))
    }

    #[inline(always)]
    fn start<const C: usize>(&self, _: usize) -> Option<[f32; C]> {
        Some([0.0; C])
    }

    #[inline(always)]
    fn finish<const C: usize>(&mut self, place: usize, sums: &[f32; C]) -> Option<()> {
        let mut step = *sums;
        if let Some(Momentum { factor, velocity }) = &mut self.momentum {
            let velocity = run_of_mut::<C>(velocity, place)?;
            for (v, g) in velocity.iter_mut().zip(&mut step) {
                *v = *factor * *v + *g;
                *g = *v;
            }
        }
        for (w, step) in run_of_mut::<C>(self.layer, place)?.iter_mut().zip(step) {
            *w -= self.step_size * step;
        }
        Some(())
    }
}

/// `x` is n x i, `delta` n x o, the target has (i + 1) x o.
pub struct Gradient<'a, T> {
    x: &'a [f32],
    delta: &'a [f32],
    inputs: usize,
    outputs: usize,
    target: T,
}

impl<'a, T: Target> Gradient<'a, T> {
    pub fn new(x: &'a [f32], delta: &'a [f32], outputs: usize, target: T) -> Self {
        let outputs = outputs.max(1);
        let inputs = (target.len() / outputs).saturating_sub(1);
        // Samples whose input and error are both there.
        let n = delta.len() / outputs;
        let n = x.len().checked_div(inputs).map_or(n, |rows| rows.min(n));
        let (x, delta) = (x.get(..n * inputs), delta.get(..n * outputs));
        Self { x: x.unwrap_or_default(), delta: delta.unwrap_or_default(), inputs, outputs, target }
    }
}

impl<T: Target> Kernel for Gradient<'_, T> {
    #[inline(always)]
    fn run<const ROWS: usize, const WIDTH: usize>(mut self) {
        if self.target.len() < self.outputs {
            return;
        }
        let (columns, mut row) = (self.outputs, 0);
        while row < self.inputs {
            let end = self.inputs.min(row + PIECE);
            cover::<ROWS, WIDTH>(&mut self, row..end, columns);
            row = end;
        }
        cover::<1, WIDTH>(&mut self, row..row + 1, columns);
    }
}

impl<T: Target> Tiles for Gradient<'_, T> {
    #[inline(always)]
    fn tile<const R: usize, const C: usize>(&mut self, row: usize, column: usize) {
        let Self { x, delta, inputs, outputs, ref mut target } = *self;
        let mut sums = [[0.0; C]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            let Some(start) = target.start((row + r) * outputs + column) else { return };
            *sums = start;
        }
        if R == 1 && row == inputs {
            // The bias: its input is one.
            for delta in delta.chunks_exact(outputs) {
                let Some(delta) = run_of::<C>(delta, column) else { return };
                for sums in &mut sums {
                    add_scaled(sums, 1.0, delta);
                }
            }
        } else {
            for (x, delta) in x.chunks_exact(inputs).zip(delta.chunks_exact(outputs)) {
                let (Some(x), Some(delta)) = (run_of::<R>(x, row), run_of::<C>(delta, column)) else {
                    return;
                };
                for (sums, x) in sums.iter_mut().zip(x) {
                    add_scaled(sums, *x, delta);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            if target.finish((row + r) * outputs + column, sums).is_none() {
                return;
            }
        }
    }
}
