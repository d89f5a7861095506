//! Fine-tuning of the head on a copy of a device's network. The result is the model with which the client
//! would be scored if training ended at this point.

use fedspan_client::Task;
use fedspan_client::source::Recording;
use fedspan_protocol::message::{self, Descriptors, HeadSolve, RoundId, RoundOpen};

use super::SimNetwork;
use crate::data::{Labels, Set};

impl SimNetwork {
    /// Returns the parameters after training the head with solver `head` on the client's training samples.
    /// The device is not changed. Returns `parameters` unchanged if the device would decline the round,
    /// because it has no samples or the loss is not finite.
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
