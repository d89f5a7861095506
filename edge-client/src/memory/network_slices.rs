//! Memory of a network whose sizes are known at run time only.

use core::fmt;

use super::{NetworkMemory, NetworkParts, NetworkShape};
#[cfg(feature = "adapter")]
use crate::kernel::frozen::Frozen;
use crate::pace::Pace;

/// Memory of a network in two arrays of the caller, for sizes that are known at run time only.
/// [`NetworkWorkspace`](super::NetworkWorkspace) has the sizes at compile time; both give the same bits.
///
/// ```
/// use fedspan_client::Network;
/// use fedspan_client::memory::{NetworkShape, NetworkSlices};
///
/// let shape = NetworkShape::new(64, &[32], 7, 10);
/// let mut values = vec![0.0; NetworkSlices::values(shape, true)];
/// let mut bytes = vec![0; shape.bytes()];
/// let network = Network::new(NetworkSlices::new(shape, true, &mut values, &mut bytes)?, 1);
/// # Ok::<(), fedspan_client::memory::SlicesError>(())
/// ```
#[derive(Debug)]
pub struct NetworkSlices<'a> {
    shape: NetworkShape,
    parameters: &'a mut [f32],
    velocity: &'a mut [f32],
    scratch: &'a mut [f32],
    body_cache: &'a mut [f32],
    classes: &'a mut [u8],
    pool_indices: &'a mut [u8],
    #[cfg(feature = "adapter")]
    frozen: Frozen<'a>,
}

/// Error of an array that is too short for a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlicesError {
    /// There are too few values.
    Values {
        /// Number of values that the network needs.
        needed: usize,
        /// Number of values that were given.
        got: usize,
    },
    /// There are too few bytes.
    Bytes {
        /// Number of bytes that the network needs.
        needed: usize,
        /// Number of bytes that were given.
        got: usize,
    },
}

impl fmt::Display for SlicesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, needed, got) = match self {
            Self::Values { needed, got } => ("values", needed, got),
            Self::Bytes { needed, got } => ("bytes", needed, got),
        };
        write!(f, "{got} {unit} given; the network needs {needed}")
    }
}

impl core::error::Error for SlicesError {}

impl<'a> NetworkSlices<'a> {
    /// Returns the number of values for these sizes: parameters, velocity if the network has `momentum`, and
    /// working memory.
    #[must_use]
    pub const fn values(shape: NetworkShape, momentum: bool) -> usize {
        (if momentum { 2 } else { 1 }) * shape.parameters() + shape.scratch()
    }

    /// Creates the memory of zeros. `bytes` has [`NetworkShape::bytes`] bytes. Values beyond
    /// [`Self::values`] cache the outputs of the body, if they suffice for the samples
    /// ([`NetworkShape::body_cache_len`]).
    ///
    /// # Errors
    /// [`SlicesError`] names the array that is too short, with the numbers needed and given.
    pub fn new(
        shape: NetworkShape,
        momentum: bool,
        values: &'a mut [f32],
        bytes: &'a mut [u8],
    ) -> Result<Self, SlicesError> {
        let parameters = shape.parameters();
        let lengths = [parameters, if momentum { parameters } else { 0 }, shape.scratch()];
        let too_few_values = SlicesError::Values { needed: Self::values(shape, momentum), got: values.len() };
        let too_few_bytes = SlicesError::Bytes { needed: shape.bytes(), got: bytes.len() };
        let (bytes, _) = bytes.split_at_mut_checked(shape.bytes()).ok_or(too_few_bytes)?;
        let (classes, pool_indices) = bytes.split_at_mut_checked(shape.batch).ok_or(too_few_bytes)?;
        let mut buffers: [&mut [f32]; 3] = Default::default();
        let mut rest = values;
        for (buffer, length) in buffers.iter_mut().zip(lengths) {
            let (taken, after) = rest.split_at_mut_checked(length).ok_or(too_few_values)?;
            taken.fill(0.0);
            (*buffer, rest) = (taken, after);
        }
        let [parameters, velocity, scratch] = buffers;
        Ok(Self {
            shape,
            parameters,
            velocity,
            scratch,
            body_cache: rest,
            classes,
            pool_indices,
            #[cfg(feature = "adapter")]
            frozen: Frozen::Nothing,
        })
    }

    /// Sets the frozen layer that the adapter belongs to. A layer of other sizes declines every round.
    #[cfg(feature = "adapter")]
    #[must_use]
    pub fn with_frozen(self, frozen: Frozen<'a>) -> Self {
        Self { frozen, ..self }
    }
}

impl NetworkMemory for NetworkSlices<'_> {
    fn parts(&mut self) -> NetworkParts<'_> {
        NetworkParts {
            shape: self.shape,
            parameters: self.parameters,
            velocity: self.velocity,
            scratch: self.scratch,
            classes: self.classes,
            pool_indices: self.pool_indices,
            body_cache: self.body_cache,
            pace: Pace::NONE,
            #[cfg(feature = "adapter")]
            frozen: self.frozen,
        }
    }

    fn shape(&self) -> NetworkShape {
        self.shape
    }

    fn parameters(&self) -> &[f32] {
        self.parameters
    }

    #[cfg(feature = "adapter")]
    fn frozen(&self) -> Frozen<'_> {
        self.frozen
    }
}
