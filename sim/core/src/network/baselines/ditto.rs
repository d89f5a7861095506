//! Ditto: what came is trained as FedAvg does; then, on the round's following orders of samples, the device's own network
//! with a pull towards what came. Velocities begin with zeros for either.

use fedspan_protocol::message::DeclineReason;

use super::training::{Training, add_proximal_term};
use super::{Given, Kept, Method, Models, is_proximal_weight};

pub(super) struct Ditto {
    pub proximal_weight: f32,
}

impl Method for Ditto {
    fn is_sound(&self) -> bool {
        is_proximal_weight(self.proximal_weight)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        given: &Given<'_>,
        kept: &mut Kept,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut model = given.came.to_vec();
        training.descend(&mut model, |_, _| {})?;
        let mut own = given.own(kept);
        training.descend(&mut own, |own, g| add_proximal_term(self.proximal_weight, own, given.came, g))?;
        kept.own = Some(own);
        Ok(model)
    }

    fn scored(&self, models: Models<'_>, kept: &Kept) -> Vec<f32> {
        kept.own.as_deref().unwrap_or(models.without_own).to_vec()
    }
}
