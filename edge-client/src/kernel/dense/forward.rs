//! `out = x W + bias`.

use super::tiles::Kernel;

/// Shapes as in [`super::forward`].
pub struct Forward<'a> {
    pub x: &'a [f32],
    pub layer: &'a [f32],
    pub outputs: usize,
    pub out: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run<const ROWS: usize, const WIDTH: usize>(self) {
        let Self { x, layer, outputs, out } = self;
        let outputs = outputs.max(1);
        let inputs = (layer.len() / outputs).saturating_sub(1);
        let Some((_, bias)) = layer.split_at_checked(inputs * outputs) else { return };
        for (n, out) in out.chunks_exact_mut(outputs).enumerate() {
            let Some(x) = x.get(n * inputs..(n + 1) * inputs) else { return };
            for (o, out) in out.iter_mut().enumerate() {
                let mut sum = bias.get(o).copied().unwrap_or(0.0);
                for (row, x) in layer.chunks_exact(outputs).zip(x) {
                    sum += x * row.get(o).copied().unwrap_or(0.0);
                }
                *out = sum;
            }
        }
    }
}
