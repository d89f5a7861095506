//! Interfaces of aggregation rules: [`AggregationRule`] for vectors, [`SubspaceRule`] for subspaces, and
//! [`NamedRule`] for rules that a configuration can name.

use std::fmt;

use super::Weighted;
use crate::linalg::{Matrix, RankDeficient};
use crate::reader::{Problem, Section};

/// Rule that combines the updates of a round.
///
/// The result must depend only on the arguments, which are in the order of devices, so that it is the same
/// for any order of arrival.
pub trait AggregationRule: fmt::Debug + Send + Sync {
    /// Name of the rule in configuration files and messages, in lower case with hyphens between words.
    fn name(&self) -> &'static str;

    /// Combines updates of equal length into `out`, which has the same length and initially contains zeros.
    /// `updates` is not empty. `center` is the point from which updates deviate; it may be empty or shorter than `out`, and is then
    /// extended by zeros.
    fn combine(&self, updates: &[Weighted<'_>], center: &[f64], out: &mut [f64]);

    /// The rule as a rule for subspaces, if it interprets an upload as a basis of which only the span
    /// matters; otherwise `None`.
    fn as_subspace_rule(&self) -> Option<&dyn SubspaceRule> {
        None
    }

    /// Fraction of an uploaded gradient's norm that may be beyond its best approximation whose rank is the
    /// number of outputs; 1 if the rule does not need such gradients. An algorithm that receives gradients
    /// rejects others.
    fn rank_tolerance(&self) -> f64 {
        1.0
    }

    /// Keys of `[aggregation]` other than the name, with their values, as a campaign stores them.
    fn parameters(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// Rule that combines subspaces, each given by a basis of which only the span matters.
pub trait SubspaceRule {
    /// Combines orthonormal bases (d x k) with their weights, in the order of devices. The result is the
    /// basis of the combined subspace that is nearest to `reference` (d x k).
    ///
    /// # Errors
    /// [`RankDeficient`] if the bases span fewer than k directions.
    fn combine_subspaces(&self, bases: &[(f64, Matrix)], reference: &Matrix)
    -> Result<Matrix, RankDeficient>;
}

/// Rule that a configuration can name.
pub trait NamedRule: AggregationRule + Sized {
    /// Name of the rule in configuration files.
    const NAME: &'static str;
    /// Description of the rule in one line, for lists of rules.
    const SUMMARY: &'static str;
    /// Whether the rule interprets an upload as a basis of which only the span matters.
    const FOR_SUBSPACES: bool = false;

    /// Reads the rule's own keys from `[aggregation]`.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    fn read(section: &Section<'_>) -> Result<Self, Problem>;
}
