//! Models of the fuzz target `device_session`: a linear model in each kind of memory, and networks in memory of the caller.

use fedspan_client::kernel::recurrent::Lstm;
use fedspan_client::memory::{NetworkMemory, NetworkShape, NetworkSlices};
use fedspan_client::{Linear, Memory, Network, NotReady, Task};
use fedspan_protocol::message::{Filters, Image};

/// Feature count `d` of the linear model. The representation (`d x k`) needs chunks at the smallest frame limit but
/// not at 4096 bytes.
pub const D: usize = 20;
/// Representation width `k` of the linear model.
pub const K: usize = 3;

/// Number of networks: dense layers, filters, long short-term memory, and an adapter.
pub const NETWORKS: usize = 4;
/// Largest number of samples in a batch.
const BATCH: usize = 3;
/// Number of times that a network starts from cleared memory in one script; further resets do nothing.
const STARTS: usize = 12;

/// Returns the sizes of a network, by its number from 1.
pub fn shape_of(network: usize) -> NetworkShape {
    const STEPS: Image = Image { height: 1, width: 7, channels: 2 };
    match network {
        1 => NetworkShape::new(9, &[5], 3, BATCH),
        2 => NetworkShape::convolutional(STEPS, &[Filters { count: 3, side: 3, pool: 2 }], &[], 3, BATCH),
        3 => NetworkShape::recurrent(Lstm { steps: 3, channels: 2, cells: 4 }, &[], 3, BATCH),
        _ => NetworkShape::adapted(6, 2, 5, &[], 3, BATCH),
    }
}

/// Model under test.
pub trait Model: Task {
    /// Returns the numbers of features and outputs.
    fn sizes(&self) -> (usize, usize);

    /// Predicts one sample.
    fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady>;
}

impl<M: Memory> Model for Linear<M> {
    fn sizes(&self) -> (usize, usize) {
        let shape = self.shape();
        (shape.features, shape.outputs)
    }

    fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        Self::predict(self, x, out)
    }
}

impl<M: NetworkMemory> Model for Network<M> {
    fn sizes(&self) -> (usize, usize) {
        let shape = self.shape();
        (shape.features, shape.outputs)
    }

    fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        Self::predict(self, x, out)
    }
}

/// Buffers of a network, for each of its starts.
pub struct Buffers {
    shape: NetworkShape,
    starts: Vec<(Vec<f32>, Vec<u8>)>,
}

impl Buffers {
    /// Allocates the buffers of a network, by its number from 1.
    pub fn new(network: usize) -> Self {
        let shape = shape_of(network);
        // The earlier content of the RAM must not matter.
        let start = (vec![f32::NAN; NetworkSlices::values(shape, true)], vec![0xEE; shape.bytes()]);
        Self { shape, starts: vec![start; STARTS] }
    }

    /// Returns the network after each start.
    pub fn networks(&mut self) -> impl Iterator<Item = Network<NetworkSlices<'_>>> {
        let shape = self.shape;
        self.starts.iter_mut().map(move |(values, bytes)| {
            Network::new(NetworkSlices::new(shape, true, values, bytes).expect("buffers of this network"), 1)
        })
    }
}
