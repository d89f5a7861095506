//! Shape of a network whose sizes are known at run time only, from the description that a hello contains.

use core::fmt;

use fedspan_protocol::message::{Model, ModelSizes};

use super::{FrontEnd, NetworkShape};
#[cfg(feature = "recurrent")]
use crate::kernel::recurrent::Lstm;

/// Largest number of values of a network and its working memory, 1 GiB, so that no size overflows 32 bits.
const VALUES_MAX: u64 = 1 << 28;

/// Largest number of rows or columns of a layer, which a tensor descriptor can express.
const SIDE_MAX: u64 = u16::MAX as u64;

/// Reason why no network has a described shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// The model is linear.
    Linear,
    /// The firmware has no layers of this kind; the name is that of the missing cargo feature.
    Feature(&'static str),
    /// A size is zero, or filters and pooling leave no outputs.
    Empty,
    /// A layer has more rows or columns than the protocol can describe.
    Side {
        /// Number of rows or columns.
        found: u64,
        /// Largest allowed number.
        allowed: u64,
    },
    /// The network and its working memory have too many values.
    Values {
        /// Number of values, an upper bound.
        found: u64,
        /// Largest allowed number.
        allowed: u64,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Linear => f.write_str("the model is linear, not a network"),
            Self::Feature(feature) => write!(f, "this firmware is built without the feature {feature}"),
            Self::Empty => f.write_str("a layer of the network has no inputs or no outputs"),
            Self::Side { found, allowed } => {
                write!(f, "a layer has {found} rows or columns, allowed: at most {allowed}")
            }
            Self::Values { found, allowed } => {
                write!(f, "the network takes {found} values of memory, allowed: at most {allowed}")
            }
        }
    }
}

impl core::error::Error for ShapeError {}

impl NetworkShape {
    /// Creates the shape of a described network whose batches have at most `batch` samples. The checksum of an
    /// adapter's frozen layer is ignored.
    ///
    /// ```
    /// use fedspan_client::memory::NetworkShape;
    /// use fedspan_protocol::message::Model;
    ///
    /// let shape = NetworkShape::described(&Model::network(64, [32, 0, 0], 7), 10)?;
    /// assert_eq!(shape, NetworkShape::new(64, &[32], 7, 10));
    /// # Ok::<(), fedspan_client::memory::ShapeError>(())
    /// ```
    ///
    /// # Errors
    /// [`ShapeError`] if the model is linear, needs a feature that this crate was built without, or has a
    /// layer that is empty or too large.
    pub fn described(model: &Model, batch: usize) -> Result<Self, ShapeError> {
        let mut sum = Sum::default();
        let (features, front_end, inputs, hidden, outputs) = match model.sizes() {
            ModelSizes::Linear { .. } => return Err(ShapeError::Linear),
            ModelSizes::Network { features, hidden, outputs } => {
                (features.into(), FrontEnd::Nothing, features.into(), hidden, outputs)
            }
            #[cfg(not(feature = "adapter"))]
            ModelSizes::Adapted { .. } => return Err(ShapeError::Feature("adapter")),
            #[cfg(feature = "adapter")]
            ModelSizes::Adapted { features, rank, width, hidden, outputs, .. } => {
                let [features, rank, width] = [features, rank, width].map(usize::from);
                sum.add_layer(features, rank)?;
                sum.add_layer(rank, width)?;
                (features, FrontEnd::Adapter { features, rank, width }, width, hidden, outputs)
            }
            #[cfg(not(feature = "convolution"))]
            ModelSizes::Convolutional { .. } => return Err(ShapeError::Feature("convolution")),
            #[cfg(feature = "convolution")]
            ModelSizes::Convolutional { image, filters, hidden: [a, b], outputs } => {
                let front_end = FrontEnd::Filters { image, filters };
                let inputs = sum.add_filters(&front_end, image, filters)?;
                let features = [image.height, image.width, image.channels].map(usize::from).iter().product();
                (features, front_end, inputs, [a, b, 0], outputs)
            }
            #[cfg(not(feature = "recurrent"))]
            ModelSizes::Recurrent { .. } => return Err(ShapeError::Feature("recurrent")),
            #[cfg(feature = "recurrent")]
            ModelSizes::Recurrent { steps, channels, cells, hidden, outputs } => {
                let [steps, channels, cells] = [steps, channels, cells].map(usize::from);
                let lstm = Lstm { steps, channels, cells };
                sum.add_cells(lstm)?;
                (lstm.inputs(), FrontEnd::Lstm(lstm), cells, hidden, outputs)
            }
        };
        let mut inputs = inputs;
        let hidden = hidden.map(usize::from);
        let outputs = usize::from(outputs);
        let dense = hidden.iter().copied().take_while(|width| *width > 0);
        if hidden.iter().skip_while(|width| **width > 0).any(|width| *width > 0) {
            return Err(ShapeError::Empty);
        }
        for width in dense.chain([outputs]) {
            sum.add_layer(inputs, width)?;
            inputs = width;
        }
        sum.check(features, batch)?;
        Ok(Self { features, front_end, hidden, outputs, batch })
    }
}

/// Upper bounds of the numbers of values that a network and its working memory take. They are computed in 64
/// bits before the sizes of the shape are, which overflow on a device if a bound is exceeded.
#[derive(Default)]
struct Sum {
    /// Parameters of all layers.
    parameters: u64,
    /// Values of one sample: outputs and saved values of all layers.
    sample: u64,
    /// Scratch memory of all layers.
    scratch: u64,
}

impl Sum {
    /// Adds a matrix of `inputs` + 1 rows, and its outputs.
    fn add_layer(&mut self, inputs: usize, outputs: usize) -> Result<(), ShapeError> {
        self.add_matrix(inputs as u64, outputs as u64)?;
        self.sample = self.sample.saturating_add(outputs as u64);
        Ok(())
    }

    /// Adds the parameters of a matrix of `inputs` + 1 rows.
    fn add_matrix(&mut self, inputs: u64, columns: u64) -> Result<(), ShapeError> {
        if inputs == 0 || columns == 0 {
            return Err(ShapeError::Empty);
        }
        let found = columns.max(inputs.saturating_add(1));
        if found > SIDE_MAX {
            return Err(ShapeError::Side { found, allowed: SIDE_MAX });
        }
        self.parameters = self.parameters.saturating_add((inputs + 1) * columns);
        Ok(())
    }

    /// Adds the layers of filters, and returns the number of their outputs.
    #[cfg(feature = "convolution")]
    fn add_filters(
        &mut self,
        front_end: &FrontEnd,
        image: fedspan_protocol::message::Image,
        filters: [fedspan_protocol::message::Filters; fedspan_protocol::limits::FILTERS_MAX],
    ) -> Result<usize, ShapeError> {
        use crate::kernel::Layer;

        let [height, width, channels] = [image.height, image.width, image.channels].map(u64::from);
        let (pixels, mut channels) = (height * width, channels);
        if pixels.saturating_mul(channels) > VALUES_MAX {
            let found = pixels.saturating_mul(channels);
            return Err(ShapeError::Values { found, allowed: VALUES_MAX });
        }
        let mut outputs = 0;
        for (number, layer) in filters.iter().enumerate() {
            if layer.count == 0 {
                // The first layer must exist, and no layer may follow a missing one.
                let follows = filters.iter().skip(number).any(|layer| layer.count > 0);
                return if number == 0 || follows { Err(ShapeError::Empty) } else { Ok(outputs) };
            }
            let (side, count) = (u64::from(layer.side), u64::from(layer.count));
            let patch = side.saturating_mul(if height == 1 { 1 } else { side }).saturating_mul(channels);
            self.add_matrix(patch, count)?;
            let found = pixels.saturating_mul(patch.saturating_add(count).saturating_add(2 * channels));
            if found > VALUES_MAX {
                return Err(ShapeError::Values { found, allowed: VALUES_MAX });
            }
            self.scratch = self.scratch.saturating_add(found).saturating_add((patch + 1) * count);
            let Layer::Filters { convolution, pooling } = front_end.layer(number) else {
                return Err(ShapeError::Empty);
            };
            if convolution.outputs() == 0 || pooling.outputs() == 0 {
                return Err(ShapeError::Empty);
            }
            outputs = pooling.outputs();
            self.sample = self.sample.saturating_add(2 * outputs as u64);
            channels = count;
        }
        Ok(outputs)
    }

    /// Adds LSTM cells.
    #[cfg(feature = "recurrent")]
    fn add_cells(&mut self, lstm: Lstm) -> Result<(), ShapeError> {
        let [steps, channels, cells] = [lstm.steps, lstm.channels, lstm.cells].map(|size| size as u64);
        if steps == 0 || channels == 0 || cells == 0 {
            return Err(ShapeError::Empty);
        }
        self.add_matrix(channels + cells, 4 * cells)?;
        // The rows, gates and cell states of every step.
        let saved = (steps + 1).saturating_mul(channels + 6 * cells);
        self.sample = self.sample.saturating_add(saved).saturating_add(cells);
        Ok(())
    }

    /// Checks that all values of the network are few enough, with velocity and a batch of this size.
    fn check(&self, features: usize, batch: usize) -> Result<(), ShapeError> {
        if batch == 0 {
            return Err(ShapeError::Empty);
        }
        // The errors of two layers have at most twice the values of all layers.
        let sample = self.sample.saturating_mul(3).saturating_add(features as u64);
        let found = sample.saturating_mul(batch as u64).saturating_add(self.scratch);
        let found = found.saturating_add(self.parameters.saturating_mul(2));
        if found > VALUES_MAX { Err(ShapeError::Values { found, allowed: VALUES_MAX }) } else { Ok(()) }
    }
}
