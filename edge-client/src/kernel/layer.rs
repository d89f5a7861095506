//! Layers of a network, of all kinds: forward pass, and backward pass with a gradient or an SGD step with
//! momentum.
//!
//! The parameters of a layer are a matrix of (i + 1) x o values whose last row is the bias. For a dense layer
//! i and o are the numbers of inputs and outputs; for a [convolution](super::convolution) the values of a
//! patch and the filters; for an [LSTM](super::recurrent) the inputs of the gates and the gates. [`dense`]
//! defines batches and the order of sums.

#[cfg(feature = "convolution")]
mod filters;

use core::ops::Range;

#[cfg(feature = "convolution")]
use super::convolution::{Convolution, MaxPooling};
use super::dense::{self, Momentum};
#[cfg(feature = "recurrent")]
use super::recurrent::Lstm;
#[cfg(feature = "convolution")]
use filters::Filters;

use crate::pace::Pace;

/// Kind of a layer with its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Dense layer: every output depends on every input.
    Dense {
        /// Number of inputs, i.
        inputs: usize,
        /// Number of outputs, o.
        outputs: usize,
    },
    /// Down-projection A of an adapter: no bias, no ReLU.
    #[cfg(feature = "adapter")]
    Down {
        /// Number of inputs, i.
        inputs: usize,
        /// Rank, r.
        rank: usize,
    },
    /// Up-projection B of an adapter: no bias. Its output is added to the output of the frozen layer.
    #[cfg(feature = "adapter")]
    Up {
        /// Rank, r.
        rank: usize,
        /// Number of outputs, o.
        outputs: usize,
    },
    /// Convolution with max pooling.
    #[cfg(feature = "convolution")]
    Filters {
        /// Convolution of the layer.
        convolution: Convolution,
        /// Max pooling of the convolution's output.
        pooling: MaxPooling,
    },
    /// LSTM over a sequence.
    #[cfg(feature = "recurrent")]
    Lstm(Lstm),
}

/// Buffers of a layer, for a batch of n samples.
#[derive(Debug, Default)]
pub struct LayerBuffers<'a> {
    /// Saved values, n x [`Layer::saved`], from the forward pass for one backward pass.
    pub saved: &'a mut [f32],
    /// Pooling indices, n x [`Layer::pool_indices`], from the forward pass for the backward pass.
    pub pool_indices: &'a mut [u8],
    /// Scratch memory, [`Layer::scratch`] values.
    pub scratch: &'a mut [f32],
    /// Pauses within the computation.
    pub pace: Pace<'a>,
}

/// Inputs and buffers of a layer after the forward pass of a batch of n samples.
#[derive(Debug)]
pub struct ForwardPass<'a> {
    /// Inputs, n x [`Layer::inputs`].
    pub x: &'a [f32],
    /// True if the inputs are the output of a ReLU, whose zeros receive no errors.
    #[cfg(feature = "recurrent")]
    pub after_relu: bool,
    /// Buffers, unchanged since the forward pass.
    pub room: LayerBuffers<'a>,
}

/// Use of a layer's gradient in the backward pass.
#[derive(Debug)]
pub enum Gradient<'a> {
    /// The gradient is not needed: errors are only passed to the layer below.
    Unused,
    /// The gradient is added to these sums, whose length is that of the layer.
    Added(&'a mut [f32]),
    /// The layer takes a step along the gradient, as in [`dense::descend`].
    Step(Step<'a>),
}

/// Step of gradient descent.
#[derive(Debug)]
pub struct Step<'a> {
    /// Momentum factor, 0 to 1: the fraction of the velocity that each step keeps.
    pub momentum: f32,
    /// Velocity, with the length of the layer; not needed without momentum.
    pub velocity: Option<&'a mut [f32]>,
    /// Step size.
    pub size: f32,
}

impl Layer {
    /// Returns the number of input values of a sample.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        match self {
            Self::Dense { inputs, .. } => *inputs,
            #[cfg(feature = "adapter")]
            Self::Down { inputs, .. } | Self::Up { rank: inputs, .. } => *inputs,
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, .. } => convolution.inputs(),
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => lstm.inputs(),
        }
    }

    /// Returns the number of output values of a sample.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        match self {
            Self::Dense { outputs, .. } => *outputs,
            #[cfg(feature = "adapter")]
            Self::Down { rank: outputs, .. } | Self::Up { outputs, .. } => *outputs,
            #[cfg(feature = "convolution")]
            Self::Filters { pooling, .. } => pooling.outputs(),
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => lstm.outputs(),
        }
    }

    /// Returns the number of rows of the parameter matrix without the bias, and the number of columns.
    #[must_use]
    pub const fn matrix(&self) -> (usize, usize) {
        match self {
            Self::Dense { inputs, outputs } => (*inputs, *outputs),
            #[cfg(feature = "adapter")]
            Self::Down { .. } | Self::Up { .. } => (self.inputs(), self.outputs()),
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, .. } => (convolution.patch(), convolution.filters),
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => (lstm.row(), lstm.gates()),
        }
    }

    /// Returns the number of rows of the parameter matrix, including the bias if there is one.
    #[must_use]
    pub const fn rows(&self) -> usize {
        let (rows, _) = self.matrix();
        match self {
            #[cfg(feature = "adapter")]
            Self::Down { .. } | Self::Up { .. } => rows,
            _ => rows + 1,
        }
    }

    /// Returns the number of weights and biases.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        self.rows() * self.matrix().1
    }

    /// Returns the fan-in for the initialisation: the number of inputs, or of cells for an LSTM. Initial
    /// weights are uniform with a magnitude of at most `1 / sqrt(fan-in)`.
    pub(crate) const fn init_fan_in(&self) -> usize {
        match self {
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => lstm.cells,
            _ => self.matrix().0,
        }
    }

    /// Returns the range of the forget gates' biases, which are initialised to one (Gers et al. 2000).
    pub(crate) const fn forget_biases(&self) -> Range<usize> {
        match self {
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => {
                let biases = lstm.row() * lstm.gates();
                biases + lstm.cells..biases + 2 * lstm.cells
            }
            _ => 0..0,
        }
    }

    /// Returns the number of values per sample that the forward pass saves for the backward pass.
    #[must_use]
    pub const fn saved(&self) -> usize {
        match self {
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => lstm.memory(1),
            _ => 0,
        }
    }

    /// Returns the number of bytes per sample for the pooling indices of a convolutional layer.
    #[must_use]
    pub const fn pool_indices(&self) -> usize {
        match self {
            #[cfg(feature = "convolution")]
            Self::Filters { pooling, .. } => pooling.outputs(),
            _ => 0,
        }
    }

    /// Returns the number of values of scratch memory, independent of the batch size. A convolutional layer
    /// needs memory for the patches of one row of outputs, the filters' outputs before pooling, and the
    /// gradient.
    #[must_use]
    pub const fn scratch(&self) -> usize {
        match self {
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, pooling } => {
                Filters { convolution: *convolution, pooling: *pooling }.scratch()
            }
            _ => 0,
        }
    }

    /// Returns true if a ReLU follows the layer, unless the layer is the last one; the state of LSTM cells
    /// needs no ReLU.
    #[must_use]
    pub const fn has_relu(&self) -> bool {
        match self {
            #[cfg(feature = "recurrent")]
            Self::Lstm(_) => false,
            #[cfg(feature = "adapter")]
            Self::Down { .. } => false,
            _ => true,
        }
    }

    /// Computes the layer's output for `x` (n x inputs) before the ReLU. `out` receives n x outputs.
    pub fn forward(&self, x: &[f32], weights: &[f32], out: &mut [f32], room: LayerBuffers<'_>) {
        let pace = room.pace;
        match self {
            Self::Dense { outputs, .. } => dense::forward(x, weights, *outputs, out, pace),
            #[cfg(feature = "adapter")]
            Self::Down { rank, .. } => {
                out.fill(0.0);
                dense::add_product(x, weights, *rank, out, pace);
            }
            #[cfg(feature = "adapter")]
            Self::Up { outputs, .. } => dense::add_product(x, weights, *outputs, out, pace),
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, pooling } => {
                Filters { convolution: *convolution, pooling: *pooling }.forward(x, weights, out, room);
            }
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => lstm.forward(x, weights, room.saved, out, pace),
        }
    }

    /// Propagates the errors of the outputs back (`delta`, n x outputs, before the ReLU). `below`, if
    /// present, receives the errors of the inputs, n x inputs, computed with the weights before the step.
    pub fn backward(
        &self,
        forward_pass: ForwardPass<'_>,
        delta: &[f32],
        weights: &mut [f32],
        below: Option<&mut [f32]>,
        gradient: Gradient<'_>,
    ) {
        let (x, pace) = (forward_pass.x, forward_pass.room.pace);
        match self {
            Self::Dense { outputs, .. } => {
                match below {
                    #[cfg(feature = "recurrent")]
                    Some(out) if !forward_pass.after_relu => {
                        dense::backward_linear(delta, weights, *outputs, out, pace)
                    }
                    Some(out) => dense::backward(delta, weights, *outputs, x, out, pace),
                    None => {}
                }
                gradient.take(x, delta, *outputs, weights, pace);
            }
            #[cfg(feature = "adapter")]
            Self::Down { .. } | Self::Up { .. } => {
                if let Some(out) = below {
                    dense::backward_product(delta, weights, self.outputs(), out, pace);
                }
                gradient.take_product(x, delta, self.outputs(), weights, pace);
            }
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, pooling } => {
                let filters = Filters { convolution: *convolution, pooling: *pooling };
                filters.backward(forward_pass, delta, weights, below, gradient);
            }
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => {
                let (rows, errors) =
                    lstm.backward(delta, weights, forward_pass.room.saved, below.unwrap_or_default(), pace);
                gradient.take(rows, errors, lstm.gates(), weights, pace);
            }
        }
    }
}

impl Gradient<'_> {
    /// Uses the gradient of a dense layer with inputs `x` and output errors `delta`.
    fn take(self, x: &[f32], delta: &[f32], outputs: usize, weights: &mut [f32], pace: Pace<'_>) {
        match self {
            Self::Unused => {}
            Self::Added(sums) => dense::add_gradient(x, delta, outputs, sums, pace),
            Self::Step(Step { momentum, velocity, size }) => {
                let velocity = velocity.filter(|_| momentum > 0.0);
                let momentum = velocity.map(|velocity| Momentum { factor: momentum, velocity });
                dense::descend(x, delta, outputs, weights, momentum, size, pace);
            }
        }
    }
}

#[cfg(feature = "adapter")]
impl Gradient<'_> {
    /// Uses the gradient of weights without a bias.
    fn take_product(self, x: &[f32], delta: &[f32], outputs: usize, weights: &mut [f32], pace: Pace<'_>) {
        match self {
            Self::Unused => {}
            Self::Added(sums) => dense::add_product_gradient(x, delta, outputs, sums, pace),
            Self::Step(Step { momentum, velocity, size }) => {
                let velocity = velocity.filter(|_| momentum > 0.0);
                let momentum = velocity.map(|velocity| Momentum { factor: momentum, velocity });
                dense::descend_product(x, delta, outputs, weights, momentum, size, pace);
            }
        }
    }
}
