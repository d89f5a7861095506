//! Error type of encoding and decoding.

use core::fmt;

/// Error of encoding or decoding. Every variant contains the numbers that describe the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum Error {
    /// The output buffer is too small.
    BufferTooSmall {
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes available.
        got: usize,
    },
    /// The bytes are not a message of this version.
    Malformed,
    /// Bytes follow a message that has no body.
    TrailingBytes {
        /// Number of surplus bytes.
        count: usize,
    },
    /// The length of a tensor's bytes does not match its descriptor.
    LengthMismatch {
        /// Number of bytes that the descriptor describes.
        expected: usize,
        /// Number of bytes received.
        got: usize,
    },
    /// A descriptor is impossible: a side of zero, too many elements, or a chunk length that splits an
    /// encoding block.
    BadDescriptor,
    /// A value to encode is not finite.
    NonFinite {
        /// Index of the first value that is not finite.
        index: usize,
    },
    /// The columns are linearly dependent and cannot be orthonormalised.
    RankDeficient {
        /// Index of the first column that depends linearly on earlier columns.
        column: usize,
    },
    /// A channel has used all frame counters and cannot seal another frame.
    Exhausted,
    /// The frame could not be sealed: the hardware has failed, or it has no short tags.
    Unsealed,
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
                write!(f, "tensor body has {got} bytes, its descriptor needs {expected}")
            }
            Self::BadDescriptor => f.write_str("tensor descriptor is invalid"),
            Self::NonFinite { index } => write!(f, "element {index} is not finite"),
            Self::Unsealed => f.write_str("the frame could not be sealed"),
            Self::Exhausted => f.write_str("the channel has no frame counters left; reconnect"),
            Self::RankDeficient { column } => {
                write!(f, "column {column} depends linearly on those before it")
            }
        }
    }
}

impl core::error::Error for Error {}
