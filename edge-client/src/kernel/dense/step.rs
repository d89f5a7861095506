//! Gradient of a dense layer, accumulated in sums or applied as a step of gradient descent.

use super::super::vector;
use super::Momentum;
use super::simd::Vector;
use super::tiles::{Kernel, Tiles, add_scaled, cover, load, store};
use crate::pace::Pace;

/// Number of rows of a layer processed at a time: they are read and written completely while they are in the
/// first-level cache.
const PIECE: usize = 10;

/// Destination of a gradient: sums, or a layer that takes a step.
pub trait Target {
    /// Returns the length of the layer.
    fn len(&self) -> usize;

    /// Returns the start values of the sums at `offset` and above.
    fn start<V: Vector, const C: usize>(&self, v: V, offset: usize) -> Option<[V::Lanes; C]>;

    /// Stores or applies the finished sums.
    fn finish<V: Vector, const C: usize>(&mut self, v: V, offset: usize, sums: &[V::Lanes; C]) -> Option<()>;
}

/// Sums to which a gradient is added.
pub struct Sums<'a>(pub &'a mut [f32]);

/// Layer that takes a step of gradient descent.
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
    fn start<V: Vector, const C: usize>(&self, v: V, offset: usize) -> Option<[V::Lanes; C]> {
        load(v, self.0, offset)
    }

    #[inline(always)]
    fn finish<V: Vector, const C: usize>(&mut self, v: V, offset: usize, sums: &[V::Lanes; C]) -> Option<()> {
        store(v, self.0, offset, sums)
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
    fn finish<V: Vector, const C: usize>(&mut self, v: V, offset: usize, sums: &[V::Lanes; C]) -> Option<()> {
        let mut steps = *sums;
        if let Some(Momentum { factor, velocity }) = &mut self.momentum {
            steps = load(v, velocity, offset)?;
            let mut c = 0;
            while c < C {
                steps[c] = v.add(v.multiply(v.splat(*factor), steps[c]), sums[c]);
                c += 1;
            }
            store(v, velocity, offset, &steps)?;
        }
        let mut weights = load::<V, C>(v, self.layer, offset)?;
        let mut c = 0;
        while c < C {
            weights[c] = v.subtract(weights[c], v.multiply(v.splat(self.step_size), steps[c]));
            c += 1;
        }
        store(v, self.layer, offset, &weights)
    }
}

/// Gradient of a layer: `x` is n x i, `delta` n x o, and the target has (i + 1) x o values.
pub struct Gradient<'a, T> {
    x: &'a [f32],
    delta: &'a [f32],
    inputs: usize,
    outputs: usize,
    /// True if the target has an additional row for the bias.
    biased: bool,
    target: T,
    pace: Pace<'a>,
}

impl<'a, T: Target> Gradient<'a, T> {
    /// Creates the gradient of a layer with a bias.
    pub fn new(x: &'a [f32], delta: &'a [f32], outputs: usize, target: T, pace: Pace<'a>) -> Self {
        let outputs = outputs.max(1);
        let inputs = (target.len() / outputs).saturating_sub(1);
        Self::with_sizes(x, delta, [inputs, outputs], true, target, pace)
    }

    /// Creates the gradient of weights without a bias.
    #[cfg(feature = "adapter")]
    pub fn product(x: &'a [f32], delta: &'a [f32], outputs: usize, target: T, pace: Pace<'a>) -> Self {
        let outputs = outputs.max(1);
        let inputs = target.len() / outputs;
        Self::with_sizes(x, delta, [inputs, outputs], false, target, pace)
    }

    /// Creates the gradient, limited to the samples that have both an input and an error.
    fn with_sizes(
        x: &'a [f32],
        delta: &'a [f32],
        [inputs, outputs]: [usize; 2],
        biased: bool,
        target: T,
        pace: Pace<'a>,
    ) -> Self {
        // Number of samples that have both an input and an error.
        let n = delta.len() / outputs;
        let n = x.len().checked_div(inputs).map_or(n, |rows| rows.min(n));
        let (x, delta) = (x.get(..n * inputs), delta.get(..n * outputs));
        let (x, delta) = (x.unwrap_or_default(), delta.unwrap_or_default());
        Self { x, delta, inputs, outputs, biased, target, pace }
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
        let Self { x, delta, inputs, outputs, ref mut target, pace, .. } = *self;
        pace.spend(R * C * V::LANES * (delta.len() / outputs + 3));
        let mut sums = [[v.splat(0.0); C]; R];
        let mut r = 0;
        while r < R {
            sums[r] = target.start(v, (row + r) * outputs + column)?;
            r += 1;
        }
        let mut errors = delta.get(column..).unwrap_or_default();
        // The input of the bias is one.
        let (mut inputs_left, input_step) =
            if row < inputs { (x.get(row..)?, inputs) } else { (&[1.0; R][..], 0) };
        while let Some(delta) = load(v, errors, 0) {
            let x = inputs_left.first_chunk::<R>()?;
            let mut r = 0;
            while r < R {
                add_scaled(v, &mut sums[r], x[r], &delta);
                r += 1;
            }
            (errors, inputs_left) = (vector::from(errors, outputs), vector::from(inputs_left, input_step));
        }
        let mut r = 0;
        while r < R {
            target.finish(v, (row + r) * outputs + column, &sums[r])?;
            r += 1;
        }
        Some(())
    }
}
