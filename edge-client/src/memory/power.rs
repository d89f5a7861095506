//! Memory for power iterations: room for the product in addition to the basis.

use super::{Memory, Parts, PartsRef, Workspace};

/// [`Workspace`] with room for power iterations (FedPower): `4 D K` bytes more. For samples that can be read twice;
/// a [`StreamingWorkspace`](super::StreamingWorkspace) has the same room.
#[derive(Clone, Debug)]
pub struct PowerWorkspace<const D: usize, const K: usize, const C: usize = 1> {
    workspace: Workspace<D, K, C>,
    product: [[f32; K]; D],
}

impl<const D: usize, const K: usize, const C: usize> PowerWorkspace<D, K, C> {
    /// Creates zeroed memory, in a `const` context too.
    #[must_use]
    pub const fn new() -> Self {
        Self { workspace: Workspace::new(), product: [[0.0; K]; D] }
    }
}

impl<const D: usize, const K: usize, const C: usize> Default for PowerWorkspace<D, K, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const D: usize, const K: usize, const C: usize> Memory for PowerWorkspace<D, K, C> {
    fn parts(&mut self) -> Parts<'_> {
        self.workspace.view(Some(self.product.as_flattened_mut()), None)
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        PartsRef { extra_matrix: Some(self.product.as_flattened()), ..self.workspace.parts_ref() }
    }
}
