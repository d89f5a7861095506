//! `out = delta W^T`.

use super::tiles::Kernel;

/// Shapes as in [`super::backward`].
pub struct Backward<'a> {
    pub delta: &'a [f32],
    pub layer: &'a [f32],
    pub outputs: usize,
    pub out: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    #[inline(always)]
    fn run<const ROWS: usize, const WIDTH: usize>(self) {
        let Self { delta, layer, outputs, out } = self;
        let outputs = outputs.max(1);
        let inputs = (layer.len() / outputs).saturating_sub(1);
        for (delta, out) in delta.chunks_exact(outputs).zip(out.chunks_exact_mut(inputs.max(1))) {
            for (row, out) in layer.chunks_exact(outputs).zip(out) {
                *out = delta.iter().zip(row).fold(0.0, |sum, (delta, w)| sum + delta * w);
            }
        }
    }
}
