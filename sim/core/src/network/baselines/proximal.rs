//! FedProx: everyone's network, trained with a pull towards what came.

use fedspan_protocol::message::DeclineReason;

use super::training::{Training, add_pull};
use super::{Given, Kept, Method, is_pull};

pub(super) struct Proximal {
    pub pull: f32,
}

impl Method for Proximal {
    fn is_sound(&self) -> bool {
        is_pull(self.pull)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        given: &Given<'_>,
        _kept: &mut Kept,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut model = given.came.to_vec();
        training.descend(&mut model, |model, g| add_pull(self.pull, model, given.came, g))?;
        Ok(model)
    }
}
