//! A layer of a network, of any kind: forward, and backward with a gradient or a step of SGD with momentum.
//!
//! Its parameters are a matrix of (i + 1) x o values, the last row the bias: i inputs and o outputs of a dense layer, the
//! values of a patch and the filters of a [convolution](super::convolution), what goes into the gates of a
//! [memory cell](super::recurrent) and the gates. What a batch is and the order of sums is said in [`dense`].

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

/// The sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Every output sees every input.
    Dense {
        /// `i`.
        inputs: usize,
        /// `o`.
        outputs: usize,
    },
    /// An adapter's down-projection A: no bias, no ReLU.
    #[cfg(feature = "adapter")]
    Down {
        /// `i`.
        inputs: usize,
        /// `r`.
        rank: usize,
    },
    /// An adapter's up-projection B: no bias. What it makes is added to what is in its place, of the layer that stays.
    #[cfg(feature = "adapter")]
    Up {
        /// `r`.
        rank: usize,
        /// `o`.
        outputs: usize,
    },
    /// Filters that move over an image, and the largest values of what they make.
    #[cfg(feature = "convolution")]
    Filters {
        /// The filters.
        convolution: Convolution,
        /// Of what they make.
        pooling: MaxPooling,
    },
    /// Cells that go along a sequence.
    #[cfg(feature = "recurrent")]
    Lstm(Lstm),
}

/// Memory of a layer, for a batch of n samples.
#[derive(Debug, Default)]
pub struct LayerBuffers<'a> {
    /// n x [`Layer::saved`]: from the way forward to the way back, of which there is one.
    pub saved: &'a mut [f32],
    /// n x [`Layer::pool_indices`]: from the way forward to the way back.
    pub pool_indices: &'a mut [u8],
    /// [`Layer::scratch`] values; what is in them is of no use to anyone else.
    pub scratch: &'a mut [f32],
}

/// What a layer saw of a batch of n samples on the way forward, and its memory.
#[derive(Debug)]
pub struct ForwardPass<'a> {
    /// n x [`Layer::inputs`].
    pub x: &'a [f32],
    /// Whether they came out of a ReLU, so that no errors go back to those that are not positive.
    #[cfg(feature = "recurrent")]
    pub after_relu: bool,
    /// As the way forward has left it.
    pub room: LayerBuffers<'a>,
}

/// What becomes of a layer's gradient.
#[derive(Debug)]
pub enum Gradient<'a> {
    /// Nothing: errors are on their way to a layer below.
    Unused,
    /// It is added to these sums, as long as the layer.
    Added(&'a mut [f32]),
    /// A step down it, as [`dense::descend`] has it.
    Step(Step<'a>),
}

/// A step down a gradient.
#[derive(Debug)]
pub struct Step<'a> {
    /// How much of the velocity stays, 0 to 1.
    pub momentum: f32,
    /// As long as the layer; without momentum none is needed.
    pub velocity: Option<&'a mut [f32]>,
    /// How far.
    pub size: f32,
}

impl Layer {
    /// Values of a sample that go into it.
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

    /// Values of a sample that come out of it.
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

    /// Rows of its matrix without the bias, and columns.
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

    /// Rows of its matrix, the bias among them where there is one.
    #[must_use]
    pub const fn rows(&self) -> usize {
        let (rows, _) = self.matrix();
        match self {
            #[cfg(feature = "adapter")]
            Self::Down { .. } | Self::Up { .. } => rows,
            _ => rows + 1,
        }
    }

    /// Weights and biases.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        self.rows() * self.matrix().1
    }

    /// One over the root of this is how far weights go that are drawn: its inputs, or its cells.
    pub(crate) const fn init_fan_in(&self) -> usize {
        match self {
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => lstm.cells,
            _ => self.matrix().0,
        }
    }

    /// Which of its values are biases of forget gates, which begin open (Gers et al. 2000).
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

    /// Values that it notes of a sample on the way forward, to find the way back.
    #[must_use]
    pub const fn saved(&self) -> usize {
        match self {
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => lstm.memory(1),
            _ => 0,
        }
    }

    /// Bytes that it notes of a sample: which of its window's values each output of filters was.
    #[must_use]
    pub const fn pool_indices(&self) -> usize {
        match self {
            #[cfg(feature = "convolution")]
            Self::Filters { pooling, .. } => pooling.outputs(),
            _ => 0,
        }
    }

    /// Values of memory that it needs while it works, however many samples there are: of filters, the patches of what
    /// becomes one row of outputs, what the filters make of them, and their gradient.
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

    /// Whether ReLU follows where it is not the last: a cell's state has been through a function of its own.
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

    /// What it makes of `x`, n x inputs, before the ReLU: `out` receives n x outputs.
    pub fn forward(&self, x: &[f32], weights: &[f32], out: &mut [f32], room: LayerBuffers<'_>) {
        // Only some kinds need it.
        let _ = &room;
        match self {
            Self::Dense { outputs, .. } => dense::forward(x, weights, *outputs, out),
            #[cfg(feature = "adapter")]
            Self::Down { rank, .. } => {
                out.fill(0.0);
                dense::add_product(x, weights, *rank, out);
            }
            #[cfg(feature = "adapter")]
            Self::Up { outputs, .. } => dense::add_product(x, weights, *outputs, out),
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, pooling } => {
                Filters { convolution: *convolution, pooling: *pooling }.forward(x, weights, out, room);
            }
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => lstm.forward(x, weights, room.saved, out),
        }
    }

    /// The way back from the errors of the outputs (`delta`, n x outputs), before those of its ReLU. `below` receives the
    /// errors of the inputs, n x inputs, where they are wanted: through the weights as they are, before a step.
    pub fn backward(
        &self,
        seen: ForwardPass<'_>,
        delta: &[f32],
        weights: &mut [f32],
        below: Option<&mut [f32]>,
        gradient: Gradient<'_>,
    ) {
        let x = seen.x;
        match self {
            Self::Dense { outputs, .. } => {
                match below {
                    #[cfg(feature = "recurrent")]
                    Some(out) if !seen.after_relu => dense::backward_linear(delta, weights, *outputs, out),
                    Some(out) => dense::backward(delta, weights, *outputs, x, out),
                    None => {}
                }
                gradient.take(x, delta, *outputs, weights);
            }
            #[cfg(feature = "adapter")]
            Self::Down { .. } | Self::Up { .. } => {
                if let Some(out) = below {
                    dense::backward_product(delta, weights, self.outputs(), out);
                }
                gradient.take_product(x, delta, self.outputs(), weights);
            }
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, pooling } => {
                let filters = Filters { convolution: *convolution, pooling: *pooling };
                filters.backward(seen, delta, weights, below, gradient);
            }
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => {
                let (rows, errors) =
                    lstm.backward(delta, weights, seen.room.saved, below.unwrap_or_default());
                gradient.take(rows, errors, lstm.gates(), weights);
            }
        }
    }
}

impl Gradient<'_> {
    /// Of a dense layer, `x` its inputs and `delta` the errors of its outputs.
    fn take(self, x: &[f32], delta: &[f32], outputs: usize, weights: &mut [f32]) {
        match self {
            Self::Unused => {}
            Self::Added(sums) => dense::add_gradient(x, delta, outputs, sums),
            Self::Step(Step { momentum, velocity, size }) => {
                let velocity = velocity.filter(|_| momentum > 0.0);
                let momentum = velocity.map(|velocity| Momentum { factor: momentum, velocity });
                dense::descend(x, delta, outputs, weights, momentum, size);
            }
        }
    }
}

#[cfg(feature = "adapter")]
impl Gradient<'_> {
    /// Of weights without a bias.
    fn take_product(self, x: &[f32], delta: &[f32], outputs: usize, weights: &mut [f32]) {
        match self {
            Self::Unused => {}
            Self::Added(sums) => dense::add_product_gradient(x, delta, outputs, sums),
            Self::Step(Step { momentum, velocity, size }) => {
                let velocity = velocity.filter(|_| momentum > 0.0);
                let momentum = velocity.map(|velocity| Momentum { factor: momentum, velocity });
                dense::descend_product(x, delta, outputs, weights, momentum, size);
            }
        }
    }
}
