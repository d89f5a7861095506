//! The gradient of a layer, and steps down it.

use super::super::vector;
use super::Momentum;
use super::simd::Vector;
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
            steps = load(v, velocity, place)?;
            let mut c = 0;
            while c < C {
                steps[c] = v.add(v.multiply(v.splat(*factor), steps[c]), sums[c]);
                c += 1;
            }
            store(v, velocity, place, &steps)?;
        }
        let mut weights = load::<V, C>(v, self.layer, place)?;
        let mut c = 0;
        while c < C {
            weights[c] = v.subtract(weights[c], v.multiply(v.splat(self.step_size), steps[c]));
            c += 1;
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
    /// Whether the target has a row more, for the bias.
    biased: bool,
    target: T,
}

impl<'a, T: Target> Gradient<'a, T> {
    pub fn new(x: &'a [f32], delta: &'a [f32], outputs: usize, target: T) -> Self {
        let outputs = outputs.max(1);
        let inputs = (target.len() / outputs).saturating_sub(1);
        Self::of(x, delta, [inputs, outputs], true, target)
    }

    /// Of weights without a bias.
    #[cfg(feature = "adapter")]
    pub fn product(x: &'a [f32], delta: &'a [f32], outputs: usize, target: T) -> Self {
        let outputs = outputs.max(1);
        let inputs = target.len() / outputs;
        Self::of(x, delta, [inputs, outputs], false, target)
    }

    fn of(x: &'a [f32], delta: &'a [f32], [inputs, outputs]: [usize; 2], biased: bool, target: T) -> Self {
        // Samples whose input and error are both there.
        let n = delta.len() / outputs;
        let n = x.len().checked_div(inputs).map_or(n, |rows| rows.min(n));
        let (x, delta) = (x.get(..n * inputs), delta.get(..n * outputs));
        Self { x: x.unwrap_or_default(), delta: delta.unwrap_or_default(), inputs, outputs, biased, target }
    }
}

impl<T: Target> Kernel for Gradient<'_, T> {
    #[inline(always)]
    fn run<V: Vector, const ROWS: usize, const COUNT: usize, const WIDTH: usize>(mut self, v: V) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        for row in (0..inputs).step_by(PIECE) {
            cover::<V, ROWS, COUNT>(&mut self, v, row..inputs.min(row + PIECE), outputs);
        }
        if self.biased {
            cover::<V, 1, COUNT>(&mut self, v, inputs..inputs + 1, outputs);
        }
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
        let Self { x, delta, inputs, outputs, ref mut target, .. } = *self;
        let mut sums = [[v.splat(0.0); C]; R];
        let mut r = 0;
        while r < R {
            sums[r] = target.start(v, (row + r) * outputs + column)?;
            r += 1;
        }
        let mut errors = delta.get(column..).unwrap_or_default();
        // The bias has an input of one.
        let (mut rest, step) = if row < inputs { (x.get(row..)?, inputs) } else { (&[1.0; R][..], 0) };
        while let Some(delta) = load(v, errors, 0) {
            let x = rest.first_chunk::<R>()?;
            let mut r = 0;
            while r < R {
                add_scaled(v, &mut sums[r], x[r], &delta);
                r += 1;
            }
            (errors, rest) = (vector::from(errors, outputs), vector::from(rest, step));
        }
        let mut r = 0;
        while r < R {
            target.finish(v, (row + r) * outputs + column, &sums[r])?;
            r += 1;
        }
        Some(())
    }
}
