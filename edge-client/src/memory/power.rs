//! Memory for power iterations: a workspace with a second d x k matrix for the product.

use super::{Memory, Parts, PartsRef, Workspace};

/// [`Workspace`] with memory for power iterations (FedPower): it has `4 D K` additional bytes. Samples must
/// be readable twice. A [`StreamingWorkspace`](super::StreamingWorkspace) is also large enough for power
/// iterations.
#[derive(Clone, Debug)]
pub struct PowerWorkspace<const D: usize, const K: usize, const C: usize = 1> {
    workspace: Workspace<D, K, C>,
    product: [[f32; K]; D],
}

impl<const D: usize, const K: usize, const C: usize> PowerWorkspace<D, K, C> {
    /// Creates zeroed memory; can be called in a `const` context.
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
