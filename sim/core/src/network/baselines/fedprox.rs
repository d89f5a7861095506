//! FedProx: everyone's network, trained with a pull towards what came.

use fedspan_protocol::message::DeclineReason;

use super::training::{Training, add_proximal_term};
use super::{Given, Kept, Method, is_proximal_weight};

pub(super) struct FedProx {
    pub proximal_weight: f32,
}

impl Method for FedProx {
    fn is_sound(&self) -> bool {
        is_proximal_weight(self.proximal_weight)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        given: &Given<'_>,
        _kept: &mut Kept,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut model = given.came.to_vec();
        training
            .descend(&mut model, |model, g| add_proximal_term(self.proximal_weight, model, given.came, g))?;
        Ok(model)
    }
}
