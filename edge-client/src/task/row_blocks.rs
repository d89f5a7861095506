//! Rows of `[Z | Y]` on their way into the triangular factor: eight usable samples make a block, in their
//! order, whichever way they come, and the last ones make a block with rows of zeros. So samples that are seen
//! once and samples that are read again give the same head to the bit.
//!
//! The first block decides whether a column is taken for [constant](ConstantColumn); each later sample is checked.

use super::projection_cache::CACHE_FOURS;
use crate::kernel::Four;
use crate::kernel::constant_column::ConstantColumn;
use crate::kernel::qr_update::{add_eight_rows, add_row};
use crate::kernel::vector::from;
use crate::memory::{Blocks, Eight, Parts, Shape};

/// Takes sample `number` from `parts.z` and `parts.y`, which are used up.
#[inline(never)]
pub fn push(parts: &mut Parts<'_>, spare: &mut [Four], constant: &mut ConstantColumn, number: u32) {
    constant.check(
        parts.factor,
        parts.z.len(),
        from(parts.z, constant.column()).get(..1).unwrap_or_default(),
    );
    push_row(parts, spare, constant, number, number == 7);
}

/// Takes any row `number` from `parts.z` and `parts.y`. `first`: it is the last one of the first eight samples.
#[inline(never)]
pub fn push_row(
    parts: &mut Parts<'_>,
    spare: &mut [Four],
    constant: &mut ConstantColumn,
    number: u32,
    first: bool,
) {
    let Parts { shape, factor, rhs, residual, blocks, z, y, .. } = &mut *parts;
    let Some((block_z, block_y)) = block(*shape, residual, blocks, spare) else {
        return add_row(factor, rhs, z, y);
    };
    let row = number as usize % 8;
    for (column, value) in block_z.iter_mut().chain(&mut *block_y).zip(z.iter().chain(&**y)) {
        if let Some(place) = column.get_mut(row) {
            *place = *value;
        }
    }
    if row == 7 {
        add_block(parts, spare, constant, first);
    }
}

/// Takes four rows. False, with nothing changed, if they must be taken one by one: `number` is between two
/// fours, or there are no blocks.
pub fn push_four(
    parts: &mut Parts<'_>,
    spare: &mut [Four],
    constant: &mut ConstantColumn,
    number: u32,
    z: &[Four],
    y: &[Four],
) -> bool {
    let Parts { shape, factor, residual, blocks, .. } = &mut *parts;
    let Some((block_z, block_y)) = block(*shape, residual, blocks, spare) else { return false };
    if !number.is_multiple_of(4) {
        return false;
    }
    constant.check(factor, z.len(), z.get(constant.column()).map_or(&[], |four| four.as_slice()));
    let half = usize::from(!number.is_multiple_of(8));
    for (block, fours) in [(&mut *block_z, z), (&mut *block_y, y)] {
        for (column, &[v0, v1, v2, v3]) in block.iter_mut().zip(fours) {
            if let Some(place) = column.as_chunks_mut().0.get_mut(half) {
                *place = [v0, v1, v2, v3];
            }
        }
    }
    if half == 1 {
        add_block(parts, spare, constant, number == 4);
    }
    true
}

/// Folds the block. `first`: it holds the first eight samples, and says which column is constant.
#[inline(never)]
fn add_block(parts: &mut Parts<'_>, spare: &mut [Four], constant: &mut ConstantColumn, first: bool) {
    let Parts { shape, factor, rhs, residual, blocks, .. } = parts;
    let Some((z, y)) = block(*shape, residual, blocks, spare) else { return };
    if first {
        *constant = ConstantColumn::find(factor, z, 8);
    }
    constant.subtract(factor, z);
    add_eight_rows(factor, rhs, z, y);
}

/// The samples have ended after `count`: looks for a constant column if those are less than a block.
pub fn end(parts: &mut Parts<'_>, spare: &mut [Four], constant: &mut ConstantColumn, count: u32) {
    let Parts { shape, factor, residual, blocks, .. } = parts;
    if count < 8
        && let Some((z, _)) = block(*shape, residual, blocks, spare)
    {
        *constant = ConstantColumn::find(factor, z, count as usize);
    }
}

/// Folds what is left after `count` rows.
pub fn finish(parts: &mut Parts<'_>, spare: &mut [Four], constant: &mut ConstantColumn, count: u32) {
    let Parts { shape, residual, blocks, .. } = &mut *parts;
    let rows = count as usize % 8;
    let Some((z, y)) = block(*shape, residual, blocks, spare).filter(|_| rows > 0) else { return };
    for column in z.iter_mut().chain(y) {
        column.get_mut(rows..).unwrap_or_default().fill(0.0);
    }
    add_block(parts, spare, constant, false);
}

/// The room of the block, once the rows are folded: `8 (k + C)` values where samples are read again, `8 k` where they are
/// seen once; d C where there is no block.
pub fn room<'a>(
    shape: Shape,
    residual: &'a mut [f32],
    blocks: &'a mut Option<Blocks<'_>>,
    spare: &'a mut [Four],
) -> &'a mut [f32] {
    match blocks {
        Some(blocks) => blocks.z.as_flattened_mut(),
        None => room_of_two_passes(shape, residual, spare),
    }
}

/// The same where samples are read again, whatever the memory.
pub fn room_of_two_passes<'a>(shape: Shape, residual: &'a mut [f32], spare: &'a mut [Four]) -> &'a mut [f32] {
    if fits_residual(shape) || spare.is_empty() { residual } else { spare.as_flattened_mut() }
}

/// Where samples are read again, the columns of a block are in the buffer of `S`, which comes later.
fn fits_residual(shape: Shape) -> bool {
    shape.features * shape.outputs >= 8 * (shape.width + shape.outputs)
}

/// How many fours of room a block needs elsewhere; none if that is more than there are.
pub fn spare_fours(shape: Shape) -> usize {
    let fours = 2 * (shape.width + shape.outputs);
    if fits_residual(shape) || fours > CACHE_FOURS { 0 } else { fours }
}

/// Columns of a block: k of `Z`, C of `Y`. `None` in the few shapes for which there is not enough room: rows
/// are folded one by one then, on both ways.
fn block<'a>(
    shape: Shape,
    residual: &'a mut [f32],
    blocks: &'a mut Option<Blocks<'_>>,
    spare: &'a mut [Four],
) -> Option<(&'a mut [Eight], &'a mut [Eight])> {
    let fits = fits_residual(shape);
    if !fits && spare_fours(shape) == 0 {
        return None;
    }
    if let Some(blocks) = blocks {
        return Some((blocks.z, blocks.y));
    }
    let room = if fits { residual } else { spare.as_flattened_mut() };
    let (z, y) = room.as_chunks_mut().0.split_at_mut_checked(shape.width)?;
    Some((z, y.get_mut(..shape.outputs)?))
}
