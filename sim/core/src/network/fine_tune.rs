//! Fine-tuning of a copy's head: the model a client would be scored with if training ended now.

use fedspan_client::Task;
use fedspan_client::source::Recording;
use fedspan_protocol::message::{self, Descriptors, HeadSolve, RoundId, RoundOpen};

use super::SimNetwork;
use crate::data::{Labels, Set};

impl SimNetwork {
    /// Returns the parameters after fitting `head` on the client's training samples, and leaves the device
    /// unchanged. Returns the parameters as given if the device would decline the round (no samples, a loss
    /// that is not finite).
    #[must_use]
    pub fn fine_tuned(&self, parameters: Vec<f32>, train: &Set, head: HeadSolve, round: u32) -> Vec<f32> {
        let Labels::Classes(classes) = &train.y else { return parameters };
        let mut network = self.network.clone();
        let mut samples = Recording::classification(&train.x, classes, self.shape().features);
        let id = RoundId { round, stage: 0 };
        let open = RoundOpen { id, task: message::Task::FitHead { head }, tensors: Descriptors::default() };
        let fitted = network.set_parameters(&parameters).is_ok()
            && network.open(&open).is_ok()
            && network.verify().is_ok()
            && network.run(id, &mut samples).is_ok();
        if fitted { network.parameters().to_vec() } else { parameters }
    }
}
