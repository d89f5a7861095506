//! The buffers of a model, owned by the caller: of a linear one here, of a network in a file of its own.
//!
//! [`Workspace`] gives their sizes at compile time. What works on them takes [`Parts`], a view without
//! sizes in its type, so that the code exists once, in this crate.

#[cfg(feature = "i16")]
mod fixed;
#[cfg(feature = "network")]
mod front_end;
#[cfg(feature = "network")]
mod network;
#[cfg(feature = "power")]
mod power;
#[cfg(feature = "network")]
mod sizes;

use fedspan_protocol::message::Numeric;

#[cfg(feature = "i16")]
pub use fixed::{Fixed, FixedWorkspace};
#[cfg(feature = "network")]
pub use front_end::FrontEnd;
#[cfg(feature = "network")]
pub use network::{NetworkMemory, NetworkParts, NetworkShape, NetworkSizes, NetworkWorkspace};
#[cfg(feature = "power")]
pub use power::PowerWorkspace;

/// One value of each of eight samples.
pub type Eight = [f32; 8];

/// Sizes of a linear model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// `d`, length of a sample.
    pub features: usize,
    /// `k`, columns of the representation.
    pub width: usize,
    /// `C`, outputs of the head.
    pub outputs: usize,
}

impl Shape {
    /// The least that the arithmetic of one update needs, in bytes, when samples can be read twice:
    /// `B`, the head, `X^T R`, the triangle of `Z^T Z`, `Z^T Y`, and one `z` and `y`.
    #[must_use]
    pub const fn arithmetic_minimum(&self) -> usize {
        let (d, k, c) = (self.features, self.width, self.outputs);
        4 * (d * k + k * c + d * c + k * (k + 1) / 2 + k * c + k + c)
    }
}

/// All buffers of one linear model; what is in them is the business of [`crate::task`].
#[derive(Debug)]
pub struct Parts<'a> {
    /// Sizes of all that follows.
    pub shape: Shape,
    /// `B`, d x k.
    pub representation: &'a mut [f32],
    /// `W`, k x C.
    pub head: &'a mut [f32],
    /// k x k: `Z^T Z`, its Cholesky factor, or the triangular factor.
    pub factor: &'a mut [f32],
    /// k x C: `Z^T Y`, `Q^T Y`, then the solution.
    pub rhs: &'a mut [f32],
    /// `S = X^T R`, d x C.
    pub residual: &'a mut [f32],
    /// Another d x k, in memory that has one: `X^T Z` of samples that are seen once, or a power iteration's product.
    pub extra_matrix: Option<&'a mut [f32]>,
    /// Only there for samples that are seen once.
    pub blocks: Option<Blocks<'a>>,
    /// k values.
    pub z: &'a mut [f32],
    /// C values.
    pub y: &'a mut [f32],
}

/// What samples that are seen once need besides, and besides [`Parts::extra_matrix`].
#[derive(Debug)]
pub struct Blocks<'a> {
    /// k projected features of eight samples.
    pub z: &'a mut [Eight],
    /// C targets of the same.
    pub y: &'a mut [Eight],
}

/// The buffers of [`Parts`] that leave, to read.
#[derive(Clone, Copy, Debug)]
pub struct PartsRef<'a> {
    /// Sizes of all that follows.
    pub shape: Shape,
    /// `B`, d x k.
    pub representation: &'a [f32],
    /// `W`, k x C.
    pub head: &'a [f32],
    /// `S = X^T R`, d x C.
    pub residual: &'a [f32],
    /// The other d x k.
    pub extra_matrix: Option<&'a [f32]>,
}

/// Memory for one linear model.
pub trait Memory {
    /// All buffers. Their lengths must be those of the shape.
    fn parts(&mut self) -> Parts<'_>;

    /// The buffers that are read without changing anything.
    fn parts_ref(&self) -> PartsRef<'_>;

    /// The arithmetic of an update in this memory.
    fn numeric(&self) -> Numeric {
        Numeric::F32
    }

    /// All buffers and those of integers, in memory for 16-bit fixed point.
    #[cfg(feature = "i16")]
    fn fixed(&mut self) -> Option<(Parts<'_>, Fixed<'_>)> {
        None
    }
}

/// Memory that stays where it is: large buffers in a `static` are then never moved through the stack.
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

/// Memory for `D` features, a representation of width `K` and `C` outputs. Its size is the whole RAM of
/// the model: `4 (2 K C + D K + D C + K^2 + K + C)` bytes.
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
    /// All zero; fit for a `static`.
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
        }
    }
}

/// A [`Workspace`] for samples that are seen once: `4 D K + 32 (K + C)` bytes more, and still nothing of
/// length m.
#[derive(Clone, Debug)]
pub struct StreamingWorkspace<const D: usize, const K: usize, const C: usize = 1> {
    workspace: Workspace<D, K, C>,
    products: [[f32; K]; D],
    z: [Eight; K],
    y: [Eight; C],
}

impl<const D: usize, const K: usize, const C: usize> StreamingWorkspace<D, K, C> {
    /// All zero; fit for a `static`.
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
