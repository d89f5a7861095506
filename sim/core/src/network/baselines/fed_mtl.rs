//! Fed-MTL: the device's own network trains with a pull towards the mean that came, and is sent.

use fedspan_protocol::message::DeclineReason;

use super::training::{Training, add_proximal_term};
use super::{Given, Kept, Method, Models, is_proximal_weight};

pub(super) struct FedMtl {
    pub proximal_weight: f32,
}

impl Method for FedMtl {
    fn is_sound(&self) -> bool {
        is_proximal_weight(self.proximal_weight)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        given: &Given<'_>,
        kept: &mut Kept,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut own = given.own(kept);
        training.descend(&mut own, |own, g| add_proximal_term(self.proximal_weight, own, given.came, g))?;
        kept.own = Some(own.clone());
        Ok(own)
    }

    fn scored(&self, models: Models<'_>, kept: &Kept) -> Vec<f32> {
        kept.own.as_deref().unwrap_or(models.without_own).to_vec()
    }
}
