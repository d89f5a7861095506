//! Names and properties of the aggregation rules.

/// Default fraction of the weight that a trimmed mean cuts off at each end: the guarantee is for at most 20 %
/// attackers.
pub const TRIM: f64 = 0.2;

/// Rule that combines the updates of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rule {
    /// Weighted mean. A single bad device can move it anywhere.
    #[default]
    Mean,
    /// Geometric median of updates clipped to the median norm of the round.
    GeometricMedian,
    /// Coordinate-wise mean without the lowest and the highest `trim` of the weight.
    TrimmedMean {
        /// Fraction of the weight cut off at each end, from 0 to below 0.5.
        trim: f64,
    },
    /// For subspaces: the k leading eigenvectors of the mean of the orthogonal projectors.
    ProjectorMean,
    /// For subspaces: the k leading eigenvectors of the geometric median of the projectors.
    ProjectorGeometricMedian,
}

impl Rule {
    /// Name in configuration files.
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

    /// Whether the rule takes an upload as a basis of which only the span counts.
    #[must_use]
    pub fn is_for_subspaces(self) -> bool {
        matches!(self, Self::ProjectorMean | Self::ProjectorGeometricMedian)
    }

    /// Rule for uploads that are no subspaces, such as those of a start, in a campaign under this rule. With
    /// a plain mean there, an attacker could get around the rule.
    #[must_use]
    pub fn for_vectors(self) -> Self {
        if self.is_for_subspaces() { Self::GeometricMedian } else { self }
    }

    /// Whether the rule needs all updates of a round at once.
    #[must_use]
    pub fn needs_all_updates(self) -> bool {
        self != Self::Mean
    }
}
