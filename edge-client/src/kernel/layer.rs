//! A layer of a network, of any kind: forward, backward, and a step of SGD with momentum.
//!
//! Its parameters are a matrix of (i + 1) x o values, the last row the bias: i inputs and o outputs of a dense layer, the
//! values of a patch and the filters of a [convolution](super::convolution). What a batch is and the order of sums is said
//! in [`dense`].

#[cfg(feature = "convolution")]
use super::convolution::{Convolution, MaxPooling};
use super::dense::{self, Momentum};

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
    /// Filters that move over an image, and the largest values of what they make.
    #[cfg(feature = "convolution")]
    Filters {
        /// The filters.
        convolution: Convolution,
        /// Of what they make.
        pooling: MaxPooling,
    },
}

/// What a layer saw of a batch of n samples on the way forward, and memory for the way back.
#[derive(Debug)]
pub struct Seen<'a> {
    /// n x [`Layer::inputs`].
    pub x: &'a [f32],
    /// n x [`Layer::notes`].
    pub notes: &'a [f32],
    /// [`Layer::working`] values; what is in them is of no use to anyone else.
    pub working: &'a mut [f32],
}

/// A step down the gradient, as [`dense::descend`] has it.
#[derive(Debug)]
pub struct Step<'a> {
    /// How much of the velocity stays, 0 to 1.
    pub momentum: f32,
    /// As long as the layer. A dense layer needs none where the momentum is zero; filters add up their gradient in it.
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
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, .. } => convolution.inputs(),
        }
    }

    /// Values of a sample that come out of it.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        match self {
            Self::Dense { outputs, .. } => *outputs,
            #[cfg(feature = "convolution")]
            Self::Filters { pooling, .. } => pooling.outputs(),
        }
    }

    /// Rows of its matrix without the bias, and columns.
    #[must_use]
    pub const fn matrix(&self) -> (usize, usize) {
        match self {
            Self::Dense { inputs, outputs } => (*inputs, *outputs),
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, .. } => (convolution.patch(), convolution.filters),
        }
    }

    /// Weights and biases.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        let (rows, columns) = self.matrix();
        (rows + 1) * columns
    }

    /// Values that it notes of a sample on the way forward, to find the way back.
    #[must_use]
    pub const fn notes(&self) -> usize {
        match self {
            Self::Dense { .. } => 0,
            #[cfg(feature = "convolution")]
            Self::Filters { pooling, .. } => pooling.outputs(),
        }
    }

    /// Values of memory that it needs while it works, however many samples there are: of filters, the patches of an image,
    /// their errors, and what the filters make of it.
    #[must_use]
    pub const fn working(&self) -> usize {
        match self {
            Self::Dense { .. } => 0,
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, .. } => {
                2 * convolution.positions() * convolution.patch() + convolution.outputs()
            }
        }
    }

    /// Whether its steps need a velocity even without momentum.
    #[must_use]
    pub const fn needs_velocity(&self) -> bool {
        !matches!(self, Self::Dense { .. })
    }

    /// What it makes of `x`, n x inputs, before the ReLU: `out` receives n x outputs, `notes` n x [`Self::notes`].
    /// `working` has [`Self::working`] values.
    pub fn forward(
        &self,
        x: &[f32],
        weights: &[f32],
        out: &mut [f32],
        notes: &mut [f32],
        working: &mut [f32],
    ) {
        match self {
            Self::Dense { outputs, .. } => dense::forward(x, weights, *outputs, out),
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, pooling } => {
                let Working { patches, unpooled, .. } = Working::of(convolution, working);
                let pooled = pooling.outputs().max(1);
                let outputs = out.chunks_exact_mut(pooled).zip(notes.chunks_exact_mut(pooled));
                for (image, (out, notes)) in x.chunks_exact(convolution.inputs().max(1)).zip(outputs) {
                    convolution.forward(image, weights, patches, unpooled);
                    pooling.forward(unpooled, out, notes);
                }
            }
        }
        #[cfg(not(feature = "convolution"))]
        let _ = (notes, working);
    }

    /// Errors of the inputs, n x inputs, from those of the outputs (`delta`, n x outputs): zero where an input is not
    /// positive, as [`dense::backward`].
    pub fn backward(&self, seen: &mut Seen<'_>, delta: &[f32], weights: &[f32], out: &mut [f32]) {
        match self {
            Self::Dense { outputs, .. } => dense::backward(delta, weights, *outputs, seen.x, out),
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, pooling } => {
                let Working { patches, errors, unpooled } = Working::of(convolution, seen.working);
                let pooled = pooling.outputs().max(1);
                let outputs = delta.chunks_exact(pooled).zip(seen.notes.chunks_exact(pooled));
                let image = convolution.inputs().max(1);
                let images = seen.x.chunks_exact(image).zip(out.chunks_exact_mut(image));
                for ((image, out), (delta, notes)) in images.zip(outputs) {
                    convolution.patches(image, patches);
                    pooling.backward(delta, notes, unpooled);
                    convolution.backward(unpooled, weights, patches, errors, out);
                }
            }
        }
    }

    /// Adds the gradient to `sums`, as long as the layer, from the errors of the outputs (`delta`, n x outputs).
    pub fn add_gradient(&self, seen: Seen<'_>, delta: &[f32], sums: &mut [f32]) {
        match self {
            Self::Dense { outputs, .. } => dense::add_gradient(seen.x, delta, *outputs, sums),
            #[cfg(feature = "convolution")]
            Self::Filters { convolution, pooling } => {
                let Working { patches, unpooled, .. } = Working::of(convolution, seen.working);
                let pooled = pooling.outputs().max(1);
                let outputs = delta.chunks_exact(pooled).zip(seen.notes.chunks_exact(pooled));
                for (image, (delta, notes)) in seen.x.chunks_exact(convolution.inputs().max(1)).zip(outputs) {
                    convolution.patches(image, patches);
                    pooling.backward(delta, notes, unpooled);
                    dense::add_gradient(patches, unpooled, convolution.filters, sums);
                }
            }
        }
    }

    /// One step down the gradient, as [`dense::descend`].
    pub fn descend(&self, seen: Seen<'_>, delta: &[f32], weights: &mut [f32], step: Step<'_>) {
        let Step { momentum, velocity, size } = step;
        match self {
            Self::Dense { outputs, .. } => {
                let velocity = velocity.filter(|_| momentum > 0.0);
                let momentum = velocity.map(|velocity| Momentum { factor: momentum, velocity });
                dense::descend(seen.x, delta, *outputs, weights, momentum, size);
            }
            #[cfg(feature = "convolution")]
            Self::Filters { .. } => {
                let velocity = velocity.unwrap_or_default();
                if momentum > 0.0 {
                    velocity.iter_mut().for_each(|velocity| *velocity *= momentum);
                } else {
                    velocity.fill(0.0);
                }
                self.add_gradient(seen, delta, velocity);
                for (weight, velocity) in weights.iter_mut().zip(velocity) {
                    *weight -= size * *velocity;
                }
            }
        }
    }
}

/// The working memory of filters, cut up: for one image.
#[cfg(feature = "convolution")]
struct Working<'a> {
    patches: &'a mut [f32],
    errors: &'a mut [f32],
    unpooled: &'a mut [f32],
}

#[cfg(feature = "convolution")]
impl<'a> Working<'a> {
    fn of(convolution: &Convolution, working: &'a mut [f32]) -> Self {
        let patches = convolution.positions() * convolution.patch();
        let (one, rest) = working.split_at_mut_checked(patches).unwrap_or_default();
        let (other, rest) = rest.split_at_mut_checked(patches).unwrap_or_default();
        let unpooled = rest.get_mut(..convolution.outputs()).unwrap_or_default();
        Self { patches: one, errors: other, unpooled }
    }
}
