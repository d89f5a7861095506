//! Local training of APFL (Deng et al. 2020). The received model w is trained as in FedAvg. A personal
//! network v is trained on the same batches along `alpha g(m)`, the derivative with respect to v of the loss
//! of the mixture `m = alpha v + (1 - alpha) w`. The two networks have separate velocities.
//!
//! The mixing weight alpha is updated once per round, on the first batch and before the first step:
//! `alpha <- alpha - mixing_step_size <g(m), v - w>` (equation 10), clipped to the range from 0 to 1. All
//! steps of a round therefore use the same alpha.

use fedspan_protocol::message::DeclineReason;

use super::training::{Steps, Training, check_finite};
use super::{Method, PersonalState, RoundStart, ScoringModels};

/// APFL with its initial mixing weight, and the step size of the mixing weight (0 if the weight is fixed).
pub(super) struct Apfl {
    pub mixing_weight: f32,
    pub mixing_step_size: f32,
}

impl Apfl {
    fn alpha(&self, state: &PersonalState) -> f32 {
        state.alpha.unwrap_or(self.mixing_weight)
    }

    /// Updated mixing weight `alpha - mixing_step_size <g, v - w>`, clipped to the range from 0 to 1.
    /// `personal` is v and `model` is w.
    fn updated_alpha(&self, alpha: f32, gradient: &[f32], personal: &[f32], model: &[f32]) -> f32 {
        let products =
            gradient.iter().zip(personal).zip(model).map(|((g, v), w)| f64::from(*g) * f64::from(v - w));
        #[allow(clippy::cast_possible_truncation, reason = "summed in f64, state as f32")]
        let slope = products.sum::<f64>() as f32;
        (alpha - self.mixing_step_size * slope).clamp(0.0, 1.0)
    }
}

impl Method for Apfl {
    fn is_valid(&self) -> bool {
        (0.0..=1.0).contains(&self.mixing_weight) && (0.0..f32::INFINITY).contains(&self.mixing_step_size)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        start: &RoundStart<'_>,
        state: &mut PersonalState,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut model = start.received.to_vec();
        let mut personal = start.own(state);
        let mut alpha = self.alpha(state);
        let (mut mixed, mut gradient) = (vec![0.0; model.len()], vec![0.0; model.len()]);
        let mut steps = [(); 2].map(|()| Steps::new(training.descent, model.len()));
        let mut updates_alpha = self.mixing_step_size > 0.0;
        training.each_batch(|training| {
            mix(alpha, &personal, &model, &mut mixed);
            if std::mem::take(&mut updates_alpha) {
                training.gradient(&mut mixed, &mut gradient)?;
                alpha = self.updated_alpha(alpha, &gradient, &personal, &model);
                mix(alpha, &personal, &model, &mut mixed);
            }
            let [of_model, of_own] = &mut steps;
            training.gradient(&mut model, &mut gradient)?;
            of_model.step(&mut model, &gradient);
            training.gradient(&mut mixed, &mut gradient)?;
            for g in &mut gradient {
                *g *= alpha;
            }
            of_own.step(&mut personal, &gradient);
            Ok(())
        })?;
        check_finite(&model)?;
        check_finite(&personal)?;
        check_finite(&[alpha])?;
        (state.own, state.alpha) = (Some(personal), Some(alpha));
        Ok(model)
    }

    fn scored(&self, models: ScoringModels<'_>, state: &PersonalState) -> Vec<f32> {
        let personal = state.own.as_deref().unwrap_or(models.initial_own);
        let mut mixed = vec![0.0; personal.len()];
        mix(self.alpha(state), personal, models.shared, &mut mixed);
        mixed
    }
}

/// Computes `mixed = alpha own + (1 - alpha) model`.
fn mix(alpha: f32, personal: &[f32], model: &[f32], mixed: &mut [f32]) {
    for ((mixed, v), w) in mixed.iter_mut().zip(personal).zip(model) {
        *mixed = alpha * v + (1.0 - alpha) * w;
    }
}
