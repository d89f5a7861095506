//! Local training of Fed-MTL (Smith et al. 2017). The personal network of the device is trained with a
//! proximal term towards the received mean of all networks, and is uploaded.

use fedspan_protocol::message::DeclineReason;

use super::training::{Training, add_proximal_term};
use super::{Method, PersonalState, RoundStart, ScoringModels, is_proximal_weight};

/// Fed-MTL with the weight of its proximal term.
pub(super) struct FedMtl {
    pub proximal_weight: f32,
}

impl Method for FedMtl {
    fn is_valid(&self) -> bool {
        is_proximal_weight(self.proximal_weight)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        start: &RoundStart<'_>,
        state: &mut PersonalState,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut personal = start.own(state);
        training.descend(&mut personal, |personal, g| {
            add_proximal_term(self.proximal_weight, personal, start.received, g)
        })?;
        state.own = Some(personal.clone());
        Ok(personal)
    }

    fn scored(&self, models: ScoringModels<'_>, state: &PersonalState) -> Vec<f32> {
        state.own.as_deref().unwrap_or(models.initial_own).to_vec()
    }
}
