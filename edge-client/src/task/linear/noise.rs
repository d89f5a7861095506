//! Rounds of a linear model with noise. Uploads depend on a record only through the noise, reports count all
//! samples of the source, used or not, and no round is declined because of the content of a record.

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

/// Returns the variance of the noise on a product of this shape.
pub(super) fn variance(settings: &PrivacySettings, shape: Shape) -> Result<Variance, PrivacySettingsError> {
    let Shape { features, width, .. } = shape;
    match (u16::try_from(features), u16::try_from(width)) {
        (Ok(d), Ok(r)) => settings.variance(d, r),
        _ => Err(PrivacySettingsError::Shape { features, width }),
    }
}

/// Returns the variance of the noise on a clipped gradient.
pub(super) fn gradient_variance(
    settings: &PrivacySettings,
    clip: &Clip,
) -> Result<Variance, PrivacySettingsError> {
    settings.multiplier().variance(clip.sensitivity()).map_err(PrivacySettingsError::Variance)
}

/// Runs the open round.
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

/// Runs a FedPower round. The seed of its noise is drawn before the first sample is read.
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

/// Runs a FedRep round. The seed of its noise is drawn before the first sample is read. The upload does not
/// reveal whether the round has computed a gradient.
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
    let fitted = private_fedrep::run(parts, head, &mut state.solver, id, &mut source)?;
    let samples = source.samples();
    if fitted.is_some() {
        state.head_is_fitted();
    }
    state.usage = fitted.unwrap_or(Usage { samples: 0, skipped: samples });
    if samples == 0 {
        return Err(DeclineReason::NoSamples);
    }
    clip_and_add_noise(model, fitted.is_some());
    Ok(Usage { samples, skipped: 0 })
}

/// Draws the seed of a gradient's noise, and discards the previous seed.
pub(super) fn draw<P: Mechanism>(mechanism: &mut P) -> Result<(), DeclineReason> {
    clear(mechanism);
    let settings = mechanism.settings().ok_or(DeclineReason::Task)?;
    let clip = *mechanism.clipping().ok_or(DeclineReason::Task)?.clip();
    let variance = gradient_variance(&settings, &clip).map_err(|_| DeclineReason::Parameter)?;
    let seed = mechanism.draw_seed().map_err(|_| DeclineReason::Entropy)?;
    mechanism.clipping_mut().ok_or(DeclineReason::Task)?.begin(seed, variance);
    Ok(())
}

/// Clips the gradient of the completed sums, if there is one, and adds the noise. The seed is used up.
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

/// Discards the gradient's noise, so that no gradient can be sent.
pub(super) fn clear<P: Mechanism>(mechanism: &mut P) {
    if let Some(clipping) = mechanism.clipping_mut() {
        clipping.clear();
    }
}

/// Fits the head. The report does not reveal whether the samples determined a head.
fn fit_head<M: Memory>(
    memory: &mut M,
    state: &mut State,
    head: HeadSolve,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let mut source = CountingSource::new(source, memory.parts_ref().shape.features);
    let fitted = arithmetic::solve_head(memory, head, &mut state.solver, id, &mut source);
    let samples = source.samples();
    state.usage = match fitted {
        Ok(usage) => {
            state.head_is_fitted();
            usage
        }
        // Every reason that depends on the content of a record.
        Err(DeclineReason::NoSamples | DeclineReason::UpdateNonFinite | DeclineReason::Undetermined) => {
            Usage { samples: 0, skipped: samples }
        }
        Err(reason) => return Err(reason),
    };
    if samples == 0 { Err(DeclineReason::NoSamples) } else { Ok(Usage { samples, skipped: 0 }) }
}
