//! Layers of a network on the host: sizes, shared layers, and initial values.

use std::ops::Range;

use fedspan_protocol::limits::{FILTERS_MAX, HIDDEN_AFTER_FILTERS_MAX, HIDDEN_MAX};
use fedspan_protocol::message::{Filters, Image, Model};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use crate::random::{Purpose, stream};

/// Sizes of a network: a front, then dense layers. A layer of i inputs and o outputs (or of o filters that
/// see i values each, or of o gates with i inputs) is a matrix of i + 1 rows, the last of which is the bias,
/// and o columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkShape {
    /// Number of features, `d`.
    pub features: u16,
    /// Layers before the dense ones.
    pub front: Front,
    /// Widths of the hidden dense layers; zeros after the last.
    pub hidden: [u16; HIDDEN_MAX],
    /// Number of outputs, `C`.
    pub outputs: u16,
}

/// Layers at the front of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// No front: the first dense layer sees the samples.
    Nothing,
    /// Convolutional filters over an image; those after the last have a count of zero.
    Filters(Image, [Filters; FILTERS_MAX]),
    /// Frozen layer with a low-rank adapter beside it.
    Adapter {
        /// Rank of the adapter, `r`.
        rank: u16,
        /// Outputs of the frozen layer, `h`.
        width: u16,
        /// CRC-32C of the frozen layer; 0 without one.
        frozen: u32,
    },
    /// LSTM cells that read a sequence: the rows of an image, or the pixels of an image of one row.
    Cells(Image, u16),
}

/// Layers of a network that devices and server exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedLayers {
    /// All layers before the head.
    Body,
    /// All layers.
    All,
    /// The two factors of an adapter.
    Factors,
    /// The last layers, as many as given.
    Last(usize),
    /// No layer.
    Nothing,
}

impl NetworkShape {
    /// Model description for a hello.
    #[must_use]
    pub fn model(self) -> Model {
        let Self { features, front, hidden, outputs } = self;
        match front {
            Front::Nothing => Model::network(features, hidden, outputs),
            Front::Adapter { rank, width, frozen } => {
                Model::adapted(features, rank, width, hidden, outputs, frozen)
            }
            Front::Cells(image, cells) => {
                let [steps, channels] = sequence(image);
                let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
                Model::recurrent(to_u16(steps), to_u16(channels), cells, hidden, outputs)
            }
            Front::Filters(image, filters) => {
                let mut behind = [0; HIDDEN_AFTER_FILTERS_MAX];
                for (place, width) in behind.iter_mut().zip(hidden) {
                    *place = width;
                }
                Model::convolutional(image, filters, behind, outputs)
            }
        }
    }

    /// Checks that there are features and outputs, that filters leave something of an image, and that every
    /// layer fits a tensor descriptor.
    ///
    /// # Errors
    /// A sentence with the sizes found and allowed.
    pub fn check(self) -> Result<(), String> {
        if self.features == 0 || self.outputs == 0 {
            return Err(format!(
                "{} features and {} classes, allowed: at least one of each",
                self.features, self.outputs
            ));
        }
        if let Front::Filters(image, filters) = self.front {
            let mut size = extent(image);
            for Filters { count, side, pool } in filters.into_iter().take_while(|filters| filters.count > 0) {
                let [height, width, _] = size;
                size = filtered(size, Filters { count, side, pool });
                if size.contains(&0) {
                    return Err(format!(
                        "filters that see {side} pixels of a row, pooled by {pool}, leave nothing of an image of {height} rows \
                         of {width} pixels"
                    ));
                }
            }
        }
        let most = usize::from(u16::MAX);
        match self.layers().into_iter().enumerate().find(|(_, (rows, cols))| rows.max(cols) > &most) {
            Some((number, (rows, cols))) => Err(format!(
                "layer {number} has {} inputs and {cols} outputs, allowed: at most 65534 and 65535",
                rows - 1
            )),
            None => Ok(()),
        }
    }

    /// Rows and columns of each layer.
    #[must_use]
    pub fn layers(self) -> Vec<(usize, usize)> {
        let mut layers = Vec::new();
        let mut inputs = usize::from(self.features);
        match self.front {
            Front::Nothing => {}
            Front::Adapter { rank, width, .. } => {
                layers.push((inputs, rank.into()));
                layers.push((rank.into(), width.into()));
                inputs = width.into();
            }
            Front::Filters(image, filters) => {
                let mut size = extent(image);
                for filters in filters.into_iter().take_while(|filters| filters.count > 0) {
                    let [rows, columns] = seen(size, filters.side);
                    layers.push((rows * columns * size[2] + 1, usize::from(filters.count)));
                    size = filtered(size, filters);
                }
                inputs = size.iter().product();
            }
            Front::Cells(image, cells) => {
                let [_, channels] = sequence(image);
                inputs = cells.into();
                layers.push((channels + inputs + 1, 4 * inputs));
            }
        }
        let hidden = self.hidden.iter().take_while(|width| **width > 0);
        for outputs in hidden.chain([&self.outputs]).map(|width| usize::from(*width)) {
            layers.push((inputs + 1, outputs));
            inputs = outputs;
        }
        layers
    }

    /// Number of weights and biases in all layers.
    #[must_use]
    pub fn parameters(self) -> usize {
        self.layers().iter().map(|(rows, cols)| rows * cols).sum()
    }

    /// Indices of the shared layers.
    #[must_use]
    pub fn shared_layers(self, which: SharedLayers) -> Range<usize> {
        let count = self.layers().len();
        match which {
            SharedLayers::Body => 0..count - 1,
            SharedLayers::All => 0..count,
            SharedLayers::Factors => 0..count.min(2),
            SharedLayers::Last(layers) => count - layers.clamp(1, count)..count,
            SharedLayers::Nothing => 0..0,
        }
    }

    /// Range of the layers' parameters among all parameters.
    #[must_use]
    pub fn range(self, layers: Range<usize>) -> Range<usize> {
        let sizes: Vec<usize> = self.layers().iter().map(|(rows, cols)| rows * cols).collect();
        let until = |layer: usize| sizes.iter().take(layer).sum::<usize>();
        until(layers.start)..until(layers.end)
    }

    /// Descriptors of the shared layers, each with `copies` matrices of the layer's size stacked vertically.
    /// A row count beyond u16 saturates, and is refused where the tensors are checked.
    #[must_use]
    pub fn descriptors(
        self,
        which: SharedLayers,
        copies: usize,
        encoding: Encoding,
    ) -> Vec<TensorDescriptor> {
        let layers = self.layers();
        let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let shared = self.shared_layers(which);
        let from_above = shared.start > 0;
        shared
            .filter_map(|number| {
                let (rows, cols) = *layers.get(number)?;
                let role = match (self.front, number) {
                    (Front::Adapter { .. }, 0) => Role::AdapterDown,
                    (Front::Adapter { .. }, 1) => Role::AdapterUp,
                    _ if from_above || number + 1 == layers.len() => Role::SharedHead,
                    _ => Role::Representation,
                };
                Some(TensorDescriptor::inline(role, encoding, to_u16(rows * copies), to_u16(cols)))
            })
            .collect()
    }

    /// Initial network: weights and biases of each layer uniform within one over the root of its inputs, or
    /// of its cells, as in PyTorch. But the biases of forget gates are one (Gers et al. 2000), and an
    /// adapter's up-projection has a standard deviation of 0.001. Unless `whole`, the head is zero, which is
    /// what a device has before it has trained one.
    #[must_use]
    pub fn start(self, seed: u64, whole: bool) -> Vec<f64> {
        let mut random = stream(seed, Purpose::Network, 0);
        let layers = self.layers();
        let mut values = Vec::with_capacity(self.parameters());
        for (number, (rows, cols)) in layers.iter().enumerate() {
            let drawn = whole || number + 1 < layers.len();
            let cells = match self.front {
                Front::Cells(_, cells) if number == 0 => Some(usize::from(cells)),
                _ => None,
            };
            let bound = match (self.front, number) {
                // Not zero, at which a following ReLU has no derivative.
                (Front::Adapter { .. }, 1) => UP_DEVIATION * 3f64.sqrt(),
                (Front::Adapter { .. }, 0) => 1.0 / (*rows as f64).sqrt(),
                _ if drawn => 1.0 / (cells.unwrap_or(rows - 1) as f64).sqrt(),
                _ => 0.0,
            };
            values
                .extend((0..rows * cols).map(|_| f64::from((bound * (2.0 * random.uniform() - 1.0)) as f32)));
            if let Some(cells) = cells {
                let biases = values.len() - cols;
                values.iter_mut().skip(biases + cells).take(cells).for_each(|bias| *bias = 1.0);
            }
        }
        values
    }
}

/// Standard deviation of the initial up-projection.
const UP_DEVIATION: f64 = 1e-3;

/// Length of a sequence and values per step: the pixels of the only row, or the rows.
#[must_use]
pub fn sequence(image: Image) -> [usize; 2] {
    let [height, width, channels] = extent(image);
    if height == 1 { [width, channels] } else { [height, width * channels] }
}

/// Rows, pixels per row, and values per pixel.
fn extent(image: Image) -> [usize; 3] {
    [image.height, image.width, image.channels].map(usize::from)
}

/// Rows and columns of a square window; a signal has one row.
fn seen([height, ..]: [usize; 3], side: u8) -> [usize; 2] {
    [if height == 1 { 1 } else { side.into() }, side.into()]
}

/// Size of an image after filters and pooling.
fn filtered(image: [usize; 3], filters: Filters) -> [usize; 3] {
    let [rows, columns] = seen(image, filters.side);
    let [down, across] = seen(image, filters.pool);
    let left = |length: usize, side: usize, pool: usize| (length + 1).saturating_sub(side) / pool.max(1);
    [left(image[0], rows, down), left(image[1], columns, across), filters.count.into()]
}
