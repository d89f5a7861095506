//! Memory of a linear model in 16-bit fixed point: buffers of floats, and buffers of integers.

use fedspan_protocol::message::Numeric;

use super::{Memory, Parts, PartsRef, Workspace};
use crate::kernel::fixed::Scale;

/// Integer buffers for fixed point. The values of a buffer share one scale.
#[derive(Debug)]
pub struct Fixed<'a> {
    /// Representation `B` in column-major order, k x d.
    pub representation: &'a mut [i16],
    /// Scale of `representation`.
    pub scale: &'a mut Scale,
    /// One sample, d values.
    pub x: &'a mut [i16],
    /// Projection of the sample, k values.
    pub z: &'a mut [i16],
    /// Targets or residuals of the sample, C values.
    pub y: &'a mut [i16],
    /// Head `W` in column-major order, C x k.
    pub head: &'a mut [i16],
}

/// [`Workspace`] for updates in 16-bit fixed point ([`crate::kernel::fixed`]): it has
/// `2 (D K + D + K + C + K C)` additional bytes, and two bytes for a scale. Samples must be readable twice;
/// streamed rounds are declined.
///
/// The device announces this arithmetic in its hello. Only the computation of an initial representation (by
/// the power method or rows of moments) uses f32, once before the first update.
#[derive(Clone, Debug)]
pub struct FixedWorkspace<const D: usize, const K: usize, const C: usize = 1> {
    workspace: Workspace<D, K, C>,
    representation: [[i16; D]; K],
    scale: Scale,
    x: [i16; D],
    z: [i16; K],
    y: [i16; C],
    head: [[i16; K]; C],
}

impl<const D: usize, const K: usize, const C: usize> FixedWorkspace<D, K, C> {
    /// Creates zeroed memory; can be called in a `const` context.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            workspace: Workspace::new(),
            representation: [[0; D]; K],
            scale: Scale::LEAST,
            x: [0; D],
            z: [0; K],
            y: [0; C],
            head: [[0; K]; C],
        }
    }
}

impl<const D: usize, const K: usize, const C: usize> Default for FixedWorkspace<D, K, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const D: usize, const K: usize, const C: usize> Memory for FixedWorkspace<D, K, C> {
    fn parts(&mut self) -> Parts<'_> {
        self.workspace.view(None, None)
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        self.workspace.parts_ref()
    }

    fn numeric(&self) -> Numeric {
        Numeric::I16
    }

    fn fixed(&mut self) -> Option<(Parts<'_>, Fixed<'_>)> {
        let Self { workspace, representation, scale, x, z, y, head } = self;
        let representation = representation.as_flattened_mut();
        let fixed = Fixed { representation, scale, x, z, y, head: head.as_flattened_mut() };
        Some((workspace.view(None, None), fixed))
    }
}
