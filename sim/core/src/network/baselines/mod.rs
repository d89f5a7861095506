//! Device side of the baselines, one file per method. The documentation of [`Baseline`] and of the server's
//! side has the formulas.
//!
//! Samples come in the order of the client's own network, and steps are computed as it does. A baseline with
//! a correction of zero therefore has the same bits as FedAvg, or as local training.

mod apfl;
mod ditto;
mod fed_mtl;
mod fedprox;
mod l2gd;
mod perfedavg;
mod scaffold;
mod training;

use fedspan_client::memory::NetworkShape;
use fedspan_client::source::SampleSource;
use fedspan_client::task::{Batches, Usage};
use fedspan_engine::algorithm::network::{NetworkShape as Layers, SharedLayers};
use fedspan_protocol::message::{Baseline, DeclineReason, Descent, Descriptors, RoundId, RoundOpen, Task};
use fedspan_protocol::tensor::{Encoding, TensorDescriptor};

use super::NetworkConfig;
use training::Training;

/// State that a device keeps between rounds; empty before its first round.
#[derive(Clone, Debug, Default)]
struct DeviceState {
    /// Device's own network.
    own: Option<Vec<f32>>,
    /// SCAFFOLD's control variate `c_i`.
    control: Option<Vec<f32>>,
    /// APFL's mixing weight alpha, once it is updated.
    alpha: Option<f32>,
}

/// Models at the start of a round.
struct RoundStart<'a> {
    /// Received values: for SCAFFOLD the whole model, then the whole control variate.
    received: &'a [f32],
    /// Common initial network.
    start: &'a [f32],
}

impl RoundStart<'_> {
    /// Device's own network at the end of its previous round; the initial network before its first.
    fn own(&self, state: &DeviceState) -> Vec<f32> {
        state.own.as_deref().unwrap_or(self.start).to_vec()
    }
}

/// Models from which a client's score is computed.
struct ScoringModels<'a> {
    shape: NetworkShape,
    /// Shared network.
    shared: &'a [f32],
    /// Own network of a device that took part in no round.
    initial_own: &'a [f32],
    /// Training samples of the client.
    samples: &'a mut dyn SampleSource,
}

/// A method with its parameters.
trait Method {
    /// True if the parameters are in range.
    fn is_valid(&self) -> bool;

    /// Number of matrices of a layer's size in each tensor.
    fn copies(&self) -> usize {
        1
    }

    /// Runs a round and returns the upload, which is as long as the received values. An error leaves the
    /// state unchanged.
    fn run(
        &self,
        training: &mut Training<'_>,
        start: &RoundStart<'_>,
        state: &mut DeviceState,
    ) -> Result<Vec<f32>, DeclineReason>;

    /// Network that a client is scored with.
    fn scored(&self, models: ScoringModels<'_>, _state: &DeviceState) -> Vec<f32> {
        models.shared.to_vec()
    }
}

fn method(baseline: Baseline, descent: Descent) -> Option<Box<dyn Method>> {
    Some(match baseline {
        Baseline::FedProx { proximal_weight } => Box::new(fedprox::FedProx { proximal_weight }),
        Baseline::Scaffold => Box::new(scaffold::Scaffold { descent }),
        Baseline::PerFedAvg { inner_step } => {
            Box::new(perfedavg::PerFedAvg { inner_step, hessian_free: false })
        }
        Baseline::PerFedAvgHf { inner_step } => {
            Box::new(perfedavg::PerFedAvg { inner_step, hessian_free: true })
        }
        Baseline::Ditto { proximal_weight } => Box::new(ditto::Ditto { proximal_weight }),
        Baseline::Apfl { mixing_weight, mixing_step_size } => {
            Box::new(apfl::Apfl { mixing_weight, mixing_step_size })
        }
        Baseline::L2gd { averaging_step } => Box::new(l2gd::L2gd { averaging_step }),
        Baseline::FedMtl { proximal_weight } => Box::new(fed_mtl::FedMtl { proximal_weight }),
        _ => return None,
    })
}

/// True for a valid weight of a proximal term.
fn is_proximal_weight(weight: f32) -> bool {
    // False for NaN.
    (0.0..f32::INFINITY).contains(&weight)
}

/// Parameters of the open round.
#[derive(Clone, Copy, Debug)]
struct Open {
    baseline: Baseline,
    descent: Descent,
    epochs: u16,
    encoding: Encoding,
}

/// Rounds of a baseline on one device.
#[derive(Clone, Debug)]
pub struct Rounds {
    shape: NetworkShape,
    layers: Layers,
    /// Seed of the order of samples.
    seed: u64,
    /// Method that the device was built for, with its parameters; each round may bring other parameters.
    built_for: (Baseline, Descent),
    state: DeviceState,
    open: Option<Open>,
    /// Tensors of the open round: the received ones, and after the computation those to upload.
    values: Vec<f32>,
}

impl Rounds {
    /// Makes the rounds of a device whose order of samples has this seed; `None` if the method is no
    /// baseline.
    pub fn new(network: &NetworkConfig, seed: u64) -> Option<Self> {
        let NetworkConfig { shape, method, parameters, .. } = network;
        let Task::Baseline { baseline, descent, .. } = method.plan(parameters).task else { return None };
        let (layers, built_for, shape) = (parameters.shape, (baseline, descent), *shape);
        Some(Self {
            shape,
            layers,
            seed,
            built_for,
            state: DeviceState::default(),
            open: None,
            values: Vec::new(),
        })
    }

    /// Number of matrices of a layer's size in each tensor.
    pub fn copies(&self) -> usize {
        let (baseline, descent) = self.built_for;
        method(baseline, descent).map_or(1, |method| method.copies())
    }

    fn descriptors(&self, encoding: Encoding) -> Vec<TensorDescriptor> {
        self.layers.descriptors(SharedLayers::All, self.copies(), encoding)
    }

    /// True if a round of the baseline is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Closes the round because a round of another task opens.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Checks a round and opens it.
    ///
    /// # Errors
    /// [`DeclineReason::Task`], [`DeclineReason::Tensors`] or [`DeclineReason::Parameter`] if the round's
    /// task, tensors or parameters do not fit; the state is then unchanged.
    pub fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        let Task::Baseline { baseline, descent, epochs, encoding } = round.task else {
            return Err(DeclineReason::Task);
        };
        let same = std::mem::discriminant(&baseline) == std::mem::discriminant(&self.built_for.0);
        let method = method(baseline, descent).filter(|_| same).ok_or(DeclineReason::Task)?;
        let expected = self.descriptors(encoding);
        let sizes = |tensor: &TensorDescriptor| (tensor.role, tensor.rows, tensor.cols);
        if !expected.iter().map(sizes).eq(round.tensors.iter().map(sizes)) {
            return Err(DeclineReason::Tensors);
        }
        if epochs == 0 || !Batches::fit(self.shape, descent) || !method.is_valid() {
            return Err(DeclineReason::Parameter);
        }
        self.values.resize(expected.iter().map(TensorDescriptor::elements).sum(), 0.0);
        self.open = Some(Open { baseline, descent, epochs, encoding });
        Ok(())
    }

    /// Range of tensor `index` among the values.
    fn place(&self, index: usize) -> Option<std::ops::Range<usize>> {
        let layer = self.shape.range(index..index + 1);
        let copies = self.copies();
        (index < self.shape.layers()).then_some(copies * layer.start..copies * layer.end)
    }

    /// Buffer of tensor `index` of the open round.
    pub fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        let place = self.place(index)?;
        self.values.get_mut(place)
    }

    /// Tensor `index` of the upload.
    pub fn tensor(&self, index: usize) -> &[f32] {
        self.place(index).and_then(|place| self.values.get(place)).unwrap_or_default()
    }

    /// Checks the received values.
    ///
    /// # Errors
    /// [`DeclineReason::NonFinite`] if one is not finite.
    pub fn verify(&self) -> Result<(), DeclineReason> {
        training::check_finite(&self.values).map_err(|_| DeclineReason::NonFinite)
    }

    /// Computes the open round. `start` is the common initial network.
    ///
    /// # Errors
    /// The reason to decline the round; the state is then unchanged.
    pub fn run(
        &mut self,
        id: RoundId,
        start: &[f32],
        source: &mut dyn SampleSource,
    ) -> Result<Usage, DeclineReason> {
        let Open { baseline, descent, epochs, .. } = self.open.ok_or(DeclineReason::Task)?;
        let method = method(baseline, descent).ok_or(DeclineReason::Task)?;
        let mut training = Training::new(self.shape, id, self.seed, (descent, epochs), source)?;
        let received = self.by_copy(&self.values);
        let round_start = RoundStart { received: &received, start };
        let sent = method.run(&mut training, &round_start, &mut self.state)?;
        let usage = training.usage();
        self.values = self.by_layer(&sent);
        Ok(usage)
    }

    /// Descriptors of the upload, without chunk lengths.
    pub fn upload(&self) -> Descriptors {
        self.open.map(|open| self.descriptors(open.encoding).into_iter().collect()).unwrap_or_default()
    }

    /// Network that the client is scored with. `shared` is the shared network, `initial_own` the own network
    /// of a device that took part in no round, and `samples` are the client's training samples.
    pub fn scored(&self, shared: &[f32], initial_own: &[f32], samples: &mut dyn SampleSource) -> Vec<f32> {
        let (baseline, descent) = self.built_for;
        let models = ScoringModels { shape: self.shape, shared, initial_own, samples };
        method(baseline, descent).map_or_else(Vec::new, |method| method.scored(models, &self.state))
    }

    /// SCAFFOLD's control variate `c_i`, all layers concatenated; `None` before the first round.
    pub fn control(&self) -> Option<&[f32]> {
        self.state.control.as_deref()
    }

    /// Reorders layers of `copies` matrices each: all layers of the first copy, then of the next.
    fn by_copy(&self, values: &[f32]) -> Vec<f32> {
        let mut parted = Vec::with_capacity(values.len());
        for copy in 0..self.copies() {
            for layer in 0..self.shape.layers() {
                parted.extend_from_slice(values.get(self.matrix(layer, copy)).unwrap_or_default());
            }
        }
        parted
    }

    /// Reverses [`Self::by_copy`].
    fn by_layer(&self, parted: &[f32]) -> Vec<f32> {
        let mut values = vec![0.0; parted.len()];
        let mut rest = parted;
        for copy in 0..self.copies() {
            for layer in 0..self.shape.layers() {
                let place = values.get_mut(self.matrix(layer, copy)).unwrap_or_default();
                let (own, after) = rest.split_at(place.len().min(rest.len()));
                place.copy_from_slice(own);
                rest = after;
            }
        }
        values
    }

    /// Range of a layer's matrix number `copy` among the values.
    fn matrix(&self, layer: usize, copy: usize) -> std::ops::Range<usize> {
        let own = self.shape.range(layer..layer + 1);
        let start = self.copies() * own.start + copy * own.len();
        start..start + own.len()
    }
}
