//! Models of the fuzz target `device_session`: a linear model in each kind of memory, also with noise, networks in memory of the caller,
//! and the tasks that wrap them.

use fedspan_client::kernel::recurrent::Lstm;
use fedspan_client::memory::{
    Fixed, FixedWorkspace, Gathering, NetworkMemory, NetworkShape, NetworkSlices, Parts, PartsRef,
    PowerWorkspace, Shape, StreamingWorkspace, Workspace,
};
use fedspan_client::privacy::{Clip, Clipped, Gaussian, MinEntropy, NoiseMultiplier, PrivacySettings};
use fedspan_client::task::{
    ErrorFeedback, LearnedPrior, PriorNetwork, Scaled, learned_prior_values, prior_network_values,
    scaled_values,
};
use fedspan_client::{Linear, Mechanism, Memory, Millis, Network, NotReady, Task};
use fedspan_protocol::message::{Filters, Image, Numeric};

use super::parts::Entropy;

/// Feature count `d` of the linear model. The representation (`d x k`) needs chunks at the smallest frame limit but
/// not at 4096 bytes.
pub const D: usize = 20;
/// Representation width `k` of the linear model.
pub const K: usize = 3;

/// Number of models besides the linear one: networks of dense layers, filters, long short-term memory, and an adapter; then a network
/// and a linear model whose heads have a learned prior.
pub const OTHER_MODELS: usize = 6;
/// Number of the network whose last layer has a learned prior.
pub const PRIOR_NETWORK: usize = 5;
/// Number of the linear model whose heads have a learned prior.
pub const PRIOR_LINEAR: usize = 6;
/// Sizes of the linear model whose heads have a learned prior.
pub const PRIOR_SHAPE: Shape = Shape { features: 7, width: 2, outputs: 3 };
/// Largest number of samples in a batch.
const BATCH: usize = 3;
/// Number of times that a network starts from cleared memory in one script; further resets do nothing.
const STARTS: usize = 12;

/// Returns the sizes of a network, by its number from 1.
pub fn shape_of(network: usize) -> NetworkShape {
    const STEPS: Image = Image { height: 1, width: 7, channels: 2 };
    match network {
        1 | PRIOR_NETWORK => NetworkShape::new(9, &[5], 3, BATCH),
        2 => NetworkShape::convolutional(STEPS, &[Filters { count: 3, side: 3, pool: 2 }], &[], 3, BATCH),
        3 => NetworkShape::recurrent(Lstm { steps: 3, channels: 2, cells: 4 }, &[], 3, BATCH),
        _ => NetworkShape::adapted(6, 2, 5, &[], 3, BATCH),
    }
}

/// Number of releases for which the budget of a device with noise suffices.
const RELEASES: u64 = 6;
/// Largest number of iterations of a round with noise.
const ITERATIONS: u16 = 3;

/// Memory of a linear model, of a kind that the script chooses.
pub struct AnyMemory(Box<dyn Memory>);

impl AnyMemory {
    /// Allocates memory: for replayed samples, for streamed ones, or for 16-bit fixed point; the first two also with room for four samples;
    /// or for power iterations.
    pub fn new(kind: MemoryKind, variant: u8) -> Self {
        let (plain, streaming) = (Workspace::<D, K>::new(), StreamingWorkspace::<D, K>::new());
        Self(match (kind, variant % 3) {
            (MemoryKind::Plain, 0) => Box::new(plain),
            (MemoryKind::Plain, 1) => Box::new(streaming),
            (MemoryKind::Plain, _) => Box::new(FixedWorkspace::<D, K>::new()),
            (MemoryKind::Gathering, 1) => Box::new(Gathering::<_, D>::new(streaming)),
            (MemoryKind::Gathering, _) => Box::new(Gathering::<_, D>::new(plain)),
            (MemoryKind::Power, 1) => Box::new(streaming),
            (MemoryKind::Power, _) => Box::new(PowerWorkspace::<D, K>::new()),
        })
    }
}

/// Kind of the memory of a linear model.
#[derive(Clone, Copy)]
pub enum MemoryKind {
    Plain,
    Gathering,
    Power,
}

impl Memory for AnyMemory {
    fn parts(&mut self) -> Parts<'_> {
        self.0.parts()
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        self.0.parts_ref()
    }

    fn numeric(&self) -> Numeric {
        self.0.numeric()
    }

    fn fixed(&mut self) -> Option<(Parts<'_>, Fixed<'_>)> {
        self.0.fixed()
    }
}

/// Noise of a private device, which also clips gradients.
pub type Noise = Clipped<Gaussian<Entropy>>;

/// Creates a linear model whose updates have noise. Its budget is soon spent.
pub fn private_model(memory: AnyMemory, entropy: Entropy) -> Linear<AnyMemory, Noise> {
    let multiplier = NoiseMultiplier::from_square((1 << 14) + 1).expect("a multiplier in range");
    let budget = RELEASES * u64::from(multiplier.release());
    let settings = PrivacySettings::new(multiplier, budget, 4, Millis::new(5_000)).expect("valid settings");
    let claim = MinEntropy::new(4).expect("a claim in range");
    let gaussian = Gaussian::new(settings.with_iterations(ITERATIONS), entropy, claim);
    Linear::private(memory, Clipped::new(gaussian, Clip::new(0.75).expect("a radius in range")))
        .expect("settings for this model")
}

/// Adds error feedback to a task.
pub fn with_error_feedback<T: Task>(task: T) -> ErrorFeedback<T, Vec<f32>> {
    // The earlier content of the RAM must not matter.
    let residual = vec![f32::NAN; task.capabilities().tensor_elements as usize];
    ErrorFeedback::new(task, residual).expect("memory for the longest tensor")
}

/// Adds scaling of samples to a task.
pub fn with_scale<T: Task>(task: T) -> Scaled<T, Vec<f32>> {
    let values = vec![f32::NAN; scaled_values(task.capabilities().model.features())];
    Scaled::new(task, values).expect("memory for the scale")
}

/// Model under test.
pub trait Model: Task {
    /// Returns the numbers of features and outputs.
    fn sizes(&self) -> (usize, usize);

    /// Predicts one sample.
    fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady>;
}

impl<M: Memory, P: Mechanism> Model for Linear<M, P> {
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

/// Implements [`Model`] for scaled models, each with predictions of its own.
macro_rules! scaled_models {
    ($(($($generics:tt)*) $Task:ty;)+) => {
        $(impl<$($generics)*> Model for Scaled<$Task, Vec<f32>> {
            fn sizes(&self) -> (usize, usize) {
                self.task().sizes()
            }

            fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
                Self::predict(self, x, out)
            }
        })+
    };
}

scaled_models! {
    (M: Memory, P: Mechanism) Linear<M, P>;
    (M: NetworkMemory) Network<M>;
    (M: NetworkMemory) PriorNetwork<M, Vec<f32>>;
    () LearnedPrior<Vec<f32>>;
}

impl<T: Model> Model for ErrorFeedback<T, Vec<f32>> {
    fn sizes(&self) -> (usize, usize) {
        self.task().sizes()
    }

    fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        let residual = self.residual();
        assert!(residual.iter().all(|value| value.is_finite()), "the residual {residual:?} is kept");
        self.task_mut().predict(x, out)
    }
}

impl<M: NetworkMemory> Model for PriorNetwork<M, Vec<f32>> {
    fn sizes(&self) -> (usize, usize) {
        self.network().sizes()
    }

    fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        Self::predict(self, x, out)
    }
}

impl Model for LearnedPrior<Vec<f32>> {
    fn sizes(&self) -> (usize, usize) {
        (PRIOR_SHAPE.features, PRIOR_SHAPE.outputs)
    }

    fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        let predicted = Self::predict(self, x, out);
        // The variance is known only between a fit and the next round.
        let variance = self.predict_with_variance(x, out);
        assert!(predicted.is_ok() || variance.is_err(), "{predicted:?} {variance:?}");
        assert!(!matches!(variance, Ok(value) if !(value >= 0.0 && value.is_finite())), "{variance:?}");
        predicted
    }
}

/// Creates the linear model whose heads have a learned prior, with or without room for a metric.
pub fn prior_model(has_metric: bool) -> LearnedPrior<Vec<f32>> {
    // The earlier content of the RAM must not matter.
    let values = vec![f32::NAN; learned_prior_values(PRIOR_SHAPE, has_metric)];
    LearnedPrior::new(PRIOR_SHAPE, values).expect("memory for this model")
}

/// Adds a learned prior of the last layer to a network, with or without room for a metric.
pub fn with_prior<M: NetworkMemory>(network: Network<M>, has_metric: bool) -> PriorNetwork<M, Vec<f32>> {
    let values = vec![f32::NAN; prior_network_values(network.shape(), has_metric)];
    PriorNetwork::new(network, values).expect("memory for this prior")
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
