//! Network with an adapter: a frozen 64 x 64 layer in flash with an adapter of rank 4, and a head of 7
//! classes that keeps its initial value.

use fedspan_client::kernel::frozen::Frozen;
use fedspan_client::memory::{NetworkMemory, NetworkShape, NetworkSizes, NetworkWorkspace};
use fedspan_client::{Network, Task};
use fedspan_protocol::message::{Descriptors, Task as Wire, Trained};
use fedspan_protocol::tensor::Role;

use super::{C, D, Model, N, sgd, tensor, weights};

/// Outputs of the layer.
const WIDTH: usize = 64;
/// Columns of the down-projection.
const RANK: usize = 4;

/// Weights of the frozen layer, as bytes with one scale per output. The values are arbitrary.
static WEIGHTS: [i8; D * WIDTH] = {
    let mut weights = [0; D * WIDTH];
    let mut i = 0;
    while i < weights.len() {
        #[allow(clippy::cast_possible_wrap, clippy::cast_possible_truncation, reason = "any byte will do")]
        {
            weights[i] = (i * 37 % 255) as u8 as i8;
        }
        i += 1;
    }
    weights
};
static SCALES: [f32; WIDTH] = [0.001; WIDTH];
static BIASES: [f32; WIDTH] = [0.05; WIDTH];

/// A network with an adapter of rank 4.
#[derive(Clone, Debug)]
pub struct Adapter;

impl NetworkSizes for Adapter {
    const SHAPE: NetworkShape = NetworkShape::adapted(D, RANK, WIDTH, &[], C, N);
    const FROZEN: Frozen<'static> = Frozen::I8 { weights: &WEIGHTS, scales: &SCALES, biases: &BIASES };
}

const P: usize = Adapter::SHAPE.parameters();

impl Model for Adapter {
    const NAME: &'static str = "64-64 rank 4";
    type Memory = NetworkWorkspace<Self, P, { Self::SHAPE.scratch() }, { Self::SHAPE.bytes() }, P>;

    fn memory() -> Self::Memory {
        NetworkWorkspace::new()
    }

    fn tensors() -> Descriptors {
        [tensor(Role::AdapterDown, D, RANK), tensor(Role::AdapterUp, RANK, WIDTH)].into_iter().collect()
    }

    /// Sets the initial head.
    fn prepare(client: &mut Network<impl NetworkMemory>) {
        weights(client.head_mut());
        client.restore_head(0);
    }

    fn whole(epochs: u16) -> Wire {
        sgd(0, epochs, Trained::Down)
    }

    fn last(epochs: u16) -> Wire {
        sgd(0, epochs, Trained::Up)
    }

    fn rounds() -> [Wire; 2] {
        [Self::last(2), Self::whole(2)]
    }
}
