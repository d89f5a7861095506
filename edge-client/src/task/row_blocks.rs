//! Blocks of rows of `[Z | Y]` for the triangular factor: eight usable samples form a block, in their order,
//! and the last block is filled with rows of zeros. Streamed samples and samples that are read twice
//! therefore give bit-identical heads.
//!
//! The first block determines the [constant column](ConstantColumn), if any; each later sample is compared
//! with it.

use super::projection_cache::CACHE_FOURS;
use crate::kernel::Four;
use crate::kernel::constant_column::ConstantColumn;
use crate::kernel::qr_update::{add_eight_rows, add_row};
use crate::kernel::vector::from;
use crate::memory::{Blocks, Eight, Parts, Shape};

/// Adds sample number `number` from `parts.z` and `parts.y`, which are overwritten.
#[inline(never)]
pub fn push(parts: &mut Parts<'_>, spare: &mut [Four], constant: &mut ConstantColumn, number: u32) {
    constant.check(
        parts.factor,
        parts.z.len(),
        from(parts.z, constant.column()).get(..1).unwrap_or_default(),
    );
    push_row(parts, spare, constant, number, number == 7);
}

/// Adds any row with number `number` from `parts.z` and `parts.y`. `first` is true for the last of the first
/// eight samples.
#[inline(never)]
pub fn push_row(
    parts: &mut Parts<'_>,
    spare: &mut [Four],
    constant: &mut ConstantColumn,
    number: u32,
    first: bool,
) {
    let Parts { shape, factor, rhs, residual, blocks, z, y, pace, .. } = &mut *parts;
    let Some((block_z, block_y)) = block(*shape, residual, blocks, spare) else {
        return add_row(factor, rhs, z, y, *pace);
    };
    let row = number as usize % 8;
    for (column, value) in block_z.iter_mut().chain(&mut *block_y).zip(z.iter().chain(&**y)) {
        if let Some(target) = column.get_mut(row) {
            *target = *value;
        }
    }
    if row == 7 {
        add_block(parts, spare, constant, first);
    }
}

/// Adds four rows. Returns false and changes nothing if the rows must be added one by one: `number` is not a
/// multiple of four, or there is no memory for blocks.
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
            if let Some(target) = column.as_chunks_mut().0.get_mut(half) {
                *target = [v0, v1, v2, v3];
            }
        }
    }
    if half == 1 {
        add_block(parts, spare, constant, number == 4);
    }
    true
}

/// Adds the block to the factor. `first` is true if the block holds the first eight samples, which are
/// searched for a constant column.
#[inline(never)]
fn add_block(parts: &mut Parts<'_>, spare: &mut [Four], constant: &mut ConstantColumn, first: bool) {
    let Parts { shape, factor, rhs, residual, blocks, pace, .. } = parts;
    let Some((z, y)) = block(*shape, residual, blocks, spare) else { return };
    if first {
        *constant = ConstantColumn::find(factor, z, 8);
    }
    constant.subtract(factor, z);
    add_eight_rows(factor, rhs, z, y, *pace);
}

/// Marks the end of `count` samples. Searches the samples for a constant column if they do not fill a block.
pub fn end(parts: &mut Parts<'_>, spare: &mut [Four], constant: &mut ConstantColumn, count: u32) {
    let Parts { shape, factor, residual, blocks, .. } = parts;
    if count < 8
        && let Some((z, _)) = block(*shape, residual, blocks, spare)
    {
        *constant = ConstantColumn::find(factor, z, count as usize);
    }
}

/// Adds the last block if it is incomplete after `count` rows.
pub fn finish(parts: &mut Parts<'_>, spare: &mut [Four], constant: &mut ConstantColumn, count: u32) {
    let Parts { shape, residual, blocks, .. } = &mut *parts;
    let rows = count as usize % 8;
    let Some((z, y)) = block(*shape, residual, blocks, spare).filter(|_| rows > 0) else { return };
    for column in z.iter_mut().chain(y) {
        column.get_mut(rows..).unwrap_or_default().fill(0.0);
    }
    add_block(parts, spare, constant, false);
}

/// Returns the memory of the block for other uses, after its rows were added: `8 (k + C)` values if samples
/// are read twice, `8 k` if they are streamed; d C if there is no block.
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

/// Returns the memory of the block for other uses if samples are read twice.
pub fn room_of_two_passes<'a>(shape: Shape, residual: &'a mut [f32], spare: &'a mut [Four]) -> &'a mut [f32] {
    if fits_residual(shape) || spare.is_empty() { residual } else { spare.as_flattened_mut() }
}

/// Returns true if the columns of a block fit the buffer of `S`, which is computed later.
fn fits_residual(shape: Shape) -> bool {
    shape.features * shape.outputs >= 8 * (shape.width + shape.outputs)
}

/// Returns the number of fours that a block needs in the projection cache; 0 if the block needs none or does
/// not fit.
pub fn spare_fours(shape: Shape) -> usize {
    let fours = 2 * (shape.width + shape.outputs);
    if fits_residual(shape) || fours > CACHE_FOURS { 0 } else { fours }
}

/// Returns the columns of a block: k of `Z`, C of `Y`. Returns `None` for the few shapes without enough
/// memory; their rows are added one by one, for streamed samples too.
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
