//! Local training of the baseline methods on simulated devices, with one file for each method. The formulas
//! are in the documentation of [`Baseline`] and of the server's side.
//!
//! Order of samples and arithmetic of steps are the same as in the client's network task. A baseline whose
//! correction is zero therefore gives the same bits as FedAvg or as purely local training.

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
use serde::{Deserialize, Serialize};
use training::Training;

/// State that a device keeps between rounds; empty before its first round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PersonalState {
    /// Personal network of the device.
    own: Option<Vec<f32>>,
    /// SCAFFOLD's control variate `c_i`.
    control: Option<Vec<f32>>,
    /// APFL's mixing weight alpha; `None` before the first update.
    alpha: Option<f32>,
}

/// Models at the start of a round.
struct RoundStart<'a> {
    /// Received values: the model, for SCAFFOLD followed by the control variate.
    received: &'a [f32],
    /// Common initial network.
    start: &'a [f32],
}

impl RoundStart<'_> {
    /// Personal network after the previous round of the device, or the initial network before its first
    /// round.
    fn own(&self, state: &PersonalState) -> Vec<f32> {
        state.own.as_deref().unwrap_or(self.start).to_vec()
    }
}

/// Models from which the scored network of a client is computed.
struct ScoringModels<'a> {
    shape: NetworkShape,
    /// Shared network.
    shared: &'a [f32],
    /// Personal network of a device that has not participated in any round.
    initial_own: &'a [f32],
    /// Training samples of the client.
    samples: &'a mut dyn SampleSource,
}

/// Baseline method with its parameters.
trait Method {
    /// True if the parameters are in range.
    fn is_valid(&self) -> bool;

    /// Number of matrices of a layer's size in each tensor: 2 if a control variate is sent with the model.
    fn copies(&self) -> usize {
        1
    }

    /// Runs a round and returns the upload, which is as long as the received values. An error leaves the
    /// state unchanged.
    fn run(
        &self,
        training: &mut Training<'_>,
        start: &RoundStart<'_>,
        state: &mut PersonalState,
    ) -> Result<Vec<f32>, DeclineReason>;

    /// Network with which the client is scored.
    fn scored(&self, models: ScoringModels<'_>, _state: &PersonalState) -> Vec<f32> {
        models.shared.to_vec()
    }
}

/// Creates the method of a baseline; `None` if simulated devices do not support the baseline.
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
    // The range does not contain NaN.
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

/// Task of a device that runs the rounds of a baseline.
#[derive(Clone, Debug)]
pub struct Rounds {
    shape: NetworkShape,
    layers: Layers,
    /// Seed for the order of samples.
    seed: u64,
    /// Method for which the device was built, with its initial parameters. Each round may have other
    /// parameters.
    built_for: (Baseline, Descent),
    state: PersonalState,
    open: Option<Open>,
    /// Tensors of the open round: the received tensors, and after the computation the tensors to upload.
    values: Vec<f32>,
}

impl Rounds {
    /// Creates the task of a device. `seed` determines the order of samples. Returns `None` if the method is
    /// not a baseline.
    pub fn new(network: &NetworkConfig, seed: u64) -> Option<Self> {
        let NetworkConfig { shape, method, parameters, .. } = network;
        let Task::Baseline { baseline, descent, .. } = method.plan(parameters).task else { return None };
        let (layers, built_for, shape) = (parameters.shape, (baseline, descent), *shape);
        Some(Self {
            shape,
            layers,
            seed,
            built_for,
            state: PersonalState::default(),
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

    /// Closes the round. Called when a round with another task opens.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Checks a round and opens it.
    ///
    /// # Errors
    /// [`DeclineReason::Task`], [`DeclineReason::Tensors`] or [`DeclineReason::Parameter`] if the round's
    /// task, tensors or parameters do not match the device or are invalid; the state is then unchanged.
    pub fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        let Task::Baseline { baseline, descent, epochs, encoding } = round.task else {
            return Err(DeclineReason::Task);
        };
        let is_same_baseline = std::mem::discriminant(&baseline) == std::mem::discriminant(&self.built_for.0);
        let method = method(baseline, descent).filter(|_| is_same_baseline).ok_or(DeclineReason::Task)?;
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

    /// Range of the tensor number `index` in the values.
    fn tensor_range(&self, index: usize) -> Option<std::ops::Range<usize>> {
        let layer = self.shape.range(index..index + 1);
        let copies = self.copies();
        (index < self.shape.layers()).then_some(copies * layer.start..copies * layer.end)
    }

    /// Buffer of the tensor number `index` of the open round.
    pub fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        let range = self.tensor_range(index)?;
        self.values.get_mut(range)
    }

    /// Tensor number `index` of the upload.
    pub fn tensor(&self, index: usize) -> &[f32] {
        self.tensor_range(index).and_then(|range| self.values.get(range)).unwrap_or_default()
    }

    /// Checks the received values.
    ///
    /// # Errors
    /// [`DeclineReason::NonFinite`] if a value is not finite.
    pub fn verify(&self) -> Result<(), DeclineReason> {
        training::check_finite(&self.values).map_err(|_| DeclineReason::NonFinite)
    }

    /// Computes the open round. `start` is the common initial network.
    ///
    /// # Errors
    /// Reason for which the round is declined; the state is then unchanged.
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
        let sent_parameters = method.run(&mut training, &round_start, &mut self.state)?;
        let usage = training.usage();
        self.values = self.by_layer(&sent_parameters);
        Ok(usage)
    }

    /// Descriptors of the upload, without chunk lengths.
    pub fn upload(&self) -> Descriptors {
        self.open.map(|open| self.descriptors(open.encoding).into_iter().collect()).unwrap_or_default()
    }

    /// Network with which the client is scored. `shared` is the shared network, `initial_own` is the personal
    /// network of a device that has not participated in any round, and `samples` are the client's training
    /// samples.
    pub fn scored(&self, shared: &[f32], initial_own: &[f32], samples: &mut dyn SampleSource) -> Vec<f32> {
        let (baseline, descent) = self.built_for;
        let models = ScoringModels { shape: self.shape, shared, initial_own, samples };
        method(baseline, descent).map_or_else(Vec::new, |method| method.scored(models, &self.state))
    }

    /// State that the device keeps between rounds.
    pub fn personal(&self) -> &PersonalState {
        &self.state
    }

    /// Restores the state that the device keeps between rounds.
    pub fn restore(&mut self, state: PersonalState) {
        self.state = state;
    }

    /// SCAFFOLD's control variate `c_i`, all layers concatenated; `None` before the first round.
    pub fn control(&self) -> Option<&[f32]> {
        self.state.control.as_deref()
    }

    /// Reorders values from layer order, in which each layer has `copies` matrices, to copy order: all layers
    /// of the first copy, then all layers of the next copy.
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
        let mut remaining = parted;
        for copy in 0..self.copies() {
            for layer in 0..self.shape.layers() {
                let matrix_values = values.get_mut(self.matrix(layer, copy)).unwrap_or_default();
                let (copied, following) = remaining.split_at(matrix_values.len().min(remaining.len()));
                matrix_values.copy_from_slice(copied);
                remaining = following;
            }
        }
        values
    }

    /// Range of matrix number `copy` of a layer in the values.
    fn matrix(&self, layer: usize, copy: usize) -> std::ops::Range<usize> {
        let layer_range = self.shape.range(layer..layer + 1);
        let start = self.copies() * layer_range.start + copy * layer_range.len();
        start..start + layer_range.len()
    }
}
