//! Memory for 16-bit fixed point: the buffers of floats, and what is there as integers as well.

use fedspan_protocol::message::Numeric;

use super::{Memory, Parts, PartsRef, Workspace};
use crate::kernel::fixed::Scale;

/// What fixed point needs besides. Each block of integers has one scale.
#[derive(Debug)]
pub struct Fixed<'a> {
    /// `B` column after column, k x d.
    pub representation: &'a mut [i16],
    /// The scale of `representation`.
    pub scale: &'a mut Scale,
    /// A sample, d values.
    pub x: &'a mut [i16],
    /// Its projection, k values.
    pub z: &'a mut [i16],
    /// Its targets or residuals, C values.
    pub y: &'a mut [i16],
    /// `W` column after column, C x k.
    pub head: &'a mut [i16],
}

/// A [`Workspace`] in which updates are computed in 16-bit fixed point ([`crate::kernel::fixed`]):
/// `2 (D K + D + K + C + K C)` bytes more and the two of a scale. For samples that can be read twice; what is
/// seen once is declined.
///
/// The device that has it says so in its hello. Only starts (the power method, rows of moments) are computed in
/// f32 here: they come once, before the first update.
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
    /// All zero; fit for a `static`.
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
