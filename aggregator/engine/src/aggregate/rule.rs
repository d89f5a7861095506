//! The rules by name.

/// The part of the weight that a trimmed mean leaves out at each end, unless told otherwise: what is promised
/// is at most 20 % of attackers.
pub const TRIM: f64 = 0.2;

/// How the updates of a round become one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rule {
    /// The weighted mean. One bad device can put it anywhere.
    #[default]
    Mean,
    /// The geometric median of updates that were clipped to the median norm of the round's.
    GeometricMedian,
    /// The mean of what is left, coordinate by coordinate, without the lowest and highest `trim` of the weight.
    TrimmedMean {
        /// The part of the weight left out at each end, from 0 to under 0.5.
        trim: f64,
    },
    /// For subspaces: the k directions that most of the mean of the orthogonal projectors lies in.
    ProjectorMean,
    /// For subspaces: the same of the geometric median of the projectors.
    ProjectorGeometricMedian,
}

impl Rule {
    /// The name as it stands in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::GeometricMedian => "geometric-median",
            Self::TrimmedMean { .. } => "trimmed-mean",
            Self::ProjectorMean => "projector-mean",
            Self::ProjectorGeometricMedian => "projector-geometric-median",
        }
    }

    /// Whether it sees an upload as a basis of which only the span counts.
    #[must_use]
    pub fn is_for_subspaces(self) -> bool {
        matches!(self, Self::ProjectorMean | Self::ProjectorGeometricMedian)
    }

    /// The rule for what is no subspace in a campaign under this one: the numbers of a start. A start that is
    /// a plain mean would be the way around the rule.
    #[must_use]
    pub fn for_vectors(self) -> Self {
        if self.is_for_subspaces() { Self::GeometricMedian } else { self }
    }

    /// Whether it needs all updates of a round at once.
    #[must_use]
    pub fn needs_all_updates(self) -> bool {
        self != Self::Mean
    }
}
