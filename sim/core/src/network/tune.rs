//! Epochs on the head of a copy: what a client would be scored with if training ended now.

use fedspan_client::Task;
use fedspan_client::source::Recording;
use fedspan_protocol::message::{self, Descriptors, HeadSolve, RoundId, RoundOpen};

use super::SimNetwork;
use crate::data::{Labels, Set};

impl SimNetwork {
    /// These parameters after `head` on the client's training samples. The device is left as it is. Where its round would be
    /// declined (no samples, a loss that is not finite), the parameters stay as they came.
    #[must_use]
    pub fn tuned(&self, parameters: Vec<f32>, train: &Set, head: HeadSolve, round: u32) -> Vec<f32> {
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
