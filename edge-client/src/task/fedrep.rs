//! FedRep on one device (Collins et al. 2021, Algorithm 2): fits the head on the current representation, then
//! takes one gradient step on the representation. The task `fit-head` performs only the first part.
//!
//! The loss is `1/(2m) |X B W - Y|^2`, a mean over samples. With the exact head the residual is orthogonal to
//! `X B`, so `B^T G = 0`: the step is orthogonal to the span of `B`.

use fedspan_protocol::message::{DeclineReason, HeadSolve, RoundId};
use fedspan_protocol::sqrt::sqrtf;

#[cfg(feature = "ridge-choice")]
use super::leave_one_out;
use super::projection_cache::ProjectionCache;
use super::sample_pass::{PassKind, SampleSet, count, project_sample, run_pass};
use super::{GRADIENT_HEAD, HeadSolver, Usage, row_blocks};
use crate::kernel::Four;
use crate::kernel::constant_column::ConstantColumn;
use crate::kernel::gradient::{accumulate, finish_one_pass};
use crate::kernel::least_squares::{Limits, add_normal, gradient_steps, has_diverged, solve_normal};
use crate::kernel::rank;
use crate::memory::Parts;
use crate::source::{SampleSource, Targets};

/// Fits the head on `B`. Needs one pass over the samples if the normal equations suffice, otherwise two; four
/// passes if the search for the ridge of least leave-one-out error fails. The head changes only on success.
#[inline(never)]
pub fn solve_head(
    parts: &mut Parts<'_>,
    head: HeadSolve,
    solver: &mut HeadSolver,
    id: RoundId,
    sample_set: SampleSet,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let usage = solve(
        parts,
        &mut ProjectionCache::new(row_blocks::spare_fours(parts.shape)),
        head,
        solver,
        id,
        sample_set,
        source,
    )?;
    keep_head(parts);
    Ok(usage)
}

/// Computes a whole FedRep round: the head, then `S`.
#[inline(never)]
pub fn run(
    parts: &mut Parts<'_>,
    head: HeadSolve,
    solver: &mut HeadSolver,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let cache = &mut ProjectionCache::new(row_blocks::spare_fours(parts.shape));
    solve(parts, cache, head, solver, id, SampleSet::Head, source)?;
    let usage = run_pass(
        PassKind::Residual,
        parts,
        cache,
        &mut ConstantColumn::default(),
        id,
        SampleSet::All,
        source,
    )?;
    keep_head(parts);
    Ok(usage)
}

/// Computes the new head into `parts.rhs`, without changing `parts.head`.
fn solve(
    parts: &mut Parts<'_>,
    cache: &mut ProjectionCache,
    head: HeadSolve,
    solver: &mut HeadSolver,
    id: RoundId,
    sample_set: SampleSet,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let constant = &mut ConstantColumn::default();
    let ridge = match head {
        #[cfg(feature = "ridge-choice")]
        HeadSolve::LeaveOneOut { fallback_ridge } if !solver.has_minimum_norm() => fallback_ridge,
        #[cfg(feature = "ridge-choice")]
        HeadSolve::LeaveOneOut { fallback_ridge: otherwise } => {
            let usage = run_pass(PassKind::Triangular, parts, cache, constant, id, sample_set, source)?;
            if leave_one_out::solve(parts, cache.spare(), constant, solver, usage, id, sample_set, source)? {
                return Ok(usage);
            }
            otherwise
        }
        HeadSolve::LeastSquares { ridge } => ridge,
        HeadSolve::Gradient { .. } if GRADIENT_HEAD => 0.0,
        _ => return Err(DeclineReason::Parameter),
    };
    let usage = run_pass(PassKind::Normal, parts, cache, constant, id, sample_set, source)?;
    if usage.samples == 0 {
        return Err(DeclineReason::NoSamples);
    }
    let k = parts.shape.width;
    let rank = match head {
        HeadSolve::Gradient { steps, step_size } if GRADIENT_HEAD => {
            // `S` is computed later. Until then its buffer (d x C, d >= k) holds the head during gradient
            // steps.
            let Parts { head, factor, rhs, residual, z, pace, .. } = parts;
            let moving = residual.get_mut(..head.len()).unwrap_or_default();
            copy(moving, head);
            gradient_steps(factor, rhs, moving, z, steps, step_size / count(usage), *pace);
            if has_diverged(moving) {
                return Err(DeclineReason::UpdateNonFinite);
            }
            copy(rhs, moving);
            k
        }
        _ => {
            if solve_by_normal_equations(parts, ridge, usage, solver.limits()) {
                k
            } else if !solver.has_minimum_norm() {
                return Err(DeclineReason::Undetermined);
            } else {
                let usage = run_pass(PassKind::Triangular, parts, cache, constant, id, sample_set, source)?;
                solve_triangular(parts, cache.spare(), constant, ridge, usage)
            }
        }
    };
    solver.record(usage, k, rank, ridge);
    Ok(usage)
}

/// Starts the one-pass method, which is used for streamed samples.
pub fn begin(parts: &mut Parts<'_>) -> Result<(), DeclineReason> {
    let (Some(products), Some(_)) = (&mut parts.extra_matrix, &parts.blocks) else {
        return Err(DeclineReason::Task);
    };
    products.fill(0.0);
    parts.factor.fill(0.0);
    parts.rhs.fill(0.0);
    parts.residual.fill(0.0);
    Ok(())
}

/// Adds one sample in the one-pass method, after `number` usable samples. Returns false if the sample is not
/// usable.
#[inline(never)]
pub fn sample(
    parts: &mut Parts<'_>,
    head: HeadSolve,
    constant: &mut ConstantColumn,
    number: u32,
    x: &[f32],
    target: Targets<'_>,
) -> bool {
    if !project_sample(parts, x, target, 0) {
        return false;
    }
    if let Some(products) = &mut parts.extra_matrix {
        accumulate(products, x, parts.z, parts.pace);
    }
    accumulate(parts.residual, x, parts.y, parts.pace);
    match head {
        HeadSolve::Gradient { .. } if GRADIENT_HEAD => {
            let (k, c) = (parts.shape.width, parts.shape.outputs);
            parts.pace.spend(k * (k / 2 + c + 1));
            add_normal(parts.factor, parts.rhs, parts.z, parts.y);
        }
        _ => row_blocks::push(parts, &mut [], constant, number),
    }
    true
}

/// Finishes the one-pass method: computes the head, then `S`. No buffer is free for a second head, so the
/// head is zero after gradient steps that diverge. A stream has no second pass for leave-one-out, so the
/// fallback ridge is used.
#[inline(never)]
pub fn finish(
    parts: &mut Parts<'_>,
    head: HeadSolve,
    constant: &mut ConstantColumn,
    solver: &mut HeadSolver,
    usage: Usage,
) -> Result<(), DeclineReason> {
    let (rank, ridge) = match head {
        HeadSolve::Gradient { steps, step_size } if GRADIENT_HEAD => {
            let step = step_size / count(usage);
            gradient_steps(parts.factor, parts.rhs, parts.head, parts.z, steps, step, parts.pace);
            if has_diverged(parts.head) {
                parts.head.fill(0.0);
                return Err(DeclineReason::UpdateNonFinite);
            }
            (parts.shape.width, 0.0)
        }
        HeadSolve::LeastSquares { ridge } | HeadSolve::LeaveOneOut { fallback_ridge: ridge } => {
            let rank = solve_triangular(parts, &mut [], constant, ridge, usage);
            keep_head(parts);
            (rank, ridge)
        }
        _ => return Err(DeclineReason::Parameter),
    };
    solver.record(usage, parts.shape.width, rank, ridge);
    let shape = parts.shape;
    if let Some(products) = &parts.extra_matrix {
        finish_one_pass(parts.residual, products, parts.head, shape.width, shape.outputs, parts.pace);
    }
    Ok(())
}

/// Tries to solve the normal equations for the head. Returns false if the triangular factor is needed.
fn solve_by_normal_equations(parts: &mut Parts<'_>, ridge: f32, usage: Usage, limits: Limits) -> bool {
    let k = parts.shape.width;
    let fewer = usize::try_from(usage.samples).is_ok_and(|m| m < k);
    if fewer && ridge == 0.0 {
        return false;
    }
    let extra = ridge * count(usage);
    for diagonal in parts.factor.iter_mut().step_by((k + 1).max(1)) {
        *diagonal += extra;
    }
    solve_normal(parts.factor, parts.rhs, parts.z, limits, parts.pace)
        && parts.rhs.iter().all(|w| w.is_finite())
}

/// Computes the head from the triangular factor, and returns its rank.
#[inline(never)]
fn solve_triangular(
    parts: &mut Parts<'_>,
    spare: &mut [Four],
    constant: &mut ConstantColumn,
    ridge: f32,
    usage: Usage,
) -> usize {
    let mut number = usage.samples;
    row_blocks::end(parts, spare, constant, number);
    if ridge > 0.0 {
        constant.undo_if_ridge_exceeds(ridge, parts.factor, parts.shape.width);
        // Appending the rows sqrt(m ridge) I to Z, and rows of zeros to Y, gives the normal equations with
        // the ridge.
        let weight = sqrtf(ridge * count(usage));
        for row in 0..parts.shape.width {
            parts.z.fill(0.0);
            parts.y.fill(0.0);
            if let Some(value) = parts.z.get_mut(row) {
                *value = weight;
            }
            row_blocks::push_row(parts, spare, constant, number, false);
            number = number.wrapping_add(1);
        }
    }
    row_blocks::finish(parts, spare, constant, number);
    let Parts { shape, factor, rhs, residual, blocks, z, pace, .. } = parts;
    let room = row_blocks::room(*shape, residual, blocks, spare);
    rank::least_squares(factor, rhs, z, room, *constant, *pace)
}

/// Replaces the head by the solution in `parts.rhs`.
fn keep_head(parts: &mut Parts<'_>) {
    copy(parts.head, parts.rhs);
}

/// Copies values up to the end of the shorter slice; `copy_from_slice` could panic.
pub fn copy(to: &mut [f32], from: &[f32]) {
    for (target, &value) in to.iter_mut().zip(from) {
        *target = value;
    }
}
