//! Fed-MTL: the device's own network trains with a pull towards the mean that came, and is sent.

use fedspan_protocol::message::DeclineReason;

use super::training::{Training, add_pull};
use super::{Given, Kept, Method, Models, is_pull};

pub(super) struct MultiTask {
    pub pull: f32,
}

impl Method for MultiTask {
    fn is_sound(&self) -> bool {
        is_pull(self.pull)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        given: &Given<'_>,
        kept: &mut Kept,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut own = given.own(kept);
        training.descend(&mut own, |own, g| add_pull(self.pull, own, given.came, g))?;
        kept.own = Some(own.clone());
        Ok(own)
    }

    fn scored(&self, models: Models<'_>, kept: &Kept) -> Vec<f32> {
        kept.own.as_deref().unwrap_or(models.without_own).to_vec()
    }
}
