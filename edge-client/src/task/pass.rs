//! Passes over the samples: every loop that touches data.

use fedspan_protocol::message::{DeclineReason, RoundId};

use super::Usage;
use crate::kernel::gradient::accumulate;
use crate::kernel::least_squares::{add_normal, rotate_in};
use crate::kernel::project::{apply_head, project};
use crate::memory::Parts;
use crate::source::{SampleSource, Targets};

/// Largest magnitude of a projected sample or a target: sums of squares stay far inside f32.
pub const MAGNITUDE_MAX: f32 = 1.1e12;

/// Which samples a pass runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Those that a training round's head is fitted on.
    Head,
    /// All.
    All,
}

/// Calls `each` with every sample of one pass and counts.
pub fn for_each(
    id: RoundId,
    over: Over,
    source: &mut dyn SampleSource,
    features: usize,
    mut each: impl FnMut(&[f32], Targets<'_>, usize) -> bool,
) -> Result<Usage, DeclineReason> {
    let mut usage = Usage::default();
    let started = match over {
        Over::Head => source.rewind_for_head(id),
        Over::All => source.rewind(id),
    };
    started.map_err(|_| DeclineReason::Device)?;
    while let Some(samples) = source.next() {
        for (index, x) in samples.x.chunks_exact(features.max(1)).enumerate() {
            let counter =
                if each(x, samples.targets, index) { &mut usage.samples } else { &mut usage.skipped };
            *counter = counter.saturating_add(1);
        }
    }
    Ok(usage)
}

/// Projects a sample into `parts.z` and its target into `parts.y`. False if it cannot be used. A value
/// of `x` that is not finite makes `z` so as well, therefore the few values of `z` are all that is looked at.
pub fn project_sample(parts: &mut Parts<'_>, x: &[f32], targets: Targets<'_>, index: usize) -> bool {
    if x.len() != parts.shape.features || !targets.write(index, parts.y) {
        return false;
    }
    project(parts.representation, x, parts.z);
    // Written so that a NaN fails.
    let usable = |values: &[f32]| values.iter().all(|v| v.abs() <= MAGNITUDE_MAX);
    usable(parts.z) && usable(parts.y)
}

/// `Z^T Z` and `Z^T Y`, from zero.
pub fn normal_equations(
    parts: &mut Parts<'_>,
    id: RoundId,
    over: Over,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    parts.factor.fill(0.0);
    parts.rhs.fill(0.0);
    for_each(id, over, source, parts.shape.features, |x, targets, index| {
        let usable = project_sample(parts, x, targets, index);
        if usable {
            add_normal(parts.factor, parts.rhs, parts.z, parts.y);
        }
        usable
    })
}

/// The triangular factor of `Z` and `Q^T Y`, from zero.
pub fn triangular(
    parts: &mut Parts<'_>,
    id: RoundId,
    over: Over,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    parts.factor.fill(0.0);
    parts.rhs.fill(0.0);
    for_each(id, over, source, parts.shape.features, |x, targets, index| {
        let usable = project_sample(parts, x, targets, index);
        if usable {
            rotate_in(parts.factor, parts.rhs, parts.z, parts.y);
        }
        usable
    })
}

/// `S = X^T (X B W - Y)`, from zero, for the `W` in `parts.rhs`.
pub fn residual(
    parts: &mut Parts<'_>,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    parts.residual.fill(0.0);
    for_each(id, Over::All, source, parts.shape.features, |x, targets, index| {
        let usable = project_sample(parts, x, targets, index);
        if usable {
            subtract_prediction(parts);
            accumulate(parts.residual, x, parts.y);
        }
        usable
    })
}

/// `y <- W^T z - y`.
fn subtract_prediction(parts: &mut Parts<'_>) {
    let c = parts.y.len();
    if let [y] = parts.y {
        let mut prediction = [0.0];
        apply_head(parts.rhs, parts.z, &mut prediction);
        let [value] = prediction;
        *y = value - *y;
        return;
    }
    for (output, y) in parts.y.iter_mut().enumerate() {
        let column = parts.rhs.iter().skip(output).step_by(c.max(1));
        let value = column.zip(parts.z.iter()).fold(0.0f32, |sum, (w, z)| sum + z * w);
        *y = value - *y;
    }
}
