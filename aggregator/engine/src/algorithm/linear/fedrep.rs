//! FedRep on the server (Collins et al. 2021, Algorithm 2): averages the devices' steps (or combines them by
//! another rule) and orthonormalises the result by QR.
//!
//! `Bbar = B - eta mean_i G_i`, `B <- Q` of `Bbar = Q R`. Devices send `G_i` or `B - eta G_i`; the mean is
//! the same up to rounding. `B` is the representation that devices decode, not the value that the server
//! encodes: for f16 and i8 these differ, and server and devices must step from the same point.

use fedspan_protocol::message::{HeadSolve, Task, Upload};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::gradient_rank::has_rank_of_outputs;
use super::{LinearAlgorithm, LinearSettings, LinearStart, Noise, Uploads};
use crate::aggregate::{RoundAggregate, Rule, UpdateWeight};
use crate::algorithm::Algorithm;
use crate::algorithm::decoded::{decoded_representation, tensor, to_f64};
use crate::linalg::{Matrix, RankDeficient, from_f32, orthonormal, to_f32};
use crate::reader::{Problem, Section};
use crate::types::{DeviceId, Request, Tensor, Weighting};

/// Settings of FedRep: a shared representation and personal heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FedRepSettings;

impl LinearAlgorithm for FedRepSettings {
    const NAME: &'static str = "fedrep";
    const SUMMARY: &'static str = "shared representation, personal heads (Collins et al. 2021)";
    const NOISE: Noise = Noise::Gradients;
    const SUPPORTS_I16: bool = true;

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn uploads(&self, settings: &LinearSettings) -> Uploads {
        uploads(settings)
    }

    fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm> {
        server(start)
    }
}

/// Contents of the uploads of FedRep and GD-GD.
pub(super) fn uploads(settings: &LinearSettings) -> Uploads {
    match settings.send {
        Upload::Representation => Uploads::Bases,
        _ => Uploads::Gradients,
    }
}

/// Creates the server side of FedRep, which GD-GD and the baselines without rounds use as well.
pub(super) fn server(start: LinearStart<'_>) -> Box<dyn Algorithm> {
    let LinearStart { settings, rule, basis, outputs, .. } = start;
    let parameters = FedRepParameters {
        step_size: settings.narrow_step_size(),
        head: settings.head,
        upload: settings.send,
        download_encoding: settings.download,
        upload_encoding: settings.upload,
        weighting: settings.weighting,
        rule,
    };
    Box::new(FedRep::new(basis, parameters).with_outputs(outputs))
}

/// State of FedRep: the representation and the updates of the open round.
#[derive(Clone, Debug)]
pub struct FedRep {
    representation: Matrix,
    parameters: FedRepParameters,
    round: RoundAggregate,
    /// Number of outputs, which bounds the rank of a gradient; `None` if the rank is not checked.
    outputs: Option<usize>,
}

/// Parameters of FedRep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FedRepParameters {
    /// Step size eta of the representation.
    pub step_size: f32,
    /// Head solver on the devices.
    pub head: HeadSolve,
    /// Kind of upload.
    pub upload: Upload,
    /// Encoding of the representation sent to devices.
    pub download_encoding: Encoding,
    /// Encoding of the devices' uploads.
    pub upload_encoding: Encoding,
    /// Weighting of the updates.
    pub weighting: Weighting,
    /// Rule that combines the updates.
    pub rule: Rule,
}

impl FedRep {
    /// Starts from `representation` (d x k, orthonormal columns).
    #[must_use]
    pub fn new(representation: Matrix, parameters: FedRepParameters) -> Self {
        let FedRepParameters { rule, weighting, .. } = parameters;
        let round = RoundAggregate::new(rule, weighting, representation.len());
        Self { representation, parameters, round, outputs: None }
    }

    /// Makes the rule's check of the rank of gradients possible, for devices with this number of outputs.
    #[must_use]
    pub fn with_outputs(self, outputs: usize) -> Self {
        Self { outputs: Some(outputs), ..self }
    }
}

impl Algorithm for FedRep {
    fn request(&self) -> Request {
        let FedRepParameters { step_size, head, upload, download_encoding, upload_encoding, .. } =
            self.parameters;
        let sent = tensor(Role::Representation, &self.representation, to_f32(&self.representation));
        let upload_descriptor =
            TensorDescriptor::inline(upload.role(), upload_encoding, sent.rows, sent.cols);
        Request {
            task: Task::FedRep { step_size, head, upload, encoding: upload_encoding },
            tensors: vec![sent],
            encoding: download_encoding,
            expects: vec![upload_descriptor],
        }
    }

    fn admits(&self, _samples: u32, tensors: &[Tensor]) -> bool {
        let FedRepParameters { rule, upload, upload_encoding, .. } = self.parameters;
        let has_rank = match (self.outputs, tensors) {
            (Some(outputs), [gradient]) if upload == Upload::Gradient => {
                has_rank_of_outputs(gradient, outputs, rule.rank_tolerance(), upload_encoding)
            }
            _ => true,
        };
        has_rank && self.round.admits(tensors)
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        if let [_] = tensors {
            self.round.absorb(device, weight, tensors);
        }
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        let (d, k) = self.representation.shape();
        let on_devices =
            || decoded_representation(&self.representation, self.parameters.download_encoding).values;
        if self.round.rule().is_for_subspaces() {
            let on_devices = from_f32(d, k, &on_devices());
            if let Some(space) = self.round.take_subspace(&on_devices)? {
                self.representation = space;
            }
            return Ok(());
        }
        let is_model = self.parameters.upload == Upload::Representation;
        // A mean does not depend on the point from which the steps are measured.
        let center = if is_model && self.round.rule().needs_all_updates() {
            to_f64(&on_devices())
        } else {
            Vec::new()
        };
        let Some(value) = self.round.take_vector(&center) else { return Ok(()) };
        let value = Matrix::from_row_iterator(d, k, value);
        let next = if is_model {
            value
        } else {
            from_f32(d, k, &on_devices()) - value * f64::from(self.parameters.step_size)
        };
        self.representation = orthonormal(&next)?;
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.representation
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        let sent = tensor(Role::Representation, &self.representation, to_f32(&self.representation));
        let encoding = self.parameters.download_encoding;
        Request { task: Task::FitHead { head }, tensors: vec![sent], encoding, expects: Vec::new() }
    }

    fn state(&self) -> Vec<f64> {
        self.representation.iter().copied().collect()
    }

    fn copy(&self) -> Option<Box<dyn Algorithm>> {
        Some(Box::new(self.clone()))
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let fits = state.len() == self.representation.len();
        if fits {
            self.representation.copy_from_slice(state);
        }
        fits
    }
}
