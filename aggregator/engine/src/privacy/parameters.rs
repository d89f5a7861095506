//! Parameters that are what they say: checked once, where they come in.

/// A parameter for which there is no account.
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
    /// Too few releases.
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
    /// No noise of finite size is enough.
    #[error("no finite noise keeps {releases} releases within epsilon {epsilon} at delta {delta}")]
    OutOfReach {
        /// The epsilon that was asked for.
        epsilon: f64,
        /// At this delta.
        delta: f64,
        /// For so many releases.
        releases: u32,
    },
}

/// An epsilon to stay within: finite and above 0. What was spent is an `f64`, as it may be 0 or infinite.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Epsilon(f64);

impl Epsilon {
    /// This epsilon.
    ///
    /// # Errors
    /// [`ParameterError::Epsilon`].
    pub fn new(epsilon: f64) -> Result<Self, ParameterError> {
        if positive(epsilon) { Ok(Self(epsilon)) } else { Err(ParameterError::Epsilon(epsilon)) }
    }

    /// As a number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

/// A delta, above 0 and below 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Delta(f64);

impl Delta {
    /// Where nobody says otherwise: 1e-5.
    pub const DEFAULT: Self = Self(1e-5);

    /// This delta.
    ///
    /// # Errors
    /// [`ParameterError::Delta`].
    pub fn new(delta: f64) -> Result<Self, ParameterError> {
        if delta > 0.0 && delta < 1.0 { Ok(Self(delta)) } else { Err(ParameterError::Delta(delta)) }
    }

    /// As a number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

/// The standard deviation of the noise over the L2 sensitivity of what it is added to: finite and above 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct NoiseMultiplier(f64);

impl NoiseMultiplier {
    /// This multiplier.
    ///
    /// # Errors
    /// [`ParameterError::NoiseMultiplier`].
    pub fn new(multiplier: f64) -> Result<Self, ParameterError> {
        if positive(multiplier) {
            Ok(Self(multiplier))
        } else {
            Err(ParameterError::NoiseMultiplier(multiplier))
        }
    }

    /// As a number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

/// How many releases, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Releases(u32);

impl Releases {
    /// So many.
    ///
    /// # Errors
    /// [`ParameterError::Releases`].
    pub fn new(releases: u32) -> Result<Self, ParameterError> {
        if releases > 0 { Ok(Self(releases)) } else { Err(ParameterError::Releases(releases)) }
    }

    /// As a number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Finite and above 0.
pub(super) fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}
