//! Model memory: the buffers of a model, owned by the caller. This file defines the memory of linear models,
//! the module `network` the memory of networks.
//!
//! [`Workspace`] fixes the sizes of the buffers at compile time. The algorithms take [`Parts`], a view
//! without sizes in its type, so that their code is compiled once, in this crate.

#[cfg(feature = "network")]
mod described;
#[cfg(feature = "i16")]
mod fixed;
#[cfg(feature = "network")]
mod front_end;
#[cfg(feature = "gather")]
mod gathering;
#[cfg(feature = "network")]
mod network;
#[cfg(feature = "network")]
mod network_slices;
#[cfg(feature = "power")]
mod power;
#[cfg(feature = "network")]
mod sizes;
mod slices;

use fedspan_protocol::message::Numeric;

use crate::pace::Pace;

#[cfg(feature = "network")]
pub use described::ShapeError;
#[cfg(feature = "i16")]
pub use fixed::{Fixed, FixedWorkspace};
#[cfg(feature = "network")]
pub use front_end::FrontEnd;
#[cfg(feature = "gather")]
pub use gathering::Gathering;
#[cfg(feature = "network")]
pub use network::{NetworkMemory, NetworkParts, NetworkShape, NetworkSizes, NetworkWorkspace};
#[cfg(feature = "network")]
pub use network_slices::{NetworkSlices, SlicesError};
#[cfg(feature = "power")]
pub use power::PowerWorkspace;
pub use slices::SliceMemory;

/// Values of eight samples, one per sample.
pub type Eight = [f32; 8];

/// Sizes of a linear model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Number of features d: the length of a sample.
    pub features: usize,
    /// Width k: the number of columns of the representation.
    pub width: usize,
    /// Number of outputs C of the head.
    pub outputs: usize,
}

impl Shape {
    /// Returns the smallest memory for one update, in bytes, if samples can be read twice: memory for `B`,
    /// the head, `X^T R`, the triangle of `Z^T Z`, `Z^T Y`, and one `z` and `y`.
    #[must_use]
    pub const fn arithmetic_minimum(&self) -> usize {
        let (d, k, c) = (self.features, self.width, self.outputs);
        4 * (d * k + k * c + d * c + k * (k + 1) / 2 + k * c + k + c)
    }
}

/// All buffers of one linear model. [`crate::task`] defines the content of the buffers.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Sizes of the buffers.
    pub shape: Shape,
    /// Representation `B`, d x k.
    pub representation: &'a mut [f32],
    /// Head `W`, k x C.
    pub head: &'a mut [f32],
    /// Scratch matrix, k x k: `Z^T Z`, its Cholesky factor, or the triangular factor of `Z`.
    pub factor: &'a mut [f32],
    /// Right-hand side, k x C: `Z^T Y`, `Q^T Y`, then the solution.
    pub rhs: &'a mut [f32],
    /// Residual products `S = X^T R`, d x C.
    pub residual: &'a mut [f32],
    /// Second d x k matrix, if the memory has one: `X^T Z` of streamed samples, the product of a power
    /// iteration, or a gradient with noise.
    pub extra_matrix: Option<&'a mut [f32]>,
    /// Block of eight samples; used only for streamed samples.
    pub blocks: Option<Blocks<'a>>,
    /// One projected sample, k values.
    pub z: &'a mut [f32],
    /// One target, C values.
    pub y: &'a mut [f32],
    /// Memory for four samples, 4 d values; empty unless the memory is a `Gathering` (feature `gather`).
    pub gathered: &'a mut [f32],
    /// Pauses within computations; [`Pace::NONE`] unless the memory is [`Paced`](crate::pace::Paced).
    pub pace: Pace<'a>,
}

/// Buffers for streamed samples, in addition to [`Parts::extra_matrix`].
#[derive(Debug)]
pub struct Blocks<'a> {
    /// Projections of eight samples, k values per sample.
    pub z: &'a mut [Eight],
    /// Targets of the same eight samples, C values per sample.
    pub y: &'a mut [Eight],
}

/// Read-only view of the buffers of [`Parts`] that an upload can contain.
#[derive(Clone, Copy, Debug)]
pub struct PartsRef<'a> {
    /// Sizes of the buffers.
    pub shape: Shape,
    /// Representation `B`, d x k.
    pub representation: &'a [f32],
    /// Head `W`, k x C.
    pub head: &'a [f32],
    /// Residual products `S = X^T R`, d x C.
    pub residual: &'a [f32],
    /// Second d x k matrix, if the memory has one.
    pub extra_matrix: Option<&'a [f32]>,
    /// Pauses within computations.
    pub pace: Pace<'a>,
}

/// Memory of one linear model.
pub trait Memory {
    /// Returns all buffers, with the lengths of the shape.
    fn parts(&mut self) -> Parts<'_>;

    /// Returns a read-only view of the buffers.
    fn parts_ref(&self) -> PartsRef<'_>;

    /// Returns the number format in which this memory computes updates.
    fn numeric(&self) -> Numeric {
        Numeric::F32
    }

    /// Returns all buffers and the integer buffers, if the memory is for 16-bit fixed point.
    #[cfg(feature = "i16")]
    fn fixed(&mut self) -> Option<(Parts<'_>, Fixed<'_>)> {
        None
    }
}

/// Memory by reference, so that a large buffer in a `static` is never moved through the stack.
///
/// ```
/// use fedspan_client::{Linear, Workspace};
///
/// let mut memory = Workspace::<58, 24, 7>::new();
/// let model = Linear::new(&mut memory);
/// assert!(size_of_val(&model) < 128 && size_of::<Workspace<58, 24, 7>>() > 10_000);
/// ```
impl<M: Memory + ?Sized> Memory for &mut M {
    fn parts(&mut self) -> Parts<'_> {
        (**self).parts()
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        (**self).parts_ref()
    }

    fn numeric(&self) -> Numeric {
        (**self).numeric()
    }

    #[cfg(feature = "i16")]
    fn fixed(&mut self) -> Option<(Parts<'_>, Fixed<'_>)> {
        (**self).fixed()
    }
}

/// Memory for `D` features, a representation of width `K` and `C` outputs. Its size is the RAM of the whole
/// model: `4 (2 K C + D K + D C + K^2 + K + C)` bytes.
#[derive(Clone, Debug)]
pub struct Workspace<const D: usize, const K: usize, const C: usize = 1> {
    representation: [[f32; K]; D],
    head: [[f32; C]; K],
    factor: [[f32; K]; K],
    rhs: [[f32; C]; K],
    residual: [[f32; C]; D],
    z: [f32; K],
    y: [f32; C],
}

impl<const D: usize, const K: usize, const C: usize> Workspace<D, K, C> {
    /// Creates zeroed memory; can be called in a `const` context.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(K >= 1 && K <= D && C >= 1 && D <= u16::MAX as usize && C <= 256) };
        Self {
            representation: [[0.0; K]; D],
            head: [[0.0; C]; K],
            factor: [[0.0; K]; K],
            rhs: [[0.0; C]; K],
            residual: [[0.0; C]; D],
            z: [0.0; K],
            y: [0.0; C],
        }
    }

    /// Returns a view of the buffers together with the given additional ones.
    fn view<'a>(&'a mut self, extra_matrix: Option<&'a mut [f32]>, blocks: Option<Blocks<'a>>) -> Parts<'a> {
        Parts {
            shape: Shape { features: D, width: K, outputs: C },
            representation: self.representation.as_flattened_mut(),
            head: self.head.as_flattened_mut(),
            factor: self.factor.as_flattened_mut(),
            rhs: self.rhs.as_flattened_mut(),
            residual: self.residual.as_flattened_mut(),
            extra_matrix,
            blocks,
            z: &mut self.z,
            y: &mut self.y,
            gathered: &mut [],
            pace: Pace::NONE,
        }
    }
}

impl<const D: usize, const K: usize, const C: usize> Default for Workspace<D, K, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const D: usize, const K: usize, const C: usize> Memory for Workspace<D, K, C> {
    fn parts(&mut self) -> Parts<'_> {
        self.view(None, None)
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        PartsRef {
            shape: Shape { features: D, width: K, outputs: C },
            representation: self.representation.as_flattened(),
            head: self.head.as_flattened(),
            residual: self.residual.as_flattened(),
            extra_matrix: None,
            pace: Pace::NONE,
        }
    }
}

/// [`Workspace`] for streamed samples, which are read once: it has `4 D K + 32 (K + C)` additional bytes,
/// independent of the number of samples.
#[derive(Clone, Debug)]
pub struct StreamingWorkspace<const D: usize, const K: usize, const C: usize = 1> {
    workspace: Workspace<D, K, C>,
    products: [[f32; K]; D],
    z: [Eight; K],
    y: [Eight; C],
}

impl<const D: usize, const K: usize, const C: usize> StreamingWorkspace<D, K, C> {
    /// Creates zeroed memory; can be called in a `const` context.
    #[must_use]
    pub const fn new() -> Self {
        Self { workspace: Workspace::new(), products: [[0.0; K]; D], z: [[0.0; 8]; K], y: [[0.0; 8]; C] }
    }
}

impl<const D: usize, const K: usize, const C: usize> Default for StreamingWorkspace<D, K, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const D: usize, const K: usize, const C: usize> Memory for StreamingWorkspace<D, K, C> {
    fn parts(&mut self) -> Parts<'_> {
        let Self { workspace, products, z, y } = self;
        workspace.view(Some(products.as_flattened_mut()), Some(Blocks { z, y }))
    }

    fn parts_ref(&self) -> PartsRef<'_> {
        PartsRef { extra_matrix: Some(self.products.as_flattened()), ..self.workspace.parts_ref() }
    }
}
