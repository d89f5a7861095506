//! Dense layer with frozen weights, read directly from flash.

use fedspan_protocol::frame::{Crc32c, crc32c_f32};

use super::dense;
use crate::pace::Pace;

/// Layer with fixed weights from d inputs to o outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Frozen<'a> {
    /// No layer: all outputs are zero.
    #[default]
    Nothing,
    /// Weights as (d + 1) x o values as in [`dense`], with the bias in the last row.
    F32(&'a [f32]),
    /// Weights as bytes, a quarter of the size: a weight is its byte times the scale of its output.
    I8 {
        /// Weights, d x o, row-major.
        weights: &'a [i8],
        /// Scale of each output.
        scales: &'a [f32],
        /// Bias of each output.
        biases: &'a [f32],
    },
}

impl Frozen<'_> {
    /// Returns true if the layer has these numbers of inputs and outputs and all values are finite, or if
    /// there is no layer.
    #[must_use]
    pub fn fits(&self, inputs: usize, outputs: usize) -> bool {
        let finite = |values: &[f32]| super::all_within(values, f32::MAX);
        match self {
            Self::Nothing => true,
            Self::F32(values) => values.len() == (inputs + 1) * outputs && finite(values),
            Self::I8 { weights, scales, biases } => {
                weights.len() == inputs * outputs
                    && scales.len() == outputs
                    && biases.len() == outputs
                    && finite(scales)
                    && finite(biases)
            }
        }
    }

    /// Returns the CRC-32C of the layer's numbers, little endian, in the order of the fields; 0 without a
    /// layer.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::F32(values) => crc32c_f32(values),
            Self::I8 { weights, scales, biases } => {
                let mut crc = Crc32c::new();
                for &weight in *weights {
                    crc.update(&weight.to_le_bytes());
                }
                for value in scales.iter().chain(*biases) {
                    crc.update(&value.to_le_bytes());
                }
                crc.finish()
            }
        }
    }

    /// Computes `out = x W + bias` for n samples: `x` is n x d, `out` receives n x o, where o is `outputs`.
    ///
    /// Weights in f32 are applied by [`dense::forward`]. With weights in bytes a sum starts with zero, and
    /// products with the bytes are added in ascending order of inputs; then the sum is multiplied by the
    /// scale, and the bias is added.
    pub fn forward(&self, x: &[f32], outputs: usize, out: &mut [f32], pace: Pace<'_>) {
        match *self {
            Self::Nothing => out.fill(0.0),
            Self::F32(values) => dense::forward(x, values, outputs, out, pace),
            Self::I8 { weights, scales, biases } => {
                let outputs = outputs.max(1);
                let inputs = (weights.len() / outputs).max(1);
                for (x, out) in x.chunks_exact(inputs).zip(out.chunks_exact_mut(outputs)) {
                    out.fill(0.0);
                    for (x, weights) in x.iter().zip(weights.chunks_exact(outputs)) {
                        pace.spend(2 * outputs);
                        for (sum, &weight) in out.iter_mut().zip(weights) {
                            *sum += x * f32::from(weight);
                        }
                    }
                    for ((sum, scale), bias) in out.iter_mut().zip(scales).zip(biases) {
                        *sum = *sum * scale + bias;
                    }
                }
            }
        }
    }
}
