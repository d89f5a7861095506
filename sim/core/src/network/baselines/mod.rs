//! What simulated devices do in the rounds of a baseline. One file a method; its formula is in the documentation of
//! [`Baseline`] and of the server's side.
//!
//! Samples come in the order in which the client's own network takes them, and steps are its steps: a baseline whose
//! correction is zero has the bits of FedAvg, or of everyone alone.

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
use fedspan_engine::algorithm::network::{NetworkParameters, NetworkShape as Layers, SharedLayers, plan};
use fedspan_protocol::message::{Baseline, DeclineReason, Descent, Descriptors, RoundId, RoundOpen, Task};
use fedspan_protocol::tensor::{Encoding, TensorDescriptor};

use training::Training;

/// What a device keeps from round to round; nothing before its first.
#[derive(Clone, Debug, Default)]
struct Kept {
    /// Its own network.
    own: Option<Vec<f32>>,
    /// SCAFFOLD's `c_i`.
    control: Option<Vec<f32>>,
    /// APFL's alpha, where it is learnt.
    alpha: Option<f32>,
}

/// What a round begins with.
struct Given<'a> {
    /// What came: for SCAFFOLD all of the model, then all of the control variate.
    came: &'a [f32],
    /// The network that all begin with.
    start: &'a [f32],
}

impl Given<'_> {
    /// The device's own network, as it was left.
    fn own(&self, kept: &Kept) -> Vec<f32> {
        kept.own.as_deref().unwrap_or(self.start).to_vec()
    }
}

/// What a client can be scored with.
struct Models<'a> {
    shape: NetworkShape,
    /// Everyone's network.
    shared: &'a [f32],
    /// What a device has that was in no round.
    without_own: &'a [f32],
    /// The samples that it trains on.
    samples: &'a mut dyn SampleSource,
}

/// A method with its numbers.
trait Method {
    /// Whether these are in range.
    fn is_sound(&self) -> bool;

    /// Matrices of a layer's size in each tensor.
    fn copies(&self) -> usize {
        1
    }

    /// A round: what is sent, as long as what came. Where it fails, nothing is kept of it.
    fn run(
        &self,
        training: &mut Training<'_>,
        given: &Given<'_>,
        kept: &mut Kept,
    ) -> Result<Vec<f32>, DeclineReason>;

    /// The network that a client is scored with.
    fn scored(&self, models: Models<'_>, _kept: &Kept) -> Vec<f32> {
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

/// Whether a penalty on a distance has a weight.
fn is_proximal_weight(weight: f32) -> bool {
    // False for a NaN.
    (0.0..f32::INFINITY).contains(&weight)
}

/// A round that was taken.
#[derive(Clone, Copy, Debug)]
struct Open {
    baseline: Baseline,
    descent: Descent,
    epochs: u16,
    encoding: Encoding,
}

/// The rounds of a baseline on one device.
#[derive(Clone, Debug)]
pub struct Rounds {
    shape: NetworkShape,
    layers: Layers,
    /// For the order of samples.
    seed: u64,
    /// What the device was built for; each round brings its numbers anew.
    built_for: (Baseline, Descent),
    kept: Kept,
    open: Option<Open>,
    /// The open round's tensors: those that came, and once it has been computed those that go.
    values: Vec<f32>,
}

impl Rounds {
    /// Those of a device whose order of samples has this seed, where the method is a baseline.
    pub fn new(parameters: &NetworkParameters, shape: NetworkShape, seed: u64) -> Option<Self> {
        let Task::Baseline { baseline, descent, .. } = plan(parameters).task else { return None };
        let (layers, built_for) = (parameters.shape, (baseline, descent));
        Some(Self { shape, layers, seed, built_for, kept: Kept::default(), open: None, values: Vec::new() })
    }

    /// Matrices of a layer's size in each tensor.
    pub fn copies(&self) -> usize {
        let (baseline, descent) = self.built_for;
        method(baseline, descent).map_or(1, |method| method.copies())
    }

    /// The task's bit in a set of tasks.
    pub fn task_bit(&self) -> u16 {
        let (baseline, descent) = self.built_for;
        Task::Baseline { baseline, descent, epochs: 1, encoding: Encoding::F32 }.bit()
    }

    fn descriptors(&self, encoding: Encoding) -> Vec<TensorDescriptor> {
        self.layers.descriptors(SharedLayers::All, self.copies(), encoding)
    }

    /// Whether a round of the baseline is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// A round of another task is open instead.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Checks a round and takes it.
    ///
    /// # Errors
    /// [`DeclineReason::Task`], [`DeclineReason::Tensors`], [`DeclineReason::Parameter`]; nothing has changed then.
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
        if epochs == 0 || !Batches::fit(self.shape, descent) || !method.is_sound() {
            return Err(DeclineReason::Parameter);
        }
        self.values.resize(expected.iter().map(TensorDescriptor::elements).sum(), 0.0);
        self.open = Some(Open { baseline, descent, epochs, encoding });
        Ok(())
    }

    /// Where tensor `index` is among the values.
    fn place(&self, index: usize) -> Option<std::ops::Range<usize>> {
        let layer = self.shape.range(index..index + 1);
        let copies = self.copies();
        (index < self.shape.layers()).then_some(copies * layer.start..copies * layer.end)
    }

    /// Where tensor `index` of the open round is.
    pub fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        let place = self.place(index)?;
        self.values.get_mut(place)
    }

    /// Tensor `index`, as it goes.
    pub fn tensor(&self, index: usize) -> &[f32] {
        self.place(index).and_then(|place| self.values.get(place)).unwrap_or_default()
    }

    /// Checks what came.
    ///
    /// # Errors
    /// [`DeclineReason::NonFinite`].
    pub fn verify(&self) -> Result<(), DeclineReason> {
        training::finite(&self.values).map_err(|_| DeclineReason::NonFinite)
    }

    /// Computes the open round. `start` is the network that all begin with.
    ///
    /// # Errors
    /// The reason to decline; nothing is kept of the round then.
    pub fn run(
        &mut self,
        id: RoundId,
        start: &[f32],
        source: &mut dyn SampleSource,
    ) -> Result<Usage, DeclineReason> {
        let Open { baseline, descent, epochs, .. } = self.open.ok_or(DeclineReason::Task)?;
        let method = method(baseline, descent).ok_or(DeclineReason::Task)?;
        let mut training = Training::new(self.shape, id, self.seed, (descent, epochs), source)?;
        let came = self.by_copy(&self.values);
        let given = Given { came: &came, start };
        let sent = method.run(&mut training, &given, &mut self.kept)?;
        let usage = training.usage();
        self.values = self.by_layer(&sent);
        Ok(usage)
    }

    /// What goes, without chunk lengths.
    pub fn upload(&self) -> Descriptors {
        self.open.map(|open| self.descriptors(open.encoding).into_iter().collect()).unwrap_or_default()
    }

    /// The network that the client is scored with, where `shared` is everyone's and it trains on `samples`. A device that
    /// was in no round has `without_own`.
    pub fn scored(&self, shared: &[f32], without_own: &[f32], samples: &mut dyn SampleSource) -> Vec<f32> {
        let (baseline, descent) = self.built_for;
        let models = Models { shape: self.shape, shared, without_own, samples };
        method(baseline, descent).map_or_else(Vec::new, |method| method.scored(models, &self.kept))
    }

    /// SCAFFOLD's control variate `c_i`: all layers, one after the other. Nothing before the first round.
    pub fn control(&self) -> Option<&[f32]> {
        self.kept.control.as_deref()
    }

    /// From layers of `copies` matrices each: the first of all layers, then the next.
    fn by_copy(&self, values: &[f32]) -> Vec<f32> {
        let mut parted = Vec::with_capacity(values.len());
        for copy in 0..self.copies() {
            for layer in 0..self.shape.layers() {
                parted.extend_from_slice(values.get(self.matrix(layer, copy)).unwrap_or_default());
            }
        }
        parted
    }

    /// The other way round.
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

    /// Where a layer's matrix number `copy` is among the values.
    fn matrix(&self, layer: usize, copy: usize) -> std::ops::Range<usize> {
        let own = self.shape.range(layer..layer + 1);
        let start = self.copies() * own.start + copy * own.len();
        start..start + own.len()
    }
}
