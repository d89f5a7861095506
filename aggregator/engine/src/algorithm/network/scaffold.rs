//! SCAFFOLD (Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
//! Algorithm 1 with option II and a global step of 1): FedAvg in which control variates correct each step by
//! the estimated difference between the gradients of the device and of the fleet.
//!
//! Device i starts from the shared model x, takes K steps along `g - c_i + c` to `y_i`, and then sets its
//! control variate `c_i <- c_i - c + (x - y_i) / (K eta)`. The server sets `x <- mean y_i` and
//! `c <- c + (|S| / N) mean (change of c_i)`, with means over the participants S of a fleet of N devices.

use fedspan_protocol::message::{Baseline, Descent, HeadSolve, Task};

use super::mean::tensors;
use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, Plan, SHARED_AND_HEAD, SharedLayers};
use crate::aggregate::{RoundAggregate, UpdateWeight};
use crate::algorithm::Algorithm;
use crate::algorithm::decoded::as_decoded;
use crate::linalg::{Matrix, RankDeficient};
use crate::participation::UploadLayout;
use crate::reader::Problem;
use crate::types::{DeviceId, Request, Tensor};

/// SCAFFOLD: FedAvg with control variates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scaffold;

impl NetworkAlgorithm for Scaffold {
    const NAME: &'static str = "scaffold";
    const SUMMARY: &'static str = "fedavg with steps corrected by control variates (networks)";
    const SHARES_WHOLE_NETWORK: bool = true;
    const TENSORS_PER_LAYER: usize = 2;
    // Control variates are derived for steps without momentum.
    const MOMENTUM: f64 = 0.0;
    const USES_FLEET_SIZE: bool = true;
    // A round changes the control variate as well.
    const STEPS_SHOW_ROUND: bool = false;

    fn read(_keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let task = Task::Baseline { baseline: Baseline::Scaffold, descent, epochs, encoding };
        Plan { shared: SharedLayers::All, task }
    }

    fn server(&self, parameters: NetworkParameters) -> Box<dyn Algorithm> {
        Box::new(ScaffoldServer::new(parameters))
    }

    fn check_descent(&self, descent: &Descent) -> Result<(), (&'static str, String)> {
        if descent.momentum > 0.0 {
            let momentum = descent.momentum;
            let message = format!(
                "found {momentum}, but scaffold's control variates need steps without momentum; allowed: 0"
            );
            return Err(("momentum", message));
        }
        if descent.step_size == 0.0 {
            let message =
                "found 0, but scaffold divides its control variates by the step size; allowed: above 0";
            return Err(("step_size", message.to_owned()));
        }
        Ok(())
    }

    fn evaluated_model(&self) -> &'static str {
        "the shared network"
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        SHARED_AND_HEAD
    }
}

/// Server side of SCAFFOLD: the shared model, the control variate of the fleet, and the updates of the open
/// round.
#[derive(Clone, Debug)]
pub struct ScaffoldServer {
    parameters: NetworkParameters,
    plan: Plan,
    /// Parameters of all layers of the shared model, P x 1.
    model: Matrix,
    /// Control variate of the fleet, P values.
    control: Vec<f64>,
    participants: usize,
    round: RoundAggregate,
}

impl ScaffoldServer {
    /// Starts from the initial network, with control variates of zero.
    #[must_use]
    pub fn new(parameters: NetworkParameters) -> Self {
        let NetworkParameters { shape, rule, weighting, seed, .. } = parameters;
        let model = shape.start(seed, true);
        let round = RoundAggregate::new(rule, weighting, 2 * model.len());
        Self {
            parameters,
            plan: Scaffold.plan(&parameters),
            control: vec![0.0; model.len()],
            model: Matrix::from_vec(model.len(), 1, model),
            participants: 0,
            round,
        }
    }

    /// For each layer, the values of the model followed by those of the control variate.
    fn stacked(&self) -> Vec<f64> {
        let shape = self.parameters.shape;
        let mut values = Vec::with_capacity(2 * self.control.len());
        for layer in 0..shape.layers().len() {
            let range = shape.range(layer..layer + 1);
            values.extend(self.model.as_slice().get(range.clone()).unwrap_or_default());
            values.extend(self.control.get(range).unwrap_or_default());
        }
        values
    }

    /// For each layer, the model as devices decode it, followed by zeros.
    fn decoded_model_and_zeros(&self) -> Vec<f64> {
        let NetworkParameters { shape, download_encoding, .. } = self.parameters;
        let layers = tensors(&self.plan, shape, self.model.as_slice(), 1, download_encoding);
        let values_and_zeros = |tensor: Tensor| {
            let values: Vec<f64> =
                as_decoded(tensor.values, download_encoding).into_iter().map(f64::from).collect();
            let zeros = vec![0.0; values.len()];
            values.into_iter().chain(zeros)
        };
        layers.into_iter().flat_map(values_and_zeros).collect()
    }

    /// Splits stacked values into those of the model and those of the control variate (or, for an aggregate
    /// of updates, its change).
    fn unstacked(&self, stacked: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let shape = self.parameters.shape;
        let mut model = Vec::new();
        let mut control = Vec::new();
        let mut remaining = stacked;
        for number in 0..shape.layers().len() {
            let length = shape.range(number..number + 1).len();
            let (layer, later) = remaining.split_at((2 * length).min(remaining.len()));
            let (values, changes) = layer.split_at(length.min(layer.len()));
            model.extend_from_slice(values);
            control.extend_from_slice(changes);
            remaining = later;
        }
        (model, control)
    }
}

impl Algorithm for ScaffoldServer {
    fn request(&self) -> Request {
        let NetworkParameters { shape, download_encoding, upload_encoding, .. } = self.parameters;
        Request {
            task: self.plan.task,
            tensors: tensors(&self.plan, shape, &self.stacked(), 2, download_encoding),
            encoding: download_encoding,
            expects: shape.descriptors(SharedLayers::All, 2, upload_encoding),
        }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        self.participants += 1;
        self.round.absorb(device, weight, tensors);
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        // Robust rules need the point from which updates deviate: the broadcast model for the model, zero for
        // the change of the control variate.
        let center =
            if self.round.rule().needs_all_updates() { self.decoded_model_and_zeros() } else { Vec::new() };
        if let Some(values) = self.round.take_vector(&center) {
            let (model, changes) = self.unstacked(&values);
            let participating_fraction = self.participants as f64 / self.parameters.fleet.max(1) as f64;
            self.model.copy_from_slice(&model);
            for (control, change) in self.control.iter_mut().zip(changes) {
                *control += participating_fraction * change;
            }
        }
        self.participants = 0;
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.model
    }

    /// Each tensor holds a layer of the model and the change of its control variate.
    fn upload_layout(&self) -> UploadLayout {
        UploadLayout::Other
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        let NetworkParameters { shape, download_encoding: encoding, .. } = self.parameters;
        let tensors = tensors(&self.plan, shape, self.model.as_slice(), 1, encoding);
        Request { task: Task::FitHead { head }, tensors, encoding, expects: Vec::new() }
    }

    fn state(&self) -> Vec<f64> {
        self.stacked()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let fits = state.len() == 2 * self.control.len();
        if fits {
            let (model, control) = self.unstacked(state);
            self.model.copy_from_slice(&model);
            self.control = control;
        }
        fits
    }
}
