//! The gradient of a layer, and steps down it.

use super::Momentum;
use super::lanes::Vector;
use super::tiles::{Kernel, Tiles, add_scaled, cover, load, store};

/// Rows of a layer at a time: they are read and written from end to end while they are in the first cache.
const PIECE: usize = 10;

/// What a gradient is for.
pub trait Target {
    /// How many of the layer's values it has.
    fn len(&self) -> usize;

    /// What the sums from `place` on start from.
    fn start<V: Vector, const C: usize>(&self, v: V, place: usize) -> Option<[V::Lanes; C]>;

    /// What becomes of them.
    fn finish<V: Vector, const C: usize>(&mut self, v: V, place: usize, sums: &[V::Lanes; C]) -> Option<()>;
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
    fn start<V: Vector, const C: usize>(&self, v: V, place: usize) -> Option<[V::Lanes; C]> {
        load(v, self.0, place)
    }

    #[inline(always)]
    fn finish<V: Vector, const C: usize>(&mut self, v: V, place: usize, sums: &[V::Lanes; C]) -> Option<()> {
        store(v, self.0, place, sums)
    }
}

impl Target for Descent<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        let velocity = self.momentum.as_ref().map(|momentum| momentum.velocity.len());
        velocity.map_or(self.layer.len(), |length| length.min(self.layer.len()))
    }

    #[inline(always)]
    fn start<V: Vector, const C: usize>(&self, v: V, _: usize) -> Option<[V::Lanes; C]> {
        Some([v.splat(0.0); C])
    }

    #[inline(always)]
    fn finish<V: Vector, const C: usize>(&mut self, v: V, place: usize, sums: &[V::Lanes; C]) -> Option<()> {
        let mut steps = *sums;
        if let Some(Momentum { factor, velocity }) = &mut self.momentum {
            for (step, velocity) in steps.iter_mut().zip(load::<V, C>(v, velocity, place)?) {
                *step = v.add(v.multiply(v.splat(*factor), velocity), *step);
            }
            store(v, velocity, place, &steps)?;
        }
        let mut weights = load::<V, C>(v, self.layer, place)?;
        for (weight, step) in weights.iter_mut().zip(steps) {
            *weight = v.subtract(*weight, v.multiply(v.splat(self.step_size), step));
        }
        store(v, self.layer, place, &weights)
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
    fn run<V: Vector, const ROWS: usize, const COUNT: usize, const WIDTH: usize>(mut self, v: V) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        for row in (0..inputs).step_by(PIECE) {
            cover::<V, ROWS, COUNT>(&mut self, v, row..inputs.min(row + PIECE), outputs);
        }
        cover::<V, 1, COUNT>(&mut self, v, inputs..inputs + 1, outputs);
    }
}

impl<T: Target> Tiles for Gradient<'_, T> {
    #[inline(always)]
    fn tile<V: Vector, const R: usize, const C: usize>(
        &mut self,
        v: V,
        row: usize,
        column: usize,
    ) -> Option<()> {
        let Self { x, delta, inputs, outputs, ref mut target } = *self;
        let mut sums = [[v.splat(0.0); C]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            *sums = target.start(v, (row + r) * outputs + column)?;
        }
        if R == 1 && row == inputs {
            // The bias: its input is one.
            for delta in delta.chunks_exact(outputs) {
                let delta = load(v, delta, column)?;
                for sums in &mut sums {
                    add_scaled(v, sums, 1.0, &delta);
                }
            }
        } else {
            for (x, delta) in x.chunks_exact(inputs).zip(delta.chunks_exact(outputs)) {
                let x = x.get(row..)?.first_chunk::<R>()?;
                let delta = load(v, delta, column)?;
                for (sums, x) in sums.iter_mut().zip(x) {
                    add_scaled(v, sums, *x, &delta);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            target.finish(v, (row + r) * outputs + column, sums)?;
        }
        Some(())
    }
}
