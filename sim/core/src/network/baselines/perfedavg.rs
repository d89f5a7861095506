//! Local training of Per-FedAvg (Fallah et al. 2020): steps along `(I - alpha H) g(w - alpha g(w))`. The
//! inner gradient, the outer gradient and, in the Hessian-free variant, the Hessian H are computed on
//! consecutive batches of the epoch. The first-order variant omits H. If the epoch has no further batch, its
//! last batch is reused, so that a device with a single batch can take steps.
//!
//! The Hessian-free variant approximates `H v = (g(w + delta v) - g(w - delta v)) / (2 delta)`. In f32 the
//! relative error of both gradients is about 1e-7, so division by `2 delta` gives an error of about 1e-4 of
//! the gradient. This error is small relative to v, of which `alpha H v` is a fraction. A smaller delta would
//! increase the error; the error of the finite difference grows with the square of delta.

use fedspan_client::memory::NetworkShape;
use fedspan_client::source::SampleSource;
use fedspan_protocol::message::{DeclineReason, Descent, RoundId};

use super::training::{Steps, Training, check_finite};
use super::{Method, PersonalState, RoundStart, ScoringModels};

/// Step of the finite difference that approximates the Hessian, as a multiple of the outer gradient.
const DELTA: f32 = 1e-3;

/// Per-FedAvg with its inner step size, and the choice of the Hessian-free or first-order variant.
pub(super) struct PerFedAvg {
    pub inner_step: f32,
    pub hessian_free: bool,
}

impl Method for PerFedAvg {
    fn is_valid(&self) -> bool {
        (0.0..f32::INFINITY).contains(&self.inner_step)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        start: &RoundStart<'_>,
        _state: &mut PersonalState,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut model = start.received.to_vec();
        let [mut gradient, mut probe, mut gradient_ahead, mut gradient_behind] =
            [(); 4].map(|()| vec![0.0; model.len()]);
        let mut steps = Steps::new(training.descent, model.len());
        training.each_batch(|training| {
            training.gradient(&mut model, &mut gradient)?;
            step_along(&model, -self.inner_step, &gradient, &mut probe);
            training.next_batch()?;
            training.gradient(&mut probe, &mut gradient)?;
            if self.hessian_free {
                training.next_batch()?;
                step_along(&model, DELTA, &gradient, &mut probe);
                training.gradient(&mut probe, &mut gradient_ahead)?;
                step_along(&model, -DELTA, &gradient, &mut probe);
                training.gradient(&mut probe, &mut gradient_behind)?;
                for ((g, gradient_ahead), gradient_behind) in
                    gradient.iter_mut().zip(&gradient_ahead).zip(&gradient_behind)
                {
                    *g -= self.inner_step * ((gradient_ahead - gradient_behind) / (2.0 * DELTA));
                }
            }
            steps.step(&mut model, &gradient);
            Ok(())
        })?;
        check_finite(&model)?;
        Ok(model)
    }

    /// Adapted network, for which the method optimises: the shared network after one gradient step of size
    /// alpha on all samples. Returns the shared network if there are no samples or the gradient is not
    /// finite.
    fn scored(&self, models: ScoringModels<'_>, _state: &PersonalState) -> Vec<f32> {
        let mut adapted = models.shared.to_vec();
        if let Ok(gradient) = whole_gradient(models.shape, &mut adapted, models.samples) {
            step_along(models.shared, -self.inner_step, &gradient, &mut adapted);
        }
        adapted
    }
}

/// Gradient of the mean loss of all samples at `model`.
fn whole_gradient(
    shape: NetworkShape,
    model: &mut [f32],
    source: &mut dyn SampleSource,
) -> Result<Vec<f32>, DeclineReason> {
    let batch = u16::try_from(shape.batch).unwrap_or(u16::MAX);
    let descent = Descent { batch, ..Descent::default() };
    Training::new(shape, RoundId::default(), 0, (descent, 1), source)?.whole_gradient(model)
}

/// Computes `out = model + factor direction`.
fn step_along(model: &[f32], factor: f32, direction: &[f32], out: &mut [f32]) {
    for ((out, w), d) in out.iter_mut().zip(model).zip(direction) {
        *out = w + factor * d;
    }
}
