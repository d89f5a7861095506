//! Head with the ridge of least leave-one-out error, computed from the triangular factor and a second pass
//! over the samples.
//!
//! No buffer is needed in addition to the workspace: the memory of a block of rows is free after the first
//! pass.

use fedspan_protocol::message::{DeclineReason, RoundId};

use super::sample_pass::{SampleSet, count, for_each_in, project_sample};
use super::{HeadSolver, Usage, row_blocks};
use crate::kernel::Four;
use crate::kernel::constant_column::ConstantColumn;
use crate::kernel::leave_one_out::LeaveOneOut;
use crate::kernel::rank;
use crate::memory::Parts;
use crate::source::{SampleSource, Targets};

/// Computes the head into `parts.rhs`, from the sums of a triangular pass over the same samples. Returns
/// false if no ridge can be selected: a class has a single sample, there is only one sample, or the memory is
/// too small for a block of rows.
#[allow(clippy::too_many_arguments, reason = "all inputs of a pass")]
#[inline(never)]
pub fn solve(
    parts: &mut Parts<'_>,
    spare: &mut [Four],
    constant: &mut ConstantColumn,
    solver: &mut HeadSolver,
    usage: Usage,
    id: RoundId,
    sample_set: SampleSet,
    source: &mut dyn SampleSource,
) -> Result<bool, DeclineReason> {
    let (k, c) = (parts.shape.width, parts.shape.outputs);
    let fits_block = row_blocks::room_of_two_passes(parts.shape, parts.residual, spare).len() >= 8 * (k + c);
    if usage.samples < 2 || !fits_block {
        return Ok(false);
    }
    row_blocks::end(parts, spare, constant, usage.samples);
    row_blocks::finish(parts, spare, constant, usage.samples);
    let (mut sums, directions) = {
        let Parts { shape, factor, rhs, residual, pace, .. } = &mut *parts;
        let (room, squares, counts) = split(row_blocks::room_of_two_passes(*shape, residual, spare), k, c);
        let Some(directions) = rank::decompose(factor, rhs, squares, room, *constant, *pace) else {
            return Ok(false);
        };
        counts.fill(0.0);
        (LeaveOneOut::new(&directions, squares), directions)
    };
    let mut classes = false;
    for_each_in(sample_set, id, source, parts.shape.features, |x, targets, index| {
        let usable = project_sample(parts, x, targets, index);
        if usable {
            let Parts { shape, factor, rhs, residual, z, y, pace, .. } = &mut *parts;
            let (scratch, squares, counts) =
                split(row_blocks::room_of_two_passes(*shape, residual, spare), k, c);
            classes = matches!(targets, Targets::Classes(_));
            for (count, y) in counts.iter_mut().zip(&**y) {
                *count += y;
            }
            sums.add(&directions, [factor, rhs, squares], z, y, scratch, *pace);
        }
        usable
    })?;
    let Parts { shape, factor, rhs, residual, z, pace, .. } = parts;
    let (_, squares, counts) = split(row_blocks::room_of_two_passes(*shape, residual, spare), k, c);
    if classes && counts.contains(&1.0) {
        return Ok(false);
    }
    let Some(extra) = sums.best() else { return Ok(false) };
    directions.weigh(rhs, squares, extra);
    rank::combine(factor, rhs, z, *pace);
    if !rhs.iter().all(|w| w.is_finite()) {
        return Ok(false);
    }
    let ridge = extra / (directions.scale * directions.scale * count(usage));
    solver.record(usage, k, directions.rank, ridge);
    Ok(true)
}

/// Splits the memory of a block into 2 k values of scratch memory, k squared lengths of directions, and c
/// counts of classes.
#[inline(never)]
fn split(room: &mut [f32], k: usize, c: usize) -> (&mut [f32], &mut [f32], &mut [f32]) {
    let (scratch, remaining) = room.split_at_mut_checked(2 * k).unwrap_or_default();
    let (squares, remaining) = remaining.split_at_mut_checked(k).unwrap_or_default();
    (scratch, squares, remaining.get_mut(..c).unwrap_or_default())
}
