//! Errors of the client: one small `Copy` type per operation.

use core::fmt;

/// Checks that the values of a sample are finite.
///
/// # Errors
/// [`NotReady::NonFinite`] with the index of the first value that is not.
pub(crate) fn check_finite(x: &[f32]) -> Result<(), NotReady> {
    first_non_finite(x).map_or(Ok(()), |index| Err(NotReady::NonFinite { index }))
}

/// Checks the length of a sample or an output.
///
/// # Errors
/// [`NotReady::Length`] with both lengths.
pub(crate) fn check_length(expected: usize, got: usize) -> Result<(), NotReady> {
    if expected == got { Ok(()) } else { Err(NotReady::Length { expected, got }) }
}

/// Checks the outputs of a prediction.
///
/// # Errors
/// [`NotReady::Overflow`] with the index of the first output that is not finite.
pub(crate) fn check_prediction(out: &[f32]) -> Result<(), NotReady> {
    first_non_finite(out).map_or(Ok(()), |index| Err(NotReady::Overflow { index }))
}

/// Checks that the values of a representation are finite.
///
/// # Errors
/// [`RepresentationError::NonFinite`] with the index of the first value that is not.
pub(crate) fn check_representation(b: &[f32]) -> Result<(), RepresentationError> {
    first_non_finite(b).map_or(Ok(()), |index| Err(RepresentationError::NonFinite { index }))
}

/// Returns the index of the first value that is not finite.
fn first_non_finite(values: &[f32]) -> Option<usize> {
    values.iter().position(|value| !value.is_finite())
}

/// Reason why `predict` cannot make a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum NotReady {
    /// No verified representation is in memory: none was received, or a download is in progress.
    NoRepresentation,
    /// The head was never fitted, or was fitted on another representation.
    NoHead,
    /// The sample or the output has the wrong length.
    Length {
        /// Length that the model needs.
        expected: usize,
        /// Length that was given.
        got: usize,
    },
    /// A value of a sample is not finite.
    NonFinite {
        /// Index of the value.
        index: usize,
    },
    /// A prediction is not finite: a sum overflows, or a value has no place in fixed point.
    Overflow {
        /// Index of the output.
        index: usize,
    },
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoRepresentation => f.write_str("no verified representation yet"),
            Self::NoHead => f.write_str("no head fitted on this representation yet"),
            Self::Length { expected, got } => write!(f, "length is {got}; the model needs {expected}"),
            Self::NonFinite { index } => write!(f, "value {index} is not finite"),
            Self::Overflow { index } => write!(f, "output {index} of the prediction is not finite"),
        }
    }
}

impl core::error::Error for NotReady {}

/// Reason why a model does not store a representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum RepresentationError {
    /// The number of values is wrong.
    Length {
        /// Number of values that the model needs.
        expected: usize,
        /// Number of values that were given.
        got: usize,
    },
    /// A value is not finite.
    NonFinite {
        /// Index of the first such value, row by row.
        index: usize,
    },
}

impl fmt::Display for RepresentationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length { expected, got } => write!(f, "{got} values given; the model needs {expected}"),
            Self::NonFinite { index } => write!(f, "value {index} of the representation is not finite"),
        }
    }
}

impl core::error::Error for RepresentationError {}

/// Error of a slice with the wrong number of elements for the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
pub struct ShapeMismatch {
    /// Number of elements that the model needs.
    pub expected: usize,
    /// Number of elements that were given.
    pub got: usize,
}

impl fmt::Display for ShapeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements given; the model needs {}", self.got, self.expected)
    }
}

impl core::error::Error for ShapeMismatch {}

/// Reason why the samples could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum SourceError {
    /// The storage or sensor behind the source failed.
    #[default]
    Device,
    /// The source cannot repeat its samples.
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
