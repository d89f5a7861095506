//! Validated privacy parameters: each is checked when it is created.

/// Invalid privacy parameter.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ParameterError {
    /// An epsilon that is not finite and above 0.
    #[error("epsilon is {0}, must be finite and above 0")]
    Epsilon(f64),
    /// A delta that is not above 0 and below 1.
    #[error("delta is {0}, must be above 0 and below 1")]
    Delta(f64),
    /// A noise multiplier that is not finite and above 0.
    #[error("the noise multiplier is {0}, must be finite and above 0")]
    NoiseMultiplier(f64),
    /// A number of releases below 1.
    #[error("there are {0} releases, must be at least 1")]
    Releases(u32),
    /// An order of a Renyi divergence that is not finite and above 1.
    #[error("the order is {0}, must be finite and above 1")]
    Order(f64),
    /// A basis without a column.
    #[error("the rank is {0}, must be at least 1")]
    Rank(u32),
    /// A weight of a record that is not finite and above 0.
    #[error("a record weighs {0}, must be finite and above 0")]
    Weight(f64),
    /// No finite noise suffices for the requested epsilon and delta.
    #[error("no finite noise keeps {releases} releases within epsilon {epsilon} at delta {delta}")]
    OutOfReach {
        /// Requested epsilon.
        epsilon: f64,
        /// Requested delta.
        delta: f64,
        /// Requested number of releases.
        releases: u32,
    },
}

/// Requested upper bound of epsilon, finite and above 0. A spent epsilon is an `f64` instead, since it may be
/// 0 or infinite.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Epsilon(f64);

impl Epsilon {
    /// Checks an epsilon.
    ///
    /// # Errors
    /// [`ParameterError::Epsilon`] if it is not finite and above 0.
    pub fn new(epsilon: f64) -> Result<Self, ParameterError> {
        if is_positive(epsilon) { Ok(Self(epsilon)) } else { Err(ParameterError::Epsilon(epsilon)) }
    }

    /// Value as a number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

/// Delta, above 0 and below 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Delta(f64);

impl Delta {
    /// Default delta, 1e-5.
    pub const DEFAULT: Self = Self(1e-5);

    /// Checks a delta.
    ///
    /// # Errors
    /// [`ParameterError::Delta`] if it is not above 0 and below 1.
    pub fn new(delta: f64) -> Result<Self, ParameterError> {
        if delta > 0.0 && delta < 1.0 { Ok(Self(delta)) } else { Err(ParameterError::Delta(delta)) }
    }

    /// Value as a number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

/// Noise multiplier: standard deviation of the noise over the L2 sensitivity, finite and above 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct NoiseMultiplier(f64);

impl NoiseMultiplier {
    /// Checks a noise multiplier.
    ///
    /// # Errors
    /// [`ParameterError::NoiseMultiplier`] if it is not finite and above 0.
    pub fn new(multiplier: f64) -> Result<Self, ParameterError> {
        if is_positive(multiplier) {
            Ok(Self(multiplier))
        } else {
            Err(ParameterError::NoiseMultiplier(multiplier))
        }
    }

    /// Value as a number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

/// Number of releases, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Releases(u32);

impl Releases {
    /// Checks a number of releases.
    ///
    /// # Errors
    /// [`ParameterError::Releases`] if it is 0.
    pub fn new(releases: u32) -> Result<Self, ParameterError> {
        if releases > 0 { Ok(Self(releases)) } else { Err(ParameterError::Releases(releases)) }
    }

    /// Value as a number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Whether a value is finite and above 0.
pub(super) fn is_positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}
