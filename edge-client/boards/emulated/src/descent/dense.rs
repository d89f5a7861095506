//! Network of dense layers with 64 inputs, 32 hidden units and 7 classes.

use fedspan_client::memory::{NetworkShape, NetworkSizes, NetworkWorkspace};

use super::{C, D, Model, N};

/// Network of two dense layers.
#[derive(Clone, Debug)]
pub struct Dense;

impl NetworkSizes for Dense {
    const SHAPE: NetworkShape = NetworkShape::new(D, &[32], C, N);
}

const P: usize = Dense::SHAPE.parameters();

impl Model for Dense {
    const NAME: &'static str = "64-32-7";
    type Memory = NetworkWorkspace<Self, P, { Self::SHAPE.scratch() }, { Self::SHAPE.bytes() }, P>;

    fn memory() -> Self::Memory {
        NetworkWorkspace::new()
    }
}
