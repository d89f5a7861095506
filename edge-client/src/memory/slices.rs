//! Memory of a linear model whose sizes are known at run time only.

use super::{Memory, Parts, PartsRef, Shape};
use crate::error::ShapeMismatch;
use crate::pace::Pace;

/// Memory of one linear model in an array of the caller, for sizes that are known at run time only. With sizes that are known at
/// compile time, [`Workspace`](super::Workspace) takes about 4 kB less of flash (`FOOTPRINT.md`, "Flash").
///
/// ```
/// use fedspan_client::memory::{Shape, SliceMemory};
/// use fedspan_client::Linear;
///
/// let shape = Shape { features: 20, width: 2, outputs: 1 };
/// let mut values = vec![0.0; SliceMemory::values(shape)];
/// let model = Linear::new(SliceMemory::new(shape, &mut values)?);
/// # Ok::<(), fedspan_client::ShapeMismatch>(())
/// ```
#[derive(Debug)]
pub struct SliceMemory<'a> {
    shape: Shape,
    /// Buffers, in the order of [`Self::lengths`].
    buffers: [&'a mut [f32]; BUFFERS],
}

/// Number of buffers.
const BUFFERS: usize = 7;

impl<'a> SliceMemory<'a> {
    /// Lengths of representation, head, residual products, factor, right-hand side, projected sample and target; saturating.
    fn lengths(shape: Shape) -> [usize; BUFFERS] {
        let Shape { features: d, width: k, outputs: c } = shape;
        [(d, k), (k, c), (d, c), (k, k), (k, c), (k, 1), (c, 1)].map(|(rows, cols)| rows.saturating_mul(cols))
    }

    /// Returns the number of values for these sizes, or `usize::MAX` if there are more.
    #[must_use]
    pub fn values(shape: Shape) -> usize {
        Self::lengths(shape).into_iter().fold(0, usize::saturating_add)
    }

    /// Creates the memory of zeros.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if there are fewer than [`Self::values`] values.
    pub fn new(shape: Shape, values: &'a mut [f32]) -> Result<Self, ShapeMismatch> {
        let mut memory = Self { shape, buffers: Default::default() };
        let mut rest = values;
        let got = rest.len();
        for (buffer, length) in memory.buffers.iter_mut().zip(Self::lengths(shape)) {
            let Some((taken, after)) = core::mem::take(&mut rest).split_at_mut_checked(length) else {
                return Err(ShapeMismatch { expected: Self::values(shape), got });
            };
            taken.fill(0.0);
            (*buffer, rest) = (taken, after);
        }
        Ok(memory)
    }
}

impl Memory for SliceMemory<'_> {
    #[inline(never)]
    fn parts(&mut self) -> Parts<'_> {
        let [representation, head, residual, factor, rhs, z, y] = &mut self.buffers;
        Parts {
            shape: self.shape,
            representation,
            head,
            residual,
            factor,
            rhs,
            z,
            y,
            extra_matrix: None,
            blocks: None,
            gathered: &mut [],
            pace: Pace::NONE,
        }
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        let [representation, head, residual, ..] = &self.buffers;
        PartsRef { shape: self.shape, representation, head, residual, extra_matrix: None, pace: Pace::NONE }
    }
}
