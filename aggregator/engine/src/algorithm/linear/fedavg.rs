//! FedAvg for a linear model: all devices share one representation and one head, which are averaged (or
//! combined by another rule). This is the single-model baseline of FedRep's Figures 1 and 4; with one local
//! step it is FedSGD.

use fedspan_protocol::message::{HeadSolve, Task};
use fedspan_protocol::tensor::{Encoding, Role};
use toml_edit::Value;

use super::{LinearAlgorithm, LinearSettings, LinearStart, SecondTensor, Uploads};
use crate::aggregate::{RoundAggregate, Rule, UpdateWeight};
use crate::algorithm::Algorithm;
use crate::algorithm::decoded::{as_decoded, tensor, to_f64};
use crate::linalg::{Matrix, RankDeficient, orthonormal, to_f32};
use crate::reader::{Problem, Section};
use crate::types::{DeviceId, Request, Tensor, Weighting};

/// Settings of FedAvg: one model shared by all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FedAvgSettings;

impl LinearAlgorithm for FedAvgSettings {
    const NAME: &'static str = "fedavg";
    const SUMMARY: &'static str = "one model for all, averaged";

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn write(&self, settings: &LinearSettings, set: &mut dyn FnMut(&str, Value)) {
        set("head_step_size", settings.head_step_size.into());
        set("local_steps", i64::from(settings.local_steps).into());
    }

    fn check(&self, settings: &LinearSettings) -> Result<(), (&'static str, String)> {
        if settings.upload == settings.download {
            return Ok(());
        }
        Err(("download", "fedavg encodes both ways alike: give upload the same value".to_owned()))
    }

    fn uploads(&self, _settings: &LinearSettings) -> Uploads {
        Uploads::Vectors("a model")
    }

    fn second_tensor(&self) -> Option<SecondTensor> {
        Some(SecondTensor::Head)
    }

    fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm> {
        let LinearStart { settings, rule, basis, outputs, .. } = start;
        let head = Matrix::zeros(basis.ncols(), outputs);
        let parameters = FedAvgParameters {
            step_size: settings.narrow_step_size(),
            head_step_size: settings.narrow_head_step_size(),
            local_steps: settings.local_steps,
            encoding: settings.upload,
            weighting: settings.weighting,
            rule,
        };
        Box::new(FedAvg::new(basis, head, parameters))
    }
}

/// Parameters of FedAvg.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FedAvgParameters {
    /// Step size of the representation.
    pub step_size: f32,
    /// Step size of the head.
    pub head_step_size: f32,
    /// Gradient steps on the device per round.
    pub local_steps: u16,
    /// Encoding of the model in both directions.
    pub encoding: Encoding,
    /// Weighting of the updates.
    pub weighting: Weighting,
    /// Rule that combines the updates.
    pub rule: Rule,
}

/// State of FedAvg: the shared model and the updates of the open round.
#[derive(Clone, Debug)]
pub struct FedAvg {
    representation: Matrix,
    head: Matrix,
    parameters: FedAvgParameters,
    round: RoundAggregate,
}

impl FedAvg {
    /// Starts from `representation` (d x k) and `head` (k x C).
    #[must_use]
    pub fn new(representation: Matrix, head: Matrix, parameters: FedAvgParameters) -> Self {
        let FedAvgParameters { rule, weighting, .. } = parameters;
        let round = RoundAggregate::new(rule, weighting, representation.len() + head.len());
        Self { representation, head, parameters, round }
    }
}

impl Algorithm for FedAvg {
    fn request(&self) -> Request {
        let FedAvgParameters { step_size, head_step_size, local_steps, encoding, .. } = self.parameters;
        let tensors = vec![
            tensor(Role::Representation, &self.representation, to_f32(&self.representation)),
            tensor(Role::SharedHead, &self.head, to_f32(&self.head)),
        ];
        let expects = tensors.iter().map(|t| t.descriptor(encoding)).collect();
        let task = Task::FedAvg { step_size, head_step_size, local_steps, encoding };
        Request { task, tensors, encoding, expects }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        if let [_, _] = tensors {
            self.round.absorb(device, weight, tensors);
        }
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        let ((d, k), c) = (self.representation.shape(), self.head.ncols());
        let on_devices = || {
            let Request { tensors, encoding, .. } = self.request();
            tensors.into_iter().flat_map(move |tensor| to_f64(&as_decoded(tensor.values, encoding)))
        };
        let center = if self.round.rule().needs_all_updates() { on_devices().collect() } else { Vec::new() };
        if let Some(model) = self.round.take_vector(&center)
            && let Some((b, w)) = model.split_at_checked(d * k)
        {
            self.representation = Matrix::from_row_slice(d, k, b);
            self.head = Matrix::from_row_slice(k, c, w);
        }
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.representation
    }

    fn shared_head(&self) -> Option<&Matrix> {
        Some(&self.head)
    }

    /// Requests personal heads on an orthonormal basis of the shared representation's span.
    fn fit_request(&self, head: HeadSolve) -> Request {
        let basis = orthonormal(&self.representation).unwrap_or_else(|_| self.representation.clone());
        let sent = tensor(Role::Representation, &basis, to_f32(&basis));
        let encoding = self.parameters.encoding;
        Request { task: Task::FitHead { head }, tensors: vec![sent], encoding, expects: Vec::new() }
    }

    fn state(&self) -> Vec<f64> {
        self.representation.iter().chain(self.head.iter()).copied().collect()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let fits = state.len() == self.representation.len() + self.head.len();
        if let (true, Some((b, w))) = (fits, state.split_at_checked(self.representation.len())) {
            self.representation.copy_from_slice(b);
            self.head.copy_from_slice(w);
        }
        fits
    }
}
