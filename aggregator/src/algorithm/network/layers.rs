//! The layers of a network on the host: sizes, which of them travel, and what they begin with.

use std::ops::Range;

use fedspan_protocol::limits::HIDDEN_MAX;
use fedspan_protocol::message::Model;
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use crate::random::{Purpose, stream};

/// Sizes of a network of dense layers with biases. A layer of i inputs and o outputs is a matrix of i + 1 rows, the last its
/// bias, and o columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkShape {
    /// `d`.
    pub features: u16,
    /// Widths of the hidden layers; zeros after the last.
    pub hidden: [u16; HIDDEN_MAX],
    /// `C`.
    pub outputs: u16,
}

/// Which layers of a network travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Travelling {
    /// All before the head.
    Body,
    /// All.
    All,
    /// So many, counted from the last.
    Last(usize),
    /// None.
    Nothing,
}

impl NetworkShape {
    /// As a hello says it.
    #[must_use]
    pub fn model(self) -> Model {
        Model::Network { features: self.features, hidden: self.hidden, outputs: self.outputs }
    }

    /// Rows and columns of each layer.
    #[must_use]
    pub fn layers(self) -> Vec<(usize, usize)> {
        let hidden = self.hidden.iter().take_while(|width| **width > 0);
        let widths: Vec<usize> = std::iter::once(&self.features)
            .chain(hidden)
            .chain([&self.outputs])
            .map(|width| usize::from(*width))
            .collect();
        widths.iter().zip(widths.iter().skip(1)).map(|(inputs, outputs)| (inputs + 1, *outputs)).collect()
    }

    /// Weights and biases of all layers.
    #[must_use]
    pub fn parameters(self) -> usize {
        self.layers().iter().map(|(rows, cols)| rows * cols).sum()
    }

    /// The layers that travel, by number.
    #[must_use]
    pub fn travelling(self, which: Travelling) -> Range<usize> {
        let count = self.layers().len();
        match which {
            Travelling::Body => 0..count - 1,
            Travelling::All => 0..count,
            Travelling::Last(layers) => count - layers.clamp(1, count)..count,
            Travelling::Nothing => 0..0,
        }
    }

    /// The parameters of these layers among all.
    #[must_use]
    pub fn range(self, layers: Range<usize>) -> Range<usize> {
        let sizes: Vec<usize> = self.layers().iter().map(|(rows, cols)| rows * cols).collect();
        let until = |layer: usize| sizes.iter().take(layer).sum::<usize>();
        until(layers.start)..until(layers.end)
    }

    /// The layers that travel as they are described, each of `copies` matrices of the layer's size one below the other.
    /// A rows count beyond u16 is cut, and refused where the tensors are checked.
    #[must_use]
    pub fn descriptors(self, which: Travelling, copies: usize, encoding: Encoding) -> Vec<TensorDescriptor> {
        let layers = self.layers();
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let travelling = self.travelling(which);
        let from_above = travelling.start > 0;
        travelling
            .filter_map(|number| {
                let (rows, cols) = *layers.get(number)?;
                let head = number + 1 == layers.len();
                let role = if head || from_above { Role::SharedHead } else { Role::Representation };
                Some(TensorDescriptor::inline(role, encoding, small(rows * copies), small(cols)))
            })
            .collect()
    }

    /// The network that all begin with: weights and biases of each layer uniform within one over the root of its inputs, as
    /// PyTorch draws them. The head is zero where it is not `whole`: that is what a device has before it has trained one.
    #[must_use]
    pub fn start(self, seed: u64, whole: bool) -> Vec<f64> {
        let mut random = stream(seed, Purpose::Network, 0);
        let layers = self.layers();
        let mut values = Vec::with_capacity(self.parameters());
        for (number, (rows, cols)) in layers.iter().enumerate() {
            let drawn = whole || number + 1 < layers.len();
            let bound = if drawn { 1.0 / ((rows - 1) as f64).sqrt() } else { 0.0 };
            values
                .extend((0..rows * cols).map(|_| f64::from((bound * (2.0 * random.uniform() - 1.0)) as f32)));
        }
        values
    }
}
