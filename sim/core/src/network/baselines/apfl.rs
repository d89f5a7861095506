//! APFL: what came is trained as FedAvg does, and beside it, on the same batches, the device's own network v, along the
//! derivative of the loss of the mixture `m = alpha v + (1 - alpha) w` with regard to v, which is `alpha g(m)`. Each has a
//! velocity of its own.
//!
//! alpha is learnt once a round, with its first batch, before the steps: `alpha <- alpha - adaptation <g(m), v - w>` (Deng
//! et al. 2020, equation 10), clipped to 0 to 1. So all steps of a round are about one mixture.

use fedspan_protocol::message::DeclineReason;

use super::training::{Steps, Training, finite};
use super::{Given, Kept, Method, Models};

pub(super) struct Apfl {
    pub mixing_weight: f32,
    pub mixing_step_size: f32,
}

impl Apfl {
    fn alpha(&self, kept: &Kept) -> f32 {
        kept.alpha.unwrap_or(self.mixing_weight)
    }

    /// `alpha - adaptation <g, v - w>`, from 0 to 1.
    fn learnt(&self, alpha: f32, gradient: &[f32], own: &[f32], model: &[f32]) -> f32 {
        let products =
            gradient.iter().zip(own).zip(model).map(|((g, v), w)| f64::from(*g) * f64::from(v - w));
        #[allow(clippy::cast_possible_truncation, reason = "summed in f64, kept as f32")]
        let slope = products.sum::<f64>() as f32;
        (alpha - self.mixing_step_size * slope).clamp(0.0, 1.0)
    }
}

impl Method for Apfl {
    fn is_sound(&self) -> bool {
        (0.0..=1.0).contains(&self.mixing_weight) && (0.0..f32::INFINITY).contains(&self.mixing_step_size)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        given: &Given<'_>,
        kept: &mut Kept,
    ) -> Result<Vec<f32>, DeclineReason> {
        let (mut model, mut own, mut alpha) = (given.came.to_vec(), given.own(kept), self.alpha(kept));
        let (mut mixed, mut gradient) = (vec![0.0; model.len()], vec![0.0; model.len()]);
        let mut steps = [(); 2].map(|()| Steps::new(training.descent, model.len()));
        let mut learns = self.mixing_step_size > 0.0;
        training.each_batch(|training| {
            mix(alpha, &own, &model, &mut mixed);
            if std::mem::take(&mut learns) {
                training.gradient(&mut mixed, &mut gradient)?;
                alpha = self.learnt(alpha, &gradient, &own, &model);
                mix(alpha, &own, &model, &mut mixed);
            }
            let [of_model, of_own] = &mut steps;
            training.gradient(&mut model, &mut gradient)?;
            of_model.take(&mut model, &gradient);
            training.gradient(&mut mixed, &mut gradient)?;
            for g in &mut gradient {
                *g *= alpha;
            }
            of_own.take(&mut own, &gradient);
            Ok(())
        })?;
        finite(&model)?;
        finite(&own)?;
        finite(&[alpha])?;
        (kept.own, kept.alpha) = (Some(own), Some(alpha));
        Ok(model)
    }

    fn scored(&self, models: Models<'_>, kept: &Kept) -> Vec<f32> {
        let own = kept.own.as_deref().unwrap_or(models.without_own);
        let mut mixed = vec![0.0; own.len()];
        mix(self.alpha(kept), own, models.shared, &mut mixed);
        mixed
    }
}

/// `mixed = alpha own + (1 - alpha) model`.
fn mix(alpha: f32, own: &[f32], model: &[f32], mixed: &mut [f32]) {
    for ((mixed, v), w) in mixed.iter_mut().zip(own).zip(model) {
        *mixed = alpha * v + (1.0 - alpha) * w;
    }
}
