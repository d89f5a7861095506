//! The gradient of a layer, and steps down it.

use super::tiles::Kernel;

/// Shapes as in [`super::add_gradient`].
pub struct AddGradient<'a> {
    pub x: &'a [f32],
    pub delta: &'a [f32],
    pub outputs: usize,
    pub sums: &'a mut [f32],
}

/// Shapes as in [`super::descend`].
pub struct Plain<'a> {
    pub x: &'a [f32],
    pub delta: &'a [f32],
    pub outputs: usize,
    pub layer: &'a mut [f32],
    pub step_size: f32,
}

/// Shapes as in [`super::descend`]; `velocity` as `layer`.
pub struct WithMomentum<'a> {
    pub x: &'a [f32],
    pub delta: &'a [f32],
    pub outputs: usize,
    pub layer: &'a mut [f32],
    pub velocity: &'a mut [f32],
    pub factor: f32,
    pub step_size: f32,
}

impl Kernel for AddGradient<'_> {
    #[inline(always)]
    fn run<const ROWS: usize, const WIDTH: usize>(self) {
        let Self { x, delta, outputs, sums } = self;
        let inputs = (sums.len() / outputs.max(1)).saturating_sub(1);
        for (place, sum) in sums.iter_mut().enumerate() {
            *sum = element(x, delta, inputs, outputs, place, *sum);
        }
    }
}

impl Kernel for Plain<'_> {
    #[inline(always)]
    fn run<const ROWS: usize, const WIDTH: usize>(self) {
        let Self { x, delta, outputs, layer, step_size } = self;
        let inputs = (layer.len() / outputs.max(1)).saturating_sub(1);
        for (place, w) in layer.iter_mut().enumerate() {
            *w -= step_size * element(x, delta, inputs, outputs, place, 0.0);
        }
    }
}

impl Kernel for WithMomentum<'_> {
    #[inline(always)]
    fn run<const ROWS: usize, const WIDTH: usize>(self) {
        let Self { x, delta, outputs, layer, velocity, factor, step_size } = self;
        let inputs = (layer.len() / outputs.max(1)).saturating_sub(1);
        for (place, (w, v)) in layer.iter_mut().zip(velocity).enumerate() {
            *v = factor * *v + element(x, delta, inputs, outputs, place, 0.0);
            *w -= step_size * *v;
        }
    }
}

#[inline(always)]
fn element(x: &[f32], delta: &[f32], inputs: usize, outputs: usize, place: usize, start: f32) -> f32 {
    let (i, o) = (place / outputs.max(1), place % outputs.max(1));
    let mut sum = start;
    for (n, delta) in delta.chunks_exact(outputs.max(1)).enumerate() {
        let Some(&delta) = delta.get(o) else { break };
        match (i == inputs, x.get(n * inputs + i)) {
            (true, _) => sum += delta,
            (false, Some(x)) => sum += x * delta,
            (false, None) => break,
        }
    }
    sum
}
