//! Registry of the aggregation rules that a configuration can name.
//!
//! A new rule is a file with a type that implements [`AggregationRule`] and [`NamedRule`], and a line in the
//! registry below. A rule from outside the project is a [`Rule::custom`].

use super::Weighted;
use super::geometric_median::GeometricMedian;
use super::mean::Mean;
use super::rule::{AggregationRule, NamedRule, SubspaceRule};
use super::subspaces::{ProjectorGeometricMedian, ProjectorMean};
use super::trimmed_mean::TrimmedMean;
use crate::reader::{Problem, Section};

/// Rule from outside the project.
#[derive(Clone, Copy, Debug)]
pub struct CustomRule(&'static dyn AggregationRule);

/// Compares identity: two rules are equal if they are the same object.
impl PartialEq for CustomRule {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name() && std::ptr::addr_eq(self.0, other.0)
    }
}

macro_rules! registry {
    ($($Type:ident,)+) => {
        /// Rule of a campaign.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Rule {
            $(#[doc = concat!("[`", stringify!($Type), "`]")] $Type($Type),)+
            /// Rule from outside the project.
            Custom(CustomRule),
        }

        impl Rule {
            /// Names of the rules that a configuration can name, each with a description in one line.
            pub const NAMES: &[(&str, &str)] = &[$(($Type::NAME, $Type::SUMMARY),)+];

            /// Names of the rules for uploads that are no subspaces.
            pub fn names_for_vectors() -> impl Iterator<Item = &'static str> {
                let rules = [$(($Type::NAME, $Type::FOR_SUBSPACES),)+];
                rules.into_iter().filter(|(_, for_subspaces)| !for_subspaces).map(|(name, _)| name)
            }

            /// Reads the rule called `name`, one of [`Self::NAMES`], with its own keys from `[aggregation]`.
            ///
            /// # Errors
            /// [`Problem`] for the first mistake, and for a name that is not in the list.
            pub(crate) fn read(name: &str, section: &Section<'_>) -> Result<Self, Problem> {
                match name {
                    $($Type::NAME => $Type::read(section).map(Self::$Type),)+
                    _ => Err(section.problem("rule", format!("found {name:?}, which is no rule"))),
                }
            }

            fn as_dyn(&self) -> &dyn AggregationRule {
                match self {
                    $(Self::$Type(rule) => rule,)+
                    Self::Custom(CustomRule(rule)) => *rule,
                }
            }
        }
    };
}

registry! {
    Mean,
    GeometricMedian,
    TrimmedMean,
    ProjectorMean,
    ProjectorGeometricMedian,
}

impl Rule {
    /// Weighted mean.
    pub const MEAN: Self = Self::Mean(Mean);
    /// Geometric median of clipped updates.
    pub const GEOMETRIC_MEDIAN: Self = Self::GeometricMedian(GeometricMedian);
    /// Mean of projectors.
    pub const PROJECTOR_MEAN: Self = Self::ProjectorMean(ProjectorMean);
    /// Geometric median of projectors.
    pub const PROJECTOR_GEOMETRIC_MEDIAN: Self = Self::ProjectorGeometricMedian(ProjectorGeometricMedian);

    /// Trimmed mean without `trim` (0 to below 0.5) of the weight at each end.
    #[must_use]
    pub const fn trimmed_mean(trim: f64) -> Self {
        Self::TrimmedMean(TrimmedMean { trim })
    }

    /// Rule from outside the project. Rules live as long as the program, since settings are copied freely: a box
    /// that is made at run time is kept for ever.
    #[must_use]
    pub fn custom(rule: Box<dyn AggregationRule>) -> Self {
        Self::Custom(CustomRule(Box::leak(rule)))
    }

    /// Name in configuration files.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        self.as_dyn().name()
    }

    /// Keys of `[aggregation]` besides the name, with their values.
    #[must_use]
    pub fn parameters(&self) -> Vec<(&'static str, f64)> {
        self.as_dyn().parameters()
    }

    /// Whether the rule takes an upload as a basis of which only the span counts.
    #[must_use]
    pub fn is_for_subspaces(&self) -> bool {
        self.as_dyn().as_subspace_rule().is_some()
    }

    /// Rule for uploads that are no subspaces, such as those of a start, in a campaign under this rule. With
    /// a plain mean there, an attacker could get around the rule.
    #[must_use]
    pub fn for_vectors(self) -> Self {
        if self.is_for_subspaces() { Self::GEOMETRIC_MEDIAN } else { self }
    }

    /// Whether the rule needs all updates of a round at once.
    #[must_use]
    pub fn needs_all_updates(&self) -> bool {
        !matches!(self, Self::Mean(_))
    }

    /// Combines the updates of a round, not empty, in the order of devices.
    pub(super) fn combine(&self, updates: &[Weighted<'_>], center: &[f64]) -> Vec<f64> {
        let mut combined = vec![0.0; updates.first().map_or(0, |update| update.values.len())];
        self.as_dyn().combine(updates, center, &mut combined);
        combined
    }

    /// The rule as one for subspaces, if it is one.
    pub(super) fn as_subspace_rule(&self) -> Option<&dyn SubspaceRule> {
        self.as_dyn().as_subspace_rule()
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::MEAN
    }
}
