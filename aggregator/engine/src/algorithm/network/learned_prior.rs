//! Networks whose last layer has a prior that the fleet learns: FedAvg trains all layers, then the outputs of the last hidden layer are
//! the samples of a linear model with a learned prior ([`linear::LearnedPrior`](crate::algorithm::LearnedPrior)).
//!
//! Personalising the last layer of a network that was trained by FedAvg is known to be hard to beat (Collins et al. 2021, Table 1;
//! Cheng, Chadha and Duchi 2021, "Fine-tuning is fine in federated learning"). Here that layer is a posterior mean: the fleet decides
//! how far a head may be from the common one, and in which directions.

use fedspan_protocol::message::{HeadSolve, Task, Trained};
use fedspan_protocol::tensor::Role;
use toml_edit::Value;

use super::mean::LayerMean;
use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, NetworkShape, Plan, SharedLayers};
use crate::aggregate::UpdateWeight;
use crate::algorithm::{Algorithm, ChosenPrior, HeadPrior, LearnedPrior, LearnedPriorSettings, random_start};
use crate::linalg::{Matrix, RankDeficient};
use crate::participation::UploadLayout;
use crate::reader::Problem;
use crate::types::{DeviceId, Request, Tensor};

/// Heads of a network with a learned prior, after training by FedAvg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkPrior(pub LearnedPriorSettings);

impl NetworkPrior {
    /// Settings of a file without the keys of this algorithm: those of linear models, without refinement, which made no difference to heads
    /// of networks on digits and smartwatch windows (`sim/PERSONAL.md`).
    const DEFAULT: LearnedPriorSettings =
        LearnedPriorSettings { refining_rounds: 0, ..LearnedPriorSettings::DEFAULT };
}

/// Sizes of the linear model that acts on the inputs of a network's last layer: its features (one for the biases), its width and its
/// outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeadShape {
    features: usize,
    width: usize,
    outputs: usize,
}

impl HeadShape {
    fn of(shape: NetworkShape) -> Self {
        let (features, outputs) = shape.layers().last().copied().unwrap_or((1, 1));
        Self { features, width: outputs.min(features - 1).max(1), outputs }
    }

    /// Number of values of a prior with a metric, if it has one.
    fn values(self, has_metric: bool) -> usize {
        let Self { features: d, width: k, outputs: c } = self;
        d * (k + c) + k + 1 + if has_metric { d * (d + 1) / 2 } else { 0 }
    }
}

impl NetworkAlgorithm for NetworkPrior {
    const NAME: &'static str = "learned-prior";
    const SUMMARY: &'static str = "personal heads with a prior that the fleet learns (empirical Bayes); of networks after training by fedavg";
    const RUNS_ON_FIRMWARE: bool = true;
    const HAS_OWN_HEAD: bool = true;
    const STEPS_SHOW_ROUND: bool = false;
    const HAS_PRIOR: bool = true;

    fn read(keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        LearnedPriorSettings::read_keys(keys.own, Self::DEFAULT).map(Self)
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        self.0.write_keys(&mut |key, value| set(&format!("{}.{key}", Self::NAME), value));
    }

    fn check_shape(&self, shape: NetworkShape) -> Result<(), String> {
        if shape.layers().len() < 2 {
            return Err(
                "the network has no layer before its last one, allowed: at least one; or set model.kind = \"linear\""
                    .to_owned(),
            );
        }
        let values = HeadShape::of(shape).values(self.0.second_moments);
        if values > usize::from(u16::MAX) {
            let inputs = HeadShape::of(shape).features - 1;
            let advice = if self.0.second_moments {
                "; set algorithm.learned-prior.second_moments = false, or a smaller last hidden layer"
            } else {
                "; set a smaller last hidden layer"
            };
            return Err(format!(
                "the prior of a last layer of {inputs} inputs has {values} values, and at most {} are sent{advice}",
                u16::MAX
            ));
        }
        Ok(())
    }

    fn rounds_after_training(&self) -> u32 {
        self.0.prior_rounds()
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let task = Task::Sgd { descent, head_epochs: 0, epochs, trained: Trained::All, encoding };
        Plan { shared: SharedLayers::All, task }
    }

    fn server(&self, parameters: NetworkParameters) -> Box<dyn Algorithm> {
        Box::new(NetworkPriorServer::new(self.0, parameters, self.plan(&parameters)))
    }

    fn evaluated_model(&self) -> &'static str {
        "the shared body with a head that the client fitted under the fleet's prior"
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        "the shared body with a head that the newcomer fitted under the fleet's prior"
    }
}

/// Server of networks whose last layer has a learned prior.
#[derive(Clone, Debug)]
pub struct NetworkPriorServer {
    network: LayerMean,
    /// Number of rounds in which the network is trained.
    training_rounds: u32,
    /// Number of finished rounds.
    number: u32,
    prior: LearnedPrior,
}

impl NetworkPriorServer {
    /// Starts from the initial network.
    #[must_use]
    pub fn new(settings: LearnedPriorSettings, parameters: NetworkParameters, plan: Plan) -> Self {
        let NetworkParameters { shape, rule, seed, training_rounds, first_device, .. } = parameters;
        let HeadShape { features, width, outputs } = HeadShape::of(shape);
        let basis = random_start(features, width, seed);
        Self {
            network: LayerMean::new(parameters, plan),
            training_rounds,
            number: 0,
            prior: LearnedPrior::new(settings, rule, basis, outputs, first_device),
        }
    }

    /// Algorithm of the present round.
    fn current(&self) -> &dyn Algorithm {
        if self.trains_network() { &self.network } else { &self.prior }
    }

    /// Mutable version of [`Self::current`].
    fn current_mut(&mut self) -> &mut dyn Algorithm {
        if self.trains_network() { &mut self.network } else { &mut self.prior }
    }

    /// Whether the present round trains the network.
    fn trains_network(&self) -> bool {
        self.number < self.training_rounds
    }

    /// Request of the linear model on the outputs of the body: the layers of the body come first, then the prior in one tensor.
    fn with_body(&self, request: Request) -> Request {
        let mut tensors = self.network.tensors();
        tensors.pop();
        tensors.extend(self.in_one_tensor(request.tensors));
        Request { tensors, ..request }
    }

    /// Prior in one tensor; `None` without tensors.
    fn in_one_tensor(&self, tensors: Vec<Tensor>) -> Option<Tensor> {
        let find = |role| tensors.iter().find(|tensor| tensor.role == role);
        let (basis, variances) = (find(Role::Representation)?, find(Role::PriorVariances)?);
        let (features, outputs) = self.network.shape().layers().last().copied()?;
        let mean = find(Role::PriorMean).map_or_else(|| vec![0.0; features * outputs], |m| m.values.clone());
        let metric = find(Role::SecondMoments).map_or_else(Vec::new, |metric| metric.values.clone());
        let values = [basis.values.clone(), mean, variances.values.clone(), metric].concat();
        let cols = u16::try_from(values.len()).unwrap_or(u16::MAX);
        Some(Tensor { role: Role::HeadPrior, rows: 1, cols, values })
    }
}

impl Algorithm for NetworkPriorServer {
    fn request(&self) -> Request {
        if self.trains_network() { self.network.request() } else { self.with_body(self.prior.request()) }
    }

    fn requests(&self) -> Vec<Request> {
        let of_prior = self.prior.requests().into_iter().map(|request| self.with_body(request));
        std::iter::once(self.network.request()).chain(of_prior).collect()
    }

    fn asks(&self, device: DeviceId) -> bool {
        self.current().asks(device)
    }

    fn asks_all(&self) -> bool {
        self.current().asks_all()
    }

    fn admits(&self, samples: u32, tensors: &[Tensor]) -> bool {
        self.current().admits(samples, tensors)
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        self.current_mut().absorb(device, weight, tensors);
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        self.current_mut().finish()?;
        self.number = self.number.saturating_add(1);
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        self.network.representation()
    }

    fn upload_layout(&self) -> UploadLayout {
        if self.trains_network() { self.network.upload_layout() } else { UploadLayout::Other }
    }

    fn chosen_prior(&self) -> Option<ChosenPrior> {
        self.prior.chosen_prior()
    }

    fn head_prior(&self) -> Option<HeadPrior> {
        self.prior.head_prior()
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        self.with_body(self.prior.fit_request(head))
    }

    /// Returns the layers, the number of finished rounds, and the state of the prior.
    fn state(&self) -> Vec<f64> {
        let mut state = self.network.state();
        state.push(self.number.into());
        state.extend(self.prior.state());
        state
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((layers, rest)) = state.split_at_checked(self.network.state().len()) else { return false };
        let Some((&number, prior)) = rest.split_first() else { return false };
        let is_number = (0.0..=f64::from(u32::MAX)).contains(&number) && number.fract() == 0.0;
        let mut restored = self.clone();
        if !is_number || !restored.prior.restore(prior) || !restored.network.restore(layers) {
            return false;
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number, as checked"
        )]
        {
            restored.number = number as u32;
        }
        *self = restored;
        true
    }

    fn copy(&self) -> Option<Box<dyn Algorithm>> {
        Some(Box::new(self.clone()))
    }
}
