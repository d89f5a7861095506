//! Memory of a model of any sizes, in an array of the caller.

use core::slice;

use ::fedspan_client::memory::{Parts, PartsRef};
use ::fedspan_client::pace::Pace;
use ::fedspan_client::{Memory, Shape};

/// Returns the number of values of a model, saturating: the largest sizes overflow a processor of 32 bits.
pub fn model_floats(shape: Shape) -> usize {
    let Shape { features: d, width: k, outputs: c } = shape;
    let products = [(2 * k, c), (d, k), (d, c), (k, k), (k, 1), (c, 1)];
    products.into_iter().fold(0, |sum: usize, (a, b)| sum.saturating_add(a.saturating_mul(b)))
}

/// Memory of one model.
#[derive(Debug)]
pub struct RawMemory {
    shape: Shape,
    start: *mut f32,
}

impl RawMemory {
    /// Creates the memory of zeros.
    ///
    /// # Safety
    /// `start` points to [`model_floats`] values that nothing else uses while the memory exists.
    pub unsafe fn new(shape: Shape, start: *mut f32) -> Self {
        // SAFETY: the caller guarantees the values.
        unsafe { start.write_bytes(0, model_floats(shape)) };
        Self { shape, start }
    }
}

impl Memory for RawMemory {
    fn parts(&mut self) -> Parts<'_> {
        let shape = self.shape;
        let Shape { features: d, width: k, outputs: c } = shape;
        // SAFETY: `new` has the values, and `&mut self` excludes every other use.
        let values = unsafe { slice::from_raw_parts_mut(self.start, model_floats(shape)) };
        let mut rest = values;
        let mut take = |length: usize| {
            let (taken, after) = core::mem::take(&mut rest).split_at_mut_checked(length).unwrap_or_default();
            rest = after;
            taken
        };
        Parts {
            shape,
            representation: take(d * k),
            head: take(k * c),
            residual: take(d * c),
            factor: take(k * k),
            rhs: take(k * c),
            z: take(k),
            y: take(c),
            extra_matrix: None,
            blocks: None,
            gathered: &mut [],
            pace: Pace::NONE,
        }
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        let shape = self.shape;
        let Shape { features: d, width: k, outputs: c } = shape;
        // SAFETY: `new` has the values, and `&self` excludes a mutable use.
        let values = unsafe { slice::from_raw_parts(self.start, model_floats(shape)) };
        let (representation, values) = values.split_at_checked(d * k).unwrap_or_default();
        let (head, values) = values.split_at_checked(k * c).unwrap_or_default();
        let residual = values.get(..d * c).unwrap_or_default();
        PartsRef { shape, representation, head, residual, extra_matrix: None, pace: Pace::NONE }
    }
}
