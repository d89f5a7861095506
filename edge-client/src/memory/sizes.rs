//! Sizes of the buffers of a network, computed from its shape.

use super::NetworkShape;

/// Sizes of the outputs of several layers for one sample, and of the data saved for the backward pass.
pub(crate) struct LayerOutputs {
    /// Number of output values.
    pub outputs: usize,
    /// Number of values of [`Layer::saved`](crate::kernel::Layer::saved).
    pub saved: usize,
    /// Number of bytes of [`Layer::pool_indices`](crate::kernel::Layer::pool_indices).
    pub pool_indices: usize,
}

impl NetworkShape {
    /// Returns the number of values needed to cache the body's outputs for this many samples, and their
    /// classes.
    #[must_use]
    pub const fn body_cache_len(&self, samples: usize) -> usize {
        samples * (self.layer(self.layers() - 1).inputs() + 1)
    }

    /// Returns the number of values of working memory: a batch, the outputs and saved values of all layers,
    /// the errors of two layers, and the scratch memory of one layer.
    #[must_use]
    pub const fn scratch(&self) -> usize {
        let totals = self.outputs_before(self.layers());
        let mut scratch = 0;
        let mut layer = 0;
        while layer < self.layers() {
            let layer_scratch = self.layer(layer).scratch();
            if layer_scratch > scratch {
                scratch = layer_scratch;
            }
            layer += 1;
        }
        self.batch * (self.features + totals.outputs + totals.saved + 2 * self.widest()) + scratch
    }

    /// Returns the number of bytes needed in addition: the classes of a batch, and the pooling indices.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.batch * (1 + self.outputs_before(self.layers()).pool_indices)
    }

    /// Returns the sums of the sizes of all layers before `layer`, for one sample.
    pub(crate) const fn outputs_before(&self, layer: usize) -> LayerOutputs {
        let mut totals = LayerOutputs { outputs: 0, saved: 0, pool_indices: 0 };
        let mut before = 0;
        while before < layer {
            let layer_shape = self.layer(before);
            totals.outputs += layer_shape.outputs();
            totals.saved += layer_shape.saved();
            totals.pool_indices += layer_shape.pool_indices();
            before += 1;
        }
        totals
    }

    /// Returns the number of outputs of the widest layer.
    pub(crate) const fn widest(&self) -> usize {
        let mut width = 0;
        let mut layer = 0;
        while layer < self.layers() {
            let outputs = self.layer(layer).outputs();
            if outputs > width {
                width = outputs;
            }
            layer += 1;
        }
        width
    }
}
