//! The one error type of this crate.

use core::fmt;

/// Why something could not be encoded or decoded. Every variant carries its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The output buffer is too small.
    BufferTooSmall {
        /// Bytes that were needed.
        needed: usize,
        /// Bytes that were there.
        got: usize,
    },
    /// The bytes are not a message of this version.
    Malformed,
    /// A message that has no body was followed by bytes.
    TrailingBytes {
        /// How many.
        count: usize,
    },
    /// A tensor's bytes do not have the length that its descriptor asks for.
    LengthMismatch {
        /// Bytes that the descriptor asks for.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
    /// A descriptor describes nothing that can exist (a side of zero, too many elements, a chunk
    /// length that does not suit the encoding).
    BadDescriptor,
    /// A value that is not finite was to be encoded.
    NonFinite {
        /// Index of the first such value.
        index: usize,
    },
    /// The columns cannot be orthonormalised.
    RankDeficient {
        /// The first column that depends on those before it.
        column: usize,
    },
    /// A channel can seal nothing more.
    Exhausted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BufferTooSmall { needed, got } => {
                write!(f, "buffer too small: {needed} bytes needed, {got} available")
            }
            Self::Malformed => f.write_str("not a message of this wire version"),
            Self::TrailingBytes { count } => write!(f, "{count} bytes after a message without a body"),
            Self::LengthMismatch { expected, got } => {
                write!(f, "tensor body of {got} bytes where {expected} were described")
            }
            Self::BadDescriptor => f.write_str("impossible tensor descriptor"),
            Self::NonFinite { index } => write!(f, "element {index} is not finite"),
            Self::Exhausted => f.write_str("no counters are left to seal frames with"),
            Self::RankDeficient { column } => write!(f, "column {column} depends on those before it"),
        }
    }
}

impl core::error::Error for Error {}
