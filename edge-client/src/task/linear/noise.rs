//! Rounds of a device with noise: nothing that leaves depends on what is in a record, but through the noise. Reports
//! count what the source handed out, used or not, and no round is declined for what is in it.

use fedspan_protocol::message::{DeclineReason, HeadSolve, RoundId, Task as Wire};

use super::{Linear, State, arithmetic};
use crate::mechanism::Mechanism;
use crate::memory::{Memory, Shape};
use crate::privacy::{Clip, PrivacySettings, PrivacySettingsError, Release, Variance};
use crate::source::SampleSource;
use crate::task::counting_source::CountingSource;
#[cfg(feature = "power")]
use crate::task::power::{PowerRequest, private};
use crate::task::{Usage, private_fedrep};

/// The variance that hides a product of this shape.
pub(super) fn variance(settings: &PrivacySettings, shape: Shape) -> Result<Variance, PrivacySettingsError> {
    let Shape { features, width, .. } = shape;
    match (u16::try_from(features), u16::try_from(width)) {
        (Ok(d), Ok(r)) => settings.variance(d, r),
        _ => Err(PrivacySettingsError::Shape { features, width }),
    }
}

/// The variance that hides a clipped gradient.
pub(super) fn gradient_variance(
    settings: &PrivacySettings,
    clip: &Clip,
) -> Result<Variance, PrivacySettingsError> {
    settings.multiplier().variance(clip.sensitivity()).map_err(PrivacySettingsError::Variance)
}

/// A round, whichever is possible.
pub(super) fn run<M: Memory, P: Mechanism>(
    model: &mut Linear<M, P>,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    match model.state.task.ok_or(DeclineReason::Task)? {
        Wire::FitHead { head } => fit_head(&mut model.memory, &mut model.state, head, id, source),
        Wire::FedRep { head, .. } => fedrep(model, head, id, source),
        #[cfg(feature = "power")]
        task => fed_power(model, PowerRequest::from_task(&task).ok_or(DeclineReason::Task)?, id, source),
        #[cfg(not(feature = "power"))]
        _ => Err(DeclineReason::Task),
    }
}

/// A FedPower round. The seed of its noise was drawn before the first sample is read.
#[cfg(feature = "power")]
fn fed_power<M: Memory, P: Mechanism>(
    model: &mut Linear<M, P>,
    request: PowerRequest,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let Linear { memory, mechanism, state } = model;
    let parts = &mut memory.parts();
    let settings = mechanism.settings().ok_or(DeclineReason::Task)?;
    let variance = variance(&settings, parts.shape).map_err(|_| DeclineReason::Parameter)?;
    let seed = mechanism.draw_seed().map_err(|_| DeclineReason::Entropy)?;
    let noise = private::Noise { seed, variance, grid: settings.grid(), rows_max: settings.rows_max() };
    let reported = private::run(parts, request, &noise, &mut state.power, id, source)?;
    let skipped = state.power.unusable;
    state.usage = Usage { samples: reported.samples.saturating_sub(skipped), skipped };
    Ok(reported)
}

/// A FedRep round. The seed of its noise is drawn before the first sample is read. Whether there is a gradient in the
/// noise is for the device alone to know.
fn fedrep<M: Memory, P: Mechanism>(
    model: &mut Linear<M, P>,
    head: HeadSolve,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    draw(&mut model.mechanism)?;
    let Linear { memory, state, .. } = model;
    let parts = &mut memory.parts();
    let mut source = CountingSource::new(source, parts.shape.features);
    let fitted = private_fedrep::run(parts, head, &mut state.fits, id, &mut source)?;
    let samples = source.samples();
    if fitted.is_some() {
        state.head = state.representation;
    }
    state.usage = fitted.unwrap_or(Usage { samples: 0, skipped: samples });
    if samples == 0 {
        return Err(DeclineReason::NoSamples);
    }
    clip_and_add_noise(model, fitted.is_some());
    Ok(Usage { samples, skipped: 0 })
}

/// Draws the seed that hides a gradient; the last one is forgotten.
pub(super) fn draw<P: Mechanism>(mechanism: &mut P) -> Result<(), DeclineReason> {
    clear(mechanism);
    let settings = mechanism.settings().ok_or(DeclineReason::Task)?;
    let clip = *mechanism.clipping().ok_or(DeclineReason::Task)?.clip();
    let variance = gradient_variance(&settings, &clip).map_err(|_| DeclineReason::Parameter)?;
    let seed = mechanism.draw_seed().map_err(|_| DeclineReason::Entropy)?;
    mechanism.clipping_mut().ok_or(DeclineReason::Task)?.begin(seed, variance);
    Ok(())
}

/// The sums are complete: clips the gradient, if there is one, and hides it. The seed is gone then.
pub(super) fn clip_and_add_noise<M: Memory, P: Mechanism>(model: &mut Linear<M, P>, fitted: bool) {
    let Linear { memory, mechanism, state } = model;
    let Some(clipping) = mechanism.clipping_mut() else { return };
    let fit = |parts| private_fedrep::fit_radius(parts, state.usage, clipping.clip());
    let gradient = if fitted { fit(&memory.parts_ref()) } else { None };
    if let Some(Release { seed, variance }) = clipping.take_release(gradient.as_ref()) {
        let factor = gradient.map(|fitting| fitting.factor);
        private_fedrep::add_noise(&mut memory.parts(), clipping.clip(), factor, &seed, &variance);
    }
}

/// Nothing of a gradient leaves any more.
pub(super) fn clear<P: Mechanism>(mechanism: &mut P) {
    if let Some(clipping) = mechanism.clipping_mut() {
        clipping.clear();
    }
}

/// Fits the head. Whether the samples made one is for the device alone to know: what it reports is the same.
fn fit_head<M: Memory>(
    memory: &mut M,
    state: &mut State,
    head: HeadSolve,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let mut source = CountingSource::new(source, memory.parts_ref().shape.features);
    let fitted = arithmetic::solve_head(memory, head, &mut state.fits, id, &mut source);
    let samples = source.samples();
    state.usage = match fitted {
        Ok(usage) => {
            state.head = state.representation;
            usage
        }
        Err(DeclineReason::NoSamples | DeclineReason::UpdateNonFinite) => {
            Usage { samples: 0, skipped: samples }
        }
        Err(reason) => return Err(reason),
    };
    if samples == 0 { Err(DeclineReason::NoSamples) } else { Ok(Usage { samples, skipped: 0 }) }
}
