//! Local training of FedProx (Li et al. 2020). The shared network is trained with a proximal term towards the
//! received model.

use fedspan_protocol::message::DeclineReason;

use super::training::{Training, add_proximal_term};
use super::{Method, PersonalState, RoundStart, is_proximal_weight};

/// FedProx with the weight of its proximal term.
pub(super) struct FedProx {
    pub proximal_weight: f32,
}

impl Method for FedProx {
    fn is_valid(&self) -> bool {
        is_proximal_weight(self.proximal_weight)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        start: &RoundStart<'_>,
        _state: &mut PersonalState,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut model = start.received.to_vec();
        training.descend(&mut model, |model, g| {
            add_proximal_term(self.proximal_weight, model, start.received, g)
        })?;
        Ok(model)
    }
}
