//! Local training of SCAFFOLD (Karimireddy et al. 2020) with option II: steps along `g - c_i + c`. After K
//! steps of size eta from x to y, `c_i` is changed by `(x - y) / (K eta) - c`. Received vectors contain the
//! model followed by c; uploaded vectors contain the model followed by the change of `c_i`.

use fedspan_protocol::message::{DeclineReason, Descent};

use super::training::{Training, check_finite};
use super::{Method, PersonalState, RoundStart};

/// SCAFFOLD with the parameters of its gradient descent.
pub(super) struct Scaffold {
    pub descent: Descent,
}

impl Method for Scaffold {
    /// Control variates assume plain steps: no momentum, and a positive step size.
    fn is_valid(&self) -> bool {
        self.descent.momentum == 0.0 && self.descent.step_size > 0.0
    }

    fn copies(&self) -> usize {
        2
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        start: &RoundStart<'_>,
        state: &mut PersonalState,
    ) -> Result<Vec<f32>, DeclineReason> {
        let (x, c) = start.received.split_at(start.received.len() / 2);
        let mut control = state.control.clone().unwrap_or_else(|| vec![0.0; c.len()]);
        let mut y = x.to_vec();
        let steps = training.descend(&mut y, |_, g| {
            for ((g, own_control), c) in g.iter_mut().zip(&control).zip(c) {
                *g = *g - own_control + c;
            }
        })?;
        #[allow(clippy::cast_precision_loss, reason = "steps of a round are far below 2^24")]
        let distance = steps as f32 * self.descent.step_size;
        let change: Vec<f32> = x.iter().zip(&y).zip(c).map(|((x, y), c)| (x - y) / distance - c).collect();
        for (control, change) in control.iter_mut().zip(&change) {
            *control += change;
        }
        check_finite(&control)?;
        state.control = Some(control);
        y.extend(change);
        Ok(y)
    }
}
