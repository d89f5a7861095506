//! Errors of the client: one small `Copy` type per operation.

use core::fmt;

/// `predict` has nothing to predict with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotReady {
    /// No verified representation is in memory: none has come yet, or a download is under way.
    NoRepresentation,
    /// The head was fitted on another representation, or not at all.
    NoHead,
    /// The sample or the output has the wrong length.
    Length {
        /// What the model needs.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// A value of a sample is not finite.
    NonFinite {
        /// Which one.
        index: usize,
    },
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoRepresentation => f.write_str("no verified representation yet"),
            Self::NoHead => f.write_str("no head fitted on this representation yet"),
            Self::Length { expected, got } => write!(f, "length {got}, the model needs {expected}"),
            Self::NonFinite { index } => write!(f, "value {index} is not finite"),
        }
    }
}

impl core::error::Error for NotReady {}

/// Something has another shape than the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeMismatch {
    /// Elements that the model needs.
    pub expected: usize,
    /// Elements that were given.
    pub got: usize,
}

impl fmt::Display for ShapeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements, the model needs {}", self.got, self.expected)
    }
}

impl core::error::Error for ShapeMismatch {}

/// The samples could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceError {
    /// The storage or sensor behind the source failed.
    #[default]
    Device,
    /// The source cannot hand out its samples a second time.
    NotReplayable,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "the sample source failed",
            Self::NotReplayable => "the sample source cannot be read twice",
        })
    }
}

impl core::error::Error for SourceError {}
