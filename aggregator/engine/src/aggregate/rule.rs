//! Interface of an aggregation rule.

use std::fmt;

use super::Weighted;
use crate::linalg::{Matrix, RankDeficient};
use crate::reader::{Problem, Section};

/// Rule that combines the updates of a round.
///
/// A rule depends on nothing but its arguments, which come in the order of devices: the order of arrival does not
/// change a bit of the result.
pub trait AggregationRule: fmt::Debug + Send + Sync {
    /// Name in files and messages: lower case, words joined by hyphens.
    fn name(&self) -> &'static str;

    /// Combines updates of equal length into `out`, which has their length and is zero. `updates` is not empty;
    /// `center` is the point from which they are steps (zero where it is shorter).
    fn combine(&self, updates: &[Weighted<'_>], center: &[f64], out: &mut [f64]);

    /// The rule as one for subspaces, if it takes an upload as a basis of which only the span counts.
    fn as_subspace_rule(&self) -> Option<&dyn SubspaceRule> {
        None
    }

    /// Keys of `[aggregation]` besides the name, with their values, as a campaign stores them.
    fn parameters(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// Rule that combines subspaces, each given by a basis of which only the span counts.
pub trait SubspaceRule {
    /// Combines orthonormal bases (d x k) with their weights, in the order of devices, into the basis nearest to
    /// `reference` (d x k).
    ///
    /// # Errors
    /// [`RankDeficient`] if the bases span fewer than k directions.
    fn combine_subspaces(&self, bases: &[(f64, Matrix)], reference: &Matrix)
    -> Result<Matrix, RankDeficient>;
}

/// Rule that a configuration can name.
pub trait NamedRule: AggregationRule + Sized {
    /// Name in files.
    const NAME: &'static str;
    /// Description in one line.
    const SUMMARY: &'static str;
    /// Whether the rule takes an upload as a basis of which only the span counts.
    const FOR_SUBSPACES: bool = false;

    /// Reads the rule's own keys from `[aggregation]`.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    fn read(section: &Section<'_>) -> Result<Self, Problem>;
}
