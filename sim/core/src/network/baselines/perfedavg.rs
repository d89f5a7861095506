//! Per-FedAvg: steps along `(I - alpha H) g(w - alpha g(w))`, each of the three on a batch of its own, in the order in which
//! an epoch has them: the inner gradient, the outer one, and where it is Hessian-free the Hessian H. First order leaves H
//! out. Where an epoch ends before all of them have come, the last batch it has serves for the rest, so that a device with
//! a single batch takes steps, too.
//!
//! Hessian-free: `H v = (g(w + delta v) - g(w - delta v)) / (2 delta)`. In f32 both gradients carry errors of about 1e-7 of
//! their size, the difference over `2 delta` 1e-4 of it: small beside v, of which `alpha H v` is a part. A smaller delta
//! would make that larger; the error of the difference itself grows with delta squared.

use fedspan_client::memory::NetworkShape;
use fedspan_client::source::SampleSource;
use fedspan_protocol::message::{DeclineReason, Descent, RoundId};

use super::training::{Steps, Training, finite};
use super::{Given, Kept, Method, Models};

/// How far from the model, in outer gradients, the gradients are whose difference stands for the Hessian.
const DELTA: f32 = 1e-3;

pub(super) struct PerFedAvg {
    pub inner_step: f32,
    pub hessian_free: bool,
}

impl Method for PerFedAvg {
    fn is_sound(&self) -> bool {
        (0.0..f32::INFINITY).contains(&self.inner_step)
    }

    fn run(
        &self,
        training: &mut Training<'_>,
        given: &Given<'_>,
        _kept: &mut Kept,
    ) -> Result<Vec<f32>, DeclineReason> {
        let mut model = given.came.to_vec();
        let [mut gradient, mut elsewhere, mut ahead, mut behind] = [(); 4].map(|()| vec![0.0; model.len()]);
        let mut steps = Steps::new(training.descent, model.len());
        training.each_batch(|training| {
            training.gradient(&mut model, &mut gradient)?;
            moved(&model, -self.inner_step, &gradient, &mut elsewhere);
            training.next_batch()?;
            training.gradient(&mut elsewhere, &mut gradient)?;
            if self.hessian_free {
                training.next_batch()?;
                moved(&model, DELTA, &gradient, &mut elsewhere);
                training.gradient(&mut elsewhere, &mut ahead)?;
                moved(&model, -DELTA, &gradient, &mut elsewhere);
                training.gradient(&mut elsewhere, &mut behind)?;
                for ((g, ahead), behind) in gradient.iter_mut().zip(&ahead).zip(&behind) {
                    *g -= self.inner_step * ((ahead - behind) / (2.0 * DELTA));
                }
            }
            steps.take(&mut model, &gradient);
            Ok(())
        })?;
        finite(&model)?;
        Ok(model)
    }

    /// The network that the method is about: one step of size alpha from everyone's, down the gradient of all the samples.
    /// Everyone's, where there are no samples or the step leads nowhere.
    fn scored(&self, models: Models<'_>, _kept: &Kept) -> Vec<f32> {
        let mut adapted = models.shared.to_vec();
        if let Ok(gradient) = whole_gradient(models.shape, &mut adapted, models.samples) {
            moved(models.shared, -self.inner_step, &gradient, &mut adapted);
        }
        adapted
    }
}

/// The gradient of the mean loss of all samples.
fn whole_gradient(
    shape: NetworkShape,
    model: &mut [f32],
    source: &mut dyn SampleSource,
) -> Result<Vec<f32>, DeclineReason> {
    let batch = u16::try_from(shape.batch).unwrap_or(u16::MAX);
    let descent = Descent { batch, ..Descent::default() };
    Training::new(shape, RoundId::default(), 0, (descent, 1), source)?.whole_gradient(model)
}

/// `out = model + factor direction`.
fn moved(model: &[f32], factor: f32, direction: &[f32], out: &mut [f32]) {
    for ((out, w), d) in out.iter_mut().zip(model).zip(direction) {
        *out = w + factor * d;
    }
}
