//! Layers of a network on the server: their sizes, the layers that are shared, and initial values.

use std::ops::Range;

use fedspan_protocol::limits::{FILTERS_MAX, HIDDEN_AFTER_FILTERS_MAX, HIDDEN_MAX};
use fedspan_protocol::message::{Filters, Image, Model};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use crate::random::{Purpose, stream};

/// Sizes of a network: front layers (filters, cells or an adapter), then dense layers. A layer is a matrix
/// with one row per input, a last row for the biases, and one column per output (or per filter, or per gate
/// of a cell). The factors of an adapter have no biases.
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
    /// No front: the samples are the input of the first dense layer.
    Nothing,
    /// Convolutional layers over an image. Unused entries at the end of the array have a count of zero.
    Filters(Image, [Filters; FILTERS_MAX]),
    /// Frozen layer with a parallel low-rank adapter.
    Adapter {
        /// Rank of the adapter, `r`.
        rank: u16,
        /// Number of outputs of the frozen layer, `h`.
        width: u16,
        /// CRC-32C of the frozen layer, or 0 if none was given.
        frozen: u32,
    },
    /// LSTM cells, with their number. They read a sequence: the rows of an image, or the pixels of an image
    /// with one row.
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
    /// The given number of last layers.
    Last(usize),
    /// No layer.
    Nothing,
}

impl NetworkShape {
    /// Model description that a hello contains.
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
                for (target, width) in behind.iter_mut().zip(hidden) {
                    *target = width;
                }
                Model::convolutional(image, filters, behind, outputs)
            }
        }
    }

    /// Checks that the numbers of features and outputs are not zero, that the output of filters and pooling
    /// is not empty, and that every layer fits a tensor descriptor.
    ///
    /// # Errors
    /// Returns a sentence with the sizes found and allowed.
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
                size = filtered_size(size, Filters { count, side, pool });
                if size.contains(&0) {
                    return Err(format!(
                        "filters that see {side} pixels of a row, pooled by {pool}, leave nothing of an image of {height} rows \
                         of {width} pixels"
                    ));
                }
            }
        }
        let max_size = usize::from(u16::MAX);
        match self.layers().into_iter().enumerate().find(|(_, (rows, cols))| rows.max(cols) > &max_size) {
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
                    let [rows, columns] = window(size, filters.side);
                    layers.push((rows * columns * size[2] + 1, usize::from(filters.count)));
                    size = filtered_size(size, filters);
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

    /// Indices of the layers that `selection` selects.
    #[must_use]
    pub fn shared_layers(self, selection: SharedLayers) -> Range<usize> {
        let count = self.layers().len();
        match selection {
            SharedLayers::Body => 0..count - 1,
            SharedLayers::All => 0..count,
            SharedLayers::Factors => 0..count.min(2),
            SharedLayers::Last(layers) => count - layers.clamp(1, count)..count,
            SharedLayers::Nothing => 0..0,
        }
    }

    /// Range of the parameters of these layers among the parameters of all layers.
    #[must_use]
    pub fn range(self, layers: Range<usize>) -> Range<usize> {
        let sizes: Vec<usize> = self.layers().iter().map(|(rows, cols)| rows * cols).collect();
        let until = |layer: usize| sizes.iter().take(layer).sum::<usize>();
        until(layers.start)..until(layers.end)
    }

    /// Descriptors of the shared layers, each with `copies` matrices of the layer's size stacked vertically.
    /// A row count beyond u16 saturates; such tensors are rejected later, when they are checked.
    #[must_use]
    pub fn descriptors(
        self,
        selection: SharedLayers,
        copies: usize,
        encoding: Encoding,
    ) -> Vec<TensorDescriptor> {
        let layers = self.layers();
        let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let shared = self.shared_layers(selection);
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

    /// Initial weights and biases of all layers, drawn from `seed`. In each layer they are uniform in
    /// `[-b, b]`, where `b` is one over the square root of the number of its inputs (or of its LSTM cells),
    /// as in PyTorch. Exceptions: the biases of forget gates are 1 (Gers et al. 2000), and the up-projection
    /// of an adapter has a standard deviation of 0.001. Unless `with_head` is set, the head is zero, as on a
    /// device that has not trained a head.
    #[must_use]
    pub fn start(self, seed: u64, with_head: bool) -> Vec<f64> {
        let mut random = stream(seed, Purpose::Network, 0);
        let layers = self.layers();
        let mut values = Vec::with_capacity(self.parameters());
        for (number, (rows, cols)) in layers.iter().enumerate() {
            let is_drawn = with_head || number + 1 < layers.len();
            let cells = match self.front {
                Front::Cells(_, cells) if number == 0 => Some(usize::from(cells)),
                _ => None,
            };
            let bound = match (self.front, number) {
                // The initial values are not zero, because a following ReLU has no derivative at zero.
                (Front::Adapter { .. }, 1) => UP_DEVIATION * 3f64.sqrt(),
                (Front::Adapter { .. }, 0) => 1.0 / (*rows as f64).sqrt(),
                _ if is_drawn => 1.0 / (cells.unwrap_or(rows - 1) as f64).sqrt(),
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

/// Length of the sequence in an image, and number of values per step. A step is a row of the image, or a
/// pixel if the image has only one row.
#[must_use]
pub fn sequence(image: Image) -> [usize; 2] {
    let [height, width, channels] = extent(image);
    if height == 1 { [width, channels] } else { [height, width * channels] }
}

/// Number of rows, pixels per row, and values per pixel.
fn extent(image: Image) -> [usize; 3] {
    [image.height, image.width, image.channels].map(usize::from)
}

/// Rows and columns of a square window of width `side`. If the image has one row (a signal), the window has
/// one row as well.
fn window([height, ..]: [usize; 3], side: u8) -> [usize; 2] {
    [if height == 1 { 1 } else { side.into() }, side.into()]
}

/// Size of an image after filters and pooling.
fn filtered_size(image: [usize; 3], filters: Filters) -> [usize; 3] {
    let [rows, columns] = window(image, filters.side);
    let [pool_rows, pool_columns] = window(image, filters.pool);
    let remaining = |length: usize, side: usize, pool: usize| (length + 1).saturating_sub(side) / pool.max(1);
    [remaining(image[0], rows, pool_rows), remaining(image[1], columns, pool_columns), filters.count.into()]
}
