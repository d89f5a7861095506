//! RoLoRA for a linear model `y = B^T A^T x` (Chen et al. 2025, Algorithm 2) with shared A (d x k) and B (k x
//! C). Rounds alternate. In a round of B, every device solves for its best B, and the server averages the
//! results. In a round of A, every device takes one gradient step on A under the averaged B; the server
//! averages the steps and orthonormalises the mean by QR. One factor is common to all devices in each round,
//! so the mean of products is the product of means.
//!
//! FFA-LoRA (Sun et al. 2024) has only rounds of B: A keeps its random initial value.

use fedspan_protocol::message::{HeadSolve, Task};
use fedspan_protocol::tensor::{Encoding, Role};

use super::{LinearAlgorithm, LinearSettings, LinearStart, SecondTensor, Uploads};
use crate::aggregate::{RoundAggregate, Rule, UpdateWeight};
use crate::algorithm::Algorithm;
use crate::algorithm::decoded::{as_decoded, decoded_representation, tensor, to_f64};
use crate::linalg::{Matrix, RankDeficient, orthonormal, product, product_transposed, to_f32};
use crate::participation::UploadLayout;
use crate::reader::{Problem, Section};
use crate::types::{DeviceId, Request, Tensor, Weighting};

/// Settings of RoLoRA: devices train A and B in alternate rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoLoraSettings;

impl LinearAlgorithm for RoLoraSettings {
    const NAME: &'static str = "rolora";
    const SUMMARY: &'static str =
        "low-rank adapters, one factor per round, averaged exactly (Chen et al. 2025)";
    const IS_ADAPTER: bool = true;
    const STEP_FACTOR: f64 = STEP_FACTOR;

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn uploads(&self, _settings: &LinearSettings) -> Uploads {
        Uploads::Vectors("factors of a product")
    }

    fn second_tensor(&self) -> Option<SecondTensor> {
        Some(SecondTensor::Head)
    }

    fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm> {
        new_server(Some(start.settings.scaled_step_size(STEP_FACTOR)), start)
    }
}

/// Settings of FFA-LoRA: devices train B alone, and A keeps its initial value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FfaLoraSettings;

impl LinearAlgorithm for FfaLoraSettings {
    const NAME: &'static str = "ffa-lora";
    const SUMMARY: &'static str = "low-rank adapters with a fixed random down-projection (Sun et al. 2024)";
    const IS_ADAPTER: bool = true;
    const TAKES_STEPS: bool = false;

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn uploads(&self, _settings: &LinearSettings) -> Uploads {
        Uploads::Vectors("factors of a product")
    }

    fn second_tensor(&self) -> Option<SecondTensor> {
        Some(SecondTensor::Head)
    }

    fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm> {
        new_server(None, start)
    }
}

/// Ratio of the step size on the loss `1/(2m) |X A B - Y|^2` to the step size on the loss of the paper, which
/// is twice as large.
const STEP_FACTOR: f64 = 2.0;

/// Creates the server side of RoLoRA, or of FFA-LoRA if `step_size` is `None`.
fn new_server(step_size: Option<f32>, start: LinearStart<'_>) -> Box<dyn Algorithm> {
    let LinearStart { settings, rule, basis: down, outputs, .. } = start;
    let up = Matrix::zeros(down.ncols(), outputs);
    let parameters = LinearAdapterParameters {
        step_size,
        head: settings.head,
        download_encoding: settings.download,
        upload_encoding: settings.upload,
        weighting: settings.weighting,
        rule,
    };
    Box::new(LinearAdapter::new(down, up, parameters))
}

/// Parameters of RoLoRA and FFA-LoRA for a linear model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearAdapterParameters {
    /// Step size of A for the loss `1/(2m) |X A B - Y|^2`; `None` if A stays as initialised (FFA-LoRA).
    pub step_size: Option<f32>,
    /// Solver that devices use to find their B.
    pub head: HeadSolve,
    /// Encoding of the factors sent to devices.
    pub download_encoding: Encoding,
    /// Encoding of the devices' uploads.
    pub upload_encoding: Encoding,
    /// Weighting of the updates.
    pub weighting: Weighting,
    /// Rule that combines the updates.
    pub rule: Rule,
}

/// State of RoLoRA and FFA-LoRA: both factors, and the updates of the open round.
#[derive(Clone, Debug)]
pub struct LinearAdapter {
    /// Down-projection A, d x k, with orthonormal columns.
    down: Matrix,
    /// Up-projection B, k x C.
    up: Matrix,
    /// Number of finished rounds.
    rounds: u32,
    parameters: LinearAdapterParameters,
    round: RoundAggregate,
}

impl LinearAdapter {
    /// Starts from `down` (d x k, orthonormal columns) and `up` (k x C). The first round replaces the values
    /// of `up`.
    #[must_use]
    pub fn new(down: Matrix, up: Matrix, parameters: LinearAdapterParameters) -> Self {
        let round = RoundAggregate::new(parameters.rule, parameters.weighting, 0);
        let mut adapter = Self { down, up, rounds: 0, parameters, round };
        adapter.start_round();
        adapter
    }

    /// Step size of A in round `number`, counted from 0; `None` if the round trains B.
    fn step_size_of(&self, number: u32) -> Option<f32> {
        self.parameters.step_size.filter(|_| number % 2 == 1)
    }

    /// Creates an empty aggregate for the factor that the next round trains.
    fn start_round(&mut self) {
        let LinearAdapterParameters { rule, weighting, .. } = self.parameters;
        let trained = if self.step_size_of(self.rounds).is_some() { &self.down } else { &self.up };
        self.round = RoundAggregate::new(rule, weighting, trained.len());
    }

    /// The factor with this role as a tensor.
    fn factor(&self, role: Role) -> Tensor {
        let matrix = if role == Role::AdapterDown { &self.down } else { &self.up };
        tensor(role, matrix, to_f32(matrix))
    }

    /// Request of round `number`, counted from 0.
    fn request_for(&self, number: u32) -> Request {
        let LinearAdapterParameters { head, download_encoding, upload_encoding: encoding, .. } =
            self.parameters;
        let (down, up) = (self.factor(Role::AdapterDown), self.factor(Role::AdapterUp));
        let descriptor_of = |tensor: &Tensor| vec![tensor.descriptor(encoding)];
        let (task, expects, tensors) = match self.step_size_of(number) {
            Some(step_size) => {
                (Task::AdapterDown { step_size, encoding }, descriptor_of(&down), vec![down, up])
            }
            None => (Task::AdapterUp { head, encoding }, descriptor_of(&up), vec![down]),
        };
        Request { task, tensors, encoding: download_encoding, expects }
    }

    /// Values of the factor that the round trains, as every device has them after decoding.
    fn on_devices(&self) -> Vec<f64> {
        let encoding = self.parameters.download_encoding;
        match self.step_size_of(self.rounds) {
            Some(_) => to_f64(&decoded_representation(&self.down, encoding).values),
            None => to_f64(&as_decoded(to_f32(&self.up), encoding)),
        }
    }
}

impl Algorithm for LinearAdapter {
    fn request(&self) -> Request {
        self.request_for(self.rounds)
    }

    fn requests(&self) -> Vec<Request> {
        (0..2).map(|number| self.request_for(number)).collect()
    }

    /// Returns the role of A if devices already have A: in a round of A they received it in the preceding
    /// round of B; in FFA-LoRA, in the first round.
    fn unchanged(&self) -> &[Role] {
        let has_down_factor = self.parameters.step_size.is_none() || self.step_size_of(self.rounds).is_some();
        if has_down_factor { &[Role::AdapterDown] } else { &[] }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        if let [_] = tensors {
            self.round.absorb(device, weight, tensors);
        }
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        let center = if self.round.rule().needs_all_updates() { self.on_devices() } else { Vec::new() };
        let Some(values) = self.round.take_vector(&center) else { return Ok(()) };
        let ((d, k), c) = (self.down.shape(), self.up.ncols());
        if self.step_size_of(self.rounds).is_some() {
            let moved = Matrix::from_row_iterator(d, k, values);
            let basis = orthonormal(&moved)?;
            // With `A = Q R`, the product `A B` equals `Q (R B)`.
            self.up = product(&product_transposed(&basis, &moved), &self.up);
            self.down = basis;
        } else {
            self.up = Matrix::from_row_iterator(k, c, values);
        }
        self.rounds = self.rounds.saturating_add(1);
        self.start_round();
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.down
    }

    /// Steps are those of A. Uploads of B are no part of the model.
    fn upload_layout(&self) -> UploadLayout {
        match self.step_size_of(self.rounds) {
            Some(_) => UploadLayout::Representation,
            None => UploadLayout::Other,
        }
    }

    fn begins_cycle(&self) -> bool {
        self.parameters.step_size.is_none() || self.rounds.is_multiple_of(2)
    }

    fn shared_head(&self) -> Option<&Matrix> {
        Some(&self.up)
    }

    fn interference(&self) -> Option<f64> {
        Some(0.0)
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        let sent = tensor(Role::Representation, &self.down, to_f32(&self.down));
        let encoding = self.parameters.download_encoding;
        Request { task: Task::FitHead { head }, tensors: vec![sent], encoding, expects: Vec::new() }
    }

    /// Both factors, then the number of finished rounds.
    fn state(&self) -> Vec<f64> {
        self.down.iter().chain(self.up.iter()).copied().chain([self.rounds.into()]).collect()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((rounds, factors)) = state.split_last() else { return false };
        let has_expected_len = factors.len() == self.down.len() + self.up.len();
        if let (true, Some((down, up))) = (has_expected_len, factors.split_at_checked(self.down.len())) {
            self.down.copy_from_slice(down);
            self.up.copy_from_slice(up);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of rounds")]
            {
                self.rounds = *rounds as u32;
            }
            self.start_round();
        }
        has_expected_len
    }
}
