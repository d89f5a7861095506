//! Convolutional network for signals of 16 steps and 4 channels: 8 filters over 5 steps, pooled by 2, then
//! dense layers of 16 and 7 units.

use fedspan_client::memory::{NetworkShape, NetworkSizes, NetworkWorkspace};
use fedspan_protocol::message::{Filters as Layer, Image};

use super::{C, Model, N};

const SIGNAL: Image = Image { height: 1, width: 16, channels: 4 };
const ALONG: Layer = Layer { count: 8, side: 5, pool: 2 };

/// Network of a convolutional layer and dense layers.
#[derive(Clone, Debug)]
pub struct Filters;

impl NetworkSizes for Filters {
    const SHAPE: NetworkShape = NetworkShape::convolutional(SIGNAL, &[ALONG], &[16], C, N);
}

const P: usize = Filters::SHAPE.parameters();

impl Model for Filters {
    const NAME: &'static str = "16x4, 8 filters, 16-7";
    type Memory = NetworkWorkspace<Self, P, { Self::SHAPE.scratch() }, { Self::SHAPE.bytes() }, P>;

    fn memory() -> Self::Memory {
        NetworkWorkspace::new()
    }
}
