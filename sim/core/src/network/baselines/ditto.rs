//! Local training of Ditto (Li et al. 2021). The received model is trained as in FedAvg. Then a personal
//! network is trained for as many further epochs, with a proximal term towards the received model. Both
//! trainings start with zero velocity.

use fedspan_protocol::message::DeclineReason;

use super::training::{Training, add_proximal_term};
use super::{Method, PersonalState, RoundStart, ScoringModels, is_proximal_weight};

/// Ditto with the weight of its proximal term.
pub(super) struct Ditto {
    pub proximal_weight: f32,
}

impl Method for Ditto {
    fn is_valid(&self) -> bool {
        is_proximal_weight(self.proximal_weight)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        start: &RoundStart<'_>,
        state: &mut PersonalState,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut model = start.received.to_vec();
        training.descend(&mut model, |_, _| {})?;
        let mut personal = start.own(state);
        training.descend(&mut personal, |personal, g| {
            add_proximal_term(self.proximal_weight, personal, start.received, g)
        })?;
        state.own = Some(personal);
        Ok(model)
    }

    fn scored(&self, models: ScoringModels<'_>, state: &PersonalState) -> Vec<f32> {
        state.own.as_deref().unwrap_or(models.initial_own).to_vec()
    }
}
