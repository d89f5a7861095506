//! Local training of L2GD (Hanzely and Richtarik 2020). The personal network of the device is moved towards
//! the received mean of all networks, trained with local steps, and uploaded.

use fedspan_protocol::message::DeclineReason;

use super::training::Training;
use super::{Method, PersonalState, RoundStart, ScoringModels};

/// L2GD with its averaging step, the fraction of the way to the received mean.
pub(super) struct L2gd {
    pub averaging_step: f32,
}

impl Method for L2gd {
    fn is_valid(&self) -> bool {
        (0.0..=1.0).contains(&self.averaging_step)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        start: &RoundStart<'_>,
        state: &mut PersonalState,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut personal = start.own(state);
        // This form of the sum is exact for averaging steps of 0 and 1.
        for (personal, mean) in personal.iter_mut().zip(start.received) {
            *personal = (1.0 - self.averaging_step) * *personal + self.averaging_step * mean;
        }
        training.descend(&mut personal, |_, _| {})?;
        state.own = Some(personal.clone());
        Ok(personal)
    }

    fn scored(&self, models: ScoringModels<'_>, state: &PersonalState) -> Vec<f32> {
        state.own.as_deref().unwrap_or(models.initial_own).to_vec()
    }
}
