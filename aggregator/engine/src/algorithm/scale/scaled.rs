//! Wrapper of an algorithm that sends the scale with every request.

use fedspan_protocol::message::HeadSolve;
use fedspan_protocol::tensor::Role;

use super::Scale;
use crate::aggregate::UpdateWeight;
use crate::algorithm::{Algorithm, ChosenPrior, HeadPrior};
use crate::linalg::{Matrix, RankDeficient};
use crate::participation::UploadLayout;
use crate::types::{DeviceId, Request, Tensor};

/// Algorithm whose devices scale their samples. Until the scale is known, it is the identity.
pub struct Scaled {
    algorithm: Box<dyn Algorithm>,
    scale: Scale,
}

impl Scaled {
    /// Adds `scale` to the requests of `algorithm`.
    #[must_use]
    pub fn new(algorithm: Box<dyn Algorithm>, scale: Scale) -> Self {
        Self { algorithm, scale }
    }

    /// Adds the scale to the tensors of a request.
    fn with_scale(&self, mut request: Request) -> Request {
        request.tensors.push(self.scale.tensor());
        request
    }
}

impl Algorithm for Scaled {
    fn request(&self) -> Request {
        self.with_scale(self.algorithm.request())
    }

    fn requests(&self) -> Vec<Request> {
        self.algorithm.requests().into_iter().map(|request| self.with_scale(request)).collect()
    }

    fn unchanged(&self) -> &[Role] {
        self.algorithm.unchanged()
    }

    fn reference(&self, fleet: &[DeviceId]) -> Option<DeviceId> {
        self.algorithm.reference(fleet)
    }

    fn asks(&self, device: DeviceId) -> bool {
        self.algorithm.asks(device)
    }

    fn asks_all(&self) -> bool {
        self.algorithm.asks_all()
    }

    fn admits(&self, samples: u32, tensors: &[Tensor]) -> bool {
        self.algorithm.admits(samples, tensors)
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        self.algorithm.absorb(device, weight, tensors);
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        self.algorithm.finish()
    }

    fn representation(&self) -> &Matrix {
        self.algorithm.representation()
    }

    fn model(&self) -> &Matrix {
        self.algorithm.model()
    }

    fn upload_layout(&self) -> UploadLayout {
        self.algorithm.upload_layout()
    }

    fn begins_cycle(&self) -> bool {
        self.algorithm.begins_cycle()
    }

    fn interference(&self) -> Option<f64> {
        self.algorithm.interference()
    }

    fn chosen_prior(&self) -> Option<ChosenPrior> {
        self.algorithm.chosen_prior()
    }

    fn head_prior(&self) -> Option<HeadPrior> {
        self.algorithm.head_prior()
    }

    fn shared_head(&self) -> Option<&Matrix> {
        self.algorithm.shared_head()
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        self.with_scale(self.algorithm.fit_request(head))
    }

    /// Returns the state of the algorithm, followed by the scale.
    fn state(&self) -> Vec<f64> {
        self.algorithm.state().into_iter().chain(self.scale.state()).collect()
    }

    fn copy(&self) -> Option<Box<dyn Algorithm>> {
        Some(Box::new(Self { algorithm: self.algorithm.copy()?, scale: self.scale.clone() }))
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let scale_len = 2 * self.scale.shift().len();
        let Some(algorithm_len) = state.len().checked_sub(scale_len) else { return false };
        let (algorithm, scale) = state.split_at(algorithm_len);
        let Some(scale) = Scale::from_state(scale) else { return false };
        let restored = self.algorithm.restore(algorithm);
        if restored {
            self.scale = scale;
        }
        restored
    }

    fn rounds_needed(&self) -> u32 {
        self.algorithm.rounds_needed()
    }

    fn scale(&self) -> Option<Scale> {
        Some(self.scale.clone())
    }

    fn set_scale(&mut self, scale: &Scale) {
        if scale.shift().len() == self.scale.shift().len() {
            self.scale = scale.clone();
        }
    }
}
