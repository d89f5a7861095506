//! SCAFFOLD with option II: steps along `g - c_i + c`; after K of them of size eta, from x to y, `c_i` changes by
//! `(x - y) / (K eta) - c`. The model and the control variate are in one vector, one after the other.

use fedspan_protocol::message::{DeclineReason, Descent};

use super::training::{Training, finite};
use super::{Given, Kept, Method};

pub(super) struct Scaffold {
    pub descent: Descent,
}

impl Method for Scaffold {
    /// Control variates are differences of models over the way that plain steps could go.
    fn is_sound(&self) -> bool {
        self.descent.momentum == 0.0 && self.descent.step_size > 0.0
    }

    fn copies(&self) -> usize {
        2
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        given: &Given<'_>,
        kept: &mut Kept,
    ) -> Result<Vec<f32>, DeclineReason> {
        let (x, c) = given.came.split_at(given.came.len() / 2);
        let mut control = kept.control.clone().unwrap_or_else(|| vec![0.0; c.len()]);
        let mut y = x.to_vec();
        let steps = training.descend(&mut y, |_, g| {
            for ((g, own), c) in g.iter_mut().zip(&control).zip(c) {
                *g = *g - own + c;
            }
        })?;
        #[allow(clippy::cast_precision_loss, reason = "steps of a round are far below 2^24")]
        let way = steps as f32 * self.descent.step_size;
        let change: Vec<f32> = x.iter().zip(&y).zip(c).map(|((x, y), c)| (x - y) / way - c).collect();
        for (control, change) in control.iter_mut().zip(&change) {
            *control += change;
        }
        finite(&control)?;
        kept.control = Some(control);
        y.extend(change);
        Ok(y)
    }
}
