//! L2GD: the device's own network goes part of the way to the mean that came, then trains alone, and is sent.

use fedspan_protocol::message::DeclineReason;

use super::training::Training;
use super::{Given, Kept, Method, Models};

pub(super) struct L2gd {
    pub averaging_step: f32,
}

impl Method for L2gd {
    fn is_sound(&self) -> bool {
        (0.0..=1.0).contains(&self.averaging_step)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        given: &Given<'_>,
        kept: &mut Kept,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut own = given.own(kept);
        // Exact at 0 and at 1.
        for (own, mean) in own.iter_mut().zip(given.came) {
            *own = (1.0 - self.averaging_step) * *own + self.averaging_step * mean;
        }
        training.descend(&mut own, |_, _| {})?;
        kept.own = Some(own.clone());
        Ok(own)
    }

    fn scored(&self, models: Models<'_>, kept: &Kept) -> Vec<f32> {
        kept.own.as_deref().unwrap_or(models.without_own).to_vec()
    }
}
