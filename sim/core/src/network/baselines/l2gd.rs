//! Local training of L2GD (Hanzely and Richtarik 2020). The personal network of the device is moved towards
//! the received mean of all networks, trained with local steps, and uploaded.

use fedspan_protocol::message::DeclineReason;

use super::training::Training;
use super::{DeviceState, Method, RoundStart, ScoringModels};

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
        state: &mut DeviceState,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut own = start.own(state);
        // This form of the sum is exact for averaging steps of 0 and 1.
        for (own, mean) in own.iter_mut().zip(start.received) {
            *own = (1.0 - self.averaging_step) * *own + self.averaging_step * mean;
        }
        training.descend(&mut own, |_, _| {})?;
        state.own = Some(own.clone());
        Ok(own)
    }

    fn scored(&self, models: ScoringModels<'_>, state: &DeviceState) -> Vec<f32> {
        state.own.as_deref().unwrap_or(models.initial_own).to_vec()
    }
}
