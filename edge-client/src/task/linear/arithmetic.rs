//! Selection of the arithmetic of a linear model: fixed point or f32, depending on the type of its memory.

use fedspan_protocol::message::{DeclineReason, HeadSolve, RoundId};
use fedspan_protocol::orthonormal::orthonormality_error_in_parts;

use crate::kernel::project;
use crate::memory::{Memory, Parts};
use crate::source::SampleSource;
#[cfg(feature = "i16")]
use crate::task::fixed_point;
use crate::task::sample_pass::SampleSet;
use crate::task::{HeadSolver, Usage, fedrep};

/// Prepares the representation in memory for computations.
pub(super) fn accept<M: Memory>(memory: &mut M) {
    #[cfg(feature = "i16")]
    if let Some((parts, mut fixed)) = memory.fixed() {
        fixed_point::accept(&parts, &mut fixed);
    }
    let _ = memory;
}

/// Returns `max |B^T B - I|` of the representation in memory; NaN or infinite if it is not finite. In fixed point the result
/// may be off by half of `tolerance`, and the representation is [accepted](accept).
pub(super) fn orthonormality_error<M: Memory>(memory: &mut M, tolerance: f32) -> f32 {
    #[cfg(feature = "i16")]
    if let Some((mut parts, mut fixed)) = memory.fixed() {
        if !fixed_point::accept(&parts, &mut fixed) {
            return f32::NAN;
        }
        if let Some(error) = fixed_point::orthonormality_error(&mut parts, &fixed, tolerance) {
            return error;
        }
    }
    let _ = tolerance;
    let Parts { shape, representation, pace, .. } = memory.parts();
    orthonormality_error_in_parts(representation, shape.width, &mut |work| pace.spend(work))
}

/// Projects a sample of the right length into `parts.z`.
pub(super) fn project<M: Memory>(memory: &mut M, x: &[f32]) {
    #[cfg(feature = "i16")]
    if let Some((mut parts, mut fixed)) = memory.fixed() {
        if !fixed_point::project(&mut parts, &mut fixed, x) {
            parts.z.fill(f32::NAN);
        }
        return;
    }
    let Parts { representation, z, pace, .. } = memory.parts();
    project::project(representation, x, z, pace);
}

/// Fits the head on the representation in memory.
pub(super) fn solve_head<M: Memory>(
    memory: &mut M,
    head: HeadSolve,
    solver: &mut HeadSolver,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    #[cfg(feature = "i16")]
    if let Some((mut parts, mut fixed)) = memory.fixed() {
        return fixed_point::solve_head(&mut parts, &mut fixed, head, solver, id, SampleSet::All, source);
    }
    fedrep::solve_head(&mut memory.parts(), head, solver, id, SampleSet::All, source)
}

/// Computes a whole FedRep round.
pub(super) fn fedrep<M: Memory>(
    memory: &mut M,
    head: HeadSolve,
    solver: &mut HeadSolver,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    #[cfg(feature = "i16")]
    if let Some((mut parts, mut fixed)) = memory.fixed() {
        return fixed_point::run(&mut parts, &mut fixed, head, solver, id, source);
    }
    fedrep::run(&mut memory.parts(), head, solver, id, source)
}
