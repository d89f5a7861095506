//! FedRep in 16-bit fixed point: the same passes as in f32 but with integers, one sample at a time.
//!
//! The head needs one pass and is solved in f32 from `Z^T Z`; the pass for the gradient follows. The number
//! of samples per call of the source does not affect results.

use fedspan_protocol::message::{DeclineReason, HeadSolve, RoundId};

use super::fedrep::copy;
use super::sample_pass::{MAGNITUDE_MAX, SampleSet, count};
use super::{GRADIENT_HEAD, HeadSolver, Usage};
use crate::kernel::all_within;
use crate::kernel::fixed::product::{products, residuals};
use crate::kernel::fixed::scale::{narrow, quantise, quantise_columns, scaled};
use crate::kernel::fixed::{Scale, Sums, head as solution, sums};
use fedspan_protocol::sqrt::sqrtf;

use crate::kernel::least_squares::{gradient_steps, has_diverged};
use crate::memory::{Fixed, Parts, Shape};
use crate::source::{SampleSource, Targets};

/// Number of integers in the projection cache: 1 KB, enough for 51 samples at a width of 8.
const CACHE_LEN: usize = 512;

/// Exponent of the largest usable projections. The limit is the same as in f32 ([`MAGNITUDE_MAX`], 2^40).
const EXPONENT_MAX: i32 = 40 - 15;

/// Exponent of the largest usable samples: the rounding error of a feature is then at most the largest usable
/// projection. The projection of a larger sample would be meaningless, and its gradient would dominate the
/// other gradients.
const SAMPLE_EXPONENT_MAX: i32 = 40;

/// Converts the representation to integers. Returns false if it is not finite; the integers are then zero.
pub fn accept(parts: &Parts<'_>, fixed: &mut Fixed<'_>) -> bool {
    match quantise_columns(parts.representation, parts.shape.width, fixed.representation) {
        Some(scale) => {
            *fixed.scale = scale;
            true
        }
        None => {
            fixed.representation.fill(0);
            false
        }
    }
}

/// Returns `max |B^T B - I|`, computed from the integers of [`accept`]. Returns `None` if their rounding could change the
/// products of columns of length one by more than half of `tolerance`.
///
/// An integer is off by at most half a unit `u`. By Cauchy and Schwarz the product of two columns of length one is then off by
/// at most `sqrt(d) u + d u^2 / 4`, of which the second part is negligible. If the result is at most `tolerance`, the
/// error of `B` itself is larger by about half of `tolerance` at most.
#[inline(never)]
pub fn orthonormality_error(parts: &mut Parts<'_>, fixed: &Fixed<'_>, tolerance: f32) -> Option<f32> {
    let Shape { features: d, width: k, .. } = parts.shape;
    let exponent = fixed.scale.exponent();
    #[allow(clippy::cast_precision_loss, reason = "a bound may round")]
    let rounding = sqrtf(d as f32) * scaled(1, exponent);
    // The comparison is false for a NaN.
    let is_exact_enough = rounding <= tolerance / 2.0;
    if !is_exact_enough {
        return None;
    }
    let mut worst = 0.0f32;
    for number in 0..k {
        // Products of one column with itself and all later ones.
        let columns = fixed.representation.get(number * d..)?;
        let dots = parts.z.get_mut(number..)?;
        parts.pace.spend(columns.len());
        let exponent = products(columns, columns.get(..d)?, 2 * exponent, dots);
        let mut target = 1.0;
        for dot in dots {
            let error = (scaled(dot.to_bits().cast_signed(), exponent) - target).abs();
            worst = worst.max(error);
            target = 0.0;
        }
    }
    Some(worst)
}

/// Projects one sample into `parts.z`. Returns false and does nothing if a value is not finite.
pub fn project(parts: &mut Parts<'_>, fixed: &mut Fixed<'_>, x: &[f32]) -> bool {
    let projected = project_wide(parts, fixed, x);
    if let Some((_, exponent)) = projected {
        sums::to_floats(parts.z, exponent);
    }
    projected.is_some()
}

/// Projects one sample into `parts.z` as integers. Returns the sample's scale and the exponent of the
/// projection.
fn project_wide(parts: &mut Parts<'_>, fixed: &mut Fixed<'_>, x: &[f32]) -> Option<(Scale, i32)> {
    parts.pace.spend(x.len() * fixed.z.len());
    let scale = quantise(x, fixed.x)?;
    let exponent = scale.exponent() + fixed.scale.exponent();
    Some((scale, products(fixed.representation, fixed.x, exponent, parts.z)))
}

/// Fits the head on `B`. The head changes only on success.
#[inline(never)]
pub fn solve_head(
    parts: &mut Parts<'_>,
    fixed: &mut Fixed<'_>,
    head: HeadSolve,
    solver: &mut HeadSolver,
    id: RoundId,
    sample_set: SampleSet,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let cache = ProjectionCache { integers: &mut [0; CACHE_LEN], next: 0, filled: 0, selection: false };
    let mut pass = Pass { parts, fixed, cache, usage: Usage::default() };
    pass.solve(head, solver, id, sample_set, source)?;
    copy(pass.parts.head, pass.parts.rhs);
    Ok(pass.usage)
}

/// Computes a whole FedRep round: the head, then `S`.
#[inline(never)]
pub fn run(
    parts: &mut Parts<'_>,
    fixed: &mut Fixed<'_>,
    head: HeadSolve,
    solver: &mut HeadSolver,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let cache = ProjectionCache { integers: &mut [0; CACHE_LEN], next: 0, filled: 0, selection: false };
    let mut pass = Pass { parts, fixed, cache, usage: Usage::default() };
    pass.solve(head, solver, id, SampleSet::Head, source)?;
    pass.compute_residual(id, source)?;
    copy(pass.parts.head, pass.parts.rhs);
    Ok(pass.usage)
}

/// State of the passes over the samples of a round.
struct Pass<'a, 'b, 'c> {
    parts: &'a mut Parts<'b>,
    fixed: &'a mut Fixed<'c>,
    cache: ProjectionCache<'a>,
    usage: Usage,
}

impl Pass<'_, '_, '_> {
    /// Computes the new head into `parts.rhs`.
    fn solve(
        &mut self,
        head: HeadSolve,
        solver: &mut HeadSolver,
        id: RoundId,
        sample_set: SampleSet,
        source: &mut dyn SampleSource,
    ) -> Result<(), DeclineReason> {
        let (gram, products) = self.compute_normal(id, sample_set, source)?;
        let usage = self.usage;
        if usage.samples == 0 {
            return Err(DeclineReason::NoSamples);
        }
        let Parts { shape, head: old_head, factor, rhs, residual, z, pace, .. } = &mut *self.parts;
        let k = shape.width;
        let (rank, ridge) = match head {
            // Leave-one-out would need a second pass, so the fallback ridge is used.
            HeadSolve::LeastSquares { ridge } | HeadSolve::LeaveOneOut { fallback_ridge: ridge } => {
                // Both sides are in units of the left side, so very small or large samples lose no precision.
                sums::to_floats(factor, 0);
                sums::to_floats(rhs, products.exponent() - gram.exponent());
                if ridge > 0.0 {
                    let extra = libm::scalbnf(ridge * count(usage), -gram.exponent());
                    factor.iter_mut().step_by((k + 1).max(1)).for_each(|diagonal| *diagonal += extra);
                }
                let rank = solution::solve(factor, rhs, z, solver.has_minimum_norm(), *pace);
                (rank.ok_or(DeclineReason::Undetermined)?, ridge)
            }
            HeadSolve::Gradient { steps, step_size } if GRADIENT_HEAD => {
                sums::to_floats(factor, gram.exponent());
                sums::to_floats(rhs, products.exponent());
                mirror(factor, k);
                // `S` is computed later. Until then its buffer (d x C, d >= k) holds the head during gradient
                // steps.
                let moving = residual.get_mut(..old_head.len()).unwrap_or_default();
                copy(moving, old_head);
                gradient_steps(factor, rhs, moving, z, steps, step_size / count(usage), *pace);
                if has_diverged(moving) {
                    return Err(DeclineReason::UpdateNonFinite);
                }
                copy(rhs, moving);
                (k, 0.0)
            }
            _ => return Err(DeclineReason::Parameter),
        };
        solver.record(usage, k, rank, ridge);
        Ok(())
    }

    /// Computes `Z^T Z` (its upper triangle) and `Z^T Y`, as integers.
    fn compute_normal(
        &mut self,
        id: RoundId,
        sample_set: SampleSet,
        source: &mut dyn SampleSource,
    ) -> Result<(Sums, Sums), DeclineReason> {
        self.parts.factor.fill(0.0);
        self.parts.rhs.fill(0.0);
        let (mut gram, mut products) = (Sums::new(), Sums::new());
        self.run_pass(id, sample_set, source, |pass, x, targets, index| {
            let Some(projected) = pass.project(x).filter(|_| pass.read(targets, index)) else {
                return Ok(false);
            };
            let Some(y) = quantise(pass.parts.y, pass.fixed.y) else { return Ok(false) };
            let z = projected.z(&pass.cache, pass.fixed.z);
            pass.parts.pace.spend(z.len() * (z.len() / 2 + pass.parts.y.len() + 1));
            if let Some(aligned) = gram.align(pass.parts.factor, projected.scale, projected.scale) {
                aligned.add_squares(pass.parts.factor, z);
            }
            if let Some(aligned) = products.align(pass.parts.rhs, projected.scale, y) {
                aligned.add_products(pass.parts.rhs, z, pass.fixed.y);
            }
            Ok(true)
        })?;
        Ok((gram, products))
    }

    /// Computes `S = X^T (X B W - Y)` for the `W` in `parts.rhs`.
    fn compute_residual(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<(), DeclineReason> {
        let head = quantise_columns(self.parts.rhs, self.parts.shape.outputs, self.fixed.head)
            .ok_or(DeclineReason::UpdateNonFinite)?;
        self.parts.residual.fill(0.0);
        let mut sums = Sums::new();
        self.run_pass(id, SampleSet::All, source, |pass, x, targets, index| {
            let Some(projected) = pass.project(x).filter(|_| pass.read(targets, index)) else {
                return Ok(false);
            };
            pass.parts.pace.spend(x.len() * pass.parts.y.len());
            let exponent = projected.scale.exponent() + head.exponent();
            let z = projected.z(&pass.cache, pass.fixed.z);
            let exponent = residuals(pass.fixed.head, z, exponent, pass.parts.y);
            let r = narrow(pass.parts.y, exponent, pass.fixed.y);
            if let Some(aligned) = sums.align(pass.parts.residual, projected.sample, r) {
                aligned.add_outer(pass.parts.residual, x, projected.sample, pass.fixed.y);
            }
            Ok(true)
        })?;
        sums::to_floats(self.parts.residual, sums.exponent());
        Ok(())
    }

    /// Runs one pass. `each` returns true if it has used the sample.
    fn run_pass(
        &mut self,
        id: RoundId,
        sample_set: SampleSet,
        source: &mut dyn SampleSource,
        mut each: impl FnMut(&mut Self, &[f32], Targets<'_>, usize) -> Result<bool, DeclineReason>,
    ) -> Result<(), DeclineReason> {
        let failed = |_| DeclineReason::Device;
        let selection = sample_set == SampleSet::Head && source.rewind_for_head(id).map_err(failed)?;
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

    /// Projects a sample, or returns its projection from the cache. Returns `None` if the sample is not
    /// usable.
    fn project(&mut self, x: &[f32]) -> Option<Projected> {
        let Self { parts, fixed, cache, .. } = self;
        let k = fixed.z.len();
        let (cache_index, filled) = cache.claim_slot(k);
        let slot =
            cache_index.and_then(|first| cache.integers.get_mut(first..first + 2 + k)).unwrap_or_default();
        if filled {
            let [sample, scale, ..] = *slot else { return None };
            let (sample_scale, scale) = (Scale::from_bits(sample), Scale::from_bits(scale));
            return (sample != UNUSABLE).then_some(Projected { sample: sample_scale, scale, cache_index });
        }
        let wide = project_wide(parts, fixed, x);
        let (scales, z) = slot.split_at_mut_checked(2).unwrap_or_default();
        let z = if cache_index.is_some() { z } else { &mut *fixed.z };
        let projected = wide.and_then(|(sample, exponent)| {
            let scale = narrow(parts.z, exponent, z);
            let fits = scale.exponent() <= EXPONENT_MAX && sample.exponent() <= SAMPLE_EXPONENT_MAX;
            fits.then_some(Projected { sample, scale, cache_index })
        });
        if let [sample, scale] = scales {
            *sample = projected.map_or(UNUSABLE, |projected| projected.sample.to_bits());
            *scale = projected.map_or(UNUSABLE, |projected| projected.scale.to_bits());
        }
        projected
    }

    /// Reads a target into `parts.y`. Returns false if the target is not usable.
    fn read(&mut self, targets: Targets<'_>, index: usize) -> bool {
        targets.write(index, self.parts.y) && all_within(self.parts.y, MAGNITUDE_MAX)
    }
}

/// Projection of a sample.
#[derive(Clone, Copy, Debug)]
struct Projected {
    /// Scale of the sample.
    sample: Scale,
    /// Scale of the projection.
    scale: Scale,
    /// Position in the cache; `None` if the projection is in `fixed.z`.
    cache_index: Option<usize>,
}

impl Projected {
    /// Returns the k integers of the projection.
    fn z<'a>(&self, cache: &'a ProjectionCache<'_>, fixed: &'a [i16]) -> &'a [i16] {
        match self.cache_index {
            Some(first) => cache.integers.get(first + 2..first + 2 + fixed.len()).unwrap_or_default(),
            None => fixed,
        }
    }
}

/// Copies the upper triangle of a k x k matrix to the lower triangle.
fn mirror(matrix: &mut [f32], k: usize) {
    for i in 1..k {
        for j in 0..i {
            let value = matrix.get(j * k + i).copied().unwrap_or(0.0);
            if let Some(target) = matrix.get_mut(i * k + j) {
                *target = value;
            }
        }
    }
}

/// Marker stored instead of the scale of an unusable sample. No scale has this value.
const UNUSABLE: i16 = i16::MIN;

/// Cache of the projections of the first samples of a pass, as many as fit: two scales and k integers per
/// sample. Recomputing a projection gives the same bits, so the cache does not affect results.
struct ProjectionCache<'a> {
    integers: &'a mut [i16; CACHE_LEN],
    /// Position of the next sample of the pass.
    next: usize,
    /// Number of integers that contain projections.
    filled: usize,
    /// True if the cached samples are a selection for fitting the head, not the first of all samples.
    selection: bool,
}

impl ProjectionCache<'_> {
    /// Starts a pass over all samples or over a selection. Discards projections of the other kind of pass.
    fn begin(&mut self, selection: bool) {
        self.next = 0;
        if self.selection != selection {
            self.filled = 0;
            self.selection = selection;
        }
    }

    /// Returns the position of the next sample, or `None` if the cache is full. The flag is true if the cache
    /// contains its projection already; otherwise the caller must write the projection.
    fn claim_slot(&mut self, k: usize) -> (Option<usize>, bool) {
        let (first, end) = (self.next, self.next.saturating_add(k + 2));
        if end > CACHE_LEN {
            return (None, false);
        }
        let filled = end <= self.filled;
        (self.next, self.filled) = (end, self.filled.max(end));
        (Some(first), filled)
    }
}
