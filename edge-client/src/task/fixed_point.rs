//! FedRep in 16-bit fixed point: the same passes as in f32, one sample at a time, over integers.
//!
//! The head needs one pass and is solved in f32 from `Z^T Z`, then comes the pass of the gradient. How samples
//! are handed out has no influence: each is taken alone.

use fedspan_protocol::message::{DeclineReason, HeadSolve, RoundId};

use super::fedrep::{copy, count};
use super::sample_pass::{MAGNITUDE_MAX, SampleSet};
use super::{HeadFits, Usage};
use crate::kernel::all_within;
use crate::kernel::fixed::product::{products, residuals};
use crate::kernel::fixed::scale::{narrow, quantise, quantise_columns};
use crate::kernel::fixed::{Scale, Sums, head as solution, sums};
use crate::kernel::least_squares::{gradient_steps, has_diverged};
use crate::memory::{Fixed, Parts};
use crate::source::{SampleSource, Targets};

/// How many integers are kept of projections: 1 KB, 51 samples at a width of 8.
const CACHE_LEN: usize = 512;

/// The scale of the largest projections that are used: those in f32 may be as large ([`MAGNITUDE_MAX`], 2^40).
const EXPONENT_MAX: i32 = 40 - 15;

/// The scale of the largest samples that are used: what rounding loses of a feature is no more than such a projection may be. Of a
/// larger one the projection says nothing, and its gradient would be all that there is.
const SAMPLE_EXPONENT_MAX: i32 = 40;

/// Takes the representation over into integers, once it has been verified.
pub fn accept(parts: &Parts<'_>, fixed: &mut Fixed<'_>) {
    match quantise_columns(parts.representation, parts.shape.width, fixed.representation) {
        Some(scale) => *fixed.scale = scale,
        // What has been verified is finite; what has not may be anything.
        None => fixed.representation.fill(0),
    }
}

/// Projects one sample into `parts.z`. False, with nothing done, if a value is not finite.
pub fn project(parts: &mut Parts<'_>, fixed: &mut Fixed<'_>, x: &[f32]) -> bool {
    let projected = project_wide(parts, fixed, x);
    if let Some((_, exponent)) = projected {
        sums::to_floats(parts.z, exponent);
    }
    projected.is_some()
}

/// Projects one sample into `parts.z` as integers: the scale of the sample, and the exponent that they are
/// counted in.
fn project_wide(parts: &mut Parts<'_>, fixed: &mut Fixed<'_>, x: &[f32]) -> Option<(Scale, i32)> {
    let scale = quantise(x, fixed.x)?;
    let exponent = scale.exponent() + fixed.scale.exponent();
    Some((scale, products(fixed.representation, fixed.x, exponent, parts.z)))
}

/// Fits the head on `B`. The head changes only if all went well.
#[inline(never)]
pub fn solve_head(
    parts: &mut Parts<'_>,
    fixed: &mut Fixed<'_>,
    head: HeadSolve,
    fits: &mut HeadFits,
    id: RoundId,
    over: SampleSet,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let cache = ProjectionCache { integers: &mut [0; CACHE_LEN], next: 0, filled: 0, selection: false };
    let mut pass = Pass { parts, fixed, cache, usage: Usage::default() };
    pass.solve(head, fits, id, over, source)?;
    copy(pass.parts.head, pass.parts.rhs);
    Ok(pass.usage)
}

/// A whole FedRep round: the head, then `S`.
#[inline(never)]
pub fn run(
    parts: &mut Parts<'_>,
    fixed: &mut Fixed<'_>,
    head: HeadSolve,
    fits: &mut HeadFits,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let cache = ProjectionCache { integers: &mut [0; CACHE_LEN], next: 0, filled: 0, selection: false };
    let mut pass = Pass { parts, fixed, cache, usage: Usage::default() };
    pass.solve(head, fits, id, SampleSet::Head, source)?;
    pass.residual(id, source)?;
    copy(pass.parts.head, pass.parts.rhs);
    Ok(pass.usage)
}

/// Passes over the samples.
struct Pass<'a, 'b, 'c> {
    parts: &'a mut Parts<'b>,
    fixed: &'a mut Fixed<'c>,
    cache: ProjectionCache<'a>,
    usage: Usage,
}

impl Pass<'_, '_, '_> {
    /// Leaves the new head in `parts.rhs`.
    fn solve(
        &mut self,
        head: HeadSolve,
        fits: &mut HeadFits,
        id: RoundId,
        over: SampleSet,
        source: &mut dyn SampleSource,
    ) -> Result<(), DeclineReason> {
        let (gram, products) = self.normal(id, over, source)?;
        let usage = self.usage;
        if usage.samples == 0 {
            return Err(DeclineReason::NoSamples);
        }
        let Parts { shape, head: own, factor, rhs, residual, z, .. } = &mut *self.parts;
        let k = shape.width;
        let (rank, ridge) = match head {
            // One pass is all there is: none leaves samples out.
            HeadSolve::LeastSquares { ridge } | HeadSolve::LeaveOneOut { fallback_ridge: ridge } => {
                // Both sides in units of the left one: nothing is lost of samples that are very small or large.
                sums::to_floats(factor, 0);
                sums::to_floats(rhs, products.exponent() - gram.exponent());
                if ridge > 0.0 {
                    let extra = libm::scalbnf(ridge * count(usage), -gram.exponent());
                    factor.iter_mut().step_by((k + 1).max(1)).for_each(|diagonal| *diagonal += extra);
                }
                (solution::solve(factor, rhs, z), ridge)
            }
            HeadSolve::Gradient { steps, step_size } => {
                sums::to_floats(factor, gram.exponent());
                sums::to_floats(rhs, products.exponent());
                mirror(factor, k);
                // `S` comes later: until then its buffer (d x C, d >= k) holds the head that moves.
                let moving = residual.get_mut(..own.len()).unwrap_or_default();
                copy(moving, own);
                gradient_steps(factor, rhs, moving, z, steps, step_size / count(usage));
                if has_diverged(moving) {
                    return Err(DeclineReason::UpdateNonFinite);
                }
                copy(rhs, moving);
                (k, 0.0)
            }
            _ => return Err(DeclineReason::Parameter),
        };
        fits.record(usage, k, rank, ridge);
        Ok(())
    }

    /// `Z^T Z` (its upper triangle) and `Z^T Y`, as integers.
    fn normal(
        &mut self,
        id: RoundId,
        over: SampleSet,
        source: &mut dyn SampleSource,
    ) -> Result<(Sums, Sums), DeclineReason> {
        self.parts.factor.fill(0.0);
        self.parts.rhs.fill(0.0);
        let (mut gram, mut products) = (Sums::new(), Sums::new());
        self.over(id, over, source, |pass, x, targets, index| {
            let Some(found) = pass.project(x).filter(|_| pass.read(targets, index)) else {
                return Ok(false);
            };
            let Some(y) = quantise(pass.parts.y, pass.fixed.y) else { return Ok(false) };
            let z = found.z(&pass.cache, pass.fixed.z);
            if let Some(aligned) = gram.align(pass.parts.factor, found.scale, found.scale) {
                aligned.add_squares(pass.parts.factor, z);
            }
            if let Some(aligned) = products.align(pass.parts.rhs, found.scale, y) {
                aligned.add_products(pass.parts.rhs, z, pass.fixed.y);
            }
            Ok(true)
        })?;
        Ok((gram, products))
    }

    /// `S = X^T (X B W - Y)` for the `W` in `parts.rhs`.
    fn residual(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<(), DeclineReason> {
        let head = quantise_columns(self.parts.rhs, self.parts.shape.outputs, self.fixed.head)
            .ok_or(DeclineReason::UpdateNonFinite)?;
        self.parts.residual.fill(0.0);
        let mut sums = Sums::new();
        self.over(id, SampleSet::All, source, |pass, x, targets, index| {
            let Some(found) = pass.project(x).filter(|_| pass.read(targets, index)) else { return Ok(false) };
            let exponent = found.scale.exponent() + head.exponent();
            let z = found.z(&pass.cache, pass.fixed.z);
            let exponent = residuals(pass.fixed.head, z, exponent, pass.parts.y);
            let r = narrow(pass.parts.y, exponent, pass.fixed.y);
            if let Some(aligned) = sums.align(pass.parts.residual, found.sample, r) {
                aligned.add_outer(pass.parts.residual, x, found.sample, pass.fixed.y);
            }
            Ok(true)
        })?;
        sums::to_floats(self.parts.residual, sums.exponent());
        Ok(())
    }

    /// One pass: `each` says whether it could use a sample.
    fn over(
        &mut self,
        id: RoundId,
        over: SampleSet,
        source: &mut dyn SampleSource,
        mut each: impl FnMut(&mut Self, &[f32], Targets<'_>, usize) -> Result<bool, DeclineReason>,
    ) -> Result<(), DeclineReason> {
        let failed = |_| DeclineReason::Device;
        let selection = over == SampleSet::Head && source.rewind_for_head(id).map_err(failed)?;
        if !selection {
            source.rewind(id).map_err(failed)?;
        }
        self.cache.begin(selection);
        self.usage = Usage::default();
        let d = self.parts.shape.features.max(1);
        while let Some(samples) = source.next() {
            for (index, x) in samples.x.chunks_exact(d).enumerate() {
                let used = each(self, x, samples.targets, index)?;
                self.usage.count(1, used);
            }
        }
        Ok(())
    }

    /// Projects a sample, or finds it projected. `None` if it cannot be used.
    fn project(&mut self, x: &[f32]) -> Option<Projected> {
        let Self { parts, fixed, cache, .. } = self;
        let k = fixed.z.len();
        let (place, filled) = cache.place(k);
        let slot = place.and_then(|first| cache.integers.get_mut(first..first + 2 + k)).unwrap_or_default();
        if filled {
            let [sample, scale, ..] = *slot else { return None };
            let (sample_scale, scale) = (Scale::from_bits(sample), Scale::from_bits(scale));
            return (sample != UNUSABLE).then_some(Projected { sample: sample_scale, scale, place });
        }
        let wide = project_wide(parts, fixed, x);
        let (scales, z) = slot.split_at_mut_checked(2).unwrap_or_default();
        let z = if place.is_some() { z } else { &mut *fixed.z };
        let found = wide.and_then(|(sample, exponent)| {
            let scale = narrow(parts.z, exponent, z);
            let fits = scale.exponent() <= EXPONENT_MAX && sample.exponent() <= SAMPLE_EXPONENT_MAX;
            fits.then_some(Projected { sample, scale, place })
        });
        if let [sample, scale] = scales {
            *sample = found.map_or(UNUSABLE, |found| found.sample.to_bits());
            *scale = found.map_or(UNUSABLE, |found| found.scale.to_bits());
        }
        found
    }

    /// Reads a target into `parts.y`; false if it cannot be used.
    fn read(&mut self, targets: Targets<'_>, index: usize) -> bool {
        targets.write(index, self.parts.y) && all_within(self.parts.y, MAGNITUDE_MAX)
    }
}

/// A sample's projection.
#[derive(Clone, Copy, Debug)]
struct Projected {
    /// The sample's scale.
    sample: Scale,
    /// The projection's.
    scale: Scale,
    /// Where it is kept; `None` where it is in `fixed.z`.
    place: Option<usize>,
}

impl Projected {
    /// k integers.
    fn z<'a>(&self, cache: &'a ProjectionCache<'_>, fixed: &'a [i16]) -> &'a [i16] {
        match self.place {
            Some(first) => cache.integers.get(first + 2..first + 2 + fixed.len()).unwrap_or_default(),
            None => fixed,
        }
    }
}

/// Copies what is above the diagonal of a k x k matrix below it.
fn mirror(matrix: &mut [f32], k: usize) {
    for i in 1..k {
        for j in 0..i {
            let value = matrix.get(j * k + i).copied().unwrap_or(0.0);
            if let Some(place) = matrix.get_mut(i * k + j) {
                *place = value;
            }
        }
    }
}

/// In place of a sample's scale: the sample cannot be used. No scale has this number.
const UNUSABLE: i16 = i16::MIN;

/// The projections of the first samples of a pass, as many as there is room for: two scales and k integers
/// each. Computing a projection again gives the same bits, so no result depends on what is cache.
struct ProjectionCache<'a> {
    integers: &'a mut [i16; CACHE_LEN],
    /// Where the next sample of the pass has its place.
    next: usize,
    /// As many integers as this are there.
    filled: usize,
    /// They are a selection that the head is fitted on, not the first of all.
    selection: bool,
}

impl ProjectionCache<'_> {
    /// A pass begins, over all samples or a selection: what is kept of the other is forgotten.
    fn begin(&mut self, selection: bool) {
        self.next = 0;
        if self.selection != selection {
            self.filled = 0;
            self.selection = selection;
        }
    }

    /// Where the next sample is cache, if there is room, and whether it is there already; who finds that it is not
    /// must fill it.
    fn place(&mut self, k: usize) -> (Option<usize>, bool) {
        let (first, end) = (self.next, self.next.saturating_add(k + 2));
        if end > CACHE_LEN {
            return (None, false);
        }
        let filled = end <= self.filled;
        (self.next, self.filled) = (end, self.filled.max(end));
        (Some(first), filled)
    }
}
