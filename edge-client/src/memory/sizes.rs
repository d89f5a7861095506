//! How much memory a network takes.

use super::NetworkShape;

/// What layers make and note of one sample.
pub(crate) struct Made {
    /// Values.
    pub outputs: usize,
    /// Values of [`Layer::notes`](crate::kernel::Layer::notes).
    pub notes: usize,
    /// Bytes of [`Layer::places`](crate::kernel::Layer::places).
    pub places: usize,
}

impl NetworkShape {
    /// Values that keep what the body makes of so many samples, and their classes.
    #[must_use]
    pub const fn kept(&self, samples: usize) -> usize {
        samples * (self.layer(self.layers() - 1).inputs() + 1)
    }

    /// Values of working memory: a batch, what all layers make and note of it, two layers' errors, and what a layer needs
    /// while it works.
    #[must_use]
    pub const fn scratch(&self) -> usize {
        let made = self.made_before(self.layers());
        let mut working = 0;
        let mut layer = 0;
        while layer < self.layers() {
            let this = self.layer(layer).working();
            if this > working {
                working = this;
            }
            layer += 1;
        }
        self.batch * (self.features + made.outputs + made.notes + 2 * self.widest()) + working
    }

    /// Bytes beside these values: the classes of a batch, and which values poolings have kept of it.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.batch * (1 + self.made_before(self.layers()).places)
    }

    /// What all layers before `layer` make and note of one sample.
    pub(crate) const fn made_before(&self, layer: usize) -> Made {
        let mut made = Made { outputs: 0, notes: 0, places: 0 };
        let mut before = 0;
        while before < layer {
            let this = self.layer(before);
            made.outputs += this.outputs();
            made.notes += this.notes();
            made.places += this.places();
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
