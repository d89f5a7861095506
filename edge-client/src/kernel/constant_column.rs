//! Constant columns of `Z`: a column with the same value for every sample, such as the 1 of an intercept, and
//! the subtraction of the first sample from all other columns.
//!
//! A column of `1013 +- 5` next to a column of ones is ill-conditioned in f32 only because of the part that
//! the two columns share. Differences to the first sample are exact for values close to each other, so no
//! precision is lost, and the triangular factor of the differences is as well conditioned as the deviations.
//! The subtraction is a column operation, `z_i <- z_i - f_i z_j / v`, where `j` is the constant column, `v`
//! its value, and `f_i` the value of column `i` in the first sample. The operation applies to any rows, and
//! the head of the original columns follows from `w_j <- w_j - sum of f_i w_i / v`.
//!
//! The constant column is swapped with the first column. The constant column of `R` then has one nonzero
//! entry, and the operation is cheap to undo when a later sample has another value in that column. `f_i` is
//! stored in `R` below the diagonal, in the first column of row `i`.

use super::vector::{at, dot, exchange, from_mut, put, squares, subtract, take};
use crate::memory::Eight;

/// Smallest magnitude of a column's value for which the column counts as constant.
const SMALLEST: f32 = 1e-18;

/// Largest quotient of any entry of `R` and the constant column's entry. Above this quotient rank detection
/// could not lift the constant column far enough.
const LARGEST_QUOTIENT: f32 = 1e15;

/// Sixteen roundings of f32 (2^-20). Deviations below this fraction of a column's size are rounding errors of
/// the column's values, and the column is treated as constant.
const LEAST_DEVIATION: f32 = 9.536_743e-7;

/// Constant column of a matrix, or [`ConstantColumn::NONE`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConstantColumn {
    /// Index of the column that was swapped with the first, even if that column is not constant any more.
    column: u16,
    /// Value of the column; 0 if no column is constant.
    value: f32,
}

impl ConstantColumn {
    /// State without a constant column.
    pub const NONE: Self = Self { column: 0, value: 0.0 };

    /// Searches the first `rows` rows of the first block for a constant column, if at least one other column
    /// varies. Chooses the last of several constant columns. Stores the values of the first row in `r` (all
    /// zero, k x k).
    #[inline(never)]
    pub fn find(r: &mut [f32], block: &[Eight], rows: usize) -> Self {
        let k = block.len();
        let (mut constant_column, mut others_vary) = (None, false);
        for (column, values) in block.iter().enumerate() {
            let [first, ..] = *values;
            if values.iter().take(rows).any(|value| *value != first) {
                others_vary = true;
            } else if first.abs() >= SMALLEST {
                constant_column = u16::try_from(column).ok().map(|column| Self { column, value: first });
            }
        }
        let Some(constant_column) = constant_column.filter(|_| others_vary && rows > 1) else {
            return Self::NONE;
        };
        for (row, [first, ..]) in block.iter().enumerate() {
            put(r, row * k, *first);
        }
        // The value of the constant column is not stored in `r`: the entry takes the value of the column
        // swapped with it.
        let first = take(r, 0);
        if constant_column.column > 0 {
            put(r, constant_column.column() * k, first);
        }
        constant_column
    }

    /// Returns true while a column is constant.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.value != 0.0
    }

    /// Returns the value of the constant column.
    #[must_use]
    pub fn value(&self) -> f32 {
        self.value
    }

    /// Returns the index of the column that was swapped with the first.
    #[must_use]
    pub fn column(&self) -> usize {
        self.column.into()
    }

    /// Compares further values of the constant column. If a value differs, undoes the operation in `r`;
    /// afterwards no column is constant.
    #[inline(always)]
    pub fn check(&mut self, r: &mut [f32], k: usize, values: &[f32]) {
        if self.is_some() && values.iter().any(|value| *value != self.value) {
            self.undo(r, k);
        }
    }

    /// Undoes the operation if the ridge exceeds the squared constant: the row that adds the ridge would be
    /// longer than the columns.
    pub fn undo_if_ridge_exceeds(&mut self, ridge: f32, r: &mut [f32], k: usize) {
        if self.is_some() && ridge > self.value * self.value {
            self.undo(r, k);
        }
    }

    /// Undoes the operation if the constant is negligible compared with `largest`, the largest entry: rank
    /// detection would cut the constant column.
    pub fn undo_if_negligible(&mut self, largest: f32, r: &mut [f32], k: usize) {
        if self.is_some() && largest > at(r, 0) * LARGEST_QUOTIENT {
            self.undo(r, k);
        }
    }

    /// Undoes the column operation in `r`. Afterwards no column is constant.
    #[inline(never)]
    fn undo(&mut self, r: &mut [f32], k: usize) {
        let quotient = at(r, 0) / self.value;
        for i in 1..k {
            let first = take(r, i * k);
            if let Some(value) = r.get_mut(i) {
                *value += first * quotient;
            }
        }
        self.value = 0.0;
    }

    /// Subtracts the first sample from the columns of a block.
    #[inline(always)]
    pub fn subtract(&self, r: &[f32], block: &mut [Eight]) {
        if *self != Self::NONE {
            self.transform_block(r, block);
        }
    }

    /// Swaps the columns of a block and subtracts the first sample.
    #[inline(never)]
    fn transform_block(&self, r: &[f32], block: &mut [Eight]) {
        self.swap_columns(block);
        let k = block.len();
        if let Some((column, others)) = block.split_first_mut().filter(|_| self.is_some()) {
            let shares = column.map(|value| value / self.value);
            for (column, row) in others.iter_mut().zip(r.chunks_exact(k).skip(1)) {
                let first = at(row, 0);
                for (value, share) in column.iter_mut().zip(shares) {
                    *value -= first * share;
                }
            }
        }
    }

    /// Swaps the constant column of a block with the first column.
    fn swap_columns(&self, block: &mut [Eight]) {
        if let Some((first, others)) = block.split_first_mut()
            && let Some(other) = self.column().checked_sub(1).and_then(|other| others.get_mut(other))
        {
            exchange(first, other);
        }
    }

    /// Zeroes columns of the finished factor whose deviations are rounding errors. Returns true if no column
    /// was zeroed.
    pub fn zero_rounding_columns(&self, r: &mut [f32], k: usize) -> bool {
        let mut none_zeroed = true;
        let root = at(r, 0) / self.value;
        for i in (1..k).filter(|_| self.is_some()) {
            let threshold = (at(r, i * k) * root).abs() * LEAST_DEVIATION;
            let deviations = squares(r.get(k..).unwrap_or_default(), i, k);
            // In this form of the condition a NaN counts as no deviation.
            let deviates = deviations > threshold * threshold || threshold * threshold == 0.0;
            if !deviates {
                for row in 1..=i {
                    take(r, row * k + i);
                }
                none_zeroed = false;
            }
        }
        none_zeroed
    }

    /// Writes the weights of the original columns into `w` (k x c), which holds the weights of the columns of
    /// the finished `r`.
    pub fn restore_weights(&self, r: &[f32], w: &mut [f32], k: usize, c: usize) {
        let (constant_weights, others) = w.split_at_mut_checked(c).unwrap_or_default();
        for (i, weights) in others.chunks_exact_mut(c.max(1)).enumerate() {
            if self.is_some() {
                subtract(at(r, (i + 1) * k) / self.value, weights, constant_weights, 1);
            }
        }
        if let Some(other) = self.column().checked_sub(1) {
            exchange(constant_weights, from_mut(others, other * c));
        }
    }

    /// Centres the other columns of the finished `r`: their mean becomes zero. Further constant columns keep
    /// their original value in the first row. The entries below the diagonal move to `first` (k values).
    pub fn centre(&self, r: &mut [f32], first: &mut [f32], k: usize) {
        first.fill(0.0);
        if !self.is_some() {
            return;
        }
        let root = at(r, 0) / self.value;
        for i in 1..k {
            let value = take(r, i * k);
            let mean = at(r, i);
            let constant = value != 0.0 && (1..=i).all(|row| at(r, row * k + i) == 0.0);
            put(r, i, if constant { mean + value * root } else { 0.0 });
            if !constant {
                put(first, i, value + mean / root);
            }
        }
    }

    /// Restores the original columns in rows of directions, as [`Self::restore_weights`] does for weights.
    /// The first direction represents all constant columns, which share the constant parts of the other
    /// columns. `first` is the output of [`Self::centre`]; `factor` scales the prediction of the first row to
    /// one.
    pub fn restore_rows(&self, r: &mut [f32], first: &[f32], factor: f32, k: usize) {
        if let Some((constants, rows)) = r.split_at_mut_checked(k).filter(|_| self.is_some()) {
            for row in rows.chunks_exact_mut(k.max(1)) {
                subtract(factor * dot(first, row, 1), constants, row, 1);
            }
        }
        for row in r.chunks_exact_mut(k.max(1)) {
            if self.column() < row.len() {
                row.swap(0, self.column());
            }
        }
    }
}
