//! Constant columns: a column of `Z` with the same value for every sample, such as the 1 of an intercept. While it
//! is constant, the other columns are taken relative to the first sample.
//!
//! A column of `1013 +- 5` next to a 1 is ill-conditioned in f32 only because of their common part. Differences to
//! the first sample are exact for values close to each other, so the deviations lose nothing, and the triangular
//! factor of the differences has the condition of the deviations. It is a column operation,
//! `z_i <- z_i - f_i z_j / v` for the constant column `j` of value `v`: it applies to any rows, and the head of the
//! original columns follows from `w_j <- w_j - sum of f_i w_i / v`.
//!
//! The constant column is swapped with the first one, so that its column of `R` has one entry and the operation is
//! cheap to undo when a later sample has another value. `f_i` is stored in `R` below the diagonal, in the first
//! column of row `i`.

use super::vector::{at, dot, exchange, from_mut, put, squares, subtract, take};
use crate::memory::Eight;

/// Smallest magnitude of a constant column.
const SMALLEST: f32 = 1e-18;

/// Largest quotient of an entry and the constant's entry in rank detection: lifting of columns does not reach
/// further.
const LARGEST_QUOTIENT: f32 = 1e15;

/// Deviations below this fraction of a column's size are rounding errors of its values, and the column is treated
/// as constant. Sixteen roundings of f32 (2^-20).
const LEAST_DEVIATION: f32 = 9.536_743e-7;

/// Constant column of a matrix, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConstantColumn {
    /// Index of the column that was swapped with the first, whether still constant or not.
    column: u16,
    /// Value of the column; 0 if no column is constant.
    value: f32,
}

impl ConstantColumn {
    /// State without a constant column.
    pub const NONE: Self = Self { column: 0, value: 0.0 };

    /// Searches the first `rows` rows of the first block for a constant column: the last one, if another column
    /// varies. Stores the values of the first row in `r` (all zero, k x k).
    #[inline(never)]
    pub fn find(r: &mut [f32], block: &[Eight], rows: usize) -> Self {
        let k = block.len();
        let (mut found, mut varies) = (None, false);
        for (column, values) in block.iter().enumerate() {
            let [first, ..] = *values;
            if values.iter().take(rows).any(|value| *value != first) {
                varies = true;
            } else if first.abs() >= SMALLEST {
                found = u16::try_from(column).ok().map(|column| Self { column, value: first });
            }
        }
        let Some(found) = found.filter(|_| varies && rows > 1) else { return Self::NONE };
        for (row, [first, ..]) in block.iter().enumerate() {
            put(r, row * k, *first);
        }
        // The constant's own value is not stored: its place takes the value of the column it is swapped with.
        let first = take(r, 0);
        if found.column > 0 {
            put(r, found.column() * k, first);
        }
        found
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

    /// Checks the constant column in further samples. If a value differs, undoes the operation in `r`, and no
    /// column is constant any longer.
    #[inline(always)]
    pub fn check(&mut self, r: &mut [f32], k: usize, values: &[f32]) {
        if self.is_some() && values.iter().any(|value| *value != self.value) {
            self.undo(r, k);
        }
    }

    /// Undoes the operation if the ridge exceeds the squared constant: the ridge's row would be longer than the
    /// columns.
    pub fn undo_if_ridge_exceeds(&mut self, ridge: f32, r: &mut [f32], k: usize) {
        if self.is_some() && ridge > self.value * self.value {
            self.undo(r, k);
        }
    }

    /// Undoes the operation if the constant is negligible compared with an entry of this size: rank detection would
    /// cut it.
    pub fn undo_if_negligible(&mut self, largest: f32, r: &mut [f32], k: usize) {
        if self.is_some() && largest > at(r, 0) * LARGEST_QUOTIENT {
            self.undo(r, k);
        }
    }

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

    /// Makes the columns of a block relative to the first sample.
    #[inline(always)]
    pub fn subtract(&self, r: &[f32], block: &mut [Eight]) {
        if *self != Self::NONE {
            self.change(r, block);
        }
    }

    #[inline(never)]
    fn change(&self, r: &[f32], block: &mut [Eight]) {
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

    fn swap_columns(&self, block: &mut [Eight]) {
        if let Some((first, others)) = block.split_first_mut()
            && let Some(other) = self.column().checked_sub(1).and_then(|other| others.get_mut(other))
        {
            exchange(first, other);
        }
    }

    /// Zeroes columns of the finished factor whose deviations are rounding errors. Returns true if there are none.
    pub fn zero_rounding_columns(&self, r: &mut [f32], k: usize) -> bool {
        let mut all = true;
        let root = at(r, 0) / self.value;
        for i in (1..k).filter(|_| self.is_some()) {
            let size = (at(r, i * k) * root).abs() * LEAST_DEVIATION;
            let deviations = squares(r.get(k..).unwrap_or_default(), i, k);
            // Negated so that a NaN counts as no deviation.
            let deviates = deviations > size * size || size * size == 0.0;
            if !deviates {
                for row in 1..=i {
                    take(r, row * k + i);
                }
                all = false;
            }
        }
        all
    }

    /// Writes the weights of the original columns into `w` (k x c), from those of the columns of the finished `r`.
    pub fn restore_weights(&self, r: &[f32], w: &mut [f32], k: usize, c: usize) {
        let (own, others) = w.split_at_mut_checked(c).unwrap_or_default();
        for (i, weights) in others.chunks_exact_mut(c.max(1)).enumerate() {
            if self.is_some() {
                subtract(at(r, (i + 1) * k) / self.value, weights, own, 1);
            }
        }
        if let Some(other) = self.column().checked_sub(1) {
            exchange(own, from_mut(others, other * c));
        }
    }

    /// Centres the other columns of the finished `r`: their mean becomes zero. Columns that are constant too keep
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

    /// Restores the original columns in rows of directions, as [`Self::restore_weights`] does for weights. The
    /// first direction is that of all constant columns, which share the constant parts of the others. `first` comes
    /// from [`Self::centre`]; `factor` makes the prediction of the first row one.
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
