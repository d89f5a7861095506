//! Server side of most algorithms on networks: the shared layers are the mean of the uploaded layers, or
//! another aggregation rule's combination of them.

use fedspan_protocol::message::{HeadSolve, Task};

use super::{NetworkParameters, NetworkShape, Plan};
use crate::aggregate::{RoundAggregate, UpdateWeight};
use crate::algorithm::Algorithm;
use crate::algorithm::decoded::as_decoded;
use crate::linalg::{Matrix, RankDeficient};
use crate::participation::UploadLayout;
use crate::types::{DeviceId, Request, Tensor};

/// Shared layers of a network, and the updates of the open round.
#[derive(Clone, Debug)]
pub struct LayerMean {
    parameters: NetworkParameters,
    plan: Plan,
    /// Parameters of all shared layers, concatenated into one column, P x 1.
    values: Matrix,
    round: RoundAggregate,
}

impl LayerMean {
    /// Starts from the initial network.
    #[must_use]
    pub fn new(parameters: NetworkParameters, plan: Plan) -> Self {
        let NetworkParameters { shape, rule, weighting, seed, .. } = parameters;
        let layers = shape.shared_layers(plan.shared);
        let with_head = layers.end == shape.layers().len();
        let initial = shape.start(seed, with_head);
        let values = initial.get(shape.range(layers)).unwrap_or_default();
        let round = RoundAggregate::new(rule, weighting, values.len());
        Self { parameters, plan, values: Matrix::from_column_slice(values.len(), 1, values), round }
    }

    /// Replaces the parameters of all shared layers.
    fn set_values(&mut self, values: &[f64]) {
        self.values = Matrix::from_column_slice(values.len(), 1, values);
    }

    /// Sizes of the network.
    pub(super) fn shape(&self) -> NetworkShape {
        self.parameters.shape
    }

    /// Shared layers as tensors.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let NetworkParameters { shape, download_encoding, .. } = self.parameters;
        tensors(&self.plan, shape, self.values.as_slice(), 1, download_encoding)
    }
}

/// Tensors of the shared layers, cut from `values` in order, each with `copies` matrices of the layer's size
/// stacked vertically.
pub(super) fn tensors(
    plan: &Plan,
    shape: NetworkShape,
    values: &[f64],
    copies: usize,
    encoding: fedspan_protocol::tensor::Encoding,
) -> Vec<Tensor> {
    let mut remaining = values;
    shape
        .descriptors(plan.shared, copies, encoding)
        .iter()
        .map(|layer| {
            let (elements, later) = remaining.split_at(layer.elements().min(remaining.len()));
            remaining = later;
            #[allow(clippy::cast_possible_truncation, reason = "tensors are f32 on the wire")]
            let values = elements.iter().map(|value| *value as f32).collect();
            Tensor { role: layer.role, rows: layer.rows, cols: layer.cols, values }
        })
        .collect()
}

impl Algorithm for LayerMean {
    fn request(&self) -> Request {
        let NetworkParameters { shape, download_encoding, upload_encoding, .. } = self.parameters;
        let expects = shape.descriptors(self.plan.shared, 1, upload_encoding);
        Request { task: self.plan.task, tensors: self.tensors(), encoding: download_encoding, expects }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        self.round.absorb(device, weight, tensors);
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        let encoding = self.parameters.download_encoding;
        let on_devices = || {
            let values = self.tensors().into_iter().map(move |tensor| as_decoded(tensor.values, encoding));
            values.flatten().map(f64::from).collect()
        };
        let center: Vec<f64> = if self.round.rule().needs_all_updates() { on_devices() } else { Vec::new() };
        if let Some(values) = self.round.take_vector(&center) {
            self.set_values(&values);
        }
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.values
    }

    fn upload_layout(&self) -> UploadLayout {
        UploadLayout::Layers { offset: 0 }
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        let encoding = self.parameters.download_encoding;
        Request { task: Task::FitHead { head }, tensors: self.tensors(), encoding, expects: Vec::new() }
    }

    fn state(&self) -> Vec<f64> {
        self.values.iter().copied().collect()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let fits = state.len() == self.values.len();
        if fits {
            self.set_values(state);
        }
        fits
    }
}
