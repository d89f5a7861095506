//! Passes over the samples of a round in f32, which project the samples and accumulate sums.
//!
//! Samples are processed four at a time if the source returns that many at once; the sums and their order are
//! the same for any number of samples per call.

use fedspan_protocol::message::{DeclineReason, RoundId};

#[cfg(feature = "gather")]
use super::gather::Gather;
use super::projection_cache::{ProjectionCache, Slot};
use super::row_blocks;
use super::{MINIMUM_NORM, Usage};
use crate::kernel::constant_column::ConstantColumn;
use crate::kernel::gradient::{accumulate, accumulate_four};
use crate::kernel::least_squares::{add_normal, add_normal_four};
use crate::kernel::project::{project, project_four};
use crate::kernel::vector::{dot, from};
use crate::kernel::{Four, add_scaled, all_within};
use crate::memory::{Parts, Shape};
use crate::source::{SampleSource, Samples, Targets};

/// Largest magnitude of a projected sample or a target. Sums of squares then stay far inside the range of
/// f32.
pub const MAGNITUDE_MAX: f32 = 1.1e12;

/// Largest number of outputs for which samples are processed four at a time.
pub const FOUR_OUTPUTS_MAX: usize = 8;

/// Whether two or three samples are processed as four, with zeros for the missing ones. This costs less only where a
/// multiplication does not take longer than reading its operands.
const PADS: bool = cfg!(any(target_abi = "eabihf", not(target_os = "none")));

/// Set of samples that a pass reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleSet {
    /// Samples on which the head is fitted in a training round.
    Head,
    /// All samples.
    All,
}

/// Sums that a pass computes, starting from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    /// Normal equations: `Z^T Z` and `Z^T Y`.
    Normal,
    /// Triangular factor of `Z`, and `Q^T Y`, with a search for a constant column; [`row_blocks::finish`]
    /// must follow.
    Triangular,
    /// Residual products `S = X^T (X B W - Y)`, for the `W` in `parts.rhs`.
    Residual,
}

/// Returns the number of samples as a float; exact up to 2^24.
pub fn count(usage: Usage) -> f32 {
    #[allow(clippy::cast_precision_loss, reason = "a mean over 16 million samples may round")]
    let m = usage.samples as f32;
    m
}

/// Calls `each` with every sample of one pass over all samples, and counts the samples for which it returns
/// true.
pub fn for_each(
    id: RoundId,
    source: &mut dyn SampleSource,
    features: usize,
    each: impl FnMut(&[f32], Targets<'_>, usize) -> bool,
) -> Result<Usage, DeclineReason> {
    for_each_in(SampleSet::All, id, source, features, each)
}

/// Calls `each` with every sample of one pass over a set of samples, and counts the samples for which it
/// returns true.
pub fn for_each_in(
    sample_set: SampleSet,
    id: RoundId,
    source: &mut dyn SampleSource,
    features: usize,
    mut each: impl FnMut(&[f32], Targets<'_>, usize) -> bool,
) -> Result<Usage, DeclineReason> {
    let mut usage = Usage::default();
    start_pass(sample_set, id, source)?;
    while let Some(samples) = source.next() {
        for (index, x) in samples.x.chunks_exact(features.max(1)).enumerate() {
            usage.count(1, each(x, samples.targets, index));
        }
    }
    Ok(usage)
}

/// Projects a sample into `parts.z` and its target into `parts.y`. Returns false if the sample is not usable.
/// A value of `x` that is not finite makes values of `z` infinite or NaN too, so only the values of `z` are
/// checked.
pub fn project_sample(parts: &mut Parts<'_>, x: &[f32], targets: Targets<'_>, index: usize) -> bool {
    if x.len() != parts.shape.features || !targets.write(index, parts.y) {
        return false;
    }
    project(parts.representation, x, parts.z, parts.pace);
    all_usable(parts.z) && all_usable(parts.y)
}

/// Returns true if no value is too large or NaN.
fn all_usable(values: &[f32]) -> bool {
    all_within(values, MAGNITUDE_MAX)
}

/// Runs one pass over the samples of `source` and returns the numbers of used and skipped samples. `constant`
/// receives the constant column of a [`PassKind::Triangular`].
#[inline(never)]
pub fn run_pass(
    kind: PassKind,
    parts: &mut Parts<'_>,
    cache: &mut ProjectionCache,
    constant: &mut ConstantColumn,
    id: RoundId,
    sample_set: SampleSet,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    if kind == PassKind::Residual {
        parts.residual.fill(0.0);
    } else {
        parts.factor.fill(0.0);
        parts.rhs.fill(0.0);
    }
    *constant = ConstantColumn::NONE;
    let selection = start_pass(sample_set, id, source)?;
    cache.begin(selection);
    let targets = &mut [[0.0; 4]; FOUR_OUTPUTS_MAX];
    let mut pass = Pass {
        kind,
        parts,
        cache,
        constant,
        targets,
        #[cfg(feature = "gather")]
        gather: Some(&mut Gather::new()),
        number: 0,
        usage: Usage::default(),
    };
    while let Some(samples) = source.next() {
        pass.take(samples);
    }
    #[cfg(feature = "gather")]
    pass.take_gathered();
    Ok(pass.usage)
}

/// Starts a pass. Returns true if the pass is over a selection of the samples.
fn start_pass(
    sample_set: SampleSet,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<bool, DeclineReason> {
    let failed = |_| DeclineReason::Device;
    let selection = sample_set == SampleSet::Head && source.rewind_for_head(id).map_err(failed)?;
    if !selection {
        source.rewind(id).map_err(failed)?;
    }
    Ok(selection)
}

/// State of a pass.
struct Pass<'a, 'b> {
    kind: PassKind,
    parts: &'a mut Parts<'b>,
    cache: &'a mut ProjectionCache,
    constant: &'a mut ConstantColumn,
    /// Targets of four samples.
    targets: &'a mut [Four; FOUR_OUTPUTS_MAX],
    /// Single samples that wait for the rest of their group of four; `None` while they are processed.
    #[cfg(feature = "gather")]
    gather: Option<&'a mut Gather>,
    /// Number of samples processed.
    number: usize,
    usage: Usage,
}

impl Pass<'_, '_> {
    /// Processes the samples of one call of the source, or keeps them until their group of four is complete.
    fn take(&mut self, samples: Samples<'_>) {
        let Samples { x: mut remaining, targets } = samples;
        let d = self.parts.shape.features.max(1);
        let mut index = 0;
        loop {
            let none_waits = self.none_waits();
            if none_waits
                && self.number.is_multiple_of(4)
                && let Some((x, after)) = remaining.split_at_checked(4 * d)
                && self.take_group(x, targets, index)
            {
                remaining = after;
                index += 4;
                continue;
            }
            if none_waits && self.parts.gathered.is_empty() && self.take_rest(remaining, targets, index) {
                return;
            }
            let Some((x, after)) = remaining.split_at_checked(d) else { return };
            remaining = after;
            #[cfg(feature = "gather")]
            if self.gather(x, targets, index) {
                index += 1;
                continue;
            } else {
                self.take_gathered();
            }
            self.take_one(x, targets, index);
            index += 1;
        }
    }

    /// Returns true if no sample waits for the rest of its group.
    #[inline(always)]
    fn none_waits(&self) -> bool {
        #[cfg(feature = "gather")]
        return self.gather.as_ref().is_none_or(|gather| gather.count() == 0);
        #[cfg(not(feature = "gather"))]
        true
    }

    /// Keeps a sample until its group of four is complete. Returns false if there is no memory for it, or no group begins
    /// here.
    #[cfg(feature = "gather")]
    fn gather(&mut self, x: &[f32], targets: Targets<'_>, index: usize) -> bool {
        let outputs = self.parts.shape.outputs;
        let Some(gather) = self.gather.as_mut().filter(|_| outputs <= FOUR_OUTPUTS_MAX) else { return false };
        if !self.number.is_multiple_of(4) || !gather.push(self.parts.gathered, x, targets, index, outputs) {
            return false;
        }
        if gather.count() == 4 {
            self.take_gathered();
        }
        true
    }

    /// Processes the samples that wait for the rest of their group.
    #[cfg(feature = "gather")]
    #[inline(never)]
    fn take_gathered(&mut self) {
        let Shape { features: d, outputs, .. } = self.parts.shape;
        let Some(gather) = self.gather.take() else { return };
        let memory = core::mem::take(&mut self.parts.gathered);
        let Samples { x, targets } = gather.take(memory, d, outputs);
        let is_taken = x.len() == 4 * d && self.take_group(x, targets, 0) || self.take_rest(x, targets, 0);
        if !is_taken {
            for (index, x) in x.chunks_exact(d.max(1)).enumerate() {
                self.take_one(x, targets, index);
            }
        }
        self.parts.gathered = memory;
        self.gather = Some(gather);
    }

    /// Processes the two or three samples of `x` as a group of four. Returns false and changes nothing if they must be processed
    /// one by one, or there are fewer or more.
    fn take_rest(&mut self, x: &[f32], targets: Targets<'_>, index: usize) -> bool {
        let d = self.parts.shape.features.max(1);
        let count = x.len() / d;
        PADS && (2..4).contains(&count)
            && self.kind != PassKind::Triangular
            && self.number.is_multiple_of(4)
            && x.get(..count * d).is_some_and(|x| self.take_group(x, targets, index))
    }

    /// Processes up to four samples. Zeros stand for the projections and targets of missing ones, so that all sums keep their
    /// bits. Returns false and changes nothing if the samples must be processed one by one.
    #[inline(never)]
    fn take_group(&mut self, x: &[f32], targets: Targets<'_>, index: usize) -> bool {
        let Shape { features: d, width: k, outputs: c } = self.parts.shape;
        let Some(y) = self.targets.get_mut(..c) else { return false };
        let group = rows_of_four(x, d).map(|x| (x, 4)).or_else(|| rows_of_rest(x, d));
        let Some((x, count)) = group else { return false };
        // The lanes of missing samples may hold projections of samples that the source returns later.
        if count < 4 && self.cache.contains(self.number + count) {
            return false;
        }
        let Some(Slot { z, known, spare }) = self.cache.slot(self.number, count, k) else { return false };
        if !known {
            project_four(self.parts.representation, x, z, self.parts.pace);
        }
        if count < 4 {
            clear_from(z, count);
            clear_from(y, 0);
        }
        if !known && !all_usable(z.as_flattened()) {
            self.cache.end(self.number);
            return false;
        }
        if !(targets.write_group(index, count, y) && all_usable(y.as_flattened())) {
            return false;
        }
        match self.kind {
            PassKind::Normal => {
                self.parts.pace.spend(4 * k * (k / 2 + c + 1));
                add_normal_four(self.parts.factor, self.parts.rhs, z, y);
            }
            PassKind::Triangular => {
                if !MINIMUM_NORM
                    || !row_blocks::push_four(self.parts, spare, self.constant, self.usage.samples, z, y)
                {
                    return false;
                }
            }
            PassKind::Residual => {
                self.parts.pace.spend(4 * k * c);
                subtract_predictions(self.parts.rhs, z, y);
                accumulate_four(self.parts.residual, x, y, self.parts.pace);
            }
        }
        self.usage.count(u32::try_from(count).unwrap_or(4), true);
        self.number += count;
        true
    }

    /// Processes one sample, or skips it if it is not usable.
    fn take_one(&mut self, x: &[f32], targets: Targets<'_>, index: usize) {
        let used = self.project_one(x) && targets.write(index, self.parts.y) && all_usable(self.parts.y);
        if used {
            self.add_one(x);
        }
        self.usage.count(1, used);
        self.number += 1;
    }

    /// Adds the sample that is in `parts.z` and `parts.y`.
    fn add_one(&mut self, x: &[f32]) {
        let parts = &mut *self.parts;
        let Shape { width: k, outputs: c, .. } = parts.shape;
        match self.kind {
            PassKind::Normal => {
                parts.pace.spend(k * (k / 2 + c + 1));
                add_normal(parts.factor, parts.rhs, parts.z, parts.y);
            }
            PassKind::Triangular if !MINIMUM_NORM => {}
            PassKind::Triangular => {
                row_blocks::push(parts, self.cache.spare(), self.constant, self.usage.samples)
            }
            PassKind::Residual => {
                parts.pace.spend(k * c);
                subtract_prediction(parts);
                accumulate(parts.residual, x, parts.y, parts.pace);
            }
        }
    }

    /// Projects a sample into `parts.z`, or copies its projection from the cache. Returns false if the sample
    /// is not usable.
    fn project_one(&mut self, x: &[f32]) -> bool {
        let Parts { shape, representation, z, pace, .. } = &mut *self.parts;
        match self.cache.slot(self.number, 1, shape.width) {
            Some(Slot { z: slot, known, .. }) => {
                if !known {
                    project(representation, x, z, *pace);
                }
                for (four, value) in slot.iter_mut().zip(z.iter_mut()) {
                    match four.get_mut(self.number % 4) {
                        Some(cached) if known => *value = *cached,
                        Some(target) => *target = *value,
                        None => {}
                    }
                }
            }
            None => project(representation, x, z, *pace),
        }
        let usable = all_usable(z);
        if !usable {
            self.cache.end(self.number);
        }
        usable
    }
}

/// Computes `y <- W^T z - y`.
fn subtract_prediction(parts: &mut Parts<'_>) {
    let c = parts.y.len().max(1);
    for (output, y) in parts.y.iter_mut().enumerate() {
        *y = dot(parts.z, from(parts.rhs, output), c) - *y;
    }
}

/// Computes `y <- W^T z - y` for four samples.
fn subtract_predictions(w: &[f32], z: &[Four], y: &mut [Four]) {
    let c = y.len();
    for (output, y) in y.iter_mut().enumerate() {
        let mut prediction = [0.0; 4];
        let mut index = output;
        for z in z {
            let Some(w) = w.get(index) else { break };
            add_scaled(&mut prediction, *z, *w);
            index += c;
        }
        let ([y0, y1, y2, y3], [p0, p1, p2, p3]) = (*y, prediction);
        *y = [p0 - y0, p1 - y1, p2 - y2, p3 - y3];
    }
}

/// Splits `x` into four samples of d values each; `None` if `x` is too short.
#[inline(always)]
pub fn rows_of_four(x: &[f32], d: usize) -> Option<[&[f32]; 4]> {
    let (x0, x) = x.split_at_checked(d)?;
    let (x1, x) = x.split_at_checked(d)?;
    let (x2, x3) = x.split_at_checked(d)?;
    Some([x0, x1, x2, x3.get(..d)?])
}

/// Splits `x` into one to three samples of d values each, and returns their number too; the first sample stands for missing
/// ones.
#[inline(never)]
fn rows_of_rest(x: &[f32], d: usize) -> Option<([&[f32]; 4], usize)> {
    let x0 = x.get(..d)?;
    let mut samples = [x0; 4];
    for (sample, x) in samples.iter_mut().zip(x.chunks_exact(d.max(1)).take(3)) {
        *sample = x;
    }
    Some((samples, (x.len() / d.max(1)).min(3)))
}

/// Sets the lanes from `first` on to zero.
#[inline(never)]
fn clear_from(fours: &mut [Four], first: usize) {
    for four in fours {
        for value in four.iter_mut().skip(first) {
            *value = 0.0;
        }
    }
}
