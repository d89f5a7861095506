//! Recurrent network for sequences of 16 steps and 4 channels: 16 LSTM cells, and a head of 7 classes.

use fedspan_client::kernel::recurrent::Lstm;
use fedspan_client::memory::{NetworkShape, NetworkSizes, NetworkWorkspace};

use super::{C, Model, N};

/// Network of LSTM cells and a head.
#[derive(Clone, Debug)]
pub struct Cells;

impl NetworkSizes for Cells {
    const SHAPE: NetworkShape =
        NetworkShape::recurrent(Lstm { steps: 16, channels: 4, cells: 16 }, &[], C, N);
}

const P: usize = Cells::SHAPE.parameters();

impl Model for Cells {
    const NAME: &'static str = "16x4, 16 cells, 7";
    const SAMPLES: usize = 25;
    type Memory = NetworkWorkspace<Self, P, { Self::SHAPE.scratch() }, { Self::SHAPE.bytes() }, P>;

    fn memory() -> Self::Memory {
        NetworkWorkspace::new()
    }
}
