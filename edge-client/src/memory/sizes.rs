//! How much memory a network takes.

use super::NetworkShape;

/// What layers make and note of one sample.
pub(crate) struct LayerOutputs {
    /// Values.
    pub outputs: usize,
    /// Values of [`Layer::saved`](crate::kernel::Layer::saved).
    pub saved: usize,
    /// Bytes of [`Layer::pool_indices`](crate::kernel::Layer::pool_indices).
    pub pool_indices: usize,
}

impl NetworkShape {
    /// Values that keep what the body makes of so many samples, and their classes.
    #[must_use]
    pub const fn body_cache_len(&self, samples: usize) -> usize {
        samples * (self.layer(self.layers() - 1).inputs() + 1)
    }

    /// Values of working memory: a batch, what all layers make and note of it, two layers' errors, and what a layer needs
    /// while it works.
    #[must_use]
    pub const fn scratch(&self) -> usize {
        let made = self.outputs_before(self.layers());
        let mut scratch = 0;
        let mut layer = 0;
        while layer < self.layers() {
            let this = self.layer(layer).scratch();
            if this > scratch {
                scratch = this;
            }
            layer += 1;
        }
        self.batch * (self.features + made.outputs + made.saved + 2 * self.widest()) + scratch
    }

    /// Bytes beside these values: the classes of a batch, and which values poolings have kept of it.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.batch * (1 + self.outputs_before(self.layers()).pool_indices)
    }

    /// What all layers before `layer` make and note of one sample.
    pub(crate) const fn outputs_before(&self, layer: usize) -> LayerOutputs {
        let mut made = LayerOutputs { outputs: 0, saved: 0, pool_indices: 0 };
        let mut before = 0;
        while before < layer {
            let this = self.layer(before);
            made.outputs += this.outputs();
            made.saved += this.saved();
            made.pool_indices += this.pool_indices();
            before += 1;
        }
        made
    }

    /// Values of the widest layer's output.
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
